"""Verdicts on heads from scores: interval, rank and its interval, probability of being among the lowest, safe to remove or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from headcount.core.errors import OptionError, PlanError, UnknownName
from headcount.core.heads import Head
from headcount.core.scores import Scores
from headcount.core.stats.agreement import Agreement, Stability, agreement, stability
from headcount.core.stats.ranks import lowest, rank_intervals, ranks
from headcount.core.stats.resampling import intervals
from headcount.core.stats.safe import safe_to_remove
from headcount.core.stats.samples import Samples
from headcount.importance.base import Importance

TOLERANCE = 0.01
LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Verdict:
    """One head: `low` to `high` is the bootstrap interval of its score, `p_lowest` its chance of being among the lowest.

    `safe` says, at the requested level, that removing it alone costs at most the tolerance (ablation), or that it is among the lowest (other
    methods); None if there are no samples to draw from.
    """

    head: Head
    value: float
    stderr: float | None
    low: float | None
    high: float | None
    rank: int
    rank_low: int | None
    rank_high: int | None
    p_lowest: float | None
    safe: bool | None


def quarter_of_units(scores: Scores) -> int:
    """Returns a quarter of the units, at least one: the default number of lowest units."""
    return max(1, len(scores.all_units()) // 4)


def check_lowest(k: int | None, n_units: int) -> None:
    """Raises PlanError unless `k` units of so many can be the lowest."""
    if k is not None and not 1 <= k <= n_units:
        raise PlanError(f"k must be from 1 to {n_units}, the units that go or stay together, got {k}")


def verdicts(
    scores: Scores, *, k: int | None = None, tolerance: float = TOLERANCE, level: float = LEVEL, repeats: int = 2000, seed: int = 0
) -> list[Verdict]:
    """Returns the verdict on every head in flat order; `k` units count as the lowest, by default a quarter of them."""
    check_lowest(k, len(scores.all_units()))
    k = quarter_of_units(scores) if k is None else k
    ties = scores.ties()
    ranking = ranks(np.asarray(scores.values), higher_is_keep=scores.higher_is_keep, ties=ties)
    stderr = scores.stderr or (None,) * len(scores.heads)
    if scores.samples is None or scores.samples.n_groups < 2:
        rows = zip(scores.heads, scores.values, stderr, ranking.tolist(), strict=True)
        return [Verdict(head, value, error, None, None, rank, None, None, None, None) for head, value, error, rank in rows]
    replicates = scores.replicates(repeats, seed)
    low, high = intervals(replicates, level)
    first, last = rank_intervals(replicates, higher_is_keep=scores.higher_is_keep, level=level, ties=ties)
    chance = lowest(replicates, k, higher_is_keep=scores.higher_is_keep, units=scores.unit_positions(), ties=ties)
    if measures_loss(scores):
        safe = [verdict.safe for verdict in safe_to_remove(scores.samples, tolerance=tolerance, worst=None, level=level)]
    else:
        safe = (chance >= level).tolist()
    arrays = (column.tolist() for column in (low, high, ranking, first, last, chance))
    return [Verdict(*row) for row in zip(scores.heads, scores.values, stderr, *arrays, safe, strict=True)]


def measures_loss(scores: Scores) -> bool:
    """Whether scores are rises of the loss; False for methods that are not installed here."""
    try:
        return Importance.parse(scores.method).info.measures_loss
    except (UnknownName, OptionError):
        return False


def signed_samples(scores: Scores) -> Samples:
    """Returns the samples, normalised as the scores are, with more meaning keep; scores without samples do not depend on data."""
    samples = scores.scaled_samples() or Samples(np.asarray(scores.values)[None], np.ones((1, 1)))
    return samples.orient(higher_is_keep=scores.higher_is_keep)


def agreements(
    scores_by_method: Mapping[str, Scores], truth: str = "ablation", *, k: int | None = None, seed: int = 0
) -> dict[str, Agreement]:
    """Returns how well every other score predicts ablation, by method; nothing if ablation does not vary over examples or heads."""
    reference = scores_by_method[truth]
    if reference.samples is None or reference.samples.n_groups < 2 or len(set(reference.values)) < 2:
        return {}
    k = max(1, len(reference.heads) // 4) if k is None else k
    by_method = {}
    for name, scores in scores_by_method.items():
        if name == truth or len(set(scores.values)) < 2:
            continue
        same_groups = scores.samples is not None and scores.samples.n_groups == reference.samples.n_groups
        paired = same_groups and scores.data == reference.data
        by_method[name] = agreement(signed_samples(scores), signed_samples(reference), k, seed=seed, paired=paired)
    return by_method


def stabilities(scores: Scores, *, k: int | None = None, seed: int = 0) -> tuple[Stability, ...]:
    """Returns the stability of the ranking by the number of examples: an eighth, a quarter, half and all; nothing for one example."""
    samples = scores.scaled_samples()
    if samples is None or samples.n_groups < 2:
        return ()
    sizes = sorted({max(1, samples.n // part) for part in (8, 4, 2, 1)})
    k = max(1, len(scores.heads) // 4) if k is None else k
    return stability(samples, sizes, k, seed=seed, higher_is_keep=scores.higher_is_keep)
