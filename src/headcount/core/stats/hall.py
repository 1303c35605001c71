"""Hall's transform (1992): the t statistic of a mean, corrected for skewness, and the skewness of a stream of values.

    h(t) = √n (S + γS²/3 + γ²S³/27 + γ/(6n)),   S = t/√n

approximately has a t distribution with n − 1 degrees of freedom also for data of skewness γ; without skewness h(t) = t. h is monotone.
"""

from __future__ import annotations

import numpy as np

from headcount.core.errors import StatisticsError
from headcount.core.stats.samples import Array, to_finite_array


def hall_transform(t: Array, n: Array, skewness: Array) -> Array:
    """Returns h(t) of t statistics over n values with this skewness."""
    s = t / np.sqrt(n)
    return np.sqrt(n) * (s + skewness * s**2 / 3 + skewness**2 * s**3 / 27 + skewness / (6 * n))


def inverse_hall_transform(transformed: Array, n: Array, skewness: Array) -> Array:
    """Returns the t statistic whose h(t) is `transformed`, for the ends of intervals."""
    edge = transformed / np.sqrt(n)
    is_skewed = np.abs(skewness) > 1e-6
    slope = np.where(is_skewed, skewness, 1.0)
    return np.sqrt(n) * np.where(is_skewed, 3 / slope * (np.cbrt(1 + slope * (edge - slope / (6 * n))) - 1), edge)


class Skewness:
    """Σ(v − μ)³/n over (Σ(v − μ)²/n)^1.5 per column of a stream, in memory that does not grow.

    Sums are taken about the column's first value. That is one of the sample, so it lies within √n deviations of the mean, and nothing cancels.
    """

    __slots__ = ("_first", "_n", "_sums")

    def __init__(self, size: int) -> None:
        self._first, self._n, self._sums = np.full(size, np.nan), np.zeros(size), np.zeros((3, size))

    def update(self, values: Array, is_counted: Array) -> None:
        """Adds rows [n, columns], where `is_counted` is set."""
        rows, counted = to_finite_array(values, "values"), np.asarray(is_counted, dtype=bool)
        if rows.shape != counted.shape or rows.shape[1:] != self._first.shape:
            raise StatisticsError(f"values and is_counted must be [n, {len(self._first)}], got {rows.shape} and {counted.shape}")
        new = np.isnan(self._first) & counted.any(0)
        self._first[new] = rows[counted.argmax(0)[new], np.flatnonzero(new)]
        gap = np.where(counted, rows - self._first, 0.0)
        square = gap * gap
        self._n += counted.sum(0)
        for power, part in enumerate((gap, square, square * gap)):
            self._sums[power] += part.sum(0)

    def value(self) -> Array:
        """Returns the skewness of every column, 0 where there is no spread."""
        first, second, third = self._sums / np.maximum(self._n, 1)
        square = second - first**2
        cube = third - 3 * first * second + 2 * first**3
        return np.divide(cube, np.maximum(square, 0.0) ** 1.5, out=np.zeros_like(cube), where=square > 0)
