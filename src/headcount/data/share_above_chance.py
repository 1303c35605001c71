"""The share of a score above chance that a pruned model keeps: of a dense model that is not above chance none is defined."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from headcount.core.certificate import LEVEL, loss_of_metric, reason_against_verdict
from headcount.core.evaluation import Evaluation, examples_are_right_or_wrong
from headcount.core.stats.means import FEWEST_NONZERO
from headcount.core.stats.quality_loss import BettingLoss, BootstrapLoss
from headcount.core.stats.seed_parts import align_seed_counts
from headcount.core.stats.significance import Difference, paired_bootstrap
from headcount.data.chunks import batches
from headcount.data.metrics import IGNORED
from headcount.data.task import Split, Task
from headcount.models.modules import shifts_labels

CHANCE_P = 0.001
"""The largest p-value of being above chance at which a share of the score is defined: with 2,000 resamples, none is at chance or below."""


class DenseAndPruned(NamedTuple):
    """The evaluations of a dense model and of the pruned one."""

    dense: Evaluation
    pruned: Evaluation


@dataclass(frozen=True, slots=True)
class Share:
    """The share of the dense model's score above chance that remains, with its bootstrap interval.

    `remaining` is None where it is not defined, because the dense model is not above chance or chance is unknown; `reason` says which.
    """

    chance: float | None
    remaining: Difference | None
    reason: str = ""

    @property
    def remaining_low_high(self) -> tuple[float | None, float | None, float | None]:
        """The share that remains and the ends of its interval; None where it is not defined."""
        return (None, None, None) if self.remaining is None else self.remaining.interval

    @property
    def lost_low_high(self) -> tuple[float | None, float | None, float | None]:
        """The share that is lost and the ends of its interval; None where it is not defined."""
        return (
            (None, None, None)
            if self.remaining is None
            else (1 - self.remaining.difference, 1 - self.remaining.high, 1 - self.remaining.low)
        )

    def to_dict(self) -> dict[str, float | str | None]:
        """Returns the numbers by name, as plain data."""
        names = ("remaining", "remaining low", "remaining high")
        return {"chance": self.chance, **dict(zip(names, self.remaining_low_high, strict=True)), "reason": self.reason}


@dataclass(frozen=True, slots=True)
class ShareBound:
    """The share of the dense model's score above chance that remains at least, at 95 %, one-sided.

    Attributes:
        at_least: The bound; None where the share is not defined.
        is_certified: Whether the share that is to be held remains by this bound.
        reason: Why data like these certify nothing, whatever the numbers; empty otherwise.
    """

    at_least: float | None
    is_certified: bool
    reason: str = ""


def score_of_best_constant_answer(model: nn.Module, task: Task, limit: int | None = None, *, split: Split = "report") -> float | None:
    """Returns the metric of the best constant answer to the labels of a split; None where the task's metric defines none."""
    if task.metric is None or task.metric.chance is None:
        return None
    by_batch = []
    for batch in batches(task, split=split, limit=limit):
        labels = np.asarray(batch["labels"])
        by_batch.append((labels[:, 1:] if labels.ndim > 1 and shifts_labels(model) else labels).ravel())
    labels = np.concatenate(by_batch)
    return task.metric.chance(labels[labels != IGNORED])


def why_share_is_undefined(dense: Evaluation, task: Task, chance: float | None, *, seed: int = 0) -> str:
    """Returns why the dense model has no score above chance to keep a share of; empty where it is surely above chance.

    That is: on ten examples or more, in each of 2,000 resamples of them, and for accuracies also by an exact binomial test, since resamples of
    examples that all are right have none that is wrong.
    """
    if chance is None or task.metric is None or dense.parts is None:
        return f"chance is not known for {dense.metric or 'a task without a metric'}"
    score = f"{dense.metric} {dense.score:.4g}"
    if metric_on_additive_scale(task, dense.score) <= metric_on_additive_scale(task, chance):
        return f"{score} is not better than chance, {chance:.4g}"
    if dense.n_examples < FEWEST_NONZERO:
        return f"{score} is not surely better than chance, {chance:.4g}: {dense.n_examples} examples are too few to tell, it takes {FEWEST_NONZERO}"
    p = _p_value_of_chance(dense, task, chance, seed)
    return "" if p <= CHANCE_P else f"{score} is not surely better than chance, {chance:.4g} (p {p:.2g})"


def _p_value_of_chance(dense: Evaluation, task: Task, chance: float, seed: int) -> float:
    """Returns the two-sided p-value of a score above chance being chance."""
    from scipy.stats import binom

    assert task.metric is not None and dense.parts is not None
    (parts,), total = align_seed_counts((dense.parts,), task.metric.total)
    floor, flag = metric_on_additive_scale(task, chance), np.ones((len(parts), 1))
    against_chance = paired_bootstrap(
        np.hstack([parts, 0 * flag]),
        np.hstack([parts, flag]),
        lambda sums: np.where(sums[..., -1] > 0, metric_on_additive_scale(task, total(sums[..., :-1])), floor),
        seed=seed,
    )
    if not examples_are_right_or_wrong(dense):
        return against_chance.p
    return max(against_chance.p, 2 * float(binom.sf(dense.parts[:, 0].sum() - 1, dense.n_examples, chance)))


def share_above_chance_left(
    dense: Evaluation, pruned: Evaluation, task: Task, chance: float | None, *, seed: int = 0, level: float = 0.95
) -> Share:
    """Returns the share of the score above chance that remains, (pruned − chance) / (dense − chance); of perplexities, their logarithms.

    It is not defined unless the dense model is surely above chance (`why_share_is_undefined`). `level` is the confidence of its interval.
    """
    reason = why_share_is_undefined(dense, task, chance, seed=seed)
    if reason or chance is None or task.metric is None or dense.parts is None or pruned.parts is None:
        return Share(chance, None, reason or "the pruned model was not measured by the metric of the task")
    (before, after), total = align_seed_counts((dense.parts, pruned.parts), task.metric.total)
    floor, width = metric_on_additive_scale(task, chance), before.shape[1]

    def remaining_share(dense_and_pruned_sums: np.ndarray) -> np.ndarray:
        halves = dense_and_pruned_sums[..., :width], dense_and_pruned_sums[..., width:]
        of_dense, of_pruned = (metric_on_additive_scale(task, total(half)) - floor for half in halves)
        return of_pruned / of_dense

    lost = paired_bootstrap(np.hstack([before] * 2), np.hstack([before, after]), remaining_share, seed=seed, level=level)
    return Share(chance, Difference(1 + lost.difference, 1 + lost.low, 1 + lost.high, lost.p))


def bound_share_above_chance_left(
    share: Share, dense: Evaluation, pruned: Evaluation, task: Task, share_to_hold: float, *, seed: int = 0
) -> ShareBound:
    """Returns the lower bound of the share of single models that `share_above_chance_left` measured, by the procedure of certificates.

    The loss of the metric is bounded as that of a certificate is, and divided by the dense model's observed score above chance; a resampled metric
    is divided by that of the same resample. Chance counts as known.
    """
    if share.remaining is None or share.chance is None or task.metric is None:
        return ShareBound(None, False, share.reason)
    total, floor = task.metric.total, metric_on_additive_scale(task, share.chance)
    above_chance = float(metric_on_additive_scale(task, dense.score) - floor)
    test = loss_of_metric(
        replace(dense, higher_is_better=True), pruned, lambda sums: metric_on_additive_scale(task, total(sums)) - floor, seed=seed
    )
    reason = reason_against_verdict(dense, test)
    if isinstance(test, BettingLoss) and (1 - share_to_hold) * above_chance >= test.clip:
        reason = f"the loss counts up to {test.clip:g} nats only, and {1 - share_to_hold:.0%} of the score above chance are more"
    lost = test.relative_upper_bound(LEVEL) if isinstance(test, BootstrapLoss) else test.one_sided_bounds(LEVEL)[1] / above_chance
    at_least = None if lost is None else 1 - lost
    return ShareBound(at_least, at_least is not None and at_least >= share_to_hold and not reason, reason)


def metric_on_additive_scale(task: Task, value: Any) -> Any:
    """Returns a metric on a scale where more is better and differences compare: unchanged, or − ln of a perplexity."""
    return value if task.metric is None or task.metric.higher_is_better else -np.log(value)


def lost_share_of_first_minus_second(
    first: DenseAndPruned, second: DenseAndPruned, task: Task, chances: tuple[float, float], *, seed: int = 0
) -> Difference:
    """Returns the share of the score above chance that the first model loses minus that which the second loses, by paired bootstrap.

    All four were measured on the same examples; both shares must be defined. Models may differ in their chance: of tokens, it is that of the
    model's own tokens.
    """
    assert task.metric is not None
    of_all = [evaluation.parts for pair in (second, first) for evaluation in pair if evaluation.parts is not None]
    parts, total = align_seed_counts(of_all, task.metric.total)
    floors, flag = [metric_on_additive_scale(task, chance) for chance in chances], np.ones((len(parts[0]), 1))

    def lost_share(dense_and_pruned_sums: np.ndarray) -> np.ndarray:
        floor = np.where(dense_and_pruned_sums[..., -1] > 0, *floors)
        dense, pruned = (
            metric_on_additive_scale(task, total(part)) - floor for part in np.split(dense_and_pruned_sums[..., :-1], 2, axis=-1)
        )
        return 1 - pruned / dense

    return paired_bootstrap(np.hstack([*parts[:2], 0 * flag]), np.hstack([*parts[2:], flag]), lost_share, seed=seed)
