"""The scores of one model over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import mean, stdev
from typing import Self

from headcount.core.metric_range import range_of_metric

MIN_SEEDS = 3
"""With fewer seeds neither a standard deviation nor an interval over seeds is given."""


@dataclass(frozen=True, slots=True)
class SeedScores:
    """The metric, or the loss where there is none, of one model over seeds.

    Attributes:
        n_seeds: How many seeds there are.
        steps: Optimiser steps of the shortest stage that trained; None where nothing trained.
        mean: The mean over seeds.
        low: The lower end of its 95 % interval by t over seeds, where the metric's range does not end before; None below three seeds.
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
    def from_value_of_each_seed(cls, values: Sequence[float], metric: str, steps: int | None = None) -> Self:
        """Returns the summary of the values of a metric by all seeds."""
        n_seeds, center = len(values), mean(values)
        if n_seeds < MIN_SEEDS:
            return cls(n_seeds, steps, center, None, None, None)
        from scipy import special  # imports numpy, which help texts do without

        deviation = stdev(values)
        reach = float(special.stdtrit(n_seeds - 1, 0.975)) * deviation / sqrt(n_seeds)
        lowest, highest = range_of_metric(metric)
        return cls(n_seeds, steps, center, max(lowest, center - reach), min(highest, center + reach), deviation)
