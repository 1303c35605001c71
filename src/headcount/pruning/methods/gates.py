from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from headcount.core.options import option
from headcount.models.state import copy_model
from headcount.pruning.base import Choice, PruneContext, Pruner, PrunerInfo
from headcount.pruning.gating import (
    UnitValues,
    check_starting_importance,
    count_kept_units,
    expand_to_heads,
    mark_highest,
    mark_kept_units,
    ranks_as_starting_values,
    train_gates_and_unfrozen_weights,
    unit_of_each_head,
    unit_tie_ranks,
)


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
        check_starting_importance(self.init)

    def choose(self, context: PruneContext) -> Choice:
        """Returns the plan, and the values of the gates of the heads that stay."""
        n_kept = count_kept_units(context)
        model = copy_model(context.model).requires_grad_(False)
        gates = ProjectedGates(context, self, n_kept)
        trained = train_gates_and_unfrozen_weights(context, model, gates)
        is_kept = mark_kept_units(context, gates.importance, n_kept)
        importance = expand_to_heads(gates.importance, gates.index).tolist()
        values = expand_to_heads(torch.where(is_kept > 0, gates.values.detach(), 1.0), gates.index).tolist()
        return Choice(
            context.plan(importance, "gates"),
            gates=values,
            history=trained.history,
            scores=context.scores(importance, "gates"),
            steps=trained.steps,
        )


class ProjectedGates:
    """Values of gates, of which the most important stay. Importance is the running mean of what each gate does to the loss, |g ∂L/∂g|."""

    def __init__(self, context: PruneContext, pruner: GatesPruner, n_kept: int) -> None:
        self.context, self.pruner, self.n_kept, self.index = context, pruner, n_kept, unit_of_each_head(context)
        self.values = torch.ones(len(context.heads.units()), dtype=torch.float64, requires_grad=True)
        self.importance = ranks_as_starting_values(context, pruner.init, pruner.limit, 1.0)
        self._n_open = len(self.values)

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The trained values of the gates, and the importance they are chosen by."""
        return {"values": self.values, "worth": self.importance}  # the names in checkpoints

    def n_open_units_at_step(self, step: int, n_steps: int) -> int:
        """Returns how many units are open at a step."""
        share = min(1.0, step / max(1.0, self.pruner.cool * n_steps))
        return round(self.n_kept + (len(self.values) - self.n_kept) * (1 - share) ** 3)

    def sample(self, step: int, n_steps: int) -> Float[Tensor, " heads"]:
        """Returns the gates of one step; those of closed units are zero."""
        self._n_open = self.n_open_units_at_step(step, n_steps)
        return expand_to_heads(self.values * self._mark_open_units(), self.index)

    def _mark_open_units(self) -> UnitValues:
        """Returns ones for the units that are open: those that the plan would keep now, and the highest others."""
        is_kept = mark_kept_units(self.context, self.importance, self.n_kept) > 0
        ties = unit_tie_ranks(self.context.heads.units(), self.context.seed)
        return mark_highest(torch.where(is_kept, torch.inf, self.importance), self._n_open, ties)

    def _update_importance(self, *_: object) -> None:
        """Updates the importance of open gates by their effect on the loss in this step."""
        assert self.values.grad is not None
        is_open = self._mark_open_units() > 0
        effect = (self.values.grad * self.values).detach().abs()
        mean = effect[is_open].mean().clamp(min=1e-300)
        self.importance[is_open] = 0.95 * self.importance[is_open] + 0.05 * effect[is_open] / mean

    def gates_for_evaluation(self) -> Float[Tensor, " heads"]:
        """Returns the gates that are open now."""
        return expand_to_heads((self.values * self._mark_open_units()).detach(), self.index)

    def penalty(self, _step: int, _n_steps: int) -> None:
        """Adds nothing to the loss: the number of heads is exact."""

    def gate_optimiser(self) -> torch.optim.Optimizer:
        """Returns Adam on the values, which updates their importance before each step."""
        optimiser = torch.optim.Adam([self.values], lr=self.pruner.rate)
        optimiser.register_step_pre_hook(self._update_importance)
        return optimiser

    def log_numbers(self) -> dict[str, float]:
        """Returns how many units and how many heads are open."""
        n_open = float((self.gates_for_evaluation() != 0).sum())
        return {"left": float(self._n_open), "open expected": n_open, "open": n_open}
