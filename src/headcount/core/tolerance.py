"""How much a head may cost and still be called safe. No numpy here."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from headcount.core.errors import OptionError

TOLERANCE = "0.02"
"""Nats of loss that a safe head costs at most, where nothing else is said."""
LOSS_CLIP, ANSWER_CLIP = 2.0, 1.0
"""The most that one example counts: nats of loss, and one answer."""
_TOLERANCE = re.compile(r"([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*(pt|nats)?")


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How much removing a head may cost on average and still be called safe.

    Attributes:
        size: Nats of loss, or a share of the answers: 0.005 for half a point.
        unit: "nats", or "points" of right answers.
    """

    size: float
    unit: Literal["nats", "points"] = "nats"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.size) and 0 < self.size < self.clip):
            most = f"{self.clip:g} nats" if self.unit == "nats" else "100pt"
            raise OptionError(f"tolerance must be above 0 and below {most}, the most that one example counts; got {self.size:g}")

    @classmethod
    def parse(cls, value: str | float | Tolerance) -> Tolerance:
        """Returns the tolerance of a number of nats, 0.02 or "0.02", or of points, "0.5pt".

        Raises:
            OptionError: the value is no such number, or out of range.
        """
        if isinstance(value, Tolerance):
            return value
        match = _TOLERANCE.fullmatch(str(value).strip())
        if match is None or isinstance(value, bool):
            raise OptionError(f"tolerance must be nats of loss, such as 0.02, or points of right answers, such as '0.5pt'; got {value!r}")
        number = float(match[1])
        return cls(number / 100, "points") if match[2] == "pt" else cls(number)

    @property
    def clip(self) -> float:
        """The most that one example counts."""
        return LOSS_CLIP if self.unit == "nats" else ANSWER_CLIP

    def format_damage(self, damage: float) -> str:
        """Returns a damage in the unit of the tolerance, such as "0.02 nats" or "0.5 points"."""
        return f"{damage:.2g} nats" if self.unit == "nats" else f"{100 * damage:.2g} points"

    def __str__(self) -> str:
        return self.format_damage(self.size)
