"""What a model loses when heads go: evaluations under gates that a run keeps, and their change in pairs over the same examples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from headcount.app.console.options import split
from headcount.app.console.pruning import parse_heads
from headcount.core.errors import unknown
from headcount.core.heads import Head
from headcount.models.head_map import HeadMap

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

    from headcount.core.evaluation import Evaluation
    from headcount.core.stats.significance import Difference
    from headcount.data.task import Split, Task
    from headcount.runs.store import Run

SURE = 0.001
"""The p-value of being above chance, by 2,000 resamples, beyond which a share of the score is not defined: none of them is at chance or below."""


@dataclass(frozen=True, slots=True)
class Drop:
    """A model with some heads gone against itself, or another: change of the loss and of the metric."""

    loss: Difference
    metric: Difference | None

    @property
    def shown(self) -> Difference:
        """The change of the metric, or of the loss where there is none."""
        return self.metric if self.metric is not None else self.loss

    def flat(self) -> dict[str, float]:
        """The numbers by name, for a table."""
        numbers = {f"loss {name}": value for name, value in asdict(self.loss).items()}
        if self.metric is not None:
            numbers |= {f"metric {name}": value for name, value in asdict(self.metric).items()}
        return numbers


@dataclass(frozen=True, slots=True)
class Share:
    """The share of a model's own score above chance that is left, with the interval of a bootstrap; `left` is None, and `why` says why, where that is
    not defined: the whole model is not above chance, or chance is not known.
    """

    chance: float | None
    left: Difference | None
    why: str = ""

    def flat(self) -> dict[str, float | None]:
        """The numbers by name, for a table."""
        ends = ("difference", "low", "high")
        shown = dict.fromkeys(ends) if self.left is None else {name: getattr(self.left, name) for name in ends}
        return {"chance": self.chance, "left": shown["difference"], "left low": shown["low"], "left high": shown["high"]}


def drop(whole: Evaluation, other: Evaluation, task: Task, *, seed: int = 0) -> Drop:
    """How `other` differs from `whole` on the same examples: paired t for the loss, paired bootstrap for the metric."""
    from headcount.core.stats.significance import paired_bootstrap, paired_t

    loss = paired_t(other.losses - whole.losses)
    if task.metric is None or whole.parts is None or other.parts is None:
        return Drop(loss, None)
    return Drop(loss, paired_bootstrap(whole.parts, other.parts, task.metric.total, seed=seed))


def chance_of(model: nn.Module, task: Task, limit: int | None = None) -> float | None:
    """The metric of the best constant answer to the labels of the report split; None where the task's metric defines none."""
    import numpy as np

    from headcount.data.chunks import batches
    from headcount.data.metrics import IGNORED
    from headcount.models.modules import shifts

    if task.metric is None or task.metric.chance is None:
        return None
    by_batch = []
    for batch in batches(task, split="report", limit=limit):
        labels = np.asarray(batch["labels"])
        by_batch.append((labels[:, 1:] if labels.ndim > 1 and shifts(model) else labels).ravel())
    labels = np.concatenate(by_batch)
    return task.metric.chance(labels[labels != IGNORED])


def share_left(whole: Evaluation, other: Evaluation, task: Task, chance: float | None, *, seed: int = 0) -> Share:
    """The share of the score above chance that `other` has left of `whole`, (other − chance) / (whole − chance); of perplexities, their logarithms.

    Not defined where the whole model is not above chance in every one of 2,000 resamples of the examples.
    """
    import numpy as np

    from headcount.core.stats.significance import Difference, paired_bootstrap

    if chance is None or task.metric is None or whole.parts is None or other.parts is None:
        return Share(None, None, f"chance is not known for {whole.metric or 'a task without a metric'}")
    total, floor, width = task.metric.total, _scale(task, chance), whole.parts.shape[1]
    flag = np.ones((len(whole.parts), 1))
    against_chance = paired_bootstrap(
        np.hstack([whole.parts, 0 * flag]),
        np.hstack([whole.parts, flag]),
        lambda sums: np.where(sums[..., -1] > 0, _scale(task, total(sums[..., :-1])), floor),
        seed=seed,
    )
    if against_chance.difference <= 0:
        return Share(chance, None, f"{whole.metric} {score_of(whole):.4g} is not better than chance, {chance:.4g}")
    if against_chance.p > SURE:
        return Share(
            chance, None, f"{whole.metric} {score_of(whole):.4g} is not surely better than chance, {chance:.4g} (p {against_chance.p:.2g})"
        )

    def share(sums: np.ndarray) -> np.ndarray:
        before, after = (_scale(task, total(part)) - floor for part in (sums[..., :width], sums[..., width:]))
        return after / before

    lost = paired_bootstrap(np.hstack([whole.parts] * 2), np.hstack([whole.parts, other.parts]), share, seed=seed)
    return Share(chance, Difference(1 + lost.difference, 1 + lost.low, 1 + lost.high, lost.p))


def _scale(task: Task, value: Any) -> Any:
    """A value of the task's metric on a scale where more is better and differences compare: itself, or − ln of a perplexity."""
    import numpy as np

    return value if task.metric is None or task.metric.higher_is_better else -np.log(value)


def relative_gap(one: Sequence[Evaluation], other: Sequence[Evaluation], task: Task, chance: float, *, seed: int = 0) -> Difference:
    """The share of the score above chance that one model loses minus that which another loses, each a pair (whole, pruned) on the same examples, by
    paired bootstrap; both shares must be defined.
    """
    import numpy as np

    from headcount.core.stats.significance import paired_bootstrap

    total, floor = task.metric.total if task.metric is not None else None, _scale(task, chance)
    assert total is not None

    def fall(sums: np.ndarray) -> np.ndarray:
        whole, pruned = (_scale(task, total(part)) - floor for part in np.split(sums, 2, axis=-1))
        return 1 - pruned / whole

    both = [np.hstack([model.parts for model in pair if model.parts is not None]) for pair in (other, one)]
    return paired_bootstrap(both[0], both[1], fall, seed=seed)


def admit(run: Run | None, model: nn.Module) -> None:
    """Lets a run hold artifacts of a model that a study compares with the run's own."""
    from headcount.models.provenance import weight_hash

    if run is not None:
        run.admit(weight_hash(model))


def without(
    run: Run | None,
    name: str,
    model: nn.Module,
    task: Task,
    heads: Iterable[Head],
    *,
    how: str = "zero",
    means: Any = None,
    limit: int | None = None,
    batch_size: int | None = None,
) -> Evaluation:
    """The model on the report split with some heads gated away, kept in a run under a name."""
    import torch

    from headcount.models.gates import HeadGates
    from headcount.workflows.evaluate import evaluate_into

    admit(run, model)
    gone = frozenset(heads)
    if not gone:
        return evaluate_into(run, name, model, task, limit=limit, batch_size=batch_size)
    under: dict[str, Any] = {"removed": sorted(map(str, gone)), "how": how}
    if means is not None:
        under["means"] = _print(means)
    values = torch.tensor([float(head not in gone) for head in HeadMap.of(model)], dtype=torch.float64)
    with HeadGates(model, values, how=how, means=means):  # pyright: ignore[reportArgumentType]
        return evaluate_into(run, name, model, task, under=under, limit=limit, batch_size=batch_size)


def _print(means: Any) -> str:
    import hashlib

    digest = hashlib.sha256()
    for name in sorted(means):
        digest.update(name.encode())
        digest.update(means[name].detach().double().cpu().numpy().tobytes())
    return digest.hexdigest()


def check_how(how: str) -> None:
    """Refuses an ablation that does not exist."""
    from typing import get_args

    from headcount.models.gates import How

    if how not in get_args(How):
        raise unknown("ablation", how, get_args(How))


def means_of(model: nn.Module, task: Task, how: str, limit: int | None, split: Split = "calibration") -> Any:
    """The mean outputs of the heads on a split, if that is what takes their place."""
    check_how(how)
    if how != "mean":
        return None
    from headcount.data.chunks import batches
    from headcount.models.observe import mean_outputs

    return mean_outputs(model, batches(task, split=split, limit=limit))


def averaged(made: Sequence[Evaluation], task: Task) -> Evaluation:
    """Several models of one kind, such as seeds, as one: the mean of each example's loss and of what it adds to the metric."""
    import numpy as np

    first = made[0]
    losses = np.mean([one.losses for one in made], axis=0)
    if task.metric is None or first.parts is None:
        return replace(first, losses=losses)
    parts = np.mean([one.parts for one in made if one.parts is not None], axis=0)
    return replace(first, losses=losses, parts=parts, value=float(task.metric.total(parts.sum(0))))


def levels(text: str | None, heads: HeadMap, shares: Sequence[float]) -> list[int]:
    """How many heads stay at each level of a curve, most first: as asked for, or these shares of the units that stay or go together."""
    if text is not None:
        return sorted({parse_heads(part, heads) for part in split(text)}, reverse=True)
    units = heads.units()
    size = len(units[0]) if len({len(unit) for unit in units}) == 1 else 1
    number = len(heads) // size
    return sorted({max(1, round(share * number)) * size for share in shares}, reverse=True)


def score_of(made: Evaluation) -> float:
    """The metric, or the loss where there is none."""
    return made.loss if made.value is None else made.value


def interval(made: Difference) -> str:
    """A difference and its interval as text."""
    return f"{made.difference:+.3g} ({made.low:+.3g} … {made.high:+.3g})"
