"""How much a ranking would change on other calibration examples, or on fewer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headcount.core.errors import StatisticsError
from headcount.core.stats.correlation import spearman
from headcount.core.stats.ranks import ends
from headcount.core.stats.resampling import Draw, replicate
from headcount.core.stats.samples import Array, Estimate, Samples, count, derived, generator, scored, tail


@dataclass(frozen=True, slots=True)
class Stability:
    """Agreement at one calibration size: of a subset with the full ranking, and of two disjoint subsets (None beyond half of the data).

    A subset is part of the full data, so `spearman` and `overlap` reach 1 at full size by construction; the disjoint ones do not.
    """

    size: int
    groups: int
    spearman: Estimate
    overlap: Estimate
    disjoint_spearman: Estimate | None
    disjoint_overlap: Estimate | None


def stability(
    samples: Samples, sizes: Sequence[int], k: int, *, seed: int, repeats: int = 200, higher_is_keep: bool = True, level: float = 0.95
) -> tuple[Stability, ...]:
    """How stable ranks are by calibration size: Spearman, and the share of the lowest k in common, mean and percentiles over random subsets.

    A size counts examples and is honoured as that share of the groups, rounded, at least 1; up to 256 examples a group is one example.
    A subset in which all heads tie ranks nothing and counts as correlation 0.
    """
    samples = scored(samples).signed(higher_is_keep=higher_is_keep)
    return tuple(_at(samples, size, k, repeats, derived(seed, number), level) for number, size in enumerate(sizes))


def reliability(samples: Samples, *, seed: int, repeats: int = 200, level: float = 0.95) -> Estimate:
    """How far the ranking repeats itself on as many other examples: Spearman of random halves, stepped up by Spearman–Brown, r' = cr/(1+(c−1)r).

    c is all groups over those of a half. The ends are percentiles over splits. A negative estimate reads 0.
    """
    samples = scored(samples)
    if samples.n_groups < 2:
        raise StatisticsError("split halves need 2 examples or more, got 1; score on more examples")
    half = samples.n_groups // 2
    first, second = _subsets(samples, half, repeats, seed, sets=2)
    r = np.maximum(_spearman(first, second), 0.0)
    c = samples.n_groups / half
    found = _summary(r, level)
    return Estimate(*(c * x / (1 + (c - 1) * x) for x in (found.value, found.low, found.high)))


def _at(samples: Samples, size: int, k: int, repeats: int, seed: int, level: float) -> Stability:
    count(size, "size", 1, samples.n)
    groups = max(1, round(size / samples.n * samples.n_groups))
    sets = 2 if 2 * groups <= samples.n_groups else 1
    first, *others = _subsets(samples, groups, repeats, seed, sets)
    pairs = [(first, samples.means()[None]), *((first, other) for other in others)]
    found = [_summary(measured, level) for a, b in pairs for measured in (_spearman(a, b), _shared(a, b, k))]
    return Stability(size, groups, *found, *[None] * (4 - len(found)))


def _subsets(samples: Samples, groups: int, repeats: int, seed: int, sets: int) -> list[Array]:
    chunks = [means for (means,) in replicate([samples], _draw_disjoint(samples.n_groups, groups, sets, seed), repeats)]
    drawn = np.concatenate(chunks)
    return [drawn[:, number] for number in range(sets)]


def _draw_disjoint(n_groups: int, groups: int, sets: int, seed: int) -> Draw:
    rng = generator(seed)

    def draw(rows: int) -> NDArray:
        places = rng.permuted(np.broadcast_to(np.arange(n_groups), (rows, n_groups)), axis=1)
        return (places[:, None, :] // groups == np.arange(sets)[:, None]).astype(np.float64)

    return draw


def _spearman(a: Array, b: Array) -> Array:
    """Spearman's correlation row by row, 0 where all heads tie: such a subset ranks nothing."""
    a, b = np.broadcast_arrays(a, b)
    ranked = (a != a[:, :1]).any(-1) & (b != b[:, :1]).any(-1)
    found = np.zeros(len(a))
    if ranked.any():
        found[ranked] = spearman(a[ranked], b[ranked])
    return found


def _shared(a: Array, b: Array, k: int) -> Array:
    return (ends(a, k) & ends(b, k)).sum(-1) / k


def _summary(values: Array, level: float) -> Estimate:
    low, high = np.quantile(values, [tail(level) / 2, 1 - tail(level) / 2])
    return Estimate(float(values.mean()), float(low), float(high))
