"""The heads of a model: their addresses, their location in each attention block, and the flat order of all vectors of heads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import prod
from numbers import Integral
from typing import Literal

from headcount.core.errors import HeadNameError, UnsupportedModel

Kind = Literal["encoder-self", "decoder-self", "cross"]
Unit = Literal["head", "kv_head"]
Layout = Literal["separate", "stacked", "interleaved"]

_ADDRESS = re.compile(r"(?:(?P<stack>[a-z][a-z0-9_]*)\.)?L(?P<layer>[0-9]{1,6})H(?P<index>[0-9]{1,6})")


@dataclass(frozen=True, slots=True, order=True)
class Head:
    """The original address of a head, stable after cuts: `L3H7`, in models of several stacks `enc.L3H7`; zero-based."""

    stack: str
    layer: int
    index: int

    def __post_init__(self) -> None:
        if not (isinstance(self.stack, str) and isinstance(self.layer, Integral) and isinstance(self.index, Integral)):
            raise HeadNameError(
                f"a head has the name of a stack, a layer and an index; got {self.stack!r}, {self.layer!r} and {self.index!r}"
            )
        if self.layer < 0 or self.index < 0:
            raise HeadNameError(f"layer and index of a head must be 0 or more; got {self.layer} and {self.index}")

    def __str__(self) -> str:
        address = f"L{self.layer}H{self.index}"
        return f"{self.stack}.{address}" if self.stack else address

    @classmethod
    def parse(cls, text: str | Head) -> Head:
        """Returns the head of an address such as `L0H3` or `cross.L2H5`."""
        if isinstance(text, Head):
            return text
        match = _ADDRESS.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise HeadNameError(f"{text!r} is no head address. Write L<layer>H<head>, zero-based, such as L3H7, or cross.L3H7 in a stack.")
        return cls(match["stack"] or "", int(match["layer"]), int(match["index"]))


Heads = str | Head | Iterable[str | Head] | Mapping[int, Iterable[int]]
"""A head, several, or the indices of heads by layer: "L3H7", ["L3H7", "cross.L2H5"], {3: [7]}."""


def parse_heads(heads: Heads) -> list[Head]:
    """Returns the heads of an address, of several, or of a mapping of layers to indices, which is for models with one stack."""
    if isinstance(heads, Mapping):
        return [Head("", layer, index) for layer, indices in heads.items() for index in indices]  # pyright: ignore[reportArgumentType]
    return [Head.parse(head) for head in ([heads] if isinstance(heads, str | Head) else heads)]


def hashed_tie_ranks(heads: Sequence[Head], seed: int = 0) -> tuple[int, ...]:
    """Returns for each head its rank among heads of equal score: by a hash of seed and address, never by position."""
    hashes = [blake2b(f"{seed} {head}".encode(), digest_size=16).digest() for head in heads]
    rank = {digest: number for number, digest in enumerate(sorted(hashes))}
    return tuple(rank[digest] for digest in hashes)


@dataclass(frozen=True, slots=True)
class Rows:
    """The entries of units along an axis: unit u fills `size` entries from offset + (u // per) * stride + (u % per) * size.

    Separate and stacked layouts have all units in one run (per = count); interleaved ones repeat every `stride` entries.
    """

    count: int
    size: int
    offset: int = 0
    per: int = 0
    stride: int = 0

    def of(self, unit: int) -> range:
        """Returns the entries of one unit."""
        per = self.per or self.count
        start = self.offset + (unit // per) * self.stride + (unit % per) * self.size
        return range(start, start + self.size)

    def keep(self, units: Iterable[int]) -> list[int]:
        """Returns the entries of several units, in the given order."""
        return [entry for unit in units for entry in self.of(unit)]

    @property
    def stop(self) -> int:
        """One past the last entry that any unit fills."""
        return max((self.of(unit).stop for unit in range(self.count)), default=self.offset)


@dataclass(frozen=True, slots=True)
class Projection:
    """One of the projections q, k, v, o: its module and the entries of its units on the head side."""

    role: str
    path: str
    rows: Rows
    unit: Unit


@dataclass(frozen=True, slots=True)
class Slice:
    """A tensor (full name, shape) with units along one axis, so that removing units removes entries of it."""

    tensor: str
    shape: tuple[int, ...]
    axis: int
    rows: Rows
    unit: Unit
    extra: bool = False

    @property
    def unit_numel(self) -> int:
        """How many numbers one unit holds."""
        return prod(self.shape) // self.shape[self.axis] * self.rows.size if self.shape[self.axis] else 0


@dataclass(frozen=True, slots=True)
class HeadArgument:
    """A forward argument with a head axis that comes from outside the block: T5's shared bias, ALiBi.

    `returned` says that the block passes it on to later layers; `table` is the shape (rows, heads) of the table it comes from, in the block
    that holds it.
    """

    name: str
    returned: bool = False
    table: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class AttentionBlock:
    """One attention module: its heads, the location of their weights, and what else depends on the number of heads."""

    path: str
    kind: Kind
    stack: str
    layer: int
    heads: tuple[Head, ...]
    n_original: int
    n_kv_heads: int
    head_dim: int
    value_dim: int
    q: Projection
    k: Projection
    v: Projection
    o: Projection
    layout: Layout
    slices: tuple[Slice, ...] = ()
    arguments: tuple[HeadArgument, ...] = ()
    gate_only: str = ""
    time_first: bool = False
    sink: bool = False
    """Whether attention has one more key than there are tokens, an attention sink."""
    kv_source: str = ""
    """The path of the block whose keys and values this one reads, where it has none of its own."""
    twins: tuple[Projection, ...] = ()
    """Further projections of the same heads, with a head size of their own: LiLT's layout stream beside its text. Gates and cuts act on both."""

    @property
    def n_heads(self) -> int:
        """The number of query heads in the block."""
        return len(self.heads)

    @property
    def group_size(self) -> int:
        """Query heads per KV head."""
        return self.n_heads // self.n_kv_heads if self.n_kv_heads else 0

    @property
    def can_cut(self) -> bool:
        """Whether a cut of this block can equal a gate; if not, `gate_only` says why."""
        return not self.gate_only

    @property
    def name(self) -> str:
        """The block's own address, `L3` or `cross.L3`."""
        return f"{self.stack}.L{self.layer}" if self.stack else f"L{self.layer}"

    def group(self, position: int) -> int:
        """Returns the KV head that the query head at `position` reads."""
        return position // self.group_size

    def position(self, head: Head) -> int:
        """Returns the index of a head within the block."""
        return self.heads.index(head)

    def groups(self) -> list[tuple[Head, ...]]:
        """Returns the heads that read the same KV head, group by group."""
        size = self.group_size
        return [self.heads[start : start + size] for start in range(0, self.n_heads, size)] if size else []

    @property
    def outputs(self) -> tuple[Projection, ...]:
        """The output projections that the heads feed."""
        return (self.o, *(twin for twin in self.twins if twin.role == "o"))

    def require_one_output(self, purpose: str) -> None:
        """Raises UnsupportedModel where heads feed a second output projection, which `purpose` would leave out."""
        if len(self.outputs) > 1:
            raise UnsupportedModel(
                f"the heads of block '{self.path}' feed two output projections, '{self.o.path}' and '{self.outputs[1].path}', and {purpose} "
                "sees only the first. Use what works by gates: mask(how='zero' or 'uniform'), the importance ablation, cut."
            )

    def dependent_tensors_and_arguments(self) -> tuple[str, ...]:
        """Returns the names of further tensors and arguments that depend on the number of heads."""
        tensors = (s.tensor.removeprefix(f"{self.path}.") for s in self.slices if s.extra)
        return (*tensors, *(twin.path.removeprefix(f"{self.path}.") for twin in self.twins), *(a.name for a in self.arguments))


@dataclass(frozen=True, slots=True)
class RefusedModule:
    """A module with attention that is not supported, with the reason."""

    path: str
    class_name: str
    reason: str


@dataclass(frozen=True, slots=True)
class HeadIndex(Sequence[Head]):
    """The attention blocks of a model in order, and with them the flat order of heads. `HeadMap` finds them in a live model."""

    blocks: tuple[AttentionBlock, ...]
    model_type: str = ""
    refused: tuple[RefusedModule, ...] = ()

    @property
    def heads(self) -> tuple[Head, ...]:
        """Every head, in flat order."""
        return tuple(head for block in self.blocks for head in block.heads)

    def __len__(self) -> int:
        return sum(block.n_heads for block in self.blocks)

    def __iter__(self) -> Iterator[Head]:
        return iter(self.heads)

    def __getitem__(self, index):
        return self.heads[index]

    def position(self, head: str | Head) -> int:
        """Returns the index of a head in the flat order."""
        address = Head.parse(head)
        if address not in self.heads:
            raise HeadNameError(f"this model has no head {address}. It has {self.describe()}.")
        return self.heads.index(address)

    def units(self) -> tuple[tuple[Head, ...], ...]:
        """Returns the heads that are kept or removed together: the query heads of a KV head, in all blocks that read it; else single heads."""
        units: list[tuple[Head, ...]] = []
        for members in self.sharing():
            groups = [block.groups() for block in members if block.n_heads]
            if members[0].n_kv_heads > 1 and len(groups) > 1:
                units += [tuple(head for group in same for head in group) for same in zip(*groups, strict=True)]
            else:
                units += [group for own in groups for group in own]
        return tuple(units)

    def sharing(self) -> tuple[tuple[AttentionBlock, ...], ...]:
        """Returns groups of blocks that read the same keys and values, the block that computes them first; most groups have one block."""
        readers: dict[str, list[AttentionBlock]] = {block.path: [block] for block in self.blocks if not block.kv_source}
        for block in self.blocks:
            if block.kv_source:
                readers[block.kv_source].append(block)
        return tuple(tuple(members) for members in readers.values())

    def positions(self, block: AttentionBlock) -> slice:
        """Returns the slice of a block's heads in the flat order."""
        start = 0
        for candidate in self.blocks:
            if candidate is block or candidate == block:
                return slice(start, start + block.n_heads)
            start += candidate.n_heads
        raise UnsupportedModel(f"block {block.path} is not part of this head map")

    def block_of(self, head: str | Head) -> AttentionBlock:
        """Returns the block that holds a head."""
        address = Head.parse(head)
        for block in self.blocks:
            if address in block.heads:
                return block
        raise HeadNameError(f"this model has no head {address}. It has {self.describe()}.")

    def describe(self) -> str:
        """Returns a short description: `72 heads: L0..L5 x 12`."""
        parts = []
        for stack in dict.fromkeys(block.stack for block in self.blocks):
            blocks = [block for block in self.blocks if block.stack == stack]
            counts = sorted({block.n_heads for block in blocks})
            sizes = str(counts[0]) if len(counts) == 1 else f"{counts[0]}-{counts[-1]}"
            names = blocks[0].name if len(blocks) == 1 else f"{blocks[0].name}..L{blocks[-1].layer}"
            parts.append(f"{names} x {sizes}")
        return f"{len(self)} heads: {', '.join(parts)}"
