"""Counts against chance at fixed margins: how many of `n_marked` marked heads are in a group, if marks fell on heads at random.

Interval and p-value come from the hypergeometric distribution: the counts that chance gives in 95 % of the draws, and twice the smaller tail.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Shaped

from headcount.core.errors import StatisticsError
from headcount.core.stats.samples import make_generator

FEWEST_RANKED = 4
"""The fewest units whose rank correlation has an interval."""


class Chance(NamedTuple):
    """What chance gives: the mean, the central 95 % of the draws, and the two-sided p-value of the observed count."""

    expected: float
    low: float
    high: float
    p: float


class CorrelationInterval(NamedTuple):
    """The ends of the 95 % interval of a rank correlation, and the two-sided p-value of 0 by the same statistic."""

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


def rank_correlation_interval(rho: float, n: int) -> CorrelationInterval:
    """Returns the interval of Spearman's rank correlation of n units, such as languages, and its p-value: both by t with n − 2 degrees of freedom.

        (artanh ρ̂ − artanh ρ) / √((1 + ρ̂² / 2) / (n − 3))    (Bonett & Wright 2000)

    t stands in for the normal distribution, as units are few: with 4 to 20 of them it covers in .97 or more of normal samples. A perfect order counts
    as half a step below 1, the step being the exchange of two neighbours.

    Raises:
        StatisticsError: there are fewer than four units.
    """
    from scipy.stats import t

    if n < FEWEST_RANKED:
        raise StatisticsError(f"a rank correlation of {n} units has no interval; it takes {FEWEST_RANKED}")
    limit = 1 - 6 / (n**3 - n)
    z = float(np.arctanh(np.clip(rho, -limit, limit)))
    error = float(np.sqrt((1 + rho**2 / 2) / (n - 3)))
    reach = float(t.ppf(0.975, n - 2)) * error
    return CorrelationInterval(float(np.tanh(z - reach)), float(np.tanh(z + reach)), 2 * float(t.sf(abs(z) / error, n - 2)))
