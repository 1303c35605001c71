"""A race: stops examining heads once it is clear, with the confidence asked for, whether they are among the lowest k.

After every few blocks each unit has an interval around its mean. It is out of the lowest k when k others lie wholly below it, and among them when
all but k others lie wholly above. Intervals are Student's, their error split over units and, by 6/(π² t²) at look t, over looks, so that all
decisions of the race hold together with the stated confidence, as far as means over examples are normal (Maron and Moore 1993, "Hoeffding
Races", with t in place of Hoeffding's bound).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import pi
from typing import Any

import numpy as np

from headcount.core.errors import PlanError
from headcount.core.heads import Head
from headcount.core.stats.samples import Samples
from headcount.data.chunks import CHUNK

LOOK = 4
"""Blocks between two looks: a multiple of 1, 2 and 4 processes, so that these decide alike."""
RACE_CHUNK = CHUNK // 4


class Race:
    """Which heads are still examined; units are decided as a whole."""

    def __init__(self, units: tuple[tuple[int, ...], ...], k: int, level: float = 0.95) -> None:
        if not 1 <= k < len(units):
            raise PlanError(f"adaptive needs a number of units from 1 to {len(units) - 1} to look for, got {k}; there are {len(units)}")
        self.units, self.k, self.level = units, k, level
        self.looks = 0
        self.open = np.ones(len(units), dtype=bool)
        self.lowest = np.zeros(len(units), dtype=bool)

    @property
    def active(self) -> list[int]:
        """The places of the heads that are still examined."""
        return sorted(place for unit, going in zip(self.units, self.open, strict=True) if going for place in unit)

    def decisions(self, heads: Sequence[Head]) -> dict[str, Any]:
        """What is decided, with the confidence of all decisions together: the heads among the lowest, and those still open."""

        def named(chosen: np.ndarray) -> list[str]:
            return [str(heads[place]) for unit, is_chosen in zip(self.units, chosen, strict=True) if is_chosen for place in unit]

        counts = {"adaptive": self.k, "confidence": self.level, "undecided": int(self.open.sum())}
        return {**counts, "lowest": named(self.lowest), "open": named(self.open)}

    def look(self, samples: Samples) -> None:
        """Decides what can be decided from the damage so far (more is worse)."""
        self.looks += 1
        mean, reach = self._bounds(samples)
        low, high = mean - reach, mean + reach
        below = (high[None, :] < low[:, None]).sum(1)  # how many lie wholly below each
        above = (low[None, :] > high[:, None]).sum(1)
        among = above >= len(self.units) - self.k
        self.lowest |= self.open & among
        self.open &= ~(among | (below >= self.k))

    def _bounds(self, samples: Samples) -> tuple[np.ndarray, np.ndarray]:
        from scipy import special

        sums = np.stack([samples.sums[:, list(unit)].mean(1) for unit in self.units], 1)
        weights = np.stack([samples.weights[:, unit[0]] for unit in self.units], 1)
        united = Samples(sums, weights)
        groups = united.counts()
        error = (1 - self.level) * 6 / (pi * self.looks) ** 2 / len(self.units)
        return united.means(), special.stdtrit(groups - 1, 1 - error / 2) * united.stderr()
