"""Gates alone: real-valued gates learn on frozen weights while all but the largest are set to zero, ever fewer, until K are left.

The number that stays falls from N to K along a cubic over the share `cool` of the steps; the gates that stay keep their values, which are folded into
the output projections. Zhu & Gupta 2017 use such a schedule for weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from headcount.core.errors import PlanError
from headcount.models.state import copy_model
from headcount.pruning.base import About, Choice, Work
from headcount.pruning.gating import by_head, start_from, stay, top, unit_index, unit_ties, units_kept
from headcount.pruning.training.fine_tune import fine_tune
from headcount.pruning.training.gates import GateCallback

ABOUT = About(
    source="projected gradient on gates, with the cubic schedule of Zhu & Gupta 2017",
    trains="gates",
    options={"rate": 0.02, "cool": 0.6, "init": "gradient", "limit": 512},
)


def check(options: Mapping[str, Any]) -> None:
    """Refuses options that cannot be carried out, before any work."""
    if not 0 < options["cool"] <= 1:
        raise PlanError(
            f"cool is the share of the steps over which the number of heads falls, above 0 and at most 1; got {options['cool']}"
        )


class Projected:
    """Values of gates, of which the most important stay. Importance is the running mean of what each gate does to the loss, |g ∂L/∂g|."""

    def __init__(self, work: Work, number: int) -> None:
        self.work, self.index, self.number, self.options = work, unit_index(work), number, work.options
        self.values = torch.ones(len(work.heads.units()), dtype=torch.float64, requires_grad=True)
        self.worth = start_from(work, work.options["init"], work.options["limit"], 1.0)
        self._left = len(self.values)

    @property
    def parameters(self) -> dict[str, Tensor]:
        """What learns, and what it is chosen by."""
        return {"values": self.values, "worth": self.worth}

    def left(self, step: int, steps: int) -> int:
        """How many units stay at a step."""
        share = min(1.0, step / max(1.0, self.options["cool"] * steps))
        return round(self.number + (len(self.values) - self.number) * (1 - share) ** 3)

    def sample(self, step: int, steps: int) -> Tensor:
        """Gates of one step: those that stay."""
        self._left = self.left(step, steps)
        return by_head(self.values * self._on(), self.index)

    def _on(self) -> Tensor:
        """Ones for the units that are on: what the plan would keep now, and the highest others."""
        kept = stay(self.work, self.worth, self.number)
        return top(torch.where(kept > 0, torch.inf, self.worth), self._left, unit_ties(self.work.heads.units(), self.work.seed))

    def _feel(self, *_: object) -> None:
        """Renews the importance of the gates that are on by what they just did to the loss."""
        assert self.values.grad is not None
        on = self._on() > 0
        felt = (self.values.grad * self.values).detach().abs()
        mean = felt[on].mean().clamp(min=1e-300)
        self.worth[on] = 0.95 * self.worth[on] + 0.05 * felt[on] / mean

    def hard(self) -> Tensor:
        """The gates that are left now."""
        return by_head((self.values * self._on()).detach(), self.index)

    def penalty(self, _step: int, _steps: int) -> None:
        """None: the number is exact."""

    def optimiser(self) -> torch.optim.Optimizer:
        """Adam on the values; before each step their importance is renewed."""
        made = torch.optim.Adam([self.values], lr=self.options["rate"])
        made.register_step_pre_hook(self._feel)
        return made

    def told(self) -> dict[str, float]:
        """How many are left."""
        return {"left": float(self._left)}


def choose(work: Work, _variant: str) -> Choice:
    """The plan, and the values of the gates that stay."""
    number = units_kept(work)
    model = copy_model(work.model).requires_grad_(False)
    gating = Projected(work, number)
    made = fine_tune(model, work.task, work.recipe, folder=work.folder, gates=GateCallback(model, gating), progress=work.progress)
    hard = stay(work, gating.worth, number)
    values = by_head(gating.worth, gating.index).tolist()
    gates = by_head(torch.where(hard > 0, gating.values.detach(), 1.0), gating.index).tolist()
    return Choice(work.plan(values, "gates"), None, gates, made.history, work.scores(values, "gates"), steps=made.steps)
