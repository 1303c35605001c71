"""Tango's score method (1998) for the difference of two accuracies on the same examples: intervals, bounds and p-values come from one statistic.

    T(δ) = (b − c − nδ) / √(n (2q + δ(1 − δ))),   q = (√(B² − 4AC) − B) / 2A,   A = 2n,  B = (2n − b + c) δ − b − c,  C = −c δ(1 − δ)

with b examples that only the second model gets right and c that only the first does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from headcount.core.errors import StatisticsError
from headcount.core.stats.samples import error_probability, to_matching_arrays

_HALVINGS = 60


@dataclass(frozen=True, slots=True)
class PairedCounts:
    """How many of n examples only the first model gets right, and how many only the second."""

    n: int
    only_first: int
    only_second: int

    @classmethod
    def from_answers(cls, first_correct: ArrayLike, second_correct: ArrayLike) -> Self:
        """Returns the counts of 0 or 1 per example for both models."""
        first, second = to_matching_arrays(first_correct, second_correct, ("first_correct", "second_correct"))
        if first.ndim != 1 or not np.isin(np.concatenate([first, second]), (0, 1)).all():
            raise StatisticsError(
                f"correctness must be one 0 or 1 per example, got shape {first.shape} and values {np.unique([first, second])[:5]}"
            )
        return cls(len(first), int((first > second).sum()), int((second > first).sum()))

    @property
    def second_minus_first(self) -> float:
        """The second accuracy minus the first."""
        return (self.only_second - self.only_first) / self.n

    def stderr(self, true_difference: float) -> float:
        """Returns the standard error of the observed difference if the true one were `true_difference`."""
        n, b, c = self.n, self.only_second, self.only_first
        first, second, third = 2 * n, (2 * n - b + c) * true_difference - b - c, -c * true_difference * (1 - true_difference)
        q = (np.sqrt(max(0.0, second**2 - 4 * first * third)) - second) / (2 * first)
        return float(np.sqrt(max(0.0, n * (2 * q + true_difference * (1 - true_difference)))) / n)

    def score_statistic(self, true_difference: float) -> float:
        """Returns T(true_difference)."""
        spread, gap = self.stderr(true_difference), self.second_minus_first - true_difference
        return gap / spread if spread > 0 else float(np.sign(gap) * np.inf) if gap else 0.0

    def p_value_of_at_most(self, true_difference: float) -> float:
        """Returns the one-sided p-value of a true difference of `true_difference` or less; a small one says that it is above."""
        from scipy import special

        return float(special.ndtr(-self.score_statistic(true_difference)))

    def p_value_of_at_least(self, true_difference: float) -> float:
        """Returns the one-sided p-value of a true difference of `true_difference` or more."""
        from scipy import special

        return float(special.ndtr(self.score_statistic(true_difference)))

    def p_value_of_equal(self) -> float:
        """Returns the two-sided p-value of no difference, which is McNemar's without correction."""
        return min(1.0, 2 * min(self.p_value_of_at_most(0.0), self.p_value_of_at_least(0.0))) if self.only_first + self.only_second else 1.0

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Returns the differences with |T| ≤ z. Without any discordant example the interval is ± z²/(n + z²), not a point."""
        from scipy import special

        z = float(special.ndtri(1 - error_probability(level) / 2))

        def bisect_end(outside: float, sign: int) -> float:
            inside = self.second_minus_first
            for _ in range(_HALVINGS):
                middle = (inside + outside) / 2
                inside, outside = (middle, outside) if sign * self.score_statistic(middle) <= z else (inside, middle)
            return inside

        return bisect_end(-1.0, 1), bisect_end(1.0, -1)
