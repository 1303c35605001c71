"""Intervals of means by the t statistic with Hall's transform, which corrects for skewness; interval and p-value come from one statistic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from headcount.core.errors import StatisticsError
from headcount.core.stats.hall import hall_transform, inverse_hall_transform
from headcount.core.stats.samples import Array, error_probability, to_finite_array
from headcount.core.stats.significance import Difference, p_values_of_zero

FEWEST_VALUES = 200
"""With fewer values, a mean has no interval: of scores with heavy tails it would cover .75 to .92 of the cases, and nothing visible says which."""
FEWEST_NONZERO = 10
"""With fewer values other than 0, a mean has no interval: what was not drawn cannot be seen."""
SKEWNESS_SHARE = 10
"""With a squared skewness above n over this, a mean has no interval: so few examples do not show the tail."""


@dataclass(frozen=True, slots=True)
class MeanDifference:
    """A mean between the ends of its interval, and the two-sided p-value of 0; None for all three where the values are too thin for them."""

    difference: float
    low: float | None
    high: float | None
    p: float | None

    @property
    def interval(self) -> tuple[float, float | None, float | None]:
        """The mean and the two ends of its interval."""
        return self.difference, self.low, self.high


def are_too_few_or_skewed(values: Array) -> bool:
    """Whether values are too few, or too skewed, for an interval of their mean that covers as often as it says."""
    skewness, n = _skewness(values), len(values)
    return n < FEWEST_VALUES or int((values != 0).sum()) < FEWEST_NONZERO or skewness**2 > n / SKEWNESS_SHARE


def mean_interval(values: ArrayLike, *, level: float = 0.95) -> MeanDifference:
    """Returns the mean of values with its interval and the two-sided p-value of 0, which are None where the values are too thin for them.

    Args:
        values: One number per example, such as the difference of two losses.
        level: The confidence.
    """
    numbers = to_finite_array(values, "values")
    if numbers.ndim != 1 or len(numbers) < 2:
        raise StatisticsError(f"an interval needs a vector of 2 values or more, got shape {numbers.shape}")
    if are_too_few_or_skewed(numbers):
        return MeanDifference(float(numbers.mean()), None, None, None)
    from scipy import special

    n, mean, stderr = len(numbers), float(numbers.mean()), float(numbers.std(ddof=1) / np.sqrt(len(numbers)))
    if stderr == 0:
        return MeanDifference(mean, mean, mean, 0.0)
    size, skewness, alpha = np.array(float(n)), np.array(_skewness(numbers)), error_probability(level)
    ends = special.stdtrit(n - 1, np.array([1 - alpha / 2, alpha / 2]))
    low, high = mean - stderr * inverse_hall_transform(ends, size, skewness)
    statistic = hall_transform(np.array(mean / stderr), size, skewness)
    return MeanDifference(mean, float(low), float(high), min(1.0, 2 * float(special.stdtr(n - 1, -abs(statistic)))))


def t_interval(values: ArrayLike, *, level: float = 0.95) -> Difference:
    """Returns the mean of a few similar values (log-ratios of rounds, heads of a layer) with its t interval and two-sided p-value of 0."""
    from scipy import special

    numbers = to_finite_array(values, "values")
    if numbers.ndim != 1 or len(numbers) < 2:
        raise StatisticsError(f"an interval needs a vector of 2 values or more, got shape {numbers.shape}")
    n, mean, stderr = len(numbers), float(numbers.mean()), float(numbers.std(ddof=1) / np.sqrt(len(numbers)))
    reach = float(special.stdtrit(n - 1, 1 - error_probability(level) / 2)) * stderr
    return Difference(mean, mean - reach, mean + reach, float(p_values_of_zero([mean], [stderr], n - 1)[0]))


def _skewness(values: Array) -> float:
    gap = values - values.mean()
    square = float((gap**2).mean())
    return float((gap**3).mean()) / square**1.5 if square > 0 else 0.0
