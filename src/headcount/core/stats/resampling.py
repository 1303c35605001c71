"""Resampled means of scores, and pseudo-values of the jackknife."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from headcount.core.errors import StatisticsError
from headcount.core.stats.samples import Array, Samples, make_generator, require_count, require_one_number_per_head, to_finite_array

CombineFeatures = Callable[[Array], Array]  # mean features [..., heads, features] -> [..., heads]
GroupSampler = Callable[[int], NDArray]  # repeats -> how often each set of each repeat takes each group, [repeats, sets, groups]

_CELLS = 2**21  # numbers per array of a chunk: 16 MB
_PATIENCE = 50
_FEW_KINDS = 64  # up to so many different rows, their counts are drawn instead of rows


def bootstrap_scores(
    samples: Samples, *, seed: int, repeats: int = 2000, combine: CombineFeatures | None = None
) -> Float[np.ndarray, "repeats heads"]:
    """Returns means of `repeats` resamples of the groups with replacement, [repeats, heads]; `combine` turns features into scores.

    Empty groups are left out. A resample in which some head has no weight has no mean there and is drawn again.
    """
    samples = samples.drop_empty_groups()
    samples.count_groups_per_head()
    shape, draw = samples.sums.shape[1:], bootstrap_sampler(samples.n_groups, seed)
    return np.concatenate(
        [_combine_features(samples, means.reshape(-1, *shape), combine) for (means,) in resample_means_jointly([samples], draw, repeats)]
    )


def bootstrap_sampler(n_groups: int, seed: int) -> GroupSampler:
    """Returns a function that draws as many groups as there are, with replacement, as one set per repeat."""
    rng = make_generator(seed)

    def draw_group_counts(repeats: int) -> Int[np.ndarray, "repeats sets groups"]:
        picks = rng.integers(0, n_groups, size=(repeats, n_groups)) + np.arange(repeats)[:, None] * n_groups
        return np.bincount(picks.ravel(), minlength=repeats * n_groups).reshape(repeats, 1, n_groups)

    return draw_group_counts


def resample_sums(rows: Float[np.ndarray, "rows parts"], seed: int, repeats: int) -> Float[np.ndarray, "repeats parts"]:
    """Returns the sums over `repeats` resamples of rows [rows, parts] with replacement, [repeats, parts].

    Of a few kinds of rows, such as pairs of answers, the counts are drawn (multinomial): the same distribution in less time.
    """
    require_count(repeats, "repeats", 1)
    kinds, counts = np.unique(rows, axis=0, return_counts=True)
    if len(kinds) <= _FEW_KINDS:
        return make_generator(seed).multinomial(len(rows), counts / len(rows), size=repeats) @ kinds
    draw, step = bootstrap_sampler(len(rows), seed), max(1, _CELLS // len(rows))
    return np.concatenate([draw(min(step, repeats - start))[:, 0] @ rows for start in range(0, repeats, step)])


def resample_means_jointly(
    parts: Sequence[Samples], draw: GroupSampler, repeats: int
) -> Iterator[list[Float[np.ndarray, "repeats sets heads"]]]:
    """Yields chunks of means [repeats, sets, heads], one array for each of `parts`; all parts get the same draws. Chunks bound the memory."""
    require_count(repeats, "repeats", 1)
    flats = [part.features_as_heads() for part in parts]
    size = max(1, _CELLS // max(max(flat.n_groups, flat.n_heads) for flat in flats))
    n_good = n_drawn = 0
    while n_good < repeats:
        counts = draw(min(size, repeats - n_good)).astype(np.float64)
        n_drawn += len(counts)
        weights = [counts @ flat.weights for flat in flats]
        good = np.all([(weight > 0).all(axis=(1, 2)) for weight in weights], axis=0)
        n_good += int(good.sum())
        if n_drawn > _PATIENCE * repeats:
            raise StatisticsError(
                f"{n_drawn - n_good} of {n_drawn} draws left some head without data; its examples are too few. Leave it out or add data"
            )
        yield [(counts[good] @ flat.sums) / weight[good] for flat, weight in zip(flats, weights, strict=True)]


def pseudovalues(samples: Samples, combine: CombineFeatures) -> Samples:
    """Returns samples of one number per head whose mean is combine(mean features) and whose spread is that of the jackknife.

    Group g's pseudo-value is θ − (G−1)(θ₋g − θ̄), so that resampling groups treats the score as linear in them.
    """
    samples = samples.drop_empty_groups()
    jackknife, groups = _leave_one_group_out_scores(samples, combine), samples.n_groups
    values = _combine_features(samples, samples.means(), combine) - (groups - 1) * (jackknife - jackknife.mean(0))
    return Samples(values, np.ones((groups, 1)), samples.n)


def _combine_features(samples: Samples, means: Array, combine: CombineFeatures | None) -> Array:
    if combine is None:
        require_one_number_per_head(samples)
        return means
    values = to_finite_array(combine(means), "combined scores")
    if values.shape[-1] != samples.n_heads or values.ndim != means.ndim - samples.sums.ndim + 2:
        raise StatisticsError(f"combine must turn means of shape {means.shape} into one number per head, got {values.shape}")
    return values


def _leave_one_group_out_scores(samples: Samples, combine: CombineFeatures | None) -> Array:
    samples.count_groups_per_head()
    flat = samples.features_as_heads()
    means = _sums_of_other_groups(flat.sums) / _sums_of_other_groups(flat.weights)
    return _combine_features(samples, means.reshape(samples.sums.shape), combine)


def _sums_of_other_groups(values: Float[np.ndarray, "groups columns"]) -> Float[np.ndarray, "groups columns"]:
    """Returns for each group the sum of all others: before it plus after it, since total minus one would cancel digits."""
    none = np.zeros((1, values.shape[1]))
    before = np.concatenate([none, values[:-1].cumsum(0)])
    after = np.concatenate([values[:0:-1].cumsum(0)[::-1], none])
    return before + after
