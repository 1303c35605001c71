"""Gates with parameters, one per unit of heads that stay or go together; see headcount.training.gates for what is asked of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from headcount.errors import PlanError
from headcount.pruners._contract import Work

Units = Float[Tensor, " units"]


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
    if work.keep % size:
        low = work.keep // size * size
        raise PlanError(
            f"{work.keep} heads are no whole number of units of {size} heads that share keys and values; the nearest are {low} and {low + size}"
        )
    return work.keep // size


def start_from(work: Work, by: str, limit: int, spread: float) -> Units:
    """Starting values from an importance: the mean over each unit, centred, with standard deviation `spread`; zeros for "none"."""
    units = work.heads.units()
    if by == "none":
        return torch.zeros(len(units), dtype=torch.float64)
    from headcount.importance import score

    worth = score(work.model, work.data, by, limit=limit, seed=work.seed).signed()
    values = torch.tensor([sum(worth[head] for head in unit) / len(unit) for unit in units], dtype=torch.float64)
    order = values.argsort(stable=True).argsort(stable=True).double()  # by rank: importances span orders of magnitude
    return (order - order.mean()) / order.std().clamp(min=1e-12) * spread


def top(values: Units, number: int) -> Units:
    """Ones for the highest `number` values, zeros for the rest; ties fall to the earlier unit."""
    order = sorted(range(len(values)), key=lambda place: (-float(values[place]), place))
    hard = torch.zeros_like(values)
    hard[order[:number]] = 1.0
    return hard


def by_head(values: Sequence[float] | Tensor, index: Tensor) -> Tensor:
    """Values of units as values of heads."""
    return torch.as_tensor(values)[index]
