"""Agreement: of two scorings of the same heads, of a ranking with itself on other examples, and of a cheap score with true ablation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from headcount.core.errors import StatisticsError
from headcount.core.stats.ranks import SetOverlap, are_among_k_extreme, overlap, unit_means
from headcount.core.stats.resampling import GroupSampler, bootstrap_sampler, bootstrap_scores, resample_means_jointly
from headcount.core.stats.samples import (
    Array,
    Estimate,
    Samples,
    derive_seed,
    error_probability,
    make_generator,
    require_count,
    require_one_number_per_head,
    to_matching_arrays,
)

Correlation = Literal["spearman", "pearson"]


@dataclass(frozen=True, slots=True)
class Correlated:
    """The observed correlation between the ends of its interval over examples, and the two-sided p-value of 0 by the same resamples.

    `without_noise` estimates the correlation that the scores would have on endless examples. It has no interval: resampling gives one that
    covers the truth in .5 to .9 of the cases.
    """

    value: float
    low: float
    high: float
    p: float
    without_noise: float


def pearson(a: ArrayLike, b: ArrayLike) -> Array:
    """Returns Pearson's correlation along the last axis."""
    first, second = _to_correlatable_arrays(a, b)
    first, second = first - first.mean(-1, keepdims=True), second - second.mean(-1, keepdims=True)
    scale = np.sqrt((first**2).sum(-1)) * np.sqrt((second**2).sum(-1))
    return np.clip((first * second).sum(-1) / scale, -1.0, 1.0)


def spearman(a: ArrayLike, b: ArrayLike) -> Array:
    """Returns Spearman's rank correlation along the last axis, ties at their mean rank."""
    from scipy import stats

    first, second = _to_correlatable_arrays(a, b)
    return pearson(stats.rankdata(first, axis=-1), stats.rankdata(second, axis=-1))


def correlate(
    a: Samples, b: Samples, *, seed: int, by: Correlation = "spearman", paired: bool = False, repeats: int = 2000, level: float = 0.95
) -> Correlated:
    """Correlates two scorings of the same heads, by resampling examples: `paired` if both come from the same examples, group by group.

        interval and p     r + r* − median(r*)       how far r moves with the examples, for these heads
        without noise      2r − median(r*)

    Noise lowers r, and resampling lowers r* once more by about as much, so the replicates are centred on r for its own interval, and mirrored
    for the scores without noise. Very noisy scores still fall short of the latter: read the noise ceiling beside it.
    A scoring without examples (a norm of weights) has one group and is held fixed.
    """
    ways: dict[str, Callable[[ArrayLike, ArrayLike], Array]] = {"spearman": spearman, "pearson": pearson}
    if by not in ways:
        raise StatisticsError(f"no correlation {by!r}. Known: {', '.join(ways)}")
    a, b = require_one_number_per_head(a), require_one_number_per_head(b)
    value = float(ways[by](*to_matching_arrays(a.means(), b.means())))
    replicates = ways[by](*_resampled_means_of_both(a, b, paired, repeats, seed))
    quantiles = [error_probability(level) / 2, 1 - error_probability(level) / 2]
    centred = value + replicates - np.median(replicates)
    least = min(int((centred <= 0).sum()), int((centred >= 0).sum()))
    low, high = np.clip(np.quantile(centred, quantiles), -1.0, 1.0).tolist()
    without_noise = float(np.clip(2 * value - np.median(replicates), -1.0, 1.0))
    return Correlated(value, low, high, min(1.0, 2 * (1 + least) / (len(replicates) + 1)), without_noise)


def _resampled_means_of_both(a: Samples, b: Samples, paired: bool, repeats: int, seed: int) -> tuple[Array, Array]:
    if not paired:
        return _bootstrap_means(a, repeats, derive_seed(seed, 0)), _bootstrap_means(b, repeats, derive_seed(seed, 1))
    if a.n_groups != b.n_groups or a.n != b.n:
        raise StatisticsError(
            f"paired scores must come from the same examples, got {a.n} in {a.n_groups} groups and {b.n} in {b.n_groups}; else pass paired=False"
        )
    a.count_groups_per_head()
    b.count_groups_per_head()
    chunks = list(resample_means_jointly([a, b], bootstrap_sampler(a.n_groups, seed), repeats))
    return np.concatenate([chunk[0][:, 0] for chunk in chunks]), np.concatenate([chunk[1][:, 0] for chunk in chunks])


def _bootstrap_means(samples: Samples, repeats: int, seed: int) -> Array:
    """Returns replicates of the mean of every head, [repeats, heads]; of a single group, which cannot be resampled, the means themselves."""
    return samples.means()[None] if samples.n_groups == 1 else bootstrap_scores(samples, seed=seed, repeats=repeats)


def _to_correlatable_arrays(a: ArrayLike, b: ArrayLike) -> tuple[Array, Array]:
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.ndim == 0 or second.ndim == 0 or first.shape[-1] != second.shape[-1] or first.shape[-1] < 2:
        raise StatisticsError(f"a correlation needs the same 2 heads or more in both, got shapes {first.shape} and {second.shape}")
    for values in (first, second):
        if not np.isfinite(values).all():
            raise StatisticsError("a correlation needs finite scores")
        if (values == values[..., :1]).all(-1).any():
            raise StatisticsError(
                "all heads have the same score, so a correlation is not defined; score on more examples, or in finer steps"
            )
    return first, second


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
    samples: Samples,
    subset_sizes: Sequence[int],
    n_lowest: int,
    *,
    seed: int,
    units: Sequence[tuple[int, ...]] | None = None,
    repeats: int = 200,
    higher_is_keep: bool = True,
) -> tuple[Stability, ...]:
    """Returns how stable ranks are by calibration size: Spearman, and the share of the lowest heads in common: mean and ends over random subsets.

    With `units`, positions of the heads that go or stay together, that many units by their mean are the lowest.

    A size counts examples and is honoured as that share of the groups, rounded, at least 1; up to 256 examples a group is one example.
    A subset in which all heads tie ranks nothing and counts as correlation 0.
    """
    samples = require_one_number_per_head(samples).orient(higher_is_keep=higher_is_keep)
    return tuple(
        _stability_at_size(samples, size, n_lowest, units, repeats, derive_seed(seed, number)) for number, size in enumerate(subset_sizes)
    )


def split_half_reliability(samples: Samples, *, seed: int, n_splits: int = 200, share_of_splits: float = 0.95) -> Estimate:
    """Returns how well the ranking repeats on as many other examples: Spearman of random halves, corrected by Spearman–Brown, r' = cr/(1+(c−1)r).

    c is all groups over those of a half. The ends are percentiles, between which `share_of_splits` of the splits lie. A negative one counts as 0.
    """
    samples = require_one_number_per_head(samples)
    if samples.n_groups < 2:
        raise StatisticsError("split halves need 2 examples or more, got 1; score on more examples")
    half = samples.n_groups // 2
    first, second = _means_of_disjoint_subsets(samples, half, n_splits, seed, n_subsets=2)
    r = np.maximum(_spearman_or_zero(first, second), 0.0)
    c = samples.n_groups / half
    half_estimate = _mean_and_central_percentiles(r, share_of_splits)
    return Estimate(*(c * x / (1 + (c - 1) * x) for x in (half_estimate.value, half_estimate.low, half_estimate.high)))


def _stability_at_size(
    samples: Samples, n_examples: int, n_lowest: int, units: Sequence[tuple[int, ...]] | None, repeats: int, seed: int, level: float = 0.95
) -> Stability:
    require_count(n_examples, "size", 1, samples.n)
    groups = max(1, round(n_examples / samples.n * samples.n_groups))
    sets = 2 if 2 * groups <= samples.n_groups else 1
    first, *disjoint = _means_of_disjoint_subsets(samples, groups, repeats, seed, sets)
    pairs = [(first, samples.means()[None]), *((first, second) for second in disjoint)]
    estimates = []
    for a, b in pairs:
        are_lowest = [are_among_k_extreme(means if units is None else unit_means(means, units), n_lowest) for means in (a, b)]
        shares = (are_lowest[0] & are_lowest[1]).sum(-1) / n_lowest
        estimates += [_mean_and_central_percentiles(values, level) for values in (_spearman_or_zero(a, b), shares)]
    return Stability(n_examples, groups, *estimates, *[None] * (4 - len(estimates)))


def _means_of_disjoint_subsets(
    samples: Samples, groups_per_subset: int, repeats: int, seed: int, n_subsets: int
) -> list[Float[np.ndarray, "repeats heads"]]:
    chunks = [
        chunk
        for (chunk,) in resample_means_jointly(
            [samples], _disjoint_subset_sampler(samples.n_groups, groups_per_subset, n_subsets, seed), repeats
        )
    ]
    means = np.concatenate(chunks)
    return [means[:, number] for number in range(n_subsets)]


def _disjoint_subset_sampler(n_groups: int, groups_per_subset: int, n_subsets: int, seed: int) -> GroupSampler:
    rng = make_generator(seed)

    def draw_group_counts(repeats: int) -> Float[np.ndarray, "repeats sets groups"]:
        order = rng.permuted(np.broadcast_to(np.arange(n_groups), (repeats, n_groups)), axis=1)
        return (order[:, None, :] // groups_per_subset == np.arange(n_subsets)[:, None]).astype(np.float64)

    return draw_group_counts


def _spearman_or_zero(a: Array, b: Array) -> Array:
    """Returns Spearman's correlation row by row, 0 where all heads tie: such a subset ranks nothing."""
    a, b = np.broadcast_arrays(a, b)
    ranked = (a != a[:, :1]).any(-1) & (b != b[:, :1]).any(-1)
    correlations = np.zeros(len(a))
    if ranked.any():
        correlations[ranked] = spearman(a[ranked], b[ranked])
    return correlations


def _mean_and_central_percentiles(values: Array, share_between: float) -> Estimate:
    low, high = np.quantile(values, [error_probability(share_between) / 2, 1 - error_probability(share_between) / 2])
    return Estimate(float(values.mean()), float(low), float(high))


@dataclass(frozen=True, slots=True)
class Agreement:
    """A cheap score against the truth: Spearman with interval and p-value over examples, shared lowest and highest k, and the noise ceiling.

    The ceiling √split_half_reliability(truth) is the correlation that the true scores themselves would have with the truth as measured.
    """

    spearman: Correlated
    lowest: SetOverlap
    highest: SetOverlap
    ceiling: float


def agreement(
    cheap: Samples,
    truth: Samples,
    k: int,
    *,
    seed: int,
    positions_of_units: Sequence[tuple[int, ...]] | None = None,
    paired: bool = False,
    repeats: int = 2000,
) -> Agreement:
    """Compares a cheap score with true ablation, both with more meaning keep (`Samples.orient`).

    With `positions_of_units`, those of the heads that go or stay together, `k` units by their mean are the lowest and the highest.
    """
    rho = correlate(cheap, truth, seed=seed, paired=paired, repeats=repeats)
    if cheap.n_heads < 3:
        raise StatisticsError(f"agreement needs 3 heads or more, got {cheap.n_heads}")
    of_cheap, of_truth = (
        samples.means() if positions_of_units is None else unit_means(samples.means(), positions_of_units) for samples in (cheap, truth)
    )
    ceiling = float(np.sqrt(split_half_reliability(truth, seed=derive_seed(seed, 2)).value))
    return Agreement(rho, overlap(of_cheap, of_truth, k), overlap(of_cheap, of_truth, k, end="highest"), ceiling)
