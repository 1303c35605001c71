"""Ranks under resampling: 1 is the head to keep first; ties fall in an order that has nothing to do with the position of a head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headcount.core.errors import StatisticsError
from headcount.core.stats.samples import Array, Intervals, check_count, check_replicates, error_probability, finite, to_matching_arrays

Units = Sequence[Sequence[int]]
End = Literal["lowest", "highest"]


@dataclass(frozen=True, slots=True)
class Overlap:
    """How many of two sets of k out of n heads are shared, the share by chance, and the chance of so many or more (hypergeometric)."""

    k: int
    n: int
    shared: int
    share: float
    expected: float
    p: float


def ranks(values: ArrayLike, *, higher_is_keep: bool = True, ties: Sequence[int] | None = None) -> NDArray[np.int64]:
    """Returns the rank of every head along the last axis, from 1, the head to keep first.

    `ties` gives the rank of each head among equal ones, by default a fixed random order.
    """
    numbers = finite(values, "scores")
    first = np.random.Generator(np.random.Philox(0)).permutation(numbers.shape[-1]) if ties is None else np.argsort(ties)
    order = first[np.argsort((-numbers if higher_is_keep else numbers)[..., first], axis=-1, kind="stable")]
    ranked = np.empty(order.shape, dtype=np.int64)
    np.put_along_axis(ranked, order, np.broadcast_to(np.arange(1, order.shape[-1] + 1), order.shape), axis=-1)
    return ranked


def rank_intervals(
    replicates: ArrayLike, *, higher_is_keep: bool = True, level: float = 0.95, ties: Sequence[int] | None = None
) -> Intervals:
    """Returns the interval of ranks of every head that holds at least `level` of the replicates. Heads whose scores tie have wide intervals."""
    replicate_ranks = ranks(check_replicates(replicates), higher_is_keep=higher_is_keep, ties=ties)
    edge = error_probability(level) / 2
    low, high = np.quantile(replicate_ranks, [edge, 1 - edge], axis=0, method="inverted_cdf").astype(np.int64)
    return Intervals(low, high)


def lowest(replicates: ArrayLike, k: int, *, higher_is_keep: bool = True, units: Units = (), ties: Sequence[int] | None = None) -> Array:
    """Returns every head's probability of being among the lowest k, those removed first.

    With `units` (heads that are removed together: KV groups) k counts units, and a unit is ranked by the mean of its members.
    """
    scores = check_replicates(replicates)
    groups = unit_list(scores.shape[-1], units)
    of_units = None if ties is None else [min(ties[head] for head in unit) for unit in groups]
    return to_heads(lowest_units(scores, k, groups, higher_is_keep, of_units).mean(0), groups)


def overlap(a: ArrayLike, b: ArrayLike, k: int, *, end: End = "lowest") -> Overlap:
    """Returns how far two scorings, both with more meaning keep, agree on the lowest (or highest) k heads."""
    first, second = to_matching_arrays(a, b)
    if first.ndim != 1:
        raise StatisticsError(f"overlap compares two vectors of heads, got shape {first.shape}")
    n = len(first)
    shared = int((ends(first, k, end) & ends(second, k, end)).sum())
    ways = sum(comb(k, x) * comb(n - k, k - x) for x in range(shared, k + 1))
    return Overlap(k, n, shared, shared / k, k / n, ways / comb(n, k))


def ends(values: ArrayLike, k: int, end: End = "lowest", ties: Sequence[int] | None = None) -> NDArray[np.bool_]:
    """Returns which heads along the last axis are the lowest, or the highest, k; more means keep."""
    ranked = ranks(values, ties=ties)
    n = check_count(ranked.shape[-1], "heads", 1)
    check_count(k, "k", 1, n)
    if end not in ("lowest", "highest"):
        raise StatisticsError(f"end must be 'lowest' or 'highest', got {end!r}")
    return ranked > n - k if end == "lowest" else ranked <= k


def unit_list(n_heads: int, units: Units) -> list[tuple[int, ...]]:
    """Returns the units in flat order, single heads if none are given; raises StatisticsError unless they hold every head once."""
    groups = sorted((tuple(int(head) for head in unit) for unit in units), key=lambda unit: min(unit, default=-1))
    if not groups:
        return [(head,) for head in range(n_heads)]
    if sorted(head for unit in groups for head in unit) != list(range(n_heads)) or not all(groups):
        raise StatisticsError(f"units must hold each of the {n_heads} heads exactly once, by index from 0, and none may be empty")
    return groups


def unit_means(values: Array, groups: Sequence[tuple[int, ...]]) -> Array:
    """Returns the mean over every unit's members, [..., units]."""
    return np.stack([values[..., list(unit)].mean(-1) for unit in groups], axis=-1)


def lowest_units(
    replicates: Array, k: int, groups: Sequence[tuple[int, ...]], higher_is_keep: bool, ties: Sequence[int] | None = None
) -> NDArray[np.bool_]:
    """Returns which units are among the lowest k, in every replicate."""
    means = unit_means(replicates, groups)
    return ends(means if higher_is_keep else -means, k, ties=ties)


def to_heads(values: NDArray, groups: Sequence[tuple[int, ...]]) -> Array:
    """Returns for every head the number of its unit, [heads]."""
    heads = np.empty(sum(map(len, groups)))
    for value, unit in zip(values, groups, strict=True):
        heads[list(unit)] = value
    return heads
