"""Tensors that share memory: which entries of one view a write through another changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Region:
    """The positions of a tensor's entries in its storage."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, value: Tensor) -> Region:
        """The region of a tensor."""
        return cls(tuple(value.shape), value.stride(), int(value.storage_offset()))

    def positions(self) -> Int[Tensor, " n"]:
        """Returns the position of every entry, in the order of the entries."""
        end = self.offset + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True)) + 1
        return torch.arange(max(end, 0)).as_strided(self.shape, self.stride, self.offset).flatten()


@dataclass(frozen=True, slots=True)
class Write:
    """A write to a storage: what was written (a slot, or a constant) and where; it keeps the storage, hence its address."""

    storage: Any
    source: Any
    region: Region


def storage_of(value: Tensor) -> int:
    """The address of the memory that a tensor views."""
    return value.untyped_storage()._cdata


def overlap(value: Tensor, written: Region) -> tuple[Int[Tensor, " m"], Int[Tensor, " m"]]:
    """(entries of `value` that a write to a region changed, the entries of the write that are there now)."""
    if not value.numel() or 0 in written.shape:
        nothing = torch.empty(0, dtype=torch.long, device=value.device)
        return nothing, nothing
    positions, targets = Region.of(value).positions(), written.positions()
    writer = torch.full((int(max(positions.max(), targets.max())) + 1,), -1)
    writer[targets] = torch.arange(len(targets))
    hits = writer[positions]
    changed = (hits >= 0).nonzero().flatten()
    return changed.to(value.device), hits[changed].to(value.device)


def overwrite(self: Tensor, source: Tensor, changed: Tensor, picks: Tensor) -> Tensor:
    """`self` with the entries `changed` taken from `source`."""
    return self.reshape(-1).index_put((changed,), source.reshape(-1)[picks]).reshape(self.shape)
