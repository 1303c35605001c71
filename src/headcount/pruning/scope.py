"""Choosing over the whole model, or the same share of every block or of every kind of attention."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

from headcount.core.budget import Budget
from headcount.core.errors import PlanError
from headcount.core.heads import Head
from headcount.core.plan import Plan
from headcount.core.scores import Scores
from headcount.models.head_map import HeadMap
from headcount.pruning.base import PruneContext

Scope = Literal["global", "layer", "type"]
"""Where heads are ranked together: in the whole model, in each block, or in each kind of attention."""


def within_budget(context: PruneContext, scores: Scores, number: int) -> Plan:
    """The plan that keeps that many heads within the limits of the budget, or, on the way to it, the next larger number that whole units can make."""
    for keep in range(max(number, context.keep), len(context.heads) + 1):
        try:
            return Plan.keep_top(scores, context.budget.resized(keep))
        except PlanError:
            if keep == context.keep:
                raise
    return Plan.removing([], protected=context.budget.protected)


def keep_within(context: PruneContext, scores: Scores, number: int, scope: Scope) -> Plan:
    """The plan that keeps the best heads within a scope, so many in all."""
    limits = Budget(keep=number, floor=context.budget.floor, protected=context.budget.protected, unit=context.budget.unit)
    groups = _groups(context.heads, scope)
    if len(groups) == 1:
        return Plan.keep_top(scores, limits)
    _check_groups(context.heads, groups, scope)
    removed: list[Head] = []
    for heads, share in zip(groups, _shares([room_of(context, group) for group in groups], number), strict=True):
        if share == 0:
            removed += heads
            continue
        place = frozenset(heads)
        part = Scores(
            tuple(heads),
            tuple(scores[head] for head in heads),
            method=scores.method,
            higher_is_keep=scores.higher_is_keep,
            units=tuple(unit for unit in context.heads.units() if unit[0] in place),
        )
        own = Budget(keep=share, floor=limits.floor, protected=limits.protected & place, unit=limits.unit)
        removed += Plan.keep_top(part, own).removed
    return Plan.removing(removed, protected=limits.protected)


def _groups(heads: HeadMap, scope: Scope) -> list[list[Head]]:
    if scope == "global":
        return [list(heads)]
    found: dict[str, list[Head]] = defaultdict(list)
    for block in heads.blocks:
        found[block.path if scope == "layer" else block.kind] += block.heads
    return [group for group in found.values() if group]


def _check_groups(heads: HeadMap, groups: list[list[Head]], scope: Scope) -> None:
    """Refuses to rank apart what can only be removed together."""
    number = {head: index for index, group in enumerate(groups) for head in group}
    unit = next((unit for unit in heads.units() if len({number[head] for head in unit}) > 1), None)
    if unit is not None:
        raise PlanError(
            f"scope={scope!r} ranks every {scope} apart, but {unit[0]} and {unit[-1]} share keys and values and can only be removed together; "
            "use the global scope"
        )


@dataclass(frozen=True, slots=True)
class Room:
    """A group of heads: how many there are, how many go or stay together, and how many must stay."""

    total: int
    unit: int = 1
    least: int = 0


def room_of(context: PruneContext, group: list[Head]) -> Room:
    """How many heads a group has, how many of them go or stay together, and how many must stay within floor and protected heads."""
    mine, budget = frozenset(group), context.budget
    least, sizes = 0, set[int]()
    for block in context.heads.blocks:
        if not mine.isdisjoint(block.heads):
            unit = block.group_size if budget.unit == "kv_group" else block.n_kv_heads
            guarded = [tied for tied in block.groups() if not budget.protected.isdisjoint(tied)]
            forced = (
                len(guarded) * block.group_size
                if budget.unit == "kv_group"
                else unit * max((sum(head in budget.protected for head in tied) for tied in guarded), default=0)
            )
            least += max(forced, -(-budget.floor // unit) * unit)
            sizes.add(unit)
    return Room(len(group), max(sizes, default=1), least)


def _shares(rooms: list[Room], number: int) -> list[int]:
    """How many heads of each group stay: the same share of each as nearly as whole units and what must stay allow, so many in all."""
    total = sum(room.total for room in rooms)
    exact = [number * room.total / total for room in rooms]
    shares = [max(int(value / room.unit) * room.unit, room.least) for value, room in zip(exact, rooms, strict=True)]
    while sum(shares) != number:
        short = number - sum(shares)
        sign = 1 if short > 0 else -1
        free = [i for i, room in enumerate(rooms) if room.unit <= abs(short) and room.least <= shares[i] + sign * room.unit <= room.total]
        if not free:
            raise PlanError(
                f"{number} heads cannot be shared out: whole units, floors and protected heads make {sum(shares)}; name that number, or scope global"
            )
        place = max(free, key=lambda i: (sign * (exact[i] - shares[i]), -i))
        shares[place] += sign * rooms[place].unit
    return shares
