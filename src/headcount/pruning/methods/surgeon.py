from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from headcount.core.options import option
from headcount.core.plan import Plan
from headcount.core.scores import Scores
from headcount.importance.base import Importance
from headcount.pruning.base import Choice, PruneContext, Pruner, PrunerInfo
from headcount.pruning.kl_to_dense import kl_to_dense
from headcount.pruning.methods.fisher import gate_gradients_of_examples, plan_by_fisher_search
from headcount.pruning.repair.removal_order import RemovalOrder, order_units_by_removal_cost
from headcount.pruning.repair.repair import FIT_EXAMPLES, Repaired, RepairSettings, refit
from headcount.pruning.scope import keep_best_in_whole_units


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan with the scores it was made from, and the log of how it was made."""

    plan: Plan
    scores: Scores
    history: list[dict[str, Any]]


class RepairComparison(NamedTuple):
    """The KL to the dense model of each candidate by name, and the repaired model of the best one; empty where nothing was compared."""

    kl_to_dense: dict[str, float]
    best: Repaired | None


@dataclass(frozen=True)
class SurgeonPruner(Pruner):
    """Surgeon: the heads go whose removal costs least once the others are refitted.

    Costs are weighted by the sensitivity of the loss to each block's output. See
    headcount.pruning.repair.removal_order for the formula. It is meant to be followed by repair. `rounds`
    prunes in that many stages of the same size, repairing and estimating again in between: costs are exact for
    one block and small changes only, so that later stages measure what the first could not. Where most heads go
    no estimate is safe: with `rivals`, the plan of one stage, and those of the gradient and of Fisher mask
    search, are repaired too, and the plan with the smallest KL to the dense model on the selection split is
    taken.
    """

    _: KW_ONLY
    rounds: int = option(4, "Stages of the same size, with a repair after each", minimum=1)
    rivals: bool = option(True, "Compare with the plans of one stage, of the gradient and of fisher, and take the best")
    limit: int = option(FIT_EXAMPLES, "Calibration examples that costs and repairs are computed on", minimum=1)
    info = PrunerInfo("structured optimal brain surgeon (Hassibi & Stork 1993), with repair")

    def count_passes(self, n_heads: int) -> float:
        """Returns the passes of the rounds, each an order of removal and a repair, and of the plans that are repaired and compared."""
        del n_heads
        return 4.0 * self.rounds + (10.0 if self.rivals else 0.0)

    def choose(self, context: PruneContext) -> Choice:
        """Returns the plan, with the rise of the loss that is expected of every removal, and the KL to dense of every candidate."""
        first = context.once(("order", context.budget.unit, self.limit), lambda: self.order_units(context, context.model))
        candidates = {"surgeon": self.plan_in_rounds(context, self.rounds, first)}
        if self.rivals and candidates["surgeon"].plan.removed:
            candidates |= self._plan_rivals(context, first)
        kl, repaired = self.repair_and_compare(context, {name: candidate.plan for name, candidate in candidates.items()})
        best = min(candidates, key=lambda name: kl.get(name, 0.0))
        comparison = [{"candidate": name, "kl_to_dense": value, "taken": name == best} for name, value in kl.items()]
        return Choice(
            candidates[best].plan,
            history=[*candidates[best].history, *comparison],
            scores=candidates[best].scores,
            repaired=repaired if self.limit == FIT_EXAMPLES else None,
        )

    def order_units(self, context: PruneContext, model: nn.Module) -> RemovalOrder:
        """Returns the order in which the units of a model go."""
        units = context.heads.units() if context.budget.unit == "kv_group" else tuple((head,) for head in context.heads)
        return order_units_by_removal_cost(model, context.heads, context.data, units=units, limit=self.limit)

    def _plan_rivals(self, context: PruneContext, first_order: RemovalOrder) -> dict[str, Candidate]:
        rivals: dict[str, Candidate] = {}
        if self.rounds > 1:
            rivals["surgeon, one round"] = self.plan_in_rounds(context, 1, first_order)
        gradients = gate_gradients_of_examples(context, self.limit)
        slopes = context.scores(gradients.abs().mean(0).tolist(), "gradient").normalise_by(Importance.parse("gradient").info.normalise)
        rivals["gradient"] = Candidate(Plan.keep_top(slopes, context.budget), slopes, [])
        rivals["fisher"] = Candidate(*plan_by_fisher_search(context, gradients), [])
        return rivals

    def repair_and_compare(self, context: PruneContext, candidates: dict[str, Plan]) -> RepairComparison:
        """Repairs every distinct plan and measures its KL to the dense model on the selection split; nothing if all candidates are the same plan."""
        plans = list(dict.fromkeys(candidates.values()))
        if len(plans) == 1:
            return RepairComparison({}, None)
        kl: dict[Plan, float] = {}
        best: Repaired | None = None
        for plan in plans:
            repaired = refit(context.model, plan, context.data, RepairSettings(limit=self.limit))
            value = kl_to_dense(context, repaired.model, plan)
            if not kl or value < min(kl.values()):
                best = repaired  # only the best repair is kept in memory
            kl[plan] = value
        return RepairComparison({name: kl[plan] for name, plan in candidates.items()}, best)

    def plan_in_rounds(self, context: PruneContext, rounds: int, first_order: RemovalOrder) -> Candidate:
        """Returns the plan of so many rounds, which begin with the dense model's order; the order of removal is its scores."""
        n_heads = len(context.heads)
        position = {head: number for number, head in enumerate(context.heads)}
        values, history = np.full(n_heads, float(n_heads)), []
        model: nn.Module = context.model
        plan = Plan.removing([])
        for number in range(1, rounds + 1):
            removed = frozenset(plan.removed)
            order = [entry for entry in (first_order if number == 1 else self.order_units(context, model)) if entry[0][0] not in removed]
            for turn, (unit, _) in enumerate(order):
                values[[position[head] for head in unit]] = float(len(removed) + turn)
            n_kept = n_heads - (n_heads - context.keep) * number // rounds
            plan = keep_best_in_whole_units(context, context.scores(values, "surgeon"), n_kept)
            newly_removed = frozenset(plan.removed) - removed
            history += [
                {"round": number, "unit": [str(head) for head in unit], "rise": cost}
                for unit, cost in order
                if not newly_removed.isdisjoint(unit)
            ]
            for head in newly_removed:  # heads that are removed stay removed, and those of the first round stay lowest
                values[position[head]] -= 2 * n_heads * (rounds + 1 - number)
            if number < rounds and plan.removed:
                model = refit(context.model, plan, context.data, RepairSettings(limit=self.limit)).model
        return Candidate(plan, context.scores(values, "surgeon"), history)
