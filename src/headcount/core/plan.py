"""Plans: which heads go. A plan touches no model; checking it against a head map says whether a cut can carry it out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import fsum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headcount.core import html as notebook
from headcount.core.budget import Budget, PruningUnit
from headcount.core.errors import ArtifactError, HeadcountError, PlanError
from headcount.core.files import add_seal, check_writable, is_file, read_json, seal, write_json
from headcount.core.heads import AttentionBlock, Head, HeadIndex, Heads, parse_heads

if TYPE_CHECKING:
    from headcount.core.scores import Scores

SCHEMA = 1
"""The version of plan files."""
WeightsHash = str
"""The hash of the weights of a model; empty where it is not known."""


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """The model that a plan is for: its type, how many heads each block had before any cut, and the hash of its weights where that is known."""

    model_type: str
    blocks: Mapping[str, int]
    weights: WeightsHash = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """The heads that go, in address order, and those that must not; `model_identity` is the model of a plan that was read from a file."""

    removed: tuple[Head, ...]
    protected: frozenset[Head] = field(default_factory=frozenset)
    model_identity: ModelIdentity | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for name, heads, kind in (("removed", self.removed, tuple), ("protected", self.protected, frozenset)):
            if not isinstance(heads, kind) or not all(isinstance(head, Head) for head in heads):
                raise PlanError(f"{name} of a plan must be a {kind.__name__} of heads; got {heads!r}; write Plan.removing(['L0H1'])")

    @classmethod
    def removing(cls, heads: Heads, *, protected: Iterable[str | Head] = ()) -> Plan:
        """Returns the plan that removes exactly these heads: `["L0H1", "cross.L2H5"]`, or by layer of a model with one stack, `{0: [1], 1: [2]}`."""
        named = parse_heads(heads)
        twice = [str(head) for head, times in Counter(named).items() if times > 1]
        if twice:
            raise PlanError(f"{', '.join(twice)} would be removed twice; name every head once")
        guarded = frozenset(Head.parse(head) for head in protected)
        clash = sorted(guarded.intersection(named))
        if clash:
            raise PlanError(f"{', '.join(map(str, clash))} is protected and cannot be removed; take it out of one of the two lists")
        return cls(tuple(sorted(named)), guarded)

    @classmethod
    def parse(cls, plan: Plan | str | Path) -> Plan:
        """Returns a plan as it is, and that of a file read."""
        return plan if isinstance(plan, Plan) else cls.read(plan)

    @classmethod
    def keep_top(cls, scores: Scores, budget: int | float | Budget) -> Plan:
        """Returns the plan that keeps the best-scored heads within a budget: a number of heads, a share of them below 1, or a Budget.

        Heads of one unit stay or go together; ties fall by a hash of the scores' seed and the address.
        """
        limits = budget if isinstance(budget, Budget) else Budget(keep=budget)
        stay = _choose_kept_heads(scores, limits)
        return cls(tuple(sorted(head for head in scores.heads if head not in stay)), limits.protected)

    @classmethod
    def read(cls, path: str | Path) -> Plan:
        """Returns the plan in a file that `write` or a person wrote: {"schema_version": 1, "removed": ["L0H3", …]}, maybe with protected and model.

        A file with a seal, as `write` makes it, must be what was written; people leave the seal out.
        """
        if not is_file(Path(path)):
            raise ArtifactError(f"{path} is no file; name a plan that Plan.write made, or list heads: L0H3,L2H1")
        content = read_json(Path(path), unique_names=True)
        _check_fields(path, content, required={"schema_version", "removed"}, optional={"protected", "model", "headcount", "seal"})
        if "seal" in content and content["seal"] != seal(content):
            raise ArtifactError(
                f"{path} does not match its seal: it is damaged, or was edited. Restore it; to use a plan that you edited, take 'seal' out of it"
            )
        if content["schema_version"] != SCHEMA or isinstance(content["schema_version"], bool):
            raise ArtifactError(
                f"{path} has schema version {content['schema_version']!r:.20}; this headcount reads {SCHEMA}. Install the version that wrote it"
            )
        for name in ("removed", "protected"):
            if not isinstance(content.get(name, []), list):
                raise ArtifactError(f'{path}: {name} must be a list of addresses such as ["L0H3"], got {content[name]!r:.60}')
        try:
            plan = cls.removing(content["removed"], protected=content.get("protected", ()))
        except HeadcountError as error:
            raise PlanError(f"{path}: {error}") from error
        return replace(plan, model_identity=_parse_model_identity(path, content["model"]) if content.get("model") is not None else None)

    def write(self, path: str | Path, heads: HeadIndex | None = None, *, weights: WeightsHash = "") -> None:
        """Writes the plan as sealed JSON, with the shape of the model it is for (`heads`) and the hash of its weights where these are given."""
        from headcount import __version__

        check_writable(Path(path))
        content: dict[str, Any] = {"schema_version": SCHEMA, "headcount": __version__, "removed": [str(head) for head in self.removed]}
        if self.protected:
            content["protected"] = [str(head) for head in sorted(self.protected)]
        model_identity = self.model_identity if heads is None else _identify_model(heads, weights)
        if model_identity is not None:
            content["model"] = {"model_type": model_identity.model_type, "blocks": dict(model_identity.blocks)}
            content["model"] |= {"weights": model_identity.weights} if model_identity.weights else {}
        write_json(Path(path), add_seal(content))

    def check_model(self, heads: HeadIndex, weights: WeightsHash = "") -> None:
        """Raises PlanError unless the model behind `heads`, with these `weights` where given, is one that the plan is for and has all its heads."""
        if self.model_identity is not None:
            _check_same_model(self.model_identity, _identify_model(heads, weights))
        present = frozenset(heads.heads)
        for head in self.removed:
            if head not in present:
                raise _missing_head_error(head, heads)

    def check(self, heads: HeadIndex, weights: WeightsHash = "") -> None:
        """Raises PlanError unless a cut of the model behind `heads`, with these `weights` where given, can carry this plan out."""
        self.check_model(heads, weights)
        removed = frozenset(self.removed)
        for block in heads.blocks:
            removed_here = [head for head in block.heads if head in removed]
            if removed_here and not block.can_cut:
                raise PlanError(f"{removed_here[0]} can be gated but not cut: {block.gate_only}. Evaluate this plan with gates.")
            if removed_here:
                _check_equal_group_sizes(block, removed)
        for members in heads.sharing():
            if len(members) > 1:
                _check_shared_kv_heads(members, removed)

    def list_removed(self) -> tuple[str, ...]:
        """Returns the addresses of the heads that go; raises PlanError where none does."""
        if not self.removed:
            raise PlanError("the plan removes no head; name one that does")
        return tuple(map(str, self.removed))

    def kept_positions(self, block: AttentionBlock) -> tuple[int, ...]:
        """Returns the positions within the block of the heads that stay."""
        removed = frozenset(self.removed)
        return tuple(i for i, head in enumerate(block.heads) if head not in removed)

    def _repr_html_(self) -> str:
        """Returns a table of the heads that go, block by block, for notebooks."""
        blocks: dict[str, list[int]] = {}
        for head in self.removed:
            blocks.setdefault(str(head).rpartition("H")[0], []).append(head.index)
        rows = [(name, ", ".join(map(str, heads))) for name, heads in blocks.items()]
        return notebook.html_table(("block", "heads that go"), rows, f"{len(self.removed)} heads go, {len(self.protected)} are protected")


def _identify_model(heads: HeadIndex, weights: WeightsHash) -> ModelIdentity:
    return ModelIdentity(heads.model_type, {block.name: block.n_original for block in heads.blocks}, weights)


def _check_same_model(planned: ModelIdentity, actual: ModelIdentity) -> None:
    """Raises PlanError unless the model that a plan is for and the actual one have the same type, blocks and, if known, weights."""
    if planned.model_type != actual.model_type:
        raise PlanError(
            f"the plan is for a model of type '{planned.model_type:.60}', this one is '{actual.model_type}'; use a plan of this model"
        )
    for name in (*planned.blocks, *actual.blocks):
        counts = planned.blocks.get(name, 0), actual.blocks.get(name, 0)
        if counts[0] != counts[1]:
            raise PlanError(
                f"the plan is for a model with {counts[0]} heads in block {name:.60}, this one has {counts[1]}; use a plan of this model"
            )
    if planned.weights and actual.weights and planned.weights != actual.weights:
        raise PlanError(
            f"the plan is for other weights ({planned.weights[:12]}; this model has {actual.weights[:12]}). To carry it over to another model of "
            "this shape, take 'weights' and 'seal' out of the file"
        )


def _check_fields(path: str | Path, content: Any, *, required: set[str], optional: set[str]) -> None:
    if not isinstance(content, dict):
        raise ArtifactError(f'{path} holds no plan: write {{"schema_version": {SCHEMA}, "removed": ["L0H3"]}}, got {content!r:.60}')
    wrong = [f"lacks '{name}'" for name in sorted(required - set(content))]
    wrong += [f"has the unknown field '{name:.40}'" for name in content if name not in required | optional]
    if wrong:
        raise ArtifactError(f"{path} {wrong[0]}; a plan has {', '.join(sorted(required))}, and may have {', '.join(sorted(optional))}")


def _parse_model_identity(path: str | Path, content: Any) -> ModelIdentity:
    _check_fields(path, content, required={"model_type", "blocks"}, optional={"weights"})
    blocks, weights = content["blocks"], content.get("weights", "")
    are_counts = isinstance(blocks, dict) and all(type(count) is int and count >= 0 for count in blocks.values())
    if not are_counts or not isinstance(content["model_type"], str) or not isinstance(weights, str):
        raise ArtifactError(f'{path}: model must be {{"model_type": …, "blocks": {{"L0": 12, …}}, "weights": …}}, got {content!r:.120}')
    return ModelIdentity(content["model_type"], blocks, weights)


def _missing_head_error(head: Head, heads: HeadIndex) -> PlanError:
    for block in heads.blocks:
        if (block.stack, block.layer) == (head.stack, head.layer) and head.index < block.n_original:
            return PlanError(f"{head} is already gone; block {block.name} has {block.n_heads} of its {block.n_original} heads left")
    return PlanError(f"this model has no head {head}. It has {heads.describe()}.")


def _check_equal_group_sizes(block: AttentionBlock, removed: frozenset[Head]) -> None:
    """Raises PlanError if the KV groups of a block would keep different numbers of query heads."""
    n_kept = [sum(head not in removed for head in group) for group in block.groups()]
    uneven = sorted({count for count in n_kept if count})
    if len(uneven) > 1:
        low, high = n_kept.index(uneven[0]), n_kept.index(uneven[-1])
        raise PlanError(
            f"block {block.name} would keep {uneven[-1]} query heads of KV group {high} but {uneven[0]} of group {low}; a cut needs the same "
            "number in each. Prune by KV group, or evaluate this plan with gates."
        )


def _check_shared_kv_heads(sharing_blocks: tuple[AttentionBlock, ...], removed: frozenset[Head]) -> None:
    """Raises PlanError if blocks that share keys and values would need different KV heads."""
    alive = {block.name: [any(head not in removed for head in group) for group in block.groups()] for block in sharing_blocks}
    needed = [name for name, groups in alive.items() if any(groups)]
    for name in needed[1:]:
        if alive[name] != alive[needed[0]]:
            number = next(i for i, (first, second) in enumerate(zip(alive[name], alive[needed[0]], strict=True)) if first != second)
            keeps, lacks = (name, needed[0]) if alive[name][number] else (needed[0], name)
            raise PlanError(
                f"block {keeps} would keep heads of KV group {number} but block {lacks}, which reads the same keys and values, none; a cut "
                "needs the same groups in both, or no head at all in one of them. Remove the group in all blocks that share it, or "
                "evaluate this plan with gates."
            )


def _pruning_units(scores: Scores, unit: PruningUnit) -> list[tuple[Head, ...]]:
    """Returns the heads that stay or go together: KV groups, or, for `even`, the n-th best head of every group of a block."""
    if unit == "kv_group":
        return list(scores.all_units())
    order = {head: i for i, head in enumerate(scores.ranking())}
    blocks: dict[tuple[str, int], list[list[Head]]] = defaultdict(list)
    for group in scores.all_units():  # a group may span the blocks that share keys and values
        for layer in dict.fromkeys((head.stack, head.layer) for head in group):
            own = [head for head in group if (head.stack, head.layer) == layer]
            blocks[layer].append(sorted(own, key=order.__getitem__))
    together = (groups if all(len(group) == 1 for group in groups) else zip(*groups, strict=True) for groups in blocks.values())
    return [tuple(heads) for units in together for heads in units]


def rank_units_best_first(scores: Scores, unit: PruningUnit = "kv_group") -> list[tuple[Head, ...]]:
    """Returns the units from the one to keep first to the one to remove first: by mean score, ties by the first of their heads in the tie order."""
    tie, worth = dict(zip(scores.heads, scores.ties(), strict=True)), scores.keep_values()
    return sorted(
        _pruning_units(scores, unit),
        key=lambda heads: (-fsum(worth[head] for head in heads) / len(heads), min(tie[head] for head in heads)),
    )


def _choose_kept_heads(scores: Scores, budget: Budget) -> set[Head]:
    """Returns the heads that stay: the required ones, then the best units that fill the budget exactly."""
    unknown = sorted(budget.protected.difference(scores.heads))
    if unknown:
        raise PlanError(
            f"protected head {unknown[0]} has no score; it is not part of this model, or already gone. Take it out of the protected ones"
        )
    n_heads = budget.heads(len(scores.heads))
    best = rank_units_best_first(scores, budget.unit)
    stay = _heads_kept_whatever_their_score(best, budget)
    if len(stay) > n_heads:
        raise PlanError(
            f"a floor of {budget.floor} heads per block and {len(budget.protected)} protected heads need {len(stay)} heads, more than the "
            f"{n_heads} that may stay; raise keep, or lower the floor"
        )
    free = [unit for unit in best if not stay.issuperset(unit)]
    counts = _reachable_suffix_sums([len(unit) for unit in free])
    missing = n_heads - len(stay)
    if missing not in counts[0]:
        sizes = "/".join(str(size) for size in sorted({len(unit) for unit in best}))
        low = max(count for count in counts[0] if count < missing)
        high = min((count for count in counts[0] if count > missing), default=low)
        raise PlanError(
            f"{n_heads} heads are no whole number of units of {sizes} heads that share keys and values; the nearest are "
            f"{len(stay) + low} and {len(stay) + high}"
        )
    for number, unit in enumerate(free):  # the best unit with which the rest can still be filled exactly
        if len(unit) <= missing and missing - len(unit) in counts[number + 1]:
            stay.update(unit)
            missing -= len(unit)
    return stay


def _reachable_suffix_sums(sizes: list[int]) -> list[set[int]]:
    """Returns for every position in a list of sizes the sums that some of the sizes from there on can make."""
    sums = [{0}]
    for size in reversed(sizes):
        sums.append(sums[-1] | {size + total for total in sums[-1]})
    return sums[::-1]


def nearest_count_of_whole_units(kept_share: float, unit_sizes: Sequence[int]) -> int:
    """Returns the number of heads nearest to a share of all of them that whole units make, at least one unit; of two equally near, the larger."""
    target = Budget(keep=kept_share).heads(sum(unit_sizes))
    return min(_reachable_suffix_sums(list(unit_sizes))[0] - {0}, key=lambda count: (abs(count - target), -count))


def _heads_kept_whatever_their_score(ranked_units: list[tuple[Head, ...]], budget: Budget) -> set[Head]:
    """Returns the heads that stay whatever their score: protected units, and the best of every block up to the floor."""
    stay = {head for unit in ranked_units if budget.protected.intersection(unit) for head in unit}
    size = Counter((head.stack, head.layer) for unit in ranked_units for head in unit)
    for (stack, layer), total in size.items():
        if budget.floor > total:
            address = f"{stack}.L{layer}" if stack else f"L{layer}"
            raise PlanError(f"a floor of {budget.floor} heads cannot be met: block {address} has only {total}; lower it")
    have = Counter((head.stack, head.layer) for head in stay)
    for unit in ranked_units:
        own = Counter((head.stack, head.layer) for head in unit)
        if any(have[block] < budget.floor for block in own) and not stay.issuperset(unit):
            stay.update(unit)
            have += own
    return stay
