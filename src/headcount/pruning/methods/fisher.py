"""Fisher mask search: heads chosen by the diagonal Fisher information of their gates, exchanged within a block by its full matrix, then tuned.

    loss rise ≈ ½ (1 − m)ᵀ F (1 − m),   F = E_x [∂L/∂m ∂L/∂mᵀ]   with the diagonal first, then with the full matrix of every block

Tuning rescales the heads that stay so that every block gives what the dense one gave (least squares in one number per head, damped). No retraining.
Kwon et al. 2022, "A Fast Post-Training Pruning Framework for Transformers".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from headcount.core.errors import PlanError
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
from headcount.pruning.base import About, Choice, Work
from headcount.pruning.repair.repair import refit

ABOUT = About(source="Kwon et al. 2022", options={"limit": 512, "rearrange": True, "tune": True})


def check(options: Mapping[str, Any]) -> None:
    """Refuses options that cannot be carried out, before any work."""
    if options["limit"] < 1:
        raise PlanError(f"limit must be 1 or more, got {options['limit']}")


def gate_gradients(work: Work, limit: int) -> Tensor:
    """The gradient of every example's loss with respect to every gate [examples, heads], in float64."""
    return work.once(("gate gradients", limit), lambda: _gate_gradients(work, limit))


def _gate_gradients(work: Work, limit: int) -> Tensor:
    model: Any = unwrap(work.model)
    losses = ExampleLosses(model, work.data.loss if isinstance(work.data, Task) else None)
    found = []
    with evaluating(model), frozen(model):
        for chunk in chunks(work.data, limit=limit, pad_id=pad_id(model)):
            rows = torch.zeros(chunk.size, len(work.heads), dtype=torch.float64)
            for places, batch in chunk.batches(batch_size_of(work.data)):
                rows[places] = _of_batch(work, model, model_inputs(batch, model), [chunk.first + place for place in places], losses)
            found.append(rows)
    return torch.cat(found)


def _of_batch(work: Work, model: Any, batch: Any, numbers: list[int], losses: ExampleLosses) -> Tensor:
    check_batch(model, batch, numbers)
    gates = torch.ones(len(numbers), len(work.heads), device=next(model.parameters()).device, requires_grad=True)
    with torch.enable_grad(), HeadGates(model, gates):
        try:
            made = finite_losses(losses(forward(model, batch), batch), numbers)
        except OneByOne:
            made = None
        if made is not None:
            return torch.autograd.grad(made.sum(), gates)[0].double().cpu()
    return torch.cat([_of_batch(work, model, rows_of(batch, [row]), [number], losses) for row, number in enumerate(numbers)])


def rearranged(fisher: Tensor, removed: list[int], units: list[int]) -> list[int]:
    """The units of one block to remove, so many as given, exchanged one by one while the quadratic form falls."""
    gone = list(removed)

    def rise(places: list[int]) -> float:
        return float(fisher[places][:, places].sum())

    improved = True
    while improved:
        improved = False
        best, current = None, rise(gone)
        for out in gone:
            for back in (unit for unit in units if unit not in gone):
                tried = [back if place == out else place for place in gone]
                value = rise(tried)
                if value < current - 1e-9 * abs(current):  # more than rounding
                    best, current = tried, value
        if best is not None:
            gone, improved = best, True
    return sorted(gone)


def search(work: Work, gradients: Tensor, *, rearrange: bool = True) -> tuple[Plan, Scores]:
    """The plan by the Fisher information of the gates, and the diagonal of that."""
    scores = work.scores((gradients**2).mean(0).tolist(), "fisher mask")
    plan = Plan.keep_top(scores, work.budget)
    exchange = rearrange and work.budget.unit == "kv_group"  # heads that go evenly from all groups of a block are no units of their own
    return (_rearrange(work, plan, gradients) if exchange else plan), scores


def choose(work: Work, _variant: str) -> Choice:
    """The plan, and the refitted model where gates are tuned."""
    limit = work.options["limit"]
    plan, scores = search(work, gate_gradients(work, limit), rearrange=work.options["rearrange"])
    if not work.options["tune"] or not plan.removed:
        return Choice(plan, scores=scores)
    return Choice(plan, refit(work.model, plan, work.data, by="gates", limit=limit).model, scores=scores)


def _rearrange(work: Work, plan: Plan, gradients: Tensor) -> Plan:
    gone, removed = frozenset(plan.removed), []
    for block in work.heads.blocks:
        units = [unit for unit in work.heads.units() if unit[0] in block.heads]
        if not units:
            continue
        felt = torch.stack([gradients[:, [work.heads.position(head) for head in unit]].sum(1) for unit in units], dim=1)
        fisher = felt.T @ felt / len(felt)
        free = [place for place, unit in enumerate(units) if not plan.protected.intersection(unit)]
        start = [place for place, unit in enumerate(units) if unit[0] in gone]
        removed += [head for place in rearranged(fisher, start, free) for head in units[place]]
    return Plan.removing(removed, protected=plan.protected)
