"""Plans: which heads go. A plan touches no model; checking it against a head map says whether a cut can carry it out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import fsum
from numbers import Integral
from typing import TYPE_CHECKING, Literal

from headcount.errors import PlanError
from headcount.heads import AttentionBlock, Head, HeadMap

if TYPE_CHECKING:
    from headcount.scores import Scores

TieBreak = Literal["kv_group", "even"]


@dataclass(frozen=True, slots=True)
class Budget:
    """How much may stay: `keep` heads, or a `fraction` of them; at least `floor` in every block; `protected` heads always."""

    keep: int | None = None
    fraction: float | None = None
    floor: int = 0
    protected: frozenset[Head] = field(default_factory=frozenset)
    unit: TieBreak = "kv_group"

    def __post_init__(self) -> None:
        object.__setattr__(self, "protected", frozenset(Head.parse(head) for head in self.protected))
        if isinstance(self.keep, Integral) and not isinstance(self.keep, bool):
            object.__setattr__(self, "keep", int(self.keep))

    def heads(self, total: int) -> int:
        """How many heads of `total` may stay."""
        if (self.keep is None) == (self.fraction is None):
            raise PlanError(f"a budget needs exactly one of keep and fraction, got keep={self.keep} and fraction={self.fraction}")
        if self.fraction is not None:
            if not 0 < self.fraction <= 1:
                raise PlanError(f"fraction must be above 0 and at most 1, got {self.fraction}")
            return max(1, round(self.fraction * total))
        if isinstance(self.keep, bool) or not isinstance(self.keep, int) or not 1 <= self.keep <= total:
            raise PlanError(f"keep must be a whole number from 1 to {total}, the heads there are, got {self.keep!r}")
        return self.keep


@dataclass(frozen=True, slots=True)
class Plan:
    """The heads that go, in address order, and those that must not."""

    removed: tuple[Head, ...]
    protected: frozenset[Head] = field(default_factory=frozenset)

    @classmethod
    def removing(cls, heads: str | Head | Iterable[str | Head], *, protected: Iterable[str | Head] = ()) -> Plan:
        """The plan that removes just these heads."""
        named = [Head.parse(head) for head in ([heads] if isinstance(heads, str | Head) else heads)]
        twice = [str(head) for head, times in Counter(named).items() if times > 1]
        if twice:
            raise PlanError(f"{', '.join(twice)} would be removed twice; name every head once")
        guarded = frozenset(Head.parse(head) for head in protected)
        clash = sorted(guarded.intersection(named))
        if clash:
            raise PlanError(f"{', '.join(map(str, clash))} is protected and cannot be removed; take it out of one of the two lists")
        return cls(tuple(sorted(named)), guarded)

    @classmethod
    def keep_top(cls, scores: Scores, budget: int | Budget) -> Plan:
        """The plan that keeps the best-scored heads within a budget; heads of one unit stay or go together, ties fall to the earlier head."""
        limits = budget if isinstance(budget, Budget) else Budget(keep=budget)
        stay = _choose(scores, limits)
        return cls(tuple(sorted(head for head in scores.heads if head not in stay)), limits.protected)

    def check(self, heads: HeadMap) -> None:
        """Raises PlanError unless a cut of the model behind `heads` can carry this plan out."""
        alive, gone = frozenset(heads.heads), frozenset(self.removed)
        for head in self.removed:
            if head not in alive:
                raise _not_there(head, heads)
        for block in heads.blocks:
            going = [head for head in block.heads if head in gone]
            if going and not block.can_cut:
                raise PlanError(f"{going[0]} can be gated but not cut: {block.gate_only}. Evaluate this plan with gates.")
            if going:
                _check_groups(block, gone)

    def kept(self, block: AttentionBlock) -> tuple[int, ...]:
        """The places, within the block, of the heads that stay."""
        going = frozenset(self.removed)
        return tuple(i for i, head in enumerate(block.heads) if head not in going)


def _not_there(head: Head, heads: HeadMap) -> PlanError:
    for block in heads.blocks:
        if (block.stack, block.layer) == (head.stack, head.layer) and head.index < block.n_original:
            return PlanError(f"{head} is already gone; block {block.name} has {block.n_heads} of its {block.n_original} heads left")
    return PlanError(f"this model has no head {head}. It has {heads.describe()}.")


def _check_groups(block: AttentionBlock, gone: frozenset[Head]) -> None:
    left = [sum(head not in gone for head in group) for group in block.groups()]
    uneven = sorted({count for count in left if count})
    if len(uneven) > 1:
        low, high = left.index(uneven[0]), left.index(uneven[-1])
        raise PlanError(
            f"block {block.name} would keep {uneven[-1]} query heads of KV group {high} but {uneven[0]} of group {low}; a cut needs the same "
            "number in each. Prune by KV group, or evaluate this plan with gates."
        )


def _units(scores: Scores, unit: TieBreak) -> list[tuple[Head, ...]]:
    """What stays or goes together: KV groups, or, evenly, the n-th best head of every group of a block."""
    if unit == "kv_group":
        return list(scores.tied())
    if unit != "even":
        raise PlanError(f"unit must be 'kv_group' or 'even', got {unit!r}")
    order = {head: i for i, head in enumerate(scores.ranking())}
    blocks: dict[tuple[str, int], list[list[Head]]] = defaultdict(list)
    for group in scores.tied():
        blocks[group[0].stack, group[0].layer].append(sorted(group, key=order.__getitem__))
    return [tuple(heads) for groups in blocks.values() for heads in zip(*groups, strict=True)]


def _choose(scores: Scores, limits: Budget) -> set[Head]:
    unknown = sorted(limits.protected.difference(scores.heads))
    if unknown:
        raise PlanError(f"protected head {unknown[0]} has no score; it is not part of this model, or already gone")
    wanted = limits.heads(len(scores.heads))
    place = {head: i for i, head in enumerate(scores.heads)}
    units = _units(scores, limits.unit)
    worth = scores.signed()
    best = sorted(units, key=lambda unit: (-fsum(worth[head] for head in unit) / len(unit), min(place[head] for head in unit)))
    stay = _forced(best, limits)
    if len(stay) > wanted:
        raise PlanError(
            f"a floor of {limits.floor} heads per block and {len(limits.protected)} protected heads need {len(stay)} heads, more than the "
            f"{wanted} that may stay; raise keep, or lower the floor"
        )
    free = [unit for unit in best if not stay.issuperset(unit)]
    counts = _reachable([len(unit) for unit in free])
    missing = wanted - len(stay)
    if missing not in counts[0]:
        sizes = "/".join(str(size) for size in sorted({len(unit) for unit in units}))
        low = max(count for count in counts[0] if count < missing)
        high = min((count for count in counts[0] if count > missing), default=low)
        raise PlanError(
            f"{wanted} heads are no whole number of units of {sizes} heads that share keys and values; the nearest are "
            f"{len(stay) + low} and {len(stay) + high}"
        )
    for number, unit in enumerate(free):  # the best unit with which the rest can still be filled exactly
        if len(unit) <= missing and missing - len(unit) in counts[number + 1]:
            stay.update(unit)
            missing -= len(unit)
    return stay


def _reachable(sizes: list[int]) -> list[set[int]]:
    """For every place in a list of sizes, the sums that some of the sizes from there on can make."""
    sums = [{0}]
    for size in reversed(sizes):
        sums.append(sums[-1] | {size + total for total in sums[-1]})
    return sums[::-1]


def _forced(best: list[tuple[Head, ...]], limits: Budget) -> set[Head]:
    """What stays whatever its score: protected units, and the best of every block up to the floor."""
    stay = {head for unit in best if limits.protected.intersection(unit) for head in unit}
    if limits.floor < 0:
        raise PlanError(f"floor must be 0 or more, got {limits.floor}")
    size = Counter((head.stack, head.layer) for unit in best for head in unit)
    for block, total in size.items():
        if limits.floor > total:
            raise PlanError(f"a floor of {limits.floor} heads cannot be met: a block of layer {block[1]} has only {total}")
    have = Counter((head.stack, head.layer) for head in stay)
    for unit in best:
        block = (unit[0].stack, unit[0].layer)
        if have[block] < limits.floor and not stay.issuperset(unit):
            stay.update(unit)
            have[block] += len(unit)
    return stay
