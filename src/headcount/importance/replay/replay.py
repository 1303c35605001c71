"""Ablation by replay: outputs of modules before the changed head come from a record of the unchanged pass; only what follows is computed.

MHA'(x) = o(Concat_h(g_h ctx_h + (1 - g_h) alt_h)) needs the contexts ctx_h of the unchanged pass, and no attention: the changed block's
inputs are the unchanged ones. alt is 0, the head's mean, or its context under uniform attention.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from headcount.core.heads import AttentionBlock
from headcount.importance.replay.stacking import Layout, flatten

Forward = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Intervention:
    """One intervention inside one block: a gate for each of its heads, in order; 1 leaves a head alone."""

    block: AttentionBlock
    gates: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Route:
    """How interventions on one block are evaluated: the modules whose outputs come from the record, and the axis of the rows in its contexts.

    `slot` is the leaf of the block module's output that is the output of o, where the block hands it on untouched, so that the block need
    not run; else None.
    """

    block: AttentionBlock
    units: tuple[str, ...]
    axis: int
    slot: int | None = None

    @property
    def recorded(self) -> tuple[str, ...]:
        """The modules whose outputs must be on record."""
        return self.units if self.slot is None else (*self.units, self.block.path)


@dataclass(slots=True)
class Recording:
    """The record of one unchanged pass: outputs of modules as leaves, inputs of output projections, and the order of it all."""

    outputs: dict[str, list[Any]] = field(default_factory=dict)
    specs: dict[str, Any] = field(default_factory=dict)
    contexts: dict[str, Tensor] = field(default_factory=dict)
    uniform: dict[str, Tensor] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)

    def keep(self, path: str, output: Any) -> None:
        """Notes the output of a module; models may change theirs in place later."""
        try:
            leaves, self.specs[path] = flatten(output)
        except ValueError:  # not what the trial saw; the order shows it
            return
        self.outputs[path] = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.order.append(path)

    def keep_context(self, block: AttentionBlock, context: Tensor) -> Tensor | None:
        """Notes what the heads of a block hand to its output projection; what comes back, if anything, goes there instead."""
        self.contexts[block.path] = context.clone()
        self.order.append(block.o.path)
        return None

    def fits(self, order: Sequence[str], layouts: Mapping[str, Layout]) -> bool:
        """Whether the pass ran as the one that the routes were found on."""
        return self.order == list(order) and all(self.specs[path] == layouts[path].spec for path in self.outputs)


def holds_projection(block: AttentionBlock) -> bool:
    """Whether the output projection is inside the attention module, and not beside it."""
    return block.o.path.startswith(f"{block.path}.")


def untouched_slot(output: Any, projected: Tensor) -> int | None:
    """The leaf of a block's output that is the output of its projection, in the same memory and with the same values."""
    leaves, _ = flatten(output)
    for position, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor) and leaf.shape == projected.shape and torch.equal(leaf, projected):
            return position
    return None


def gate_contexts(context: Tensor, gates: Tensor, axis: int, alternative: Tensor | None) -> Tensor:
    """Stacked contexts [..., copies * rows, ..., heads * head_dim] under gates [copies, heads], gated as HeadGates gates."""
    heads = gates.shape[1]
    per_head = context.unflatten(-1, (heads, -1)).unsqueeze(axis)  # [..., 1, rows, ..., heads, head_dim]
    shape = [1] * per_head.ndim
    shape[axis], shape[-2] = gates.shape[0], heads
    gate = gates.to(context).view(shape)
    changed = per_head * gate
    if alternative is not None:
        if alternative.ndim == context.ndim and alternative.shape == context.shape:
            alternative = alternative.unflatten(-1, (heads, -1)).unsqueeze(axis)
        changed = changed + (1 - gate) * alternative.to(context)
    return changed.flatten(-2).flatten(axis, axis + 1)


def stand_ins(route: Route, record: Recording, layouts: Mapping[str, Layout], changed: Tensor, copies: int) -> dict[str, Forward]:
    """Returns forward passes that give the recorded outputs, stacked, and `changed` for the block's output projection."""

    def replay_output(path: str, replaced: Mapping[int, Any] | None = None) -> Forward:
        return lambda *_, **__: layouts[path].stack(record.outputs[path], copies, replaced)

    forwards = {path: replay_output(path) for path in route.units}
    if route.slot is None:
        forwards[route.block.o.path] = lambda *_, **__: changed
    else:
        forwards[route.block.path] = replay_output(route.block.path, {route.slot: changed})
    return forwards
