"""Margins: how much worse a smaller model may be."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, Self

from headcount.core.errors import OptionError
from headcount.core.metric_range import size_of_one_point

_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*(%|pt)\s*")


@dataclass(frozen=True, slots=True)
class Margin:
    """A share of the dense model's metric ("1%"), or points of it ("0.5pt").

    A point is a hundredth of accuracy, F1 and correlations, and one of BLEU, chrF and perplexity.

    Args:
        size: The number before the unit.
        unit: "%" for a share of the dense model's metric, "pt" for points.
    """

    size: float
    unit: Literal["%", "pt"]

    def __post_init__(self) -> None:
        if not 0 < self.size < float("inf") or (self.unit == "%" and self.size >= 100):
            raise OptionError(f"margin must be above 0{' and below 100' if self.unit == '%' else ''}; got {self}")

    @classmethod
    def parse(cls, margin: str | Margin) -> Self | Margin:
        """Returns the margin that a text names.

        Raises:
            OptionError: the text is not a number with its unit; a bare number could mean either.
        """
        if isinstance(margin, Margin):
            return margin
        match = _TEXT.fullmatch(margin) if isinstance(margin, str) else None
        if match is not None:
            return cls(float(match[1]), "%" if match[2] == "%" else "pt")
        if isinstance(margin, bool) or not isinstance(margin, str | int | float) or not _is_number_text(margin):
            raise OptionError(f"margin must be a share such as '1%' or points such as '0.5pt'; got {margin!r}")
        number = str(margin).strip()
        share = f"'{number}%' for that share of the dense model's metric"
        if 0 < float(number) < 1:  # 0.02 is more often 2 % than 0.02 %
            share = f"'{float(number) * 100:g}%' if it is a fraction of the dense model's metric, '{number}%' if it is per cent"
        raise OptionError(
            f"margin {number} has no unit; write {share}, or '{number}pt' for points "
            "(hundredths of accuracy, F1 and correlations; BLEU, chrF and perplexity as they are)"
        )

    @property
    def share(self) -> float | None:
        """The share of the dense model's metric; None where the margin is in points."""
        return self.size / 100 if self.unit == "%" else None

    def of_metric(self, metric: str, dense_value: float) -> float:
        """Returns the margin in units of a metric that has the value `dense_value` in the dense model."""
        return self.size / 100 * abs(dense_value) if self.unit == "%" else self.size * size_of_one_point(metric)

    def __str__(self) -> str:
        return f"{self.size:g}{self.unit}"


def _is_number_text(text: object) -> bool:
    try:
        float(str(text))
    except ValueError:
        return False
    return True
