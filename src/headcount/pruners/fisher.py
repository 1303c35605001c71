"""Fisher mask search: heads chosen by the diagonal Fisher information of their gates, exchanged within a block by its full matrix, then tuned.

    loss rise ≈ ½ (1 − m)ᵀ F (1 − m),   F = E_x [∂L/∂m ∂L/∂mᵀ]   with the diagonal first, then with the full matrix of every block

Tuning rescales the heads that stay so that every block gives what the dense one gave (least squares in one number per head, damped). No retraining.
Kwon et al. 2022, "A Fast Post-Training Pruning Framework for Transformers".
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headcount.archs.modules import unwrap
from headcount.checks import check_batch
from headcount.data import Task, blocks
from headcount.gates import HeadGates
from headcount.losses import ExampleLosses, finite_losses
from headcount.observe import frozen, on_device
from headcount.plan import Plan
from headcount.pruners._contract import About, Choice, Work
from headcount.refit import refit

ABOUT = About(source="Kwon et al. 2022", options={"limit": 512, "rearrange": True, "tune": True})


def gate_gradients(work: Work, limit: int) -> Tensor:
    """The gradient of every example's loss with respect to every gate [examples, heads], in float64."""
    model: Any = unwrap(work.model)
    losses = ExampleLosses(model, work.data.loss if isinstance(work.data, Task) else None)
    was_training = model.training
    model.eval()
    found = []
    try:
        with frozen(model):
            for block in blocks(work.data, limit=limit):
                rows = torch.zeros(block.size, len(work.heads), dtype=torch.float64)
                for places, batch in block.batches(32):
                    rows[places] = _of_batch(work, model, on_device(batch, model), [block.first + place for place in places], losses)
                found.append(rows)
    finally:
        model.train(was_training)
    return torch.cat(found)


def _of_batch(work: Work, model: Any, batch: Any, numbers: list[int], losses: ExampleLosses) -> Tensor:
    check_batch(model, batch, numbers)
    gates = torch.ones(len(numbers), len(work.heads), device=next(model.parameters()).device, requires_grad=True)
    with torch.enable_grad(), HeadGates(model, gates):
        made = finite_losses(losses(model(**batch), batch), numbers)
        (gradient,) = torch.autograd.grad(made.sum(), gates)
    return gradient.double().cpu()


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
                if value < current - 1e-15:
                    best, current = tried, value
        if best is not None:
            gone, improved = best, True
    return sorted(gone)


def choose(work: Work, _variant: str) -> Choice:
    """The plan, and the refitted model where gates are tuned."""
    gradients = gate_gradients(work, work.options["limit"])
    diagonal = (gradients**2).mean(0)
    scores = work.scores(diagonal.tolist(), "fisher mask")
    plan = Plan.keep_top(scores, work.budget)
    if work.options["rearrange"]:
        plan = _rearrange(work, plan, gradients)
    model = (
        refit(work.model, plan, work.data, by="gates", limit=work.options["limit"]).model if work.options["tune"] and plan.removed else None
    )
    return Choice(plan, model, scores=scores)


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
