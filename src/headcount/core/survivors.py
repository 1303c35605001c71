"""The heads that stay in a pruned model: their addresses, and how many of them each kind of attention and each layer has."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self


class HeadBlock(Protocol):
    """An attention block of a model: an `AttentionBlock`, or the record of one in a run, whose heads are texts."""

    @property
    def name(self) -> str:
        """The address of the block, such as `L3` or `cross.L3`."""
        ...

    @property
    def kind(self) -> str:
        """The kind of attention."""
        ...

    @property
    def layer(self) -> int:
        """The layer."""
        ...

    @property
    def heads(self) -> Sequence[Hashable]:
        """The heads of the block."""
        ...


def mean_survivors_by_kind(
    blocks: Iterable[HeadBlock], survivor_sets: Iterable[frozenset[Hashable]], *, by_layer: bool = False
) -> dict[str, float]:
    """Returns how many heads stay in each kind of attention, or in each layer of each kind, as the mean over sets of survivors."""
    sets = list(survivor_sets)
    totals: dict[str, int] = {}
    for block in blocks:
        name = f"{block.kind} {block.layer}" if by_layer else block.kind
        totals[name] = totals.get(name, 0) + sum(len(heads.intersection(block.heads)) for heads in sets)
    return {name: total / len(sets) for name, total in totals.items()}


@dataclass(frozen=True, slots=True)
class SurvivingHeads:
    """The heads of one pruned model.

    Attributes:
        by_kind: How many heads stay, by kind of attention.
        by_block: How many heads stay, by the address of the block (`L3`, `cross.L3`), which is a layer of one kind.
        heads: The heads that stay, in the order of the model.
        removed: The heads that went, in the order of the model.
    """

    by_kind: Mapping[str, int] = field(default_factory=dict)
    by_block: Mapping[str, int] = field(default_factory=dict)
    heads: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    @classmethod
    def after_removal(cls, blocks: Sequence[HeadBlock], removed: Collection[str]) -> Self:
        """Returns the heads that stay in a model with these blocks without some heads."""
        removed_names, everything = frozenset(removed), [str(head) for block in blocks for head in block.heads]
        by_block = {block.name: sum(str(head) not in removed_names for head in block.heads) for block in blocks}
        by_kind: dict[str, int] = {}
        for block in blocks:
            by_kind[block.kind] = by_kind.get(block.kind, 0) + by_block[block.name]
        remaining = tuple(head for head in everything if head not in removed_names)
        return cls(by_kind, by_block, remaining, tuple(head for head in everything if head in removed_names))

    def format_layers(self) -> str:
        """Returns the number of heads in every layer in one line: `4/3/0/1`, with the name of each stack where there are several."""
        by_stack: dict[str, list[str]] = {}
        for name, number in self.by_block.items():
            by_stack.setdefault(name.rpartition(".")[0], []).append(str(number))
        return " ".join(f"{stack} {'/'.join(numbers)}".strip() for stack, numbers in by_stack.items())

    def to_dict(self) -> dict[str, object]:
        """Returns the survivors as plain data."""
        return {"by_kind": dict(self.by_kind), "by_block": dict(self.by_block), "kept": list(self.heads), "removed": list(self.removed)}
