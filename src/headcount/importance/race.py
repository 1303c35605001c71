"""A race: stops examining heads once it is clear, at a confidence level, whether they are among the lowest k.

After every few chunks of examples each unit has an interval around its mean. It is out of the lowest k when k others lie wholly below it, and
among them when all but k others lie wholly above. Intervals are Student's, their error split over units and, by 6/(π² t²) at look t, over looks,
so that all decisions of the race hold together with the stated confidence, as far as means over examples are normal (Maron and Moore 1993,
"Hoeffding Races", with t in place of Hoeffding's bound).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import pi
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from headcount.core.errors import PlanError
from headcount.core.heads import Head
from headcount.core.stats.samples import Samples
from headcount.data.chunks import CHUNK

LOOK = 4
"""Chunks between two looks: a multiple of 1, 2 and 4 processes, so that these decide alike."""
RACE_CHUNK = CHUNK // 4


class Race:
    """Keeps track of which heads are still examined; units are decided as a whole."""

    def __init__(self, units: tuple[tuple[int, ...], ...], k: int, level: float = 0.95) -> None:
        if not 1 <= k < len(units):
            raise PlanError(f"adaptive must be from 1 to {len(units) - 1}, fewer than the {len(units)} units of the model; got {k}")
        self.units, self.k, self.level = units, k, level
        self.looks = 0
        self.open = np.ones(len(units), dtype=bool)
        self.lowest = np.zeros(len(units), dtype=bool)

    @property
    def undecided_head_positions(self) -> list[int]:
        """The positions of the heads that are still examined."""
        return sorted(self._head_positions_of_units(self.open))

    def decisions_as_conditions(self, heads: Sequence[Head]) -> dict[str, Any]:
        """Returns the heads that are among the lowest and those still undecided, with the confidence of all decisions together."""
        counts = {"adaptive": self.k, "confidence": self.level, "undecided": int(self.open.sum())}
        names = {"lowest": self._head_positions_of_units(self.lowest), "open": self._head_positions_of_units(self.open)}
        return {**counts, **{key: [str(heads[position]) for position in positions] for key, positions in names.items()}}

    def _head_positions_of_units(self, is_chosen_unit: Bool[np.ndarray, " units"]) -> list[int]:
        return [position for unit, is_chosen in zip(self.units, is_chosen_unit, strict=True) if is_chosen for position in unit]

    def decide_from_loss_rises(self, samples: Samples) -> None:
        """Decides what can be decided from the rises of the loss so far."""
        self.looks += 1
        mean, half_width = self._means_and_half_widths(samples)
        low, high = mean - half_width, mean + half_width
        below = (high[None, :] < low[:, None]).sum(1)  # how many units lie wholly below each
        above = (low[None, :] > high[:, None]).sum(1)
        among = above >= len(self.units) - self.k
        self.lowest |= self.open & among
        self.open &= ~(among | (below >= self.k))

    def _means_and_half_widths(self, samples: Samples) -> tuple[Float[np.ndarray, " units"], Float[np.ndarray, " units"]]:
        from scipy import special

        sums = np.stack([samples.sums[:, list(unit)].mean(1) for unit in self.units], 1)
        weights = np.stack([samples.weights[:, unit[0]] for unit in self.units], 1)
        by_unit = Samples(sums, weights)
        groups = by_unit.count_groups_per_head()
        error = (1 - self.level) * 6 / (pi * self.looks) ** 2 / len(self.units)
        return by_unit.means(), special.stdtrit(groups - 1, 1 - error / 2) * by_unit.stderr()
