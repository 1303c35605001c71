"""Ranks and sets of ranks: 1 is the head to keep first; ties fall in an order that has nothing to do with the position of a head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Shaped
from numpy.typing import ArrayLike, NDArray

from headcount.core.errors import StatisticsError
from headcount.core.stats.means import SKEWNESS_SHARE
from headcount.core.stats.resampling import bootstrap_sampler
from headcount.core.stats.samples import Intervals, error_probability, require_count, to_finite_array, to_matching_arrays

End = Literal["lowest", "highest"]
MOST_RANKED = 1500
"""Of more heads than this, ranks have no sets: the pairs are too many."""
_CELLS = 2**21


@dataclass(frozen=True, slots=True)
class SetOverlap:
    """How many of two sets of k out of n heads are shared, the share by chance, and the chance of so many or more (hypergeometric)."""

    k: int
    n: int
    shared: int
    share: float
    expected: float
    p: float


def ranks(values: ArrayLike, *, higher_is_keep: bool = True, tie_ranks: Sequence[int] | None = None) -> NDArray[np.int64]:
    """Returns the rank of every head along the last axis, from 1, the head to keep first.

    `tie_ranks` gives the rank of each head among equal ones, by default a fixed random order.
    """
    numbers = to_finite_array(values, "scores")
    first = np.random.Generator(np.random.Philox(0)).permutation(numbers.shape[-1]) if tie_ranks is None else np.argsort(tie_ranks)
    order = first[np.argsort((-numbers if higher_is_keep else numbers)[..., first], axis=-1, kind="stable")]
    ranked = np.empty(order.shape, dtype=np.int64)
    np.put_along_axis(ranked, order, np.broadcast_to(np.arange(1, order.shape[-1] + 1), order.shape), axis=-1)
    return ranked


def rank_confidence_sets(
    values: Float[np.ndarray, "groups heads"], *, seed: int, repeats: int = 1000, higher_is_keep: bool = True, level: float = 0.95
) -> Intervals | None:
    """Returns a set of ranks of every head, such that all sets hold together with this confidence (Mogstad, Romano, Shaikh and Wilhelm 2024).

    Two heads differ where |difference| / standard error is above the quantile of the largest such ratio over all pairs (max-t over resamples, carried
    over to a t distribution). Heads that do not differ share their ranks. A pair whose difference is too skewed for an interval of its mean
    (`means.are_too_few_or_skewed`) is not told apart.

    Args:
        values: One number per group of examples and head, [groups, heads], whose means are the scores.
        seed: Seeds the resampling.
        repeats: How often examples are resampled.
        higher_is_keep: Whether rank 1 is the largest score.
        level: The confidence that all sets hold.

    Returns:
        The first and the last rank of each head; None of more than MOST_RANKED heads, whose pairs are too many.
    """
    from scipy import special

    numbers = to_finite_array(values, "values")
    n, n_heads = numbers.shape
    if n_heads > MOST_RANKED or n < 2:
        return None
    means = numbers.mean(0) if higher_is_keep else -numbers.mean(0)
    residuals = numbers - numbers.mean(0)
    covariance = residuals.T @ residuals / n
    variance = np.diag(covariance)
    square = np.add.outer(variance, variance) - 2 * covariance
    square[square <= 1e-14 * variance.max()] = 0.0  # pairs that move as one, but for rounding
    spread = np.sqrt(square / (n - 1))
    largest = np.zeros(repeats)
    draw, step = bootstrap_sampler(n, seed), max(1, _CELLS // max(n, n_heads))
    for start in range(0, repeats, step):
        shifts = draw(min(step, repeats - start))[:, 0] @ residuals / n
        part = largest[start : start + step]
        for head in range(n_heads - 1):
            gaps, error = np.abs(shifts[:, head + 1 :] - shifts[:, [head]]), spread[head, head + 1 :]
            np.maximum(part, np.divide(gaps, error, out=np.zeros_like(gaps), where=error > 0).max(1), out=part)
    quantile = np.quantile(largest, 1 - error_probability(level), method="higher")
    reach = -special.stdtrit(n - 1, max(special.ndtr(-quantile), np.finfo(float).tiny))
    differs = (np.subtract.outer(means, means) > reach * spread) & ~_are_pairs_too_skewed(residuals, square)
    return Intervals(1 + differs.sum(0), n_heads - differs.sum(1))


def _are_pairs_too_skewed(
    residuals: Float[np.ndarray, "groups heads"], pair_variances: Float[np.ndarray, "heads heads"]
) -> Bool[np.ndarray, "heads heads"]:
    """Returns of which pairs of heads the differences [groups] are too skewed, from their variances [heads, heads]."""
    cube, mixed = (residuals**3).sum(0), (residuals**2).T @ residuals
    third = (np.subtract.outer(cube, cube) - 3 * mixed + 3 * mixed.T) / len(residuals)
    return (pair_variances > 0) & (third**2 > pair_variances**3 * len(residuals) / SKEWNESS_SHARE)


def overlap(a: ArrayLike, b: ArrayLike, k: int, *, end: End = "lowest") -> SetOverlap:
    """Returns how far two scorings, both with more meaning keep, agree on the lowest (or highest) k heads."""
    first, second = to_matching_arrays(a, b)
    if first.ndim != 1:
        raise StatisticsError(f"overlap compares two vectors of heads, got shape {first.shape}")
    n = len(first)
    shared = int((are_among_k_extreme(first, k, end) & are_among_k_extreme(second, k, end)).sum())
    ways = sum(comb(k, x) * comb(n - k, k - x) for x in range(shared, k + 1))
    return SetOverlap(k, n, shared, shared / k, k / n, ways / comb(n, k))


def are_among_k_extreme(values: ArrayLike, k: int, end: End = "lowest", tie_ranks: Sequence[int] | None = None) -> NDArray[np.bool_]:
    """Returns which heads along the last axis are the lowest, or the highest, k; more means keep."""
    ranked = ranks(values, tie_ranks=tie_ranks)
    n = require_count(ranked.shape[-1], "heads", 1)
    require_count(k, "k", 1, n)
    if end not in ("lowest", "highest"):
        raise StatisticsError(f"end must be 'lowest' or 'highest', got {end!r}")
    return ranked > n - k if end == "lowest" else ranked <= k


def unit_means(values: Float[np.ndarray, "*rows heads"], positions_of_units: Sequence[tuple[int, ...]]) -> Float[np.ndarray, "*rows units"]:
    """Returns the mean over every unit's members, [..., units]."""
    return np.stack([values[..., list(unit)].mean(-1) for unit in positions_of_units], axis=-1)


def spread_to_heads(
    unit_values: Shaped[np.ndarray, " units"], positions_of_units: Sequence[tuple[int, ...]]
) -> Float[np.ndarray, " heads"]:
    """Returns for every head the number of its unit, [heads]."""
    heads = np.empty(sum(map(len, positions_of_units)))
    for value, unit in zip(unit_values, positions_of_units, strict=True):
        heads[list(unit)] = value
    return heads
