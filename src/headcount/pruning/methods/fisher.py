from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from headcount.core.options import option
from headcount.core.plan import Plan
from headcount.core.scores import Scores
from headcount.data.checks import check_batch
from headcount.data.chunks import chunks, default_batch_size, select_rows
from headcount.data.losses import ExampleLosses, OneByOne, require_finite_losses
from headcount.data.task import Task
from headcount.models.gates import HeadGates
from headcount.models.modules import Batch, pad_id, unwrap
from headcount.models.observe import evaluating, frozen_parameters, model_inputs
from headcount.models.state import forward_preserving_state
from headcount.pruning.base import Choice, PruneContext, Pruner, PrunerInfo
from headcount.pruning.repair.repair import RepairSettings, refit


@dataclass(frozen=True)
class FisherPruner(Pruner):
    """Fisher mask search: heads go by the Fisher information of their gates; those that stay are rescaled.

    Heads are chosen by the diagonal of the Fisher information, then exchanged within each block by its full matrix.

        loss rise ≈ ½ (1 − m)ᵀ F (1 − m),   F = E_x [∂L/∂m ∂L/∂mᵀ]   with the diagonal first, then with the full matrix of every block

    Tuning rescales the heads that stay so that every block gives what the dense one gave (least squares in one
    number per head, damped). No retraining. Kwon et al. 2022, "A Fast Post-Training Pruning Framework for
    Transformers".
    """

    _: KW_ONLY
    limit: int = option(512, "Calibration examples that gradients and the tuning are computed on", minimum=1)
    rearrange: bool = option(True, "Exchange heads within each block by its full Fisher matrix")
    tune: bool = option(True, "Rescale the heads that stay")
    info = PrunerInfo("Kwon et al. 2022")

    def choose(self, context: PruneContext) -> Choice:
        """Returns the plan, and the model with rescaled heads where they are tuned."""
        plan, scores = plan_by_fisher_search(context, gate_gradients_of_examples(context, self.limit), rearrange=self.rearrange)
        if not self.tune or not plan.removed:
            return Choice(plan, scores=scores)
        tuned = refit(context.model, plan, context.data, RepairSettings(by="gates", limit=self.limit))
        return Choice(plan, tuned.model, scores=scores)


def gate_gradients_of_examples(context: PruneContext, limit: int) -> Float64[Tensor, "examples heads"]:
    """Returns the gradient of every example's loss with respect to every gate [examples, heads], in float64."""
    return context.once(("gate gradients", limit), lambda: _measure_gate_gradients(context, limit))


def _measure_gate_gradients(context: PruneContext, limit: int) -> Float64[Tensor, "examples heads"]:
    model: Any = unwrap(context.model)
    losses = ExampleLosses(model, context.data.loss if isinstance(context.data, Task) else None)
    gradients = []
    with evaluating(model), frozen_parameters(model):
        for chunk in chunks(context.data, limit=limit, pad_id=pad_id(model)):
            chunk_gradients = torch.zeros(chunk.size, len(context.heads), dtype=torch.float64)
            for rows, batch in chunk.batches(default_batch_size(context.data)):
                numbers = [chunk.first + row for row in rows]
                chunk_gradients[rows] = _gate_gradients_of_batch(context, model, model_inputs(batch, model), numbers, losses)
            gradients.append(chunk_gradients)
    return torch.cat(gradients)


def _gate_gradients_of_batch(
    context: PruneContext, model: Any, batch: Batch, numbers: list[int], losses: ExampleLosses
) -> Float64[Tensor, "batch heads"]:
    check_batch(model, batch, numbers)
    gates = torch.ones(len(numbers), len(context.heads), device=next(model.parameters()).device, requires_grad=True)
    with torch.enable_grad(), HeadGates(model, gates, heads=context.heads):
        try:
            example_losses = require_finite_losses(losses(forward_preserving_state(model, batch), batch), numbers)
        except OneByOne:
            example_losses = None
        if example_losses is not None:
            return torch.autograd.grad(example_losses.sum(), gates)[0].double().cpu()
    return torch.cat(
        [_gate_gradients_of_batch(context, model, select_rows(batch, [row]), [number], losses) for row, number in enumerate(numbers)]
    )


def exchange_removed_units(fisher: Float[Tensor, "units units"], removed_units: list[int], removable_units: list[int]) -> list[int]:
    """Returns as many units of one block to remove as `removed_units` has, exchanged for removable ones while the quadratic form falls."""

    def quadratic_loss_rise(units: list[int]) -> float:
        return float(fisher[units][:, units].sum())

    current = list(removed_units)
    while True:
        best, lowest = None, quadratic_loss_rise(current)
        for dropped in current:
            for added in (unit for unit in removable_units if unit not in current):
                candidate = [added if number == dropped else number for number in current]
                rise = quadratic_loss_rise(candidate)
                if rise < lowest - 1e-9 * abs(lowest):  # more than rounding
                    best, lowest = candidate, rise
        if best is None:
            return sorted(current)
        current = best


def plan_by_fisher_search(
    context: PruneContext, gradients: Float64[Tensor, "examples heads"], *, rearrange: bool = True
) -> tuple[Plan, Scores]:
    """Returns the plan by the Fisher information of the gates, and its diagonal as scores."""
    scores = context.scores((gradients**2).mean(0).tolist(), "fisher mask")
    plan = Plan.keep_top(scores, context.budget)
    if rearrange and context.budget.unit == "kv_group":  # heads that go evenly from all groups of a block are no units of their own
        plan = _exchange_heads_within_blocks(context, plan, gradients)
    return plan, scores


def _exchange_heads_within_blocks(context: PruneContext, plan: Plan, gradients: Float64[Tensor, "examples heads"]) -> Plan:
    """Returns the plan with heads exchanged within each block by its full Fisher matrix."""
    first_removed, removed = frozenset(plan.removed), []
    for block in context.heads.blocks:
        units = [unit for unit in context.heads.units() if unit[0] in block.heads]
        if not units:
            continue
        unit_gradients = torch.stack([gradients[:, [context.heads.position(head) for head in unit]].sum(1) for unit in units], dim=1)
        fisher = unit_gradients.T @ unit_gradients / len(unit_gradients)
        free = [number for number, unit in enumerate(units) if not plan.protected.intersection(unit)]
        start = [number for number, unit in enumerate(units) if unit[0] in first_removed]
        removed += [head for number in exchange_removed_units(fisher, start, free) for head in units[number]]
    return Plan.removing(removed, protected=plan.protected)
