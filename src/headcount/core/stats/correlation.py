"""How far two scorings of the same heads agree, and how sure that is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from headcount.core.errors import StatisticsError
from headcount.core.stats.resampling import bootstrap, draw_with_replacement, replicate
from headcount.core.stats.samples import Array, Estimate, Samples, derived, matched, scored, tail

Correlation = Literal["spearman", "pearson", "kendall"]


@dataclass(frozen=True, slots=True)
class Correlated:
    """The observed correlation between the ends of its interval over examples, and the two-sided p-value of 0 by the same resamples.

    `without_noise` estimates the correlation that the scores would have on endless examples.
    """

    value: float
    low: float
    high: float
    p: float
    without_noise: Estimate


def pearson(a: ArrayLike, b: ArrayLike) -> Array:
    """Pearson's correlation along the last axis."""
    first, second = _pair(a, b)
    first, second = first - first.mean(-1, keepdims=True), second - second.mean(-1, keepdims=True)
    scale = np.sqrt((first**2).sum(-1)) * np.sqrt((second**2).sum(-1))
    return np.clip((first * second).sum(-1) / scale, -1.0, 1.0)


def spearman(a: ArrayLike, b: ArrayLike) -> Array:
    """Spearman's rank correlation along the last axis, ties at their mean rank."""
    from scipy import stats

    first, second = _pair(a, b)
    return pearson(stats.rankdata(first, axis=-1), stats.rankdata(second, axis=-1))


def kendall(a: ArrayLike, b: ArrayLike) -> Array:
    """Kendall's tau-b along the last axis."""
    from scipy import stats

    first, second = np.broadcast_arrays(*_pair(a, b))
    rows = zip(first.reshape(-1, first.shape[-1]), second.reshape(-1, second.shape[-1]), strict=True)
    return np.array([stats.kendalltau(x, y)[0] for x, y in rows]).reshape(first.shape[:-1])


def correlate(
    a: Samples, b: Samples, *, seed: int, by: Correlation = "spearman", paired: bool = False, repeats: int = 2000, level: float = 0.95
) -> Correlated:
    """The correlation of two scorings of the same heads, by resampling examples: `paired` when both come from the same examples, group by group.

        interval and p     r + r* − median(r*)       how far r moves with the examples, for these heads
        without noise      2r − r*                   the basic bootstrap

    Noise lowers r, and resampling lowers r* once more by about as much, so the replicates are centred on r for its own interval, and turned round
    for that of the scores without noise. Very noisy scores still fall short of the latter: read the noise ceiling beside it.
    A scoring without examples (a norm of weights) has one group and is held fixed.
    """
    ways: dict[str, Callable[[ArrayLike, ArrayLike], Array]] = {"spearman": spearman, "pearson": pearson, "kendall": kendall}
    if by not in ways:
        raise StatisticsError(f"no correlation {by!r}. Known: {', '.join(ways)}")
    a, b = scored(a), scored(b)
    value = float(ways[by](*matched(a.means(), b.means())))
    drawn = ways[by](*_replicates(a, b, paired, repeats, seed))
    ends = [tail(level) / 2, 1 - tail(level) / 2]
    centred = value + drawn - np.median(drawn)
    least = min(int((centred <= 0).sum()), int((centred >= 0).sum()))
    low, high = np.clip(np.quantile(centred, ends), -1.0, 1.0).tolist()
    true_value, true_low, true_high = np.clip(2 * value - np.array([np.median(drawn), *np.quantile(drawn, ends[::-1])]), -1.0, 1.0).tolist()
    return Correlated(value, low, high, min(1.0, 2 * (1 + least) / (len(drawn) + 1)), Estimate(true_value, true_low, true_high))


def _replicates(a: Samples, b: Samples, paired: bool, repeats: int, seed: int) -> tuple[Array, Array]:
    if not paired:
        return _alone(a, repeats, derived(seed, 0)), _alone(b, repeats, derived(seed, 1))
    if a.n_groups != b.n_groups or a.n != b.n:
        raise StatisticsError(
            f"paired scores must come from the same examples, got {a.n} in {a.n_groups} groups and {b.n} in {b.n_groups}; else say paired=False"
        )
    a.counts()
    b.counts()
    chunks = list(replicate([a, b], draw_with_replacement(a.n_groups, seed), repeats))
    return np.concatenate([chunk[0][:, 0] for chunk in chunks]), np.concatenate([chunk[1][:, 0] for chunk in chunks])


def _alone(part: Samples, repeats: int, seed: int) -> Array:
    return part.means()[None] if part.n_groups == 1 else bootstrap(part, seed=seed, repeats=repeats)


def _pair(a: ArrayLike, b: ArrayLike) -> tuple[Array, Array]:
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
