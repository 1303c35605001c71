"""Evaluations with heads gated away, kept in a run, and their change against the dense model, paired over examples. Imports torch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headcount.core.budget import Budget
from headcount.core.errors import OptionError
from headcount.core.evaluation import Evaluation
from headcount.core.heads import Head
from headcount.core.stats.significance import Difference, paired_bootstrap, paired_t
from headcount.data.chunks import batches
from headcount.data.metrics import IGNORED
from headcount.data.task import Split, Task
from headcount.models.gates import HeadGates, Replacement
from headcount.models.head_map import HeadMap
from headcount.models.modules import shifts_labels
from headcount.models.observe import mean_outputs
from headcount.models.provenance import weight_hash
from headcount.runs.store import Run
from headcount.workflows.evaluate import evaluate_into

CHANCE_P = 0.001
"""The largest p-value of being above chance at which a share of the score is defined: with 2,000 resamples, none is at chance or below."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Change of the loss and of the metric between two models on the same examples."""

    loss: Difference
    metric: Difference | None

    @property
    def score(self) -> Difference:
        """The change of the metric, or of the loss where there is no metric."""
        return self.metric if self.metric is not None else self.loss

    def to_dict(self) -> dict[str, float]:
        """Returns the numbers by name, as plain data."""
        numbers = {f"loss {name}": value for name, value in asdict(self.loss).items()}
        if self.metric is not None:
            numbers |= {f"metric {name}": value for name, value in asdict(self.metric).items()}
        return numbers


@dataclass(frozen=True, slots=True)
class Share:
    """The share of the dense model's score above chance that remains, with its bootstrap interval.

    `remaining` is None where it is not defined, because the dense model is not above chance or chance is unknown; `reason` says which.
    """

    chance: float | None
    remaining: Difference | None
    reason: str = ""

    @property
    def interval(self) -> tuple[float | None, float | None, float | None]:
        """The share that remains and the ends of its interval; None where it is not defined."""
        return (None, None, None) if self.remaining is None else self.remaining.interval

    @property
    def interval_lost(self) -> tuple[float | None, float | None, float | None]:
        """The share that is lost and the ends of its interval; None where it is not defined."""
        return (
            (None, None, None)
            if self.remaining is None
            else (1 - self.remaining.difference, 1 - self.remaining.high, 1 - self.remaining.low)
        )

    def to_dict(self) -> dict[str, float | str | None]:
        """Returns the numbers by name, as plain data."""
        names = ("remaining", "remaining low", "remaining high")
        return {"chance": self.chance, **dict(zip(names, self.interval, strict=True)), "reason": self.reason}


def measure_drop(dense: Evaluation, pruned: Evaluation, task: Task, *, seed: int = 0) -> Drop:
    """Returns the change from `dense` to `pruned` on the same examples: paired t for the loss, paired bootstrap for the metric."""
    loss = paired_t(pruned.losses - dense.losses)
    if task.metric is None or dense.parts is None or pruned.parts is None:
        return Drop(loss, None)
    return Drop(loss, paired_bootstrap(dense.parts, pruned.parts, task.metric.total, seed=seed))


def chance_of(model: nn.Module, task: Task, limit: int | None = None) -> float | None:
    """Returns the metric of the best constant answer to the labels of the report split; None where the task's metric defines none."""
    if task.metric is None or task.metric.chance is None:
        return None
    by_batch = []
    for batch in batches(task, split="report", limit=limit):
        labels = np.asarray(batch["labels"])
        by_batch.append((labels[:, 1:] if labels.ndim > 1 and shifts_labels(model) else labels).ravel())
    labels = np.concatenate(by_batch)
    return task.metric.chance(labels[labels != IGNORED])


def share_left(dense: Evaluation, pruned: Evaluation, task: Task, chance: float | None, *, seed: int = 0) -> Share:
    """Returns the share of the score above chance that remains, (pruned − chance) / (dense − chance); of perplexities, their logarithms.

    It is not defined unless the dense model is above chance in each of 2,000 resamples of the examples.
    """
    if chance is None or task.metric is None or dense.parts is None or pruned.parts is None:
        return Share(None, None, f"chance is not known for {dense.metric or 'a task without a metric'}")
    total, floor, width = task.metric.total, metric_on_additive_scale(task, chance), dense.parts.shape[1]
    flag = np.ones((len(dense.parts), 1))
    against_chance = paired_bootstrap(
        np.hstack([dense.parts, 0 * flag]),
        np.hstack([dense.parts, flag]),
        lambda sums: np.where(sums[..., -1] > 0, metric_on_additive_scale(task, total(sums[..., :-1])), floor),
        seed=seed,
    )
    score = f"{dense.metric} {dense.score:.4g}"
    if against_chance.difference <= 0:
        return Share(chance, None, f"{score} is not better than chance, {chance:.4g}")
    if against_chance.p > CHANCE_P:
        return Share(chance, None, f"{score} is not surely better than chance, {chance:.4g} (p {against_chance.p:.2g})")

    def share(sums: np.ndarray) -> np.ndarray:
        before, after = (metric_on_additive_scale(task, total(part)) - floor for part in (sums[..., :width], sums[..., width:]))
        return after / before

    lost = paired_bootstrap(np.hstack([dense.parts] * 2), np.hstack([dense.parts, pruned.parts]), share, seed=seed)
    return Share(chance, Difference(1 + lost.difference, 1 + lost.low, 1 + lost.high, lost.p))


def metric_on_additive_scale(task: Task, value: Any) -> Any:
    """Returns a metric on a scale where more is better and differences compare: unchanged, or − ln of a perplexity."""
    return value if task.metric is None or task.metric.higher_is_better else -np.log(value)


def relative_gap(
    first: tuple[Evaluation, Evaluation], second: tuple[Evaluation, Evaluation], task: Task, chance: float, *, seed: int = 0
) -> Difference:
    """Returns the share of the score above chance that the first model loses minus that which the second loses, by paired bootstrap.

    Each model is a pair (dense, pruned) on the same examples; both shares must be defined.
    """
    assert task.metric is not None
    total, floor = task.metric.total, metric_on_additive_scale(task, chance)

    def lost_share(sums: np.ndarray) -> np.ndarray:
        dense, pruned = (metric_on_additive_scale(task, total(part)) - floor for part in np.split(sums, 2, axis=-1))
        return 1 - pruned / dense

    both = [np.hstack([model.parts for model in pair if model.parts is not None]) for pair in (second, first)]
    return paired_bootstrap(both[0], both[1], lost_share, seed=seed)


def admit_model(run: Run | None, model: nn.Module) -> None:
    """Lets a run hold artifacts of a model that a study compares with the run's own."""
    if run is not None:
        run.admit(weight_hash(model))


def evaluate_without(
    run: Run | None,
    name: str,
    model: nn.Module,
    task: Task,
    heads: Iterable[Head],
    *,
    ablation: Replacement = "zero",
    means: Mapping[str, Tensor] | None = None,
    split: Split = "report",
    limit: int | None = None,
    batch_size: int | None = None,
) -> Evaluation:
    """Evaluates the model on a split with some heads gated away; a run keeps the evaluation under `name`."""
    admit_model(run, model)
    removed = frozenset(heads)
    if not removed:
        return evaluate_into(run, name, model, task, split=split, limit=limit, batch_size=batch_size)
    under: dict[str, Any] = {"removed": sorted(map(str, removed)), "how": ablation}
    if means is not None:
        under["means"] = _hash_means(means)
    values = torch.tensor([float(head not in removed) for head in HeadMap.of(model)], dtype=torch.float64)
    with HeadGates(model, values, how=ablation, means=means):
        return evaluate_into(run, name, model, task, under=under, split=split, limit=limit, batch_size=batch_size)


def _hash_means(means: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(means):
        digest.update(name.encode())
        digest.update(means[name].detach().double().cpu().numpy().tobytes())
    return digest.hexdigest()


def means_for(
    model: nn.Module, task: Task, ablation: Replacement, limit: int | None, split: Split = "calibration"
) -> dict[str, Tensor] | None:
    """Returns the mean outputs of the heads on a split if the ablation puts them in place of removed heads, else None."""
    return mean_outputs(model, batches(task, split=split, limit=limit)) if ablation == "mean" else None


def count_heads(keep: int | float | str, n_heads: int) -> int:
    """Returns how many of the heads stay: a number of heads, or a share of them such as 0.25 or "25%".

    Raises:
        OptionError: the number is out of range, or the text is none.
    """
    try:
        if isinstance(keep, str) and not keep.strip().endswith("%"):
            keep = int(keep) if keep.strip().isdecimal() else float(keep)
        return Budget(keep=keep).heads(n_heads)
    except ValueError as error:
        raise OptionError(
            f"keep must be a number of heads from 1 to {n_heads}, or a share up to 100%, such as 25% or 0.25; got {keep}"
        ) from error


def count_levels(keeps: Sequence[int | float | str], heads: HeadMap, shares: Sequence[float]) -> list[int]:
    """Returns how many heads stay at each level of a curve, most first: `keeps`, or these shares of the units that stay or go together."""
    if keeps:
        return sorted({count_heads(keep, len(heads)) for keep in keeps}, reverse=True)
    units = heads.units()
    size = len(units[0]) if len({len(unit) for unit in units}) == 1 else 1
    number = len(heads) // size
    return sorted({max(1, round(share * number)) * size for share in shares}, reverse=True)
