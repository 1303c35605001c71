"""Corrections of p-values for looking at many heads at once."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from headcount.core.errors import StatisticsError
from headcount.core.stats.samples import Array, finite

Adjust = Literal["bh", "bonferroni", "none"]


def benjamini_hochberg(p: ArrayLike) -> Array:
    """The q-values that bound the expected share of false discoveries: q_(i) = min over j ≥ i of p_(j) · n / j (Benjamini & Hochberg 1995)."""
    values = _checked(p)
    order = np.argsort(values.ravel(), kind="stable")
    scaled = values.ravel()[order] * values.size / np.arange(1, values.size + 1)
    adjusted = np.empty(values.size)
    adjusted[order] = np.minimum(np.minimum.accumulate(scaled[::-1])[::-1], 1.0)
    return adjusted.reshape(values.shape)


def bonferroni(p: ArrayLike) -> Array:
    """The p-values times their number, at most 1: bounds the chance of even one false discovery."""
    values = _checked(p)
    return np.minimum(values * values.size, 1.0)


def adjust(p: ArrayLike, by: Adjust = "bh") -> Array:
    """The p-values corrected by `bh`, `bonferroni`, or as they are by `none`."""
    ways = {"bh": benjamini_hochberg, "bonferroni": bonferroni, "none": _checked}
    if by not in ways:
        raise StatisticsError(f"no correction {by!r}. Known: {', '.join(ways)}")
    return ways[by](p)


def _checked(p: ArrayLike) -> Array:
    values = finite(p, "p-values")
    if values.min() < 0 or values.max() > 1:
        raise StatisticsError(f"p-values must lie in [0, 1], got {values.min()} to {values.max()}")
    return values
