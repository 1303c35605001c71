"""Whether estimates are away from zero, by their standard errors."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from headcount.core.errors import StatisticsError
from headcount.core.stats.samples import Array, matched


def away_from_zero(values: ArrayLike, stderr: ArrayLike, freedom: float) -> Array:
    """The two-sided p-value that each value is 0: 2 T(−|value| / stderr), t with `freedom` degrees, normal where that is infinite.

    Without any spread a value is what it is: p = 1 for 0, else 0.
    """
    from scipy import special

    value, error = matched(values, stderr, ("values", "standard errors"))
    if error.min() < 0 or not freedom > 0:
        raise StatisticsError(f"standard errors must not be negative and freedom must be above 0, got {error.min()} and {freedom}")
    spread = error > 0
    p = 2 * special.stdtr(freedom, -np.abs(value) / np.where(spread, error, 1.0))
    return np.where(spread, p, np.where(value == 0, 1.0, 0.0))
