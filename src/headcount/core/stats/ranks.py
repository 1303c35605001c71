"""Ranks under resampling: 1 is the head to keep first; ties fall in an order that has nothing to do with the position of a head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headcount.core.errors import StatisticsError
from headcount.core.stats.samples import Array, Intervals, count, finite, matched, table, tail

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
    """The rank of every head along the last axis, from 1, keep first.

    `ties` are the places of the heads in the order in which equal ones are ranked, by default a random one that is always the same.
    """
    numbers = finite(values, "scores")
    first = np.random.Generator(np.random.Philox(0)).permutation(numbers.shape[-1]) if ties is None else np.argsort(ties)
    order = first[np.argsort((-numbers if higher_is_keep else numbers)[..., first], axis=-1, kind="stable")]
    places = np.empty(order.shape, dtype=np.int64)
    np.put_along_axis(places, order, np.broadcast_to(np.arange(1, order.shape[-1] + 1), order.shape), axis=-1)
    return places


def rank_intervals(
    replicates: ArrayLike, *, higher_is_keep: bool = True, level: float = 0.95, ties: Sequence[int] | None = None
) -> Intervals:
    """The lowest and highest rank of every head that resampling makes plausible: whole numbers that hold at least `level` of the replicates.

    Heads whose scores tie have no rank of their own, and no interval can find it; theirs are wide.
    """
    placed = ranks(table(replicates), higher_is_keep=higher_is_keep, ties=ties)
    edge = tail(level) / 2
    low, high = np.quantile(placed, [edge, 1 - edge], axis=0, method="inverted_cdf").astype(np.int64)
    return Intervals(low, high)


def lowest(replicates: ArrayLike, k: int, *, higher_is_keep: bool = True, units: Units = (), ties: Sequence[int] | None = None) -> Array:
    """Every head's probability of being among the lowest k, those removed first.

    With `units` (heads that go together: KV groups) k counts units, and a unit's place is that of its members' mean.
    """
    drawn = table(replicates)
    groups = unit_list(drawn.shape[-1], units)
    of_units = None if ties is None else [min(ties[head] for head in unit) for unit in groups]
    return to_heads(lowest_units(drawn, k, groups, higher_is_keep, of_units).mean(0), groups)


def overlap(a: ArrayLike, b: ArrayLike, k: int, *, end: End = "lowest") -> Overlap:
    """How far two scorings, both with more meaning keep, agree on the lowest (or highest) k heads."""
    first, second = matched(a, b)
    if first.ndim != 1:
        raise StatisticsError(f"overlap compares two vectors of heads, got shape {first.shape}")
    n = len(first)
    shared = int((ends(first, k, end) & ends(second, k, end)).sum())
    ways = sum(comb(k, x) * comb(n - k, k - x) for x in range(shared, k + 1))
    return Overlap(k, n, shared, shared / k, k / n, ways / comb(n, k))


def ends(values: ArrayLike, k: int, end: End = "lowest", ties: Sequence[int] | None = None) -> NDArray[np.bool_]:
    """Which heads along the last axis are the lowest, or the highest, k; more means keep."""
    placed = ranks(values, ties=ties)
    n = count(placed.shape[-1], "heads", 1)
    count(k, "k", 1, n)
    if end not in ("lowest", "highest"):
        raise StatisticsError(f"end must be 'lowest' or 'highest', got {end!r}")
    return placed > n - k if end == "lowest" else placed <= k


def unit_list(n_heads: int, units: Units) -> list[tuple[int, ...]]:
    """The units in flat order, single heads where none are given; raises unless they hold every head once."""
    groups = sorted((tuple(int(head) for head in unit) for unit in units), key=lambda unit: min(unit, default=-1))
    if not groups:
        return [(head,) for head in range(n_heads)]
    if sorted(head for unit in groups for head in unit) != list(range(n_heads)) or not all(groups):
        raise StatisticsError(f"units must hold each of the {n_heads} heads exactly once, by index from 0, and none may be empty")
    return groups


def unit_means(values: Array, groups: Sequence[tuple[int, ...]]) -> Array:
    """The mean over every unit's members, [..., units]."""
    return np.stack([values[..., list(unit)].mean(-1) for unit in groups], axis=-1)


def lowest_units(
    drawn: Array, k: int, groups: Sequence[tuple[int, ...]], higher_is_keep: bool, ties: Sequence[int] | None = None
) -> NDArray[np.bool_]:
    """Which units are among the lowest k, in every replicate."""
    means = unit_means(drawn, groups)
    return ends(means if higher_is_keep else -means, k, ties=ties)


def to_heads(values: NDArray, groups: Sequence[tuple[int, ...]]) -> Array:
    """Every head's share in its unit's number, [heads]."""
    heads = np.empty(sum(map(len, groups)))
    for value, unit in zip(values, groups, strict=True):
        heads[list(unit)] = value
    return heads
