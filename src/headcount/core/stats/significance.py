"""Significance: p-values of single estimates, corrections for many tests, and tests of two models on the same examples.

A difference of two models is always b − a.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from headcount.core.errors import StatisticsError
from headcount.core.stats.resampling import bootstrap_sampler
from headcount.core.stats.samples import Array, error_probability, make_generator, require_count, to_finite_array, to_matching_arrays
from headcount.core.stats.tango import PairedCounts

Adjust = Literal["bh", "bonferroni", "none"]
_EXACT = 16  # up to 2^16 sign patterns are listed, beyond that drawn
_CELLS = 2**21


def p_values_of_zero(values: ArrayLike, stderr: ArrayLike, degrees_of_freedom: float) -> Array:
    """Returns the two-sided p-value of each value being 0: 2 T(−|value| / stderr), t with so many degrees of freedom, normal if that is infinite.

    Where the standard error is 0, p is 1 for the value 0, else 0.
    """
    from scipy import special

    value, error = to_matching_arrays(values, stderr, ("values", "standard errors"))
    if error.min() < 0 or not degrees_of_freedom > 0:
        raise StatisticsError(
            f"standard errors must not be negative and freedom must be above 0, got {error.min()} and {degrees_of_freedom}"
        )
    spread = error > 0
    p = 2 * special.stdtr(degrees_of_freedom, -np.abs(value) / np.where(spread, error, 1.0))
    return np.where(spread, p, np.where(value == 0, 1.0, 0.0))


def benjamini_hochberg(p: ArrayLike) -> Array:
    """Returns q-values, which bound the expected share of false discoveries: q_(i) = min over j ≥ i of p_(j) · n / j (Benjamini & Hochberg 1995)."""
    values = _to_p_values(p)
    order = np.argsort(values.ravel(), kind="stable")
    scaled = values.ravel()[order] * values.size / np.arange(1, values.size + 1)
    adjusted = np.empty(values.size)
    adjusted[order] = np.minimum(np.minimum.accumulate(scaled[::-1])[::-1], 1.0)
    return np.maximum(adjusted.reshape(values.shape), values)  # p · n / n may round below p


def bonferroni(p: ArrayLike) -> Array:
    """Returns the p-values times their number, at most 1: bounds the chance of any false discovery."""
    values = _to_p_values(p)
    return np.minimum(values * values.size, 1.0)


def single_interval_level(n_intervals: int, joint_level: float = 0.95) -> float:
    """Returns the confidence of each of so many intervals at which all hold together with this one (Bonferroni)."""
    return 1 - (1 - joint_level) / max(1, n_intervals)


def adjust_p_values(p: ArrayLike, by: Adjust = "bh") -> Array:
    """Returns the p-values corrected by `bh` or `bonferroni`, unchanged by `none`."""
    ways = {"bh": benjamini_hochberg, "bonferroni": bonferroni, "none": _to_p_values}
    if by not in ways:
        raise StatisticsError(f"no correction {by!r}. Known: {', '.join(ways)}")
    return ways[by](p)


def _to_p_values(p: ArrayLike) -> Array:
    values = to_finite_array(p, "p-values")
    if values.min() < 0 or values.max() > 1:
        raise StatisticsError(f"p-values must lie in [0, 1], got {values.min()} to {values.max()}")
    return values


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference b − a between the ends of its interval, and the two-sided p-value of no difference."""

    difference: float
    low: float
    high: float
    p: float

    @property
    def interval(self) -> tuple[float, float, float]:
        """The difference and the two ends of its interval."""
        return self.difference, self.low, self.high


def tango(correct_a: ArrayLike, correct_b: ArrayLike, *, level: float = 0.95) -> Difference:
    """Compares two accuracies on the same examples by Tango's score method (`PairedCounts`); the p-value is McNemar's without correction."""
    counts = PairedCounts.from_answers(correct_a, correct_b)
    return Difference(counts.second_minus_first, *counts.interval(level), counts.p_value_of_equal())


def paired_bootstrap(
    parts_a: ArrayLike, parts_b: ArrayLike, metric_of_sums: Callable[[Array], Array], *, seed: int, repeats: int = 2000, level: float = 0.95
) -> Difference:
    """Compares a corpus metric of two models, with its percentile interval: examples are resampled, the same ones for both models.

    Parts [examples, parts] are summed over examples and `metric_of_sums` turns sums [..., parts] into values [...]: n-gram counts into BLEU,
    (correct, 1) into accuracy. p = 2 (1 + min(#{d* ≤ 0}, #{d* ≥ 0})) / (repeats + 1), at most 1.
    """
    a, b = to_matching_arrays(parts_a, parts_b, ("parts_a", "parts_b"))
    if a.ndim != 2 or len(a) < 2:
        raise StatisticsError(f"parts must be [examples, parts] with 2 examples or more, got {a.shape}")
    require_count(repeats, "repeats", 1)
    draw, step = bootstrap_sampler(len(a), seed), max(1, _CELLS // len(a))
    replicates = np.concatenate(
        [_resampled_differences(draw(min(step, repeats - start))[:, 0], a, b, metric_of_sums) for start in range(0, repeats, step)]
    )
    low, high = np.quantile(replicates, [error_probability(level) / 2, 1 - error_probability(level) / 2])
    slack = 1e-12 * max(abs(low), abs(high))  # differences that are 0 may round apart
    least = min(int((replicates <= slack).sum()), int((replicates >= -slack).sum()))
    observed = _resampled_differences(np.ones((1, len(a))), a, b, metric_of_sums)
    return Difference(float(observed[0]), float(low), float(high), min(1.0, 2 * (1 + least) / (repeats + 1)))


def sign_flip_p_value(
    differences: ArrayLike, *, seed: int, repeats: int = 9999, alternative: Literal["two-sided", "greater", "less"] = "two-sided"
) -> Array:
    """Returns the p-value of a mean difference of 0, by flipping the signs of per-example differences [examples] or [examples, heads].

    Up to 16 examples all 2^n patterns count and p is exact; beyond, p = (1 + #{as extreme}) / (repeats + 1) over drawn patterns.
    The null is that differences are symmetric about 0.
    """
    values = to_finite_array(differences, "differences")
    if values.ndim not in (1, 2) or len(values) < 2:
        raise StatisticsError(f"a sign-flip test needs [examples] or [examples, heads] with 2 examples or more, got {values.shape}")
    if alternative not in ("two-sided", "greater", "less"):
        raise StatisticsError(f"alternative must be 'two-sided', 'greater' or 'less', got {alternative!r}")
    turned = -values if alternative == "less" else values
    exact = len(values) <= _EXACT
    total = 2 ** len(values) if exact else require_count(repeats, "repeats", 1)
    rng, step, extreme = make_generator(seed), max(1, _CELLS // max(values[0].size, len(values))), 0
    for start in range(0, total, step):
        rows = min(step, total - start)
        bits = (
            (np.arange(start, start + rows)[:, None] >> np.arange(len(values))) & 1
            if exact
            else rng.integers(0, 2, size=(rows, len(values)))
        )
        signs = (1 - 2 * bits).astype(np.float64)
        extreme = extreme + _count_as_extreme(signs, turned, two_sided=alternative == "two-sided")
    return np.asarray(extreme / total if exact else (1 + extreme) / (total + 1))


def _resampled_differences(counts: Array, parts_a: Array, parts_b: Array, metric_of_sums: Callable[[Array], Array]) -> Array:
    differences = to_finite_array(
        metric_of_sums(counts @ parts_b) - metric_of_sums(counts @ parts_a),
        "totals of a resample",
        "metric_of_sums must give a number for any choice of examples",
    )
    if differences.shape != (len(counts),):
        raise StatisticsError(
            f"metric_of_sums must turn sums [rows, parts] into values [rows], got {differences.shape} for {len(counts)} rows"
        )
    return differences


def _count_as_extreme(signs: Array, values: Array, *, two_sided: bool) -> Array:
    sums, observed = signs @ values, values.sum(0)
    if two_sided:
        sums, observed = np.abs(sums), np.abs(observed)
    slack = 1e-12 * np.abs(values).sum(0)  # patterns with the same sum may round apart
    return (sums >= observed - slack).sum(0)
