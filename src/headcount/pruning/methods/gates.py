from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from headcount.core.options import option
from headcount.models.state import copy_model
from headcount.pruning.base import Choice, PruneContext, Pruner, PrunerInfo
from headcount.pruning.gating import by_head, check_init, count_units, start_from, stay, top, train_gates, unit_index, unit_ties


@dataclass(frozen=True)
class GatesPruner(Pruner):
    """Gates alone: real-valued gates train on frozen weights while ever fewer stay open, until K are left.

    The number that stays falls from N to K along a cubic over the share `cool` of the steps; the gates that
    stay keep their values, which are folded into the output projections. Zhu & Gupta 2017 use such a schedule
    for weights.
    """

    _: KW_ONLY
    rate: float = option(0.02, "Learning rate of the gates", minimum=0)
    cool: float = option(0.6, "Share of the steps over which the number of heads falls", above=0, maximum=1)
    init: str = option("gradient", "Importance that the choice starts from, or none")
    limit: int = option(512, "Calibration examples that the starting importance is measured on", minimum=1)
    info = PrunerInfo("projected gradient on gates, with the cubic schedule of Zhu & Gupta 2017", trains="gates")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_init(self.init)

    def choose(self, context: PruneContext) -> Choice:
        """Returns the plan, and the values of the gates of the heads that stay."""
        number = count_units(context)
        model = copy_model(context.model).requires_grad_(False)
        gates = ProjectedGates(context, self, number)
        trained = train_gates(context, model, gates)
        is_open = stay(context, gates.worth, number)
        worth = by_head(gates.worth, gates.index).tolist()
        values = by_head(torch.where(is_open > 0, gates.values.detach(), 1.0), gates.index).tolist()
        return Choice(
            context.plan(worth, "gates"), gates=values, history=trained.history, scores=context.scores(worth, "gates"), steps=trained.steps
        )


class ProjectedGates:
    """Values of gates, of which the most important stay. Importance is the running mean of what each gate does to the loss, |g ∂L/∂g|."""

    def __init__(self, context: PruneContext, pruner: GatesPruner, number: int) -> None:
        self.context, self.pruner, self.number, self.index = context, pruner, number, unit_index(context)
        self.values = torch.ones(len(context.heads.units()), dtype=torch.float64, requires_grad=True)
        self.worth = start_from(context, pruner.init, pruner.limit, 1.0)
        self._left = len(self.values)

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The trained values of the gates, and the importance they are chosen by."""
        return {"values": self.values, "worth": self.worth}

    def left(self, step: int, steps: int) -> int:
        """Returns how many units stay at a step."""
        share = min(1.0, step / max(1.0, self.pruner.cool * steps))
        return round(self.number + (len(self.values) - self.number) * (1 - share) ** 3)

    def sample(self, step: int, steps: int) -> Tensor:
        """Returns the gates of one step; those of closed units are zero."""
        self._left = self.left(step, steps)
        return by_head(self.values * self._open_units(), self.index)

    def _open_units(self) -> Tensor:
        """Returns ones for the units that are open: those that the plan would keep now, and the highest others."""
        staying = stay(self.context, self.worth, self.number)
        return top(torch.where(staying > 0, torch.inf, self.worth), self._left, unit_ties(self.context.heads.units(), self.context.seed))

    def _renew_worth(self, *_: object) -> None:
        """Updates the importance of open gates by their effect on the loss in this step."""
        assert self.values.grad is not None
        on = self._open_units() > 0
        effect = (self.values.grad * self.values).detach().abs()
        mean = effect[on].mean().clamp(min=1e-300)
        self.worth[on] = 0.95 * self.worth[on] + 0.05 * effect[on] / mean

    def hard(self) -> Tensor:
        """Returns the gates that are open now."""
        return by_head((self.values * self._open_units()).detach(), self.index)

    def penalty(self, _step: int, _steps: int) -> None:
        """Adds nothing to the loss: the number of heads is exact."""

    def optimiser(self) -> torch.optim.Optimizer:
        """Returns Adam on the values, which updates their importance before each step."""
        optimiser = torch.optim.Adam([self.values], lr=self.pruner.rate)
        optimiser.register_step_pre_hook(self._renew_worth)
        return optimiser

    def log_numbers(self) -> dict[str, float]:
        """Returns how many units are open."""
        return {"left": float(self._left)}
