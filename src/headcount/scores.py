"""Scores: one number per head in flat order, with its method and direction. Knows no model."""

from __future__ import annotations

import math
from dataclasses import dataclass

from headcount.errors import PlanError
from headcount.heads import Head


@dataclass(frozen=True, slots=True)
class Scores:
    """How much each head matters by some method; `units` are the heads that go or stay together (KV groups), by default single heads."""

    heads: tuple[Head, ...]
    values: tuple[float, ...]
    method: str = ""
    higher_is_keep: bool = True
    units: tuple[tuple[Head, ...], ...] = ()

    def __post_init__(self) -> None:
        if len(self.heads) != len(self.values):
            raise PlanError(f"scores need one value per head, got {len(self.values)} values for {len(self.heads)} heads")
        bad = next((head for head, value in zip(self.heads, self.values, strict=True) if not math.isfinite(value)), None)
        if bad is not None:
            raise PlanError(f"the score of {bad} is not a finite number; a ranking of it would mean nothing")
        members = [head for unit in self.units for head in unit]
        if self.units and sorted(members) != sorted(self.heads):
            raise PlanError("units must hold every scored head exactly once")

    def tied(self) -> tuple[tuple[Head, ...], ...]:
        """The units, single heads where none were given."""
        return self.units or tuple((head,) for head in self.heads)

    def signed(self) -> dict[Head, float]:
        """Every head's score, signed so that more means keep."""
        sign = 1.0 if self.higher_is_keep else -1.0
        return {head: sign * value for head, value in zip(self.heads, self.values, strict=True)}

    def ranking(self) -> list[Head]:
        """The heads from the one to keep first to the one to remove first; ties in flat order."""
        sign = -1.0 if self.higher_is_keep else 1.0
        order = sorted(range(len(self.heads)), key=lambda i: (sign * self.values[i], i))
        return [self.heads[i] for i in order]
