"""Surgeon: the heads whose removal costs least after the others have been refitted, weighed by how much the loss feels each block's output.

See headcount.refit.choose for the formula. `rounds` prunes in that many stages, repairing and estimating again in between, which costs as many
passes. It is meant to be followed by repair, and is the best choice without training that this package knows (docs/results.md).
"""

from __future__ import annotations

from torch import nn

from headcount.errors import PlanError
from headcount.heads import Head
from headcount.plan import Budget, Plan
from headcount.pruners._contract import About, Choice, Work
from headcount.refit import repair
from headcount.refit.survey import removal_order

ABOUT = About(source="structured optimal brain surgeon (Hassibi & Stork 1993), with repair", options={"rounds": 1, "limit": 512})


def choose(work: Work, _variant: str) -> Choice:
    """The plan, with the rise of the loss that is expected of every removal."""
    rounds, total = work.options["rounds"], len(work.heads)
    if rounds < 1:
        raise PlanError(f"rounds must be 1 or more, got {rounds}")
    place = {head: number for number, head in enumerate(work.heads)}
    values, history = [float(total)] * total, []
    model: nn.Module = work.model
    plan = Plan.removing([])
    gone: list[Head] = []
    for number in range(1, rounds + 1):
        wanted = total - round((total - work.keep) * number / rounds)
        order = [(unit, cost) for unit, cost in removal_order(model, work.data, limit=work.options["limit"]) if unit[0] not in gone]
        for turn, (unit, cost) in enumerate(order):
            for head in unit:
                values[place[head]] = float(len(gone) + turn)
            if turn == 0 or len(gone) + turn < total - wanted:
                history.append({"unit": [str(head) for head in unit], "rise": cost})
        plan = _nearest(work, values, wanted if number < rounds else work.keep, last=number == rounds)
        gone = list(plan.removed)
        for head in gone:
            values[place[head]] -= total  # what is gone stays gone
        if number < rounds:
            model = repair(work.model, plan, work.data, limit=work.options["limit"])
    scores = work.scores(values, "surgeon")
    return Choice(plan, history=history, scores=scores)


def _nearest(work: Work, values: list[float], number: int, *, last: bool) -> Plan:
    """The plan that keeps that many heads, or, on the way there, the next larger whole number of units."""
    size = max(len(unit) for unit in work.heads.units())
    keep = number if last else min(len(work.heads), -(-number // size) * size)
    limits = Budget(keep=keep, floor=work.budget.floor, protected=work.budget.protected, unit=work.budget.unit)
    return Plan.keep_top(work.scores(values, "surgeon"), limits)
