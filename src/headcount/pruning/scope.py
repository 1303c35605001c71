"""Choosing over the whole model, or the same share of every block or of every kind of attention."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
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


def keep_best_in_whole_units(context: PruneContext, scores: Scores, n_keep: int) -> Plan:
    """Returns the plan that keeps the best `n_keep` heads, or the next larger number that whole units can make.

    At the budget's own number there is no next larger one: PlanError is raised where whole units cannot make it.
    """
    for keep in range(max(n_keep, context.keep), len(context.heads) + 1):
        try:
            return Plan.keep_top(scores, context.budget.resized(keep))
        except PlanError:
            if keep == context.keep:
                raise
    return Plan.removing([], protected=context.budget.protected)


def keep_top_by_scope(context: PruneContext, scores: Scores, n_keep: int, scope: Scope) -> Plan:
    """Returns the plan that keeps `n_keep` heads in all: the best of the model, or as nearly as possible the same share of every group of a scope."""
    budget = Budget(keep=n_keep, floor=context.budget.floor, protected=context.budget.protected, unit=context.budget.unit)
    groups = _group_heads(context.heads, scope)
    if len(groups) == 1:
        return Plan.keep_top(scores, budget)
    _check_units_within_groups(context.heads, groups, scope)
    removed: list[Head] = []
    for group, n_group in zip(groups, _distribute_kept_heads([group_limits(context, group) for group in groups], n_keep), strict=True):
        if n_group == 0:
            removed += group
            continue
        members = frozenset(group)
        group_scores = Scores(
            tuple(group),
            tuple(scores[head] for head in group),
            method=scores.method,
            higher_is_keep=scores.higher_is_keep,
            units=tuple(unit for unit in context.heads.units() if unit[0] in members),
        )
        group_budget = Budget(keep=n_group, floor=budget.floor, protected=budget.protected & members, unit=budget.unit)
        removed += Plan.keep_top(group_scores, group_budget).removed
    return Plan.removing(removed, protected=budget.protected)


def _group_heads(heads: HeadMap, scope: Scope) -> list[list[Head]]:
    if scope == "global":
        return [list(heads)]
    groups: dict[str, list[Head]] = defaultdict(list)
    for block in heads.blocks:
        groups[block.path if scope == "layer" else block.kind] += block.heads
    return [group for group in groups.values() if group]


def _check_units_within_groups(heads: HeadMap, groups: list[list[Head]], scope: Scope) -> None:
    """Raises PlanError where heads that can only be removed together are in different groups."""
    group_of = {head: number for number, group in enumerate(groups) for head in group}
    unit = next((unit for unit in heads.units() if len({group_of[head] for head in unit}) > 1), None)
    if unit is not None:
        raise PlanError(
            f"scope={scope!r} ranks every {scope} apart, but {unit[0]} and {unit[-1]} share keys and values and can only be removed together; "
            "use the global scope"
        )


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """How many heads a group has, how many of them go or stay together, and how many must stay."""

    n_heads: int
    unit_size: int = 1
    min_heads: int = 0


def group_limits(context: PruneContext, group: Sequence[Head]) -> GroupLimits:
    """Returns the limits of a group of heads within the floor and the protected heads of the budget."""
    members, budget = frozenset(group), context.budget
    min_heads, unit_sizes = 0, set[int]()
    for block in context.heads.blocks:
        if not members.isdisjoint(block.heads):
            unit_size = block.group_size if budget.unit == "kv_group" else block.n_kv_heads
            protected_groups = [kv_group for kv_group in block.groups() if not budget.protected.isdisjoint(kv_group)]
            if budget.unit == "kv_group":
                n_protected = len(protected_groups) * block.group_size
            else:
                n_by_group = (sum(head in budget.protected for head in kv_group) for kv_group in protected_groups)
                n_protected = unit_size * max(n_by_group, default=0)
            min_heads += max(n_protected, -(-budget.floor // unit_size) * unit_size)
            unit_sizes.add(unit_size)
    return GroupLimits(len(group), max(unit_sizes, default=1), min_heads)


def _distribute_kept_heads(groups: list[GroupLimits], n_keep: int) -> list[int]:
    """Returns how many heads of each group stay: the same share of each as nearly as whole units and what must stay allow, `n_keep` in all."""
    n_heads = sum(group.n_heads for group in groups)
    exact = [n_keep * group.n_heads / n_heads for group in groups]
    counts = [max(int(value / group.unit_size) * group.unit_size, group.min_heads) for value, group in zip(exact, groups, strict=True)]
    while sum(counts) != n_keep:
        missing = n_keep - sum(counts)
        sign = 1 if missing > 0 else -1
        adjustable = [
            i
            for i, group in enumerate(groups)
            if group.unit_size <= abs(missing) and group.min_heads <= counts[i] + sign * group.unit_size <= group.n_heads
        ]
        if not adjustable:
            raise PlanError(
                f"{n_keep} heads cannot be shared out: whole units, floors and protected heads make {sum(counts)}; name that number, or scope global"
            )
        farthest = max(adjustable, key=lambda i: (sign * (exact[i] - counts[i]), -i))
        counts[farthest] += sign * groups[farthest].unit_size
    return counts
