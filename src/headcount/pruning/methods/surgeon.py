"""Surgeon: the heads whose removal costs least after the others have been refitted, weighed by how much the loss feels each block's output.

See headcount.pruning.repair.removal_order for the formula.
It is meant to be followed by repair. `rounds` prunes in that many stages of the same size, repairing and
estimating again in between; costs are exact for one block and small changes only, so far from the whole model later stages see what the first could
not. Where most heads go no estimate is safe: with `rivals`, the plan of one stage, and those of the gradient and of Fisher mask search, are repaired
too, and the plan that stays nearest to the dense model's predictions on the selection split is taken (docs/results.md has what that brings).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import nn

from headcount.core.errors import PlanError
from headcount.core.heads import Head
from headcount.core.plan import Plan
from headcount.core.scores import Scores
from headcount.importance.base import Importance
from headcount.pruning.base import About, Choice, Work
from headcount.pruning.kl_to_dense import kl_to_dense
from headcount.pruning.methods.fisher import gate_gradients, search
from headcount.pruning.repair.repair import EXAMPLES, Repaired, refit, repair
from headcount.pruning.repair.survey import removal_order
from headcount.pruning.scope import within_budget

ABOUT = About(
    source="structured optimal brain surgeon (Hassibi & Stork 1993), with repair", options={"rounds": 4, "rivals": True, "limit": EXAMPLES}
)
Candidate = tuple[Plan, Scores, list[dict[str, Any]]]
Order = list[tuple[tuple[Head, ...], float]]
"""Units in the order they go, each with the rise of the loss that is expected of it."""


def check(options: Mapping[str, Any]) -> None:
    """Refuses options that cannot be carried out, before any work."""
    if options["rounds"] < 1 or options["limit"] < 1:
        raise PlanError(f"rounds and limit must be 1 or more, got {options['rounds']} and {options['limit']}")


def choose(work: Work, _variant: str) -> Choice:
    """The plan, with the rise of the loss that is expected of every removal, and how far every candidate is from the dense model."""
    first = work.once(("order", work.budget.unit, work.options["limit"]), lambda: _order(work, work.model))
    found: dict[str, Candidate] = {"surgeon": in_rounds(work, work.options["rounds"], first)}
    if work.options["rivals"] and found["surgeon"][0].removed:
        found |= _rivals(work, first)
    far, repaired = _judged(work, {name: candidate[0] for name, candidate in found.items()})
    best = min(found, key=lambda name: far.get(name, 0.0))
    plan, scores, history = found[best]
    told = [{"candidate": name, "kl_to_dense": value, "taken": name == best} for name, value in far.items()]
    return Choice(plan, history=[*history, *told], scores=scores, repaired=repaired if work.options["limit"] == EXAMPLES else None)


def _order(work: Work, model: nn.Module) -> Order:
    """The order in which the units of a model go."""
    units = work.heads.units() if work.budget.unit == "kv_group" else tuple((head,) for head in work.heads)
    return removal_order(model, work.data, units=units, limit=work.options["limit"])


def _rivals(work: Work, first: Order) -> dict[str, Candidate]:
    made: dict[str, Candidate] = {}
    if work.options["rounds"] > 1:
        made["surgeon, one round"] = in_rounds(work, 1, first)
    gradients = gate_gradients(work, work.options["limit"])
    slopes = work.scores(gradients.abs().mean(0).tolist(), "gradient").normalise_by(Importance.parse("gradient").info.normalise)
    made["gradient"] = Plan.keep_top(slopes, work.budget), slopes, []
    made["fisher"] = (*search(work, gradients), [])
    return made


def _judged(work: Work, plans: dict[str, Plan]) -> tuple[dict[str, float], Repaired | None]:
    """How far each plan is from the dense model after repair, and the repair of the nearest; nothing where all agree."""
    far: dict[Plan, float] = {}
    nearest = None
    for plan in plans.values() if len(set(plans.values())) > 1 else ():
        if plan not in far:
            done = refit(work.model, plan, work.data, limit=work.options["limit"])
            found = kl_to_dense(work, done.model, plan)
            nearest = done if found < min(far.values(), default=math.inf) else nearest
            far[plan] = found
    return {name: far[plan] for name, plan in plans.items() if far}, nearest


def in_rounds(work: Work, rounds: int, first: Order) -> Candidate:
    """The plan of so many rounds from the dense model's order on, its own order as scores, and the rise of the loss expected of each removal."""
    total = len(work.heads)
    place = {head: number for number, head in enumerate(work.heads)}
    values, history = np.full(total, float(total)), []
    model: nn.Module = work.model
    plan, gone = Plan.removing([]), list[Head]()
    for number in range(1, rounds + 1):
        order = [(unit, cost) for unit, cost in (first if number == 1 else _order(work, model)) if unit[0] not in gone]
        for turn, (unit, _) in enumerate(order):
            values[[place[head] for head in unit]] = float(len(gone) + turn)
        wanted = total - (total - work.keep) * number // rounds
        plan = within_budget(work, work.scores(values, "surgeon"), wanted)
        new = frozenset(plan.removed).difference(gone)
        history += [
            {"round": number, "unit": [str(head) for head in unit], "rise": cost} for unit, cost in order if not new.isdisjoint(unit)
        ]
        for head in new:
            values[place[head]] -= 2 * total * (rounds + 1 - number)  # what is gone stays gone, and what went first stays lowest
        gone = list(plan.removed)
        if number < rounds and gone:
            model = repair(work.model, plan, work.data, limit=work.options["limit"])
    return plan, work.scores(values, "surgeon"), history
