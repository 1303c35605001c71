"""Intervals of means by the t statistic with Hall's transform, which corrects for skewness; interval and p-value come from one statistic."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from headcount.core.errors import StatisticsError
from headcount.core.stats.hall import hall_transform, inverse_hall_transform
from headcount.core.stats.samples import Array, error_probability, finite
from headcount.core.stats.significance import Difference

FEWEST_NONZERO = 10
"""With fewer values other than 0, a mean has no interval: what was not drawn cannot be seen."""
SKEWNESS_SHARE = 10
"""With a squared skewness above n over this, a mean has no interval: so few examples do not show the tail."""


def is_too_thin(values: Array) -> bool:
    """Whether values are too few, or too skewed, for an interval of their mean that covers as often as it says."""
    skewness, n = _skewness(values), len(values)
    return int((values != 0).sum()) < FEWEST_NONZERO or skewness**2 > n / SKEWNESS_SHARE


def mean_interval(values: ArrayLike, *, level: float = 0.95) -> Difference | None:
    """Returns the mean of values with its interval and the two-sided p-value of 0; None where they are too thin for an interval.

    Args:
        values: One number per example, such as the difference of two losses.
        level: The confidence.
    """
    numbers = finite(values, "values")
    if numbers.ndim != 1 or len(numbers) < 2:
        raise StatisticsError(f"an interval needs a vector of 2 values or more, got shape {numbers.shape}")
    if is_too_thin(numbers):
        return None
    from scipy import special

    n, mean, stderr = len(numbers), float(numbers.mean()), float(numbers.std(ddof=1) / np.sqrt(len(numbers)))
    if stderr == 0:
        return Difference(mean, mean, mean, 0.0)
    size, skewness, alpha = np.array(float(n)), np.array(_skewness(numbers)), error_probability(level)
    ends = special.stdtrit(n - 1, np.array([1 - alpha / 2, alpha / 2]))
    low, high = mean - stderr * inverse_hall_transform(ends, size, skewness)
    statistic = hall_transform(np.array(mean / stderr), size, skewness)
    return Difference(mean, float(low), float(high), min(1.0, 2 * float(special.stdtr(n - 1, -abs(statistic)))))


def _skewness(values: Array) -> float:
    gap = values - values.mean()
    square = float((gap**2).mean())
    return float((gap**3).mean()) / square**1.5 if square > 0 else 0.0
