"""What scores say about each head, with how sure that is: interval, rank and its interval, chance of being among the lowest, safe or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from headcount.core.errors import PlanError
from headcount.core.heads import Head
from headcount.core.registry import IMPORTANCES
from headcount.core.scores import Scores
from headcount.core.stats.agreement import Agreement, Stability, agreement, stability
from headcount.core.stats.ranks import lowest, rank_intervals, ranks
from headcount.core.stats.resampling import intervals
from headcount.core.stats.safe import safe_to_remove
from headcount.core.stats.samples import Samples

TOLERANCE = 0.01
LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Verdict:
    """One head: `low` to `high` is the bootstrap interval of its score, `p_lowest` its chance of being among the lowest.

    `safe` says, at the level asked for, that removing it alone costs at most the tolerance (ablation), or that it is among the lowest (other
    methods); None where nothing can be drawn again.
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


def quarter(scores: Scores) -> int:
    """A quarter of the units, at least one: what `lowest` means unless told."""
    return max(1, len(scores.all_units()) // 4)


def check_lowest(k: int | None, n_units: int) -> None:
    """Raises PlanError unless `k` units of so many can be the lowest."""
    if k is not None and not 1 <= k <= n_units:
        raise PlanError(f"k must be from 1 to {n_units}, the units that go or stay together, got {k}")


def verdicts(
    scores: Scores, *, k: int | None = None, tolerance: float = TOLERANCE, level: float = LEVEL, repeats: int = 2000, seed: int = 0
) -> list[Verdict]:
    """The verdict on every head in flat order; `k` units count as the lowest, a quarter of them unless told."""
    check_lowest(k, len(scores.all_units()))
    k = quarter(scores) if k is None else k
    ties = scores.ties()
    places = ranks(np.asarray(scores.values), higher_is_keep=scores.higher_is_keep, ties=ties)
    stderr = scores.stderr or (None,) * len(scores.heads)
    if scores.samples is None or scores.samples.n_groups < 2:
        rows = zip(scores.heads, scores.values, stderr, places.tolist(), strict=True)
        return [Verdict(head, value, error, None, None, rank, None, None, None, None) for head, value, error, rank in rows]
    drawn = scores.replicates(repeats, seed)
    low, high = intervals(drawn, level)
    first, last = rank_intervals(drawn, higher_is_keep=scores.higher_is_keep, level=level, ties=ties)
    chance = lowest(drawn, k, higher_is_keep=scores.higher_is_keep, units=scores.unit_positions(), ties=ties)
    safe = _safe(scores, tolerance, level) if measures_loss(scores) else (chance >= level).tolist()
    arrays = (column.tolist() for column in (low, high, places, first, last, chance))
    return [Verdict(*row) for row in zip(scores.heads, scores.values, stderr, *arrays, safe, strict=True)]


def measures_loss(scores: Scores) -> bool:
    """Whether scores are rises of the loss; those of a method that is not known here are not."""
    name = scores.method.partition(":")[0]
    return name in IMPORTANCES.names() and IMPORTANCES.module(name).ABOUT.measures_loss


def _safe(scores: Scores, tolerance: float, level: float) -> list[bool]:
    assert scores.samples is not None
    return [verdict.safe for verdict in safe_to_remove(scores.samples, tolerance=tolerance, worst=None, level=level)]


def signed_samples(scores: Scores) -> Samples:
    """The samples, normalised as the scores are, with more meaning keep; a score without samples is one that data do not move."""
    samples = scores.scaled_samples() or Samples(np.asarray(scores.values)[None], np.ones((1, 1)))
    return samples.orient(higher_is_keep=scores.higher_is_keep)


def agreements(found: Mapping[str, Scores], truth: str = "ablation", *, k: int | None = None, seed: int = 0) -> dict[str, Agreement]:
    """How well every other score stands in for true ablation, by method; none where ablation has no spread over examples or heads."""
    real = found[truth]
    if real.samples is None or real.samples.n_groups < 2 or len(set(real.values)) < 2:
        return {}
    k = max(1, len(real.heads) // 4) if k is None else k
    return {
        name: agreement(signed_samples(scores), signed_samples(real), k, seed=seed, paired=_paired(scores, real))
        for name, scores in found.items()
        if name != truth and len(set(scores.values)) > 1
    }


def _paired(a: Scores, b: Scores) -> bool:
    """Whether two scores come from the same examples in the same groups."""
    return a.samples is not None and b.samples is not None and a.data == b.data and a.samples.n_groups == b.samples.n_groups


def stabilities(scores: Scores, *, k: int | None = None, seed: int = 0) -> tuple[Stability, ...]:
    """How stable the ranking is by the number of calibration examples: an eighth, a quarter, half and all of them; nothing for a single one."""
    samples = scores.scaled_samples()
    if samples is None or samples.n_groups < 2:
        return ()
    sizes = sorted({max(1, samples.n // part) for part in (8, 4, 2, 1)})
    k = max(1, len(scores.heads) // 4) if k is None else k
    return stability(samples, sizes, k, seed=seed, higher_is_keep=scores.higher_is_keep)
