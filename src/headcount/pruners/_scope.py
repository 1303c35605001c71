"""Choosing over the whole model, or the same share of every block or of every kind of attention."""

from __future__ import annotations

from collections import defaultdict

from headcount.heads import Head, HeadMap
from headcount.plan import Budget, Plan
from headcount.pruners._contract import Scores, Work

SCOPES = ("global", "layer", "type")


def keep_within(work: Work, scores: Scores, number: int, scope: str) -> Plan:
    """The plan that keeps the best heads within a scope, so many in all."""
    limits = Budget(keep=number, floor=work.budget.floor, protected=work.budget.protected, unit=work.budget.unit)
    groups = _groups(work.heads, scope)
    if len(groups) == 1:
        return Plan.keep_top(scores, limits)
    removed: list[Head] = []
    for heads, share in zip(groups, _shares(groups, number), strict=True):
        if share == 0:
            removed += heads
            continue
        place = frozenset(heads)
        part = Scores(
            tuple(heads),
            tuple(scores[head] for head in heads),
            method=scores.method,
            higher_is_keep=scores.higher_is_keep,
            units=tuple(unit for unit in work.heads.units() if unit[0] in place),
        )
        own = Budget(keep=share, floor=limits.floor, protected=limits.protected & place, unit=limits.unit)
        removed += Plan.keep_top(part, own).removed
    return Plan.removing(removed, protected=limits.protected)


def _groups(heads: HeadMap, scope: str) -> list[list[Head]]:
    if scope == "global":
        return [list(heads)]
    found: dict[str, list[Head]] = defaultdict(list)
    for block in heads.blocks:
        found[block.path if scope == "layer" else block.kind] += block.heads
    return [group for group in found.values() if group]


def _shares(groups: list[list[Head]], number: int) -> list[int]:
    """How many heads of each group stay: the same share of each, the largest remainders rounded up."""
    total = sum(map(len, groups))
    exact = [number * len(group) / total for group in groups]
    shares = [int(value) for value in exact]
    order = sorted(range(len(groups)), key=lambda i: (shares[i] - exact[i], i))
    for place in order[: number - sum(shares)]:
        shares[place] += 1
    return shares
