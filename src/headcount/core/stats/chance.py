"""Counts against chance at fixed margins: how many of `n_marked` marked heads are in a group, if marks fell on heads at random.

Interval and p-value come from the hypergeometric distribution: the counts that chance gives in 95 % of the draws, and twice the smaller tail.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Shaped

from headcount.core.stats.samples import make_generator


class Chance(NamedTuple):
    """What chance gives: the mean, the central 95 % of the draws, and the two-sided p-value of the observed count."""

    expected: float
    low: float
    high: float
    p: float


class RankCorrelation(NamedTuple):
    """A rank correlation and its two-sided p-value by permutation."""

    rho: float
    p: float


def hypergeometric_chance(observed: int, n_heads: int, n_marked: int, n_in_group: int) -> Chance:
    """Returns chance for the number of marked heads in a group, of `n_heads` heads in all."""
    from scipy.stats import hypergeom

    distribution = hypergeom(n_heads, n_marked, n_in_group)
    p = 2 * min(float(distribution.cdf(observed)), float(distribution.sf(observed - 1)))
    return Chance(n_marked * n_in_group / n_heads, float(distribution.ppf(0.025)), float(distribution.ppf(0.975)), min(1.0, p))


def count_heads_with_several_marks(marks: Shaped[np.ndarray, "kinds heads"], *, seed: int, repeats: int = 2000) -> tuple[int, Chance]:
    """Returns how many heads bear two marks or more, and chance if every mark fell on as many heads at random. `marks` is [kinds, heads]."""
    random = make_generator(seed)
    observed = int((marks.sum(0) >= 2).sum())
    counts = np.array([(random.permuted(marks, axis=1).sum(0) >= 2).sum() for _ in range(repeats)])
    tails = [(1 + (counts <= observed).sum()) / (repeats + 1), (1 + (counts >= observed).sum()) / (repeats + 1)]
    low, high = np.quantile(counts, (0.025, 0.975), method="inverted_cdf")
    return observed, Chance(float(counts.mean()), float(low), float(high), float(min(1.0, 2 * min(tails))))


def rank_correlation(positions: np.ndarray, values: np.ndarray, *, seed: int, repeats: int = 2000) -> RankCorrelation:
    """Returns the rank correlation of values with their positions, such as layers, and its two-sided p-value by permuting the values.

    Both are 0 and 1 where all positions or all values are equal.
    """
    from scipy.stats import rankdata

    a, b = rankdata(positions), rankdata(values)
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a**2).sum() * (b**2).sum()))
    if not scale:
        return RankCorrelation(0.0, 1.0)
    permuted = make_generator(seed).permuted(np.tile(b, (repeats, 1)), axis=1) @ a / scale
    rho = float(a @ b / scale)
    return RankCorrelation(rho, float((1 + (np.abs(permuted) >= abs(rho) - 1e-12).sum()) / (repeats + 1)))
