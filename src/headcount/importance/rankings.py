"""Rankings of heads from scores: intervals of scores and of ranks, agreement with ablation, stability. Verdicts on single heads: `core.damage`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from headcount.core.errors import PlanError
from headcount.core.heads import Head
from headcount.core.scores import Scores
from headcount.core.stats.agreement import Agreement, Stability, agreement, stability
from headcount.core.stats.ranks import rank_confidence_sets, ranks, spread_to_heads, unit_means
from headcount.core.stats.samples import Samples

LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class RankedHead:
    """One head in a ranking.

    Attributes:
        head: The head.
        value: Its score.
        stderr: The standard error of the score; None where there is none.
        low: The lower end of the score's own interval; None where the examples are too few or too skewed for one.
        high: The upper end.
        rank: Its rank, 1 for the head to keep first.
        rank_low: The first rank that it may have; these sets hold for all heads jointly. None where there are none.
        rank_high: The last rank that it may have.
        is_lowest: Whether it (its KV group) is surely among the lowest units, jointly for all; None where there are no sets of ranks.
    """

    head: Head
    value: float
    stderr: float | None
    low: float | None
    high: float | None
    rank: int
    rank_low: int | None
    rank_high: int | None
    is_lowest: bool | None


def count_a_quarter_of_units(scores: Scores) -> int:
    """Returns a quarter of the units, at least one: the default number of lowest units."""
    return max(1, len(scores.all_units()) // 4)


def check_n_lowest(k: int | None, n_units: int) -> None:
    """Raises PlanError unless `k` units of so many can be the lowest."""
    if k is not None and not 1 <= k <= n_units:
        raise PlanError(f"k must be from 1 to {n_units}, the units that go or stay together, got {k}")


def rank_heads(scores: Scores, *, k: int | None = None, level: float = LEVEL, repeats: int = 1000, seed: int = 0) -> list[RankedHead]:
    """Returns every head with the intervals of its score and its rank, in flat order; `k` units count as the lowest, by default a quarter."""
    check_n_lowest(k, len(scores.all_units()))
    k = count_a_quarter_of_units(scores) if k is None else k
    ranking = ranks(np.asarray(scores.values), higher_is_keep=scores.higher_is_keep, tie_ranks=scores.ties())
    stderr = scores.stderr or (None,) * len(scores.heads)
    ends = [(None, None) if interval is None else (interval.low, interval.high) for interval in scores.intervals(level)]
    first, last, is_lowest = _rank_sets_of_heads(scores, k, level, repeats, seed)
    lows, highs = zip(*ends, strict=True)
    columns = (scores.heads, scores.values, stderr, lows, highs, ranking.tolist(), first, last, is_lowest)
    return [RankedHead(*row) for row in zip(*columns, strict=True)]


class _RankSets(NamedTuple):
    """The first and the last rank of every head, and whether its unit is surely among the lowest; None for all where there are no sets."""

    first: Sequence[int | None]
    last: Sequence[int | None]
    is_lowest: Sequence[bool | None]


def _rank_sets_of_heads(scores: Scores, k: int, level: float, repeats: int, seed: int) -> _RankSets:
    """Returns the ranks that heads may have, with `k` units as the lowest."""
    none = [None] * len(scores.heads)
    samples, units = scores.scaled_samples(), scores.head_indices_of_units()
    if samples is None:
        return _RankSets(none, none, none)
    options: Any = {"seed": seed, "repeats": repeats, "higher_is_keep": scores.higher_is_keep, "level": level}
    values = samples.group_pseudovalues()
    of_heads = rank_confidence_sets(values, **options)
    if of_heads is None:
        return _RankSets(none, none, none)
    of_units = of_heads if len(units) == len(scores.heads) else rank_confidence_sets(unit_means(values, units), **options)
    assert of_units is not None
    is_lowest = spread_to_heads(of_units.low > len(units) - k, units).astype(bool)
    return _RankSets(of_heads.low.tolist(), of_heads.high.tolist(), is_lowest.tolist())


def samples_higher_is_keep(scores: Scores) -> Samples:
    """Returns the samples, normalised as the scores are, with more meaning keep; scores without samples do not depend on data."""
    samples = scores.scaled_samples() or Samples(np.asarray(scores.values)[None], np.ones((1, 1)))
    return samples.orient(higher_is_keep=scores.higher_is_keep)


def agreements(
    scores_by_method: Mapping[str, Scores], truth: str = "ablation", *, k: int | None = None, seed: int = 0
) -> dict[str, Agreement]:
    """Returns how well every other score predicts ablation, by method; nothing if ablation does not vary over examples or heads.

    `k` units count as the lowest and the highest, by default a quarter.
    """
    reference = scores_by_method[truth]
    if reference.samples is None or reference.samples.n_groups < 2 or len(set(reference.values)) < 2:
        return {}
    units = reference.head_indices_of_units()
    check_n_lowest(k, len(units))
    k = count_a_quarter_of_units(reference) if k is None else k
    by_method = {}
    for name, scores in scores_by_method.items():
        if name == truth or len(set(scores.values)) < 2:
            continue
        same_groups = scores.samples is not None and scores.samples.n_groups == reference.samples.n_groups
        paired = same_groups and scores.data == reference.data
        samples = samples_higher_is_keep(scores), samples_higher_is_keep(reference)
        by_method[name] = agreement(*samples, k, positions_of_units=units, seed=seed, paired=paired)
    return by_method


def stabilities(scores: Scores, *, k: int | None = None, seed: int = 0) -> tuple[Stability, ...]:
    """Returns the stability of the ranking by the number of examples: an eighth, a quarter, half and all; nothing for one example.

    `k` units count as the lowest, by default a quarter.
    """
    check_n_lowest(k, len(scores.all_units()))
    samples = scores.scaled_samples()
    if samples is None or samples.n_groups < 2:
        return ()
    sizes = sorted({max(1, samples.n // part) for part in (8, 4, 2, 1)})
    k = count_a_quarter_of_units(scores) if k is None else k
    return stability(samples, sizes, k, units=scores.head_indices_of_units(), seed=seed, higher_is_keep=scores.higher_is_keep)
