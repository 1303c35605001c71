"""Resampled means of scores, the intervals that follow, and pseudo-values of the jackknife."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headcount.core.errors import StatisticsError
from headcount.core.stats.samples import Array, Intervals, Samples, count, finite, generator, scored, table, tail

Combine = Callable[[Array], Array]  # mean features [..., heads, features] -> [..., heads]
Draw = Callable[[int], NDArray]  # rows -> how often each set of each row takes each group, [rows, sets, groups]

_CELLS = 2**21  # numbers per array of a chunk: 16 MB
_PATIENCE = 50


def bootstrap(samples: Samples, *, seed: int, repeats: int = 2000, combine: Combine | None = None) -> Array:
    """Means of `repeats` resamples of the groups with replacement, [repeats, heads]; features, where there are any, pass through `combine`.

    Empty groups are left out. A resample in which some head has no weight has no mean there and is drawn again.
    """
    samples = samples.filled()
    samples.counts()
    return _finish(samples, replicate([samples], draw_with_replacement(samples.n_groups, seed), repeats), combine)


def draw_with_replacement(groups: int, seed: int, sets: int = 1) -> Draw:
    """Draws as many groups as there are, with replacement, for every set."""
    rng = generator(seed)

    def draw(rows: int) -> NDArray:
        picks = rng.integers(0, groups, size=(rows * sets, groups)) + np.arange(rows * sets)[:, None] * groups
        return np.bincount(picks.ravel(), minlength=rows * sets * groups).reshape(rows, sets, groups)

    return draw


def replicate(parts: Sequence[Samples], draw: Draw, repeats: int) -> Iterator[list[Array]]:
    """Chunks of means [rows, sets, heads], one array for each of `parts`; all parts see the same draws. Chunks keep memory bounded."""
    count(repeats, "repeats", 1)
    flats = [part.flat() for part in parts]
    size = max(1, _CELLS // max(max(flat.n_groups, flat.n_heads) for flat in flats))
    done = tried = 0
    while done < repeats:
        counts = draw(min(size, repeats - done)).astype(np.float64)
        tried += len(counts)
        weights = [counts @ flat.weights for flat in flats]
        good = np.all([(weight > 0).all(axis=(1, 2)) for weight in weights], axis=0)
        done += int(good.sum())
        if tried > _PATIENCE * repeats:
            raise StatisticsError(
                f"{tried - done} of {tried} draws left some head without data; its examples are too few. Leave it out or add data"
            )
        yield [(counts[good] @ flat.sums) / weight[good] for flat, weight in zip(flats, weights, strict=True)]


def intervals(replicates: ArrayLike, level: float = 0.95, *, samples: Samples | None = None, combine: Combine | None = None) -> Intervals:
    """The percentile interval of every head; with the `samples` behind the replicates, the BCa interval, which mends bias and skewness.

    BCa (Efron 1987): percentiles Φ(z₀ + (z₀ + z)/(1 − a(z₀ + z))), z₀ from the share of replicates below the estimate, a from the jackknife.
    """
    drawn = table(replicates)
    edges = np.array([tail(level) / 2, 1 - tail(level) / 2])
    if samples is None:
        low, high = np.quantile(drawn, edges, axis=0)
        return Intervals(low, high)
    return Intervals(*_quantiles(drawn, _bca_shares(drawn, samples, edges, combine)))


def pseudovalues(samples: Samples, combine: Combine) -> Samples:
    """Samples of one number per head whose mean is combine(mean features) and whose spread is that of the jackknife.

    Group g's pseudo-value is θ − (G−1)(θ₋g − θ̄), so that resampling groups treats the score as linear in them.
    """
    samples = samples.filled()
    left, groups = _leave_one_out(samples, combine), samples.n_groups
    values = _combined(samples, samples.means(), combine) - (groups - 1) * (left - left.mean(0))
    return Samples(values, np.ones((groups, 1)), samples.n)


def _finish(samples: Samples, chunks: Iterator[list[Array]], combine: Combine | None) -> Array:
    shape = samples.sums.shape[1:]
    return np.concatenate([_combined(samples, means.reshape(-1, *shape), combine) for (means,) in chunks])


def _combined(samples: Samples, means: Array, combine: Combine | None) -> Array:
    if combine is None:
        scored(samples)
        return means
    values = finite(combine(means), "combined scores")
    if values.shape[-1] != samples.n_heads or values.ndim != means.ndim - samples.sums.ndim + 2:
        raise StatisticsError(f"combine must turn means of shape {means.shape} into one number per head, got {values.shape}")
    return values


def _leave_one_out(samples: Samples, combine: Combine | None) -> Array:
    samples.counts()
    flat = samples.flat()
    means = _others(flat.sums) / _others(flat.weights)
    return _combined(samples, means.reshape(samples.sums.shape), combine)


def _others(values: Array) -> Array:
    """The sum of all groups but one, for each: before it plus after it, since total minus one would cancel."""
    none = np.zeros((1, values.shape[1]))
    before = np.concatenate([none, values[:-1].cumsum(0)])
    after = np.concatenate([values[:0:-1].cumsum(0)[::-1], none])
    return before + after


def _bca_shares(drawn: Array, samples: Samples, edges: Array, combine: Combine | None) -> Array:
    from scipy import special

    samples = samples.filled()
    values, left = _combined(samples, samples.means(), combine), _leave_one_out(samples, combine)
    below = (drawn < values).sum(0) + 0.5 * (drawn == values).sum(0)
    shift = special.ndtri((below + 0.5) / (len(drawn) + 1.0))
    gaps = left.mean(0) - left
    scale = (gaps**2).sum(0) ** 1.5
    lean = np.divide((gaps**3).sum(0), 6 * scale, out=np.zeros_like(scale), where=scale > 0)
    moved = shift + special.ndtri(edges)[:, None]
    return special.ndtr(shift + moved / (1 - lean * moved))  # [2, heads]


def _quantiles(drawn: Array, shares: Array) -> Array:
    ordered = np.sort(drawn, axis=0)
    place = shares * (len(drawn) - 1)
    floor = np.floor(place).astype(int)
    low = np.take_along_axis(ordered, floor, axis=0)
    high = np.take_along_axis(ordered, np.minimum(floor + 1, len(drawn) - 1), axis=0)
    return low + (high - low) * (place - floor)
