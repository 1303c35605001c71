"""The scores of one model over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import mean, stdev
from typing import Self

MIN_SEEDS = 3
"""With fewer seeds neither a standard deviation nor an interval over seeds is given."""


@dataclass(frozen=True, slots=True)
class SeedScores:
    """The metric, or the loss where there is none, of one model over seeds.

    Attributes:
        n_seeds: How many seeds there are.
        steps: Optimiser steps of the shortest stage that trained; None where nothing trained.
        mean: The mean over seeds.
        low: The lower end of its 95 % interval by t over seeds; None below three seeds.
        high: The upper end.
        deviation: The standard deviation over seeds; None below three seeds.
    """

    n_seeds: int
    steps: int | None
    mean: float
    low: float | None
    high: float | None
    deviation: float | None

    @classmethod
    def of(cls, values: Sequence[float], steps: int | None = None) -> Self:
        """Returns the summary of the values of all seeds."""
        n_seeds, center = len(values), mean(values)
        if n_seeds < MIN_SEEDS:
            return cls(n_seeds, steps, center, None, None, None)
        from scipy import special  # imports numpy, which help texts do without

        deviation = stdev(values)
        reach = float(special.stdtrit(n_seeds - 1, 0.975)) * deviation / sqrt(n_seeds)
        return cls(n_seeds, steps, center, center - reach, center + reach, deviation)
