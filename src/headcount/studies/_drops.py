"""What a model loses when heads go: evaluations under gates that a run keeps, and their change in pairs over the same examples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

    from headcount.data import Split, Task
    from headcount.evaluate import Evaluation
    from headcount.heads import Head, HeadMap
    from headcount.runs.store import Run
    from headcount.stats import Difference

TINY = 1e-12


@dataclass(frozen=True, slots=True)
class Drop:
    """A model with some heads gone against itself, or another: change of the loss and of the metric, and the share of its own score that is left."""

    loss: Difference
    metric: Difference | None
    left: Difference

    @property
    def shown(self) -> Difference:
        """The change of the metric, or of the loss where there is none."""
        return self.metric if self.metric is not None else self.loss

    def flat(self) -> dict[str, float]:
        """The numbers by name, for a table; `left` is a share, with the interval of a bootstrap."""
        found = {f"loss {name}": value for name, value in asdict(self.loss).items()}
        if self.metric is not None:
            found |= {f"metric {name}": value for name, value in asdict(self.metric).items()}
        return found | {"left": self.left.difference, "left low": self.left.low, "left high": self.left.high}


def drop(whole: Evaluation, other: Evaluation, task: Task, *, seed: int = 0) -> Drop:
    """How `other` differs from `whole` on the same examples: paired t for the loss, paired bootstrap for the metric and for the share left."""
    import numpy as np

    from headcount.stats import Difference, paired_bootstrap, paired_t

    loss = paired_t(other.losses - whole.losses)
    has_metric = task.metric is not None and whole.parts is not None and other.parts is not None
    (before, total, higher), (after, _, _) = measured(whole, task), measured(other, task)
    metric = paired_bootstrap(before, after, total, seed=seed) if has_metric else None
    made = paired_bootstrap(before, after, lambda sums: (1 if higher else -1) * np.log(np.maximum(total(sums), TINY)), seed=seed)
    share, low, high = (float(np.exp(value)) for value in (made.difference, made.low, made.high))
    left = Difference(share, low, high, made.p)
    return Drop(loss, metric, left)


def measured(made: Evaluation, task: Task) -> tuple[np.ndarray, Any, bool]:
    """What each example adds to the metric, how sums of that become its value, and whether more is better; the loss where there is no metric."""
    import numpy as np

    if task.metric is None or made.parts is None:
        return np.stack([made.losses, np.ones_like(made.losses)], 1), lambda sums: sums[..., 0] / sums[..., 1], False
    return made.parts, task.metric.total, task.metric.higher_is_better


def relative_gap(one: Sequence[Evaluation], other: Sequence[Evaluation], task: Task, *, seed: int = 0) -> Difference:
    """The relative drop of one model minus that of another, each a pair (whole, pruned) on the same examples, by paired bootstrap."""
    import numpy as np

    from headcount.stats import paired_bootstrap

    parts, total, higher = measured(one[0], task)
    width = parts.shape[1]

    def fall(sums: np.ndarray) -> np.ndarray:
        whole, pruned = np.maximum(total(sums[..., :width]), TINY), np.maximum(total(sums[..., width:]), TINY)
        return 1 - pruned / whole if higher else 1 - whole / pruned

    both = [np.concatenate([measured(made, task)[0] for made in pair], axis=1) for pair in (other, one)]
    return paired_bootstrap(both[0], both[1], fall, seed=seed)


def without(
    run: Run | None, name: str, model: nn.Module, task: Task, heads: Iterable[Head], *, how: str = "zero", means: Any = None, **reading: Any
) -> Evaluation:
    """The model on the report split with some heads gated away, kept in a run under a name."""
    import torch

    from headcount.evaluate import evaluate_into
    from headcount.gates import HeadGates
    from headcount.heads import HeadMap

    gone = frozenset(heads)
    if not gone:
        return evaluate_into(run, name, model, task, **reading)
    under: dict[str, Any] = {"removed": sorted(map(str, gone)), "how": how}
    if means is not None:
        under["means"] = _print(means)
    values = torch.tensor([float(head not in gone) for head in HeadMap.of(model)], dtype=torch.float64)
    with HeadGates(model, values, how=how, means=means):  # pyright: ignore[reportArgumentType]
        return evaluate_into(run, name, model, task, under=under, **reading)


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

    from headcount.gates import How
    from headcount.registry import unknown

    if how not in get_args(How):
        raise unknown("ablation", how, get_args(How))


def means_of(model: nn.Module, task: Task, how: str, limit: int | None, split: Split = "calibration") -> Any:
    """The mean outputs of the heads on a split, if that is what takes their place."""
    check_how(how)
    if how != "mean":
        return None
    from headcount.data import batches
    from headcount.observe import mean_outputs

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
    from headcount.terminal.options import split
    from headcount.terminal.pruning import heads_of

    if text is not None:
        return sorted({heads_of(part, heads) for part in split(text)}, reverse=True)
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
