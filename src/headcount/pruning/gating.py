"""Gates with parameters, one per unit of heads that stay or go together; see headcount.pruning.training.gates for what is asked of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import torch
from jaxtyping import Float
from scipy.stats import rankdata
from torch import Tensor

from headcount.core.errors import PlanError
from headcount.core.heads import Head, tie_order
from headcount.importance.score import score
from headcount.pruning.base import Work

Units = Float[Tensor, " units"]
TINY = torch.finfo(torch.float64).tiny


def unit_index(work: Work) -> Tensor:
    """For every head, the number of its unit."""
    number = {head: place for place, unit in enumerate(work.heads.units()) for head in unit}
    return torch.tensor([number[head] for head in work.heads])


def units_kept(work: Work) -> int:
    """How many units stay; an error if the heads that may stay are no whole number of units of one size."""
    sizes = {len(unit) for unit in work.heads.units()}
    if len(sizes) > 1:
        raise PlanError(f"gates that learn need units of one size, and this model has units of {', '.join(map(str, sorted(sizes)))} heads")
    (size,) = sizes
    if size > 1 and work.budget.unit != "kv_group":
        raise PlanError(f"gates that learn are tied within the {size} heads that share keys and values; use the unit kv_group")
    if work.keep % size:
        low = work.keep // size * size
        raise PlanError(
            f"{work.keep} heads are no whole number of units of {size} heads that share keys and values; the nearest are {low} and {low + size}"
        )
    return work.keep // size


def free_units(work: Work) -> Tensor:
    """True for the units that may go: those without a protected head."""
    return torch.tensor([work.budget.protected.isdisjoint(unit) for unit in work.heads.units()])


def start_from(work: Work, by: str, limit: int, spread: float) -> Units:
    """Starting values from an importance: its rank, the mean over each unit, centred, with standard deviation `spread`; zeros for "none"."""
    units = work.heads.units()
    if by == "none":
        return torch.zeros(len(units), dtype=torch.float64)

    worth = score(work.model, work.data, by, limit=limit, seed=work.seed).keep_values()
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


def stay(work: Work, values: Units, number: int) -> Units:
    """Ones for the units that the plan made of these values keeps: the highest, within the floor and the protected heads of the budget."""
    if not work.budget.floor and not work.budget.protected:
        return top(values, number, unit_ties(work.heads.units(), work.seed))
    gone = frozenset(work.plan(values[unit_index(work)].tolist(), "gates").removed)
    return torch.tensor([float(unit[0] not in gone) for unit in work.heads.units()], dtype=values.dtype)


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


def check_shares(shares: Mapping[str, float]) -> None:
    """Refuses shares of the steps, `settle` among them, that are none."""
    for name, share in shares.items():
        if not 0 <= share <= 1:
            raise PlanError(f"{name} is a share of the training steps, from 0 to 1; got {share}")
    if shares["settle"] >= 1:
        raise PlanError("settle=1 leaves no step to choose heads in; name a share below 1")


def by_head(values: Sequence[float] | Tensor, index: Tensor) -> Tensor:
    """Values of units as values of heads."""
    return torch.as_tensor(values)[index]
