from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import Tensor

from headcount.core.options import option
from headcount.core.plan import Plan
from headcount.core.scores import Scores
from headcount.data.checks import check_batch
from headcount.data.chunks import batch_size_of, chunks, rows_of
from headcount.data.losses import ExampleLosses, OneByOne, finite_losses
from headcount.data.task import Task
from headcount.models.gates import HeadGates
from headcount.models.modules import pad_id, unwrap
from headcount.models.observe import evaluating, frozen, model_inputs
from headcount.models.state import forward
from headcount.pruning.base import Choice, PruneContext, Pruner, PrunerInfo
from headcount.pruning.repair.repair import refit


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
        plan, scores = search(context, gate_gradients(context, self.limit), rearrange=self.rearrange)
        if not self.tune or not plan.removed:
            return Choice(plan, scores=scores)
        return Choice(plan, refit(context.model, plan, context.data, by="gates", limit=self.limit).model, scores=scores)


def gate_gradients(context: PruneContext, limit: int) -> Tensor:
    """Returns the gradient of every example's loss with respect to every gate [examples, heads], in float64."""
    return context.once(("gate gradients", limit), lambda: _measure_gradients(context, limit))


def _measure_gradients(context: PruneContext, limit: int) -> Tensor:
    model: Any = unwrap(context.model)
    losses = ExampleLosses(model, context.data.loss if isinstance(context.data, Task) else None)
    rows_by_chunk = []
    with evaluating(model), frozen(model):
        for block in chunks(context.data, limit=limit, pad_id=pad_id(model)):
            rows = torch.zeros(block.size, len(context.heads), dtype=torch.float64)
            for places, batch in block.batches(batch_size_of(context.data)):
                rows[places] = _batch_gradients(
                    context, model, model_inputs(batch, model), [block.first + place for place in places], losses
                )
            rows_by_chunk.append(rows)
    return torch.cat(rows_by_chunk)


def _batch_gradients(context: PruneContext, model: Any, batch: Any, numbers: list[int], losses: ExampleLosses) -> Tensor:
    check_batch(model, batch, numbers)
    gates = torch.ones(len(numbers), len(context.heads), device=next(model.parameters()).device, requires_grad=True)
    with torch.enable_grad(), HeadGates(model, gates, heads=context.heads):
        try:
            example_losses = finite_losses(losses(forward(model, batch), batch), numbers)
        except OneByOne:
            example_losses = None
        if example_losses is not None:
            return torch.autograd.grad(example_losses.sum(), gates)[0].double().cpu()
    return torch.cat([_batch_gradients(context, model, rows_of(batch, [row]), [number], losses) for row, number in enumerate(numbers)])


def exchange_units(fisher: Tensor, removed: list[int], units: list[int]) -> list[int]:
    """Returns as many units of one block to remove, exchanged one by one while the quadratic form falls."""
    gone = list(removed)

    def rise(numbers: list[int]) -> float:
        return float(fisher[numbers][:, numbers].sum())

    improved = True
    while improved:
        improved = False
        best, current = None, rise(gone)
        for out in gone:
            for back in (unit for unit in units if unit not in gone):
                tried = [back if number == out else number for number in gone]
                value = rise(tried)
                if value < current - 1e-9 * abs(current):  # more than rounding
                    best, current = tried, value
        if best is not None:
            gone, improved = best, True
    return sorted(gone)


def search(context: PruneContext, gradients: Tensor, *, rearrange: bool = True) -> tuple[Plan, Scores]:
    """Returns the plan by the Fisher information of the gates, and its diagonal as scores."""
    scores = context.scores((gradients**2).mean(0).tolist(), "fisher mask")
    plan = Plan.keep_top(scores, context.budget)
    can_exchange = (
        rearrange and context.budget.unit == "kv_group"
    )  # heads that go evenly from all groups of a block are no units of their own
    return (_rearrange(context, plan, gradients) if can_exchange else plan), scores


def _rearrange(context: PruneContext, plan: Plan, gradients: Tensor) -> Plan:
    gone, removed = frozenset(plan.removed), []
    for block in context.heads.blocks:
        units = [unit for unit in context.heads.units() if unit[0] in block.heads]
        if not units:
            continue
        unit_gradients = torch.stack([gradients[:, [context.heads.position(head) for head in unit]].sum(1) for unit in units], dim=1)
        fisher = unit_gradients.T @ unit_gradients / len(unit_gradients)
        free = [number for number, unit in enumerate(units) if not plan.protected.intersection(unit)]
        start = [number for number, unit in enumerate(units) if unit[0] in gone]
        removed += [head for number in exchange_units(fisher, start, free) for head in units[number]]
    return Plan.removing(removed, protected=plan.protected)
