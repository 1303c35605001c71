"""Owners: the example that every entry of every value belongs to, so that leakage can be reported per example.

Models merge the batch axis with heads, windows or tokens, put it second, or gather tokens from it. So the owners of the inputs are moved by the
same operations as the values.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from headcount.core.errors import reraise_if_out_of_memory
from headcount.importance.relevance.operations import FILLS, MATRIX_PRODUCTS, MOVES, SUMS, VIEWS
from headcount.importance.relevance.tape import Slot, Tape, TapeNode

EntryOwners = Int[Tensor, " ..."]
NOBODY = -1


class Owners:
    """The owner of every entry of the slots of a tape; constants among the entries belong to the example around them."""

    def __init__(self, tape: Tape, n_examples: int) -> None:
        self.tape, self.n_examples = tape, n_examples
        self._by_slot: dict[int, EntryOwners] = {}
        for slot in tape.sources:
            value, rows = tape.values[slot], tape.values[slot].shape[0]
            owner = torch.arange(rows, device=value.device, dtype=torch.int32) * n_examples // max(rows, 1)
            self._by_slot[slot] = owner.view(-1, *(1,) * (value.ndim - 1)).expand(value.shape)
        for node in tape.nodes:
            self._add_owners_of_results(node)

    def __getitem__(self, slot: int) -> EntryOwners:
        return self._by_slot[slot]

    def sum_by_example(self, values: Float[Tensor, " ..."], slot: int) -> Float[Tensor, " batch"]:
        """Returns the sum of `values`, shaped like a slot, for every example, in float64."""
        owner = self._by_slot[slot]
        for axis in reversed(range(owner.ndim)):
            if owner.stride(axis) == 0:  # owners that do not change along an axis are stored once: sum it away cheaply
                values, owner = values.sum(axis, dtype=torch.float64), owner.select(axis, 0)
        result = torch.zeros(self.n_examples, dtype=torch.float64, device=values.device)
        return result.index_add_(0, owner.reshape(-1).clamp(min=0), values.reshape(-1).double())

    def _add_owners_of_results(self, node: TapeNode) -> None:
        """Finds the owners of a node's results."""
        try:
            if node.name in MOVES and node.function is not None:
                arguments = tree_map(self._owners_of_argument, node.arguments)
                if node.name in FILLS and not isinstance(arguments.get("value"), Tensor):
                    arguments["value"] = NOBODY
                moved = node.function(**arguments)
                results: list[EntryOwners | None] = list(moved) if isinstance(moved, list | tuple) else [moved]
            else:
                results = [None if slot is None else self._owners_by_batch_axis(node, slot) for slot in node.outputs]
        except RuntimeError as error:
            reraise_if_out_of_memory(error)
            raise node.error(f"mixes examples in a way that cannot be followed ({error})") from error
        has_constants = node.name in FILLS or any(
            isinstance(leaf, Tensor) and leaf.is_floating_point() for leaf in tree_flatten(node.arguments)[0]
        )
        for slot, owner in zip(node.outputs, results, strict=True):
            if slot is not None and owner is not None:
                self._by_slot[slot] = _fill_missing_owners(owner) if has_constants else owner

    def _owners_of_argument(self, leaf: Any) -> Any:
        """Returns an argument of a moving operation, with owners in place of floating-point values."""
        if isinstance(leaf, Slot):
            return self._by_slot[leaf.index]
        is_float = isinstance(leaf, Tensor) and leaf.is_floating_point()
        return torch.full((), NOBODY, dtype=torch.int32, device=leaf.device).expand(leaf.shape) if is_float else leaf

    def _owners_by_batch_axis(self, node: TapeNode, slot: int) -> EntryOwners:
        """Returns the owners of a result whose batch axis is that of its largest operand."""
        shape = self.tape.values[slot].shape
        largest, value = max(self.tape.slots_and_values(node.arguments), key=lambda pair: pair[1].numel())
        owner = self._by_slot[largest]
        if node.name == "convolution" or "pool" in node.name:
            return owner[(slice(None), *(slice(0, 1),) * (owner.ndim - 1))].expand(shape)
        if node.name == "linear":
            return owner.narrow(-1, 0, 1).expand(shape)
        if node.name in MATRIX_PRODUCTS:
            left_factors = [node.arguments.get(name) for name in ("self", "mat1", "batch1")]
            is_left = any(index == largest for index, _ in self.tape.slots_and_values(left_factors))
            return (owner.narrow(-1, 0, 1) if is_left else owner.narrow(-2, 0, 1)).expand(shape)
        if node.name in VIEWS:
            return owner.reshape(shape)
        if node.name == "as_strided" and value.shape != shape:
            raise node.error("reads memory in an order of its own")
        if node.name == "glu":
            return owner.chunk(2, node.arguments.get("dim", -1))[0]
        if node.name in ("index_add", "scatter_add"):
            return self._owners_after_scatter(node)
        return _owners_after_reduction(owner, node).reshape(shape) if node.name in SUMS and value.shape != shape else owner.expand(shape)

    def _owners_after_scatter(self, node: TapeNode) -> EntryOwners:
        """Returns the owners of a tensor to some of whose entries others were added: those of the added entries, there."""
        arguments = {name: self._owners_of_argument(value) for name, value in node.arguments.items()}
        if node.name == "scatter_add":
            return arguments["self"].scatter(arguments["dim"], arguments["index"], arguments["src"].contiguous())
        return arguments["self"].index_copy(arguments["dim"], arguments["index"], arguments["source"].contiguous())


def _fill_missing_owners(owners: EntryOwners) -> EntryOwners:
    """Gives entries without an owner the owner of the other entries of their slice along some axis."""
    if not owners.numel() or owners.amin() >= 0:
        return owners
    for axis in range(owners.ndim):
        other_axes = [candidate for candidate in range(owners.ndim) if candidate != axis]
        along = owners.amax(other_axes, keepdim=True) if other_axes else owners
        if bool(((owners == along) | (owners == NOBODY)).all()):
            return along.expand(owners.shape)
    return owners


def _owners_after_reduction(owners: EntryOwners, node: TapeNode) -> EntryOwners:
    """Returns the owners of a sum or mean over axes."""
    axes = node.arguments.get("dim")
    axes = list(range(owners.ndim)) if axes is None or axes == [] else [axes] if isinstance(axes, int) else list(axes)
    return owners.amax(axes, keepdim=bool(node.arguments.get("keepdim", False)))
