"""Gates with parameters, one per unit of heads that stay or go together; headcount.pruning.training.gates has their protocol."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from jaxtyping import Bool, Float, Int, Shaped
from scipy.stats import rankdata
from torch import Tensor, nn

from headcount.core.errors import PlanError
from headcount.core.heads import Head, hashed_tie_ranks
from headcount.importance.base import Importance
from headcount.importance.score import score
from headcount.pruning.base import PruneContext
from headcount.pruning.training.fine_tune import TrainingSummary, fine_tune
from headcount.pruning.training.gates import GateCallback, Gating

UnitValues = Float[Tensor, " units"]
TINY = torch.finfo(torch.float64).tiny


def check_starting_importance(importance: str) -> None:
    """Raises UnknownName unless `importance` is an importance, or "none"."""
    if importance != "none":
        Importance.parse(importance)


def train_gates_and_unfrozen_weights(context: PruneContext, model: nn.Module, gates: Gating) -> TrainingSummary:
    """Trains gates, and the weights of `model` that are not frozen, by the recipe of a pruning."""
    callback = GateCallback(model, gates, heads=context.heads)
    return fine_tune(
        model, context.task, context.recipe, seed=context.seed, folder=context.folder, gates=callback, progress=context.progress
    )


def unit_of_each_head(context: PruneContext) -> Int[Tensor, " heads"]:
    """Returns the number of its unit for every head."""
    number_of = {head: number for number, unit in enumerate(context.heads.units()) for head in unit}
    return torch.tensor([number_of[head] for head in context.heads])


def count_kept_units(context: PruneContext) -> int:
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


def mark_removable_units(context: PruneContext) -> Bool[Tensor, " units"]:
    """Returns True for the units that may go: those without a protected head."""
    return torch.tensor([context.budget.protected.isdisjoint(unit) for unit in context.heads.units()])


def ranks_as_starting_values(context: PruneContext, importance: str, n_examples: int, standard_deviation: float) -> UnitValues:
    """Returns the ranks of units by an importance, centred, of that standard deviation; zeros for "none"."""
    units = context.heads.units()
    if importance == "none":
        return torch.zeros(len(units), dtype=torch.float64)

    by_head = score(context.model, context.data, importance, limit=n_examples, seed=context.seed).keep_values()
    values = torch.tensor([sum(by_head[head] for head in unit) / len(unit) for unit in units], dtype=torch.float64)
    ranks = torch.from_numpy(rankdata(values.numpy()))  # equal values have equal ranks; importances span orders of magnitude
    return (ranks - ranks.mean()) / ranks.std(correction=0).clamp(min=1e-12) * standard_deviation


@cache
def unit_tie_ranks(units: tuple[tuple[Head, ...], ...], seed: int) -> tuple[int, ...]:
    """Returns the rank of each unit among units of equal value; the lowest comes first."""
    heads = [head for unit in units for head in unit]
    position = dict(zip(heads, hashed_tie_ranks(heads, seed), strict=True))
    return tuple(min(position[head] for head in unit) for unit in units)


def mark_highest(values: UnitValues, n_highest: int, tie_ranks: Sequence[int]) -> UnitValues:
    """Returns ones for the `n_highest` highest values, zeros for the others; of equal values those of the lowest tie ranks are taken."""
    order = sorted(range(len(values)), key=lambda unit: (-float(values[unit]), tie_ranks[unit]))
    marks = torch.zeros_like(values)
    marks[order[:n_highest]] = 1.0
    return marks


def mark_kept_units(context: PruneContext, values: UnitValues, n_kept: int) -> UnitValues:
    """Returns ones for the units that the plan of these values keeps: the highest, within the floor and the protected heads of the budget."""
    if not context.budget.floor and not context.budget.protected:
        return mark_highest(values, n_kept, unit_tie_ranks(context.heads.units(), context.seed))
    removed = frozenset(context.plan(values[unit_of_each_head(context)].tolist(), "gates").removed)
    return torch.tensor([float(unit[0] not in removed) for unit in context.heads.units()], dtype=values.dtype)


def logits_with_sigmoid_sum(values: UnitValues, sigmoid_sum: float, tau: float = 1.0) -> UnitValues:
    """Returns z = (values − θ) / τ with θ such that Σ σ(z) = `sigmoid_sum`, by bisection; its gradient is that of the implicit function theorem."""
    n_values = len(values)
    with torch.no_grad():
        pivot = values.kthvalue(n_values + 1 - max(1, min(n_values, round(sigmoid_sum)))).values
        z = (values - pivot) / tau  # about the boundary, so that nothing is lost where τ is tiny
        reach = 50.0 + torch.tensor(float(n_values)).log().item()
        low, high = -reach, reach
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if float(torch.sigmoid(z - middle).sum()) > sigmoid_sum else (low, middle)
        z = z - (low + high) / 2
        p = torch.sigmoid(z)
        slope = p * (1 - p)
        share = slope / slope.sum().clamp(min=TINY)
    change = values - values.detach()  # zero, with a gradient
    return z + (change - (share * change).sum()) / max(tau, 1e-6)  # steeper slopes than that would only upset the optimiser


def is_plan_fixed(step: int, n_steps: int, settle_share: float) -> bool:
    """Whether the plan is fixed by now: weights then learn on with the heads that stay, for the last share `settle_share` of the steps."""
    return step >= (1 - settle_share) * n_steps


def expand_to_heads(unit_values: Sequence[float] | Tensor, unit_of_head: Int[Tensor, " heads"]) -> Shaped[Tensor, " heads"]:
    """Returns values of units as values of heads; `unit_of_head` is that of `unit_of_each_head`."""
    return torch.as_tensor(unit_values)[unit_of_head]
