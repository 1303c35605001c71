"""Gates with parameters, one per unit of heads that stay or go together; see headcount.pruning.training.gates for what is asked of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from jaxtyping import Float
from scipy.stats import rankdata
from torch import Tensor, nn

from headcount.core.errors import PlanError
from headcount.core.heads import Head, tie_order
from headcount.importance.base import Importance
from headcount.importance.score import score
from headcount.pruning.base import PruneContext
from headcount.pruning.training.fine_tune import Trained, fine_tune
from headcount.pruning.training.gates import GateCallback, Gating

Units = Float[Tensor, " units"]
TINY = torch.finfo(torch.float64).tiny


def check_init(init: str) -> None:
    """Raises UnknownName unless `init` is an importance, or "none"."""
    if init != "none":
        Importance.parse(init)


def train_gates(context: PruneContext, model: nn.Module, gates: Gating) -> Trained:
    """Trains gates, and the weights of `model` that are not frozen, by the recipe of a pruning."""
    callback = GateCallback(model, gates)
    return fine_tune(
        model, context.task, context.recipe, seed=context.seed, folder=context.folder, gates=callback, progress=context.progress
    )


def unit_index(context: PruneContext) -> Tensor:
    """For every head, the number of its unit."""
    number = {head: place for place, unit in enumerate(context.heads.units()) for head in unit}
    return torch.tensor([number[head] for head in context.heads])


def count_units(context: PruneContext) -> int:
    """Returns how many units stay.

    Raises:
        PlanError: the heads that stay are no whole number of units of one size.
    """
    sizes = {len(unit) for unit in context.heads.units()}
    if len(sizes) > 1:
        raise PlanError(f"gates that learn need units of one size, and this model has units of {', '.join(map(str, sorted(sizes)))} heads")
    (size,) = sizes
    if size > 1 and context.budget.unit != "kv_group":
        raise PlanError(f"gates that learn are tied within the {size} heads that share keys and values; use the unit kv_group")
    if context.keep % size:
        low = context.keep // size * size
        raise PlanError(
            f"{context.keep} heads are no whole number of units of {size} heads that share keys and values; the nearest are {low} and {low + size}"
        )
    return context.keep // size


def free_units(context: PruneContext) -> Tensor:
    """True for the units that may go: those without a protected head."""
    return torch.tensor([context.budget.protected.isdisjoint(unit) for unit in context.heads.units()])


def start_from(context: PruneContext, by: str, limit: int, spread: float) -> Units:
    """Starting values from an importance: its rank, the mean over each unit, centred, with standard deviation `spread`; zeros for "none"."""
    units = context.heads.units()
    if by == "none":
        return torch.zeros(len(units), dtype=torch.float64)

    worth = score(context.model, context.data, by, limit=limit, seed=context.seed).keep_values()
    values = torch.tensor([sum(worth[head] for head in unit) / len(unit) for unit in units], dtype=torch.float64)
    order = torch.from_numpy(rankdata(values.numpy()))  # by rank, equal ones alike: importances span orders of magnitude
    return (order - order.mean()) / order.std(correction=0).clamp(min=1e-12) * spread


@cache
def unit_ties(units: tuple[tuple[Head, ...], ...], seed: int) -> tuple[int, ...]:
    """For each unit its place in the order in which units of equal value are ranked."""
    heads = [head for unit in units for head in unit]
    tie = dict(zip(heads, tie_order(heads, seed), strict=True))
    return tuple(min(tie[head] for head in unit) for unit in units)


def top(values: Units, number: int, ties: Sequence[int]) -> Units:
    """Ones for the highest `number` values, zeros for the rest; equal ones in the order of `ties`."""
    order = sorted(range(len(values)), key=lambda place: (-float(values[place]), ties[place]))
    hard = torch.zeros_like(values)
    hard[order[:number]] = 1.0
    return hard


def stay(context: PruneContext, values: Units, number: int) -> Units:
    """Ones for the units that the plan made of these values keeps: the highest, within the floor and the protected heads of the budget."""
    if not context.budget.floor and not context.budget.protected:
        return top(values, number, unit_ties(context.heads.units(), context.seed))
    gone = frozenset(context.plan(values[unit_index(context)].tolist(), "gates").removed)
    return torch.tensor([float(unit[0] not in gone) for unit in context.heads.units()], dtype=values.dtype)


def levelled(values: Units, number: float, tau: float = 1.0) -> Units:
    """z = (values − θ) / τ with θ such that Σ σ(z) = `number`, by bisection; its gradient by the implicit function theorem."""
    total = len(values)
    with torch.no_grad():
        pivot = values.kthvalue(total + 1 - max(1, min(total, round(number)))).values
        z = (values - pivot) / tau  # about the boundary, so that nothing is lost where τ is tiny
        reach = 50.0 + torch.tensor(float(total)).log().item()
        low, high = -reach, reach
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if float(torch.sigmoid(z - middle).sum()) > number else (low, middle)
        z = z - (low + high) / 2
        p = torch.sigmoid(z)
        slope = p * (1 - p)
        share = slope / slope.sum().clamp(min=TINY)
    move = values - values.detach()  # zero, with a gradient
    return z + (move - (share * move).sum()) / max(tau, 1e-6)  # steeper slopes than that would only upset the optimiser


def is_settled(step: int, steps: int, settle: float) -> bool:
    """Whether the plan is fixed by now: weights then learn on with the heads that stay, for the share `settle` of the steps."""
    return step >= (1 - settle) * steps


def by_head(values: Sequence[float] | Tensor, index: Tensor) -> Tensor:
    """Values of units as values of heads."""
    return torch.as_tensor(values)[index]
