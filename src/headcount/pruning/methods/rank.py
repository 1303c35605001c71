"""Rank and cut: the heads with the lowest scores go, at once or in steps with scores estimated again after each.

`by` is any importance, normalised as it was published (`normalise`: published, none, layer, global or standard). `scope` ranks all heads together
(global), or takes the same share of every block (layer) or of each kind of attention (type). `step` is the share of all heads that goes at a
time when scores are estimated again (`again`). With `stop`, heads go step by step as long as the metric on the selection split is at least that
share of the whole model's: `stop` alone decides how many stay. Michel et al. 2019.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from headcount.core.errors import PlanError, unknown
from headcount.core.plan import Plan
from headcount.core.scores import Normalise, Scores
from headcount.data.evaluate import evaluate
from headcount.importance.base import Importance
from headcount.importance.score import score
from headcount.models.gates import HeadGates
from headcount.pruning.base import About, Choice, Work
from headcount.pruning.scope import SCOPES, keep_within, room_of
from headcount.surgery.verify import gates_of

ABOUT = About(
    source="Michel, Levy & Neubig 2019",
    options={"by": "gradient", "normalise": "published", "scope": "global", "again": False, "step": 0.1, "stop": 0.0, "limit": 512},
    size_option="stop",
)


def choose(work: Work, _variant: str) -> Choice:
    """The plan, and the metric after each step where there are steps."""
    options = work.options
    check(options)
    asked = tuple(options[name] for name in ("by", "normalise", "limit"))
    first = work.once(("scores", *asked, work.seed), lambda: _scores(work, work.model, options["normalise"]))
    if not options["again"] and not options["stop"]:
        return Choice(keep_within(work, first, work.keep, work.options["scope"]), scores=first)
    return _in_steps(work, first)


def check(options: Mapping[str, Any]) -> None:
    """Refuses options that cannot be carried out, before any work."""
    Importance.parse(options["by"]).scaling(options["normalise"])
    if options["scope"] not in SCOPES:
        raise unknown("scope", options["scope"], SCOPES)
    if not 0 < options["step"] <= 1 or not 0 <= options["stop"] <= 1:
        raise PlanError(f"step must be above 0 and at most 1, and stop from 0 to 1; got {options['step']} and {options['stop']}")


def _scores(work: Work, model: nn.Module, normalise: Normalise) -> Scores:
    return score(model, work.data, work.options["by"], normalise=normalise, limit=work.options["limit"], seed=work.seed)


def _in_steps(work: Work, first: Scores) -> Choice:
    total, scores, history = len(work.heads), first, []
    plan = Plan.removing([], protected=work.budget.protected)
    whole = evaluate(work.model, work.data, split="selection") if work.options["stop"] else None
    counts = _counts(work, total)
    for wanted in counts:
        next_plan = keep_within(work, scores, wanted, work.options["scope"])
        with HeadGates(work.model, gates_of(work.heads, next_plan)):
            made = evaluate(work.model, work.data, split="selection") if whole is not None else None
            history.append({"heads": wanted, **({} if made is None else {"loss": made.loss, "value": made.value})})
            if made is not None and whole is not None and not _holds(whole, made, work.options["stop"]):
                break
            if work.options["again"] and wanted > counts[-1]:
                scores = _estimated_again(work, scores, next_plan)
        plan = next_plan
    return Choice(plan, history=history, scores=first)


def _estimated_again(work: Work, scores: Scores, plan: Plan) -> Scores:
    """Scores of the heads that are left, under the gates of the plan and normalised among themselves; those that are gone stay below all of them."""
    raw, gone = _scores(work, work.model, "none"), frozenset(plan.removed)
    alive = tuple(head for head in work.heads if head not in gone)
    left = Scores(alive, tuple(raw[head] for head in alive), raw.method, raw.higher_is_keep)
    fresh = left.normalise_by(Importance.parse(work.options["by"]).scaling(work.options["normalise"])).keep_values()
    lowest = min(fresh.values()) - 1.0
    return work.scores([lowest if head in gone else fresh[head] for head in work.heads], scores.method)


def _holds(whole: object, made: object, share: float) -> bool:
    value, before = getattr(made, "value", None), getattr(whole, "value", None)
    if value is None or before is None:
        return made.loss <= whole.loss / share  # pyright: ignore[reportAttributeAccessIssue]
    return value >= share * before if getattr(whole, "higher_is_better", True) else value <= before / share


def _counts(work: Work, total: int) -> list[int]:
    """How many heads are left after each step, the last being what was asked for, or with `stop` the fewest that can be; whole units only."""
    sizes = sorted({len(unit) for unit in work.heads.units()})
    unit = sizes[0] if len(sizes) == 1 else 1
    step = max(unit, round(work.options["step"] * total) // unit * unit)
    if work.options["stop"]:
        forced = sum(room_of(work, list(block.heads)).least for block in work.heads.blocks if block.n_heads)
        last = max(unit, forced)  # the fewest that floor and protected heads allow, one unit at least
    else:
        last = work.keep
    return [*range(total - step, last, -step), last]
