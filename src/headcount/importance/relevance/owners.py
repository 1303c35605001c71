"""The example that every entry of every value belongs to, so that leakage can be reported per example.

Models merge the batch axis with heads, windows or tokens, put it second, or gather tokens from it: the owners are moved by the same
operations as the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from headcount.importance.relevance.operations import FILLS
from headcount.importance.relevance.table import MOVES, PRODUCTS, SUMS, VIEWS
from headcount.importance.relevance.tape import Node, Slot, Tape, values_of

Owner = Int[Tensor, " ..."]
NOBODY = -1


class Owners:
    """The owner of every entry of the slots of a tape; constants among them belong to the example around them."""

    def __init__(self, tape: Tape, n_examples: int) -> None:
        self.tape, self.n_examples = tape, n_examples
        self._of: dict[int, Owner] = {slot: self._of_source(tape.values[slot]) for slot in tape.sources}
        for node in tape.nodes:
            self._add(node)

    def __getitem__(self, slot: int) -> Owner:
        return self._of[slot]

    def total(self, values: Float[Tensor, " ..."], slot: int) -> Float[Tensor, " batch"]:
        """The sum of `values`, shaped like a slot, for every example, in float64."""
        owner = self._of[slot]
        for axis in reversed(range(owner.ndim)):
            if owner.stride(axis) == 0:  # owners that do not change along an axis are stored once: sum it away cheaply
                values, owner = values.sum(axis, dtype=torch.float64), owner.select(axis, 0)
        result = torch.zeros(self.n_examples, dtype=torch.float64, device=values.device)
        return result.index_add_(0, owner.reshape(-1).clamp(min=0), values.reshape(-1).double())

    def _of_source(self, value: Tensor) -> Owner:
        rows = value.shape[0]
        owner = torch.arange(rows, device=value.device, dtype=torch.int32) * self.n_examples // max(rows, 1)
        return owner.view(-1, *(1,) * (value.ndim - 1)).expand(value.shape)

    def _add(self, node: Node) -> None:
        try:
            results = self._results(node)
        except RuntimeError as error:
            raise node.refuse(f"mixes examples in a way that cannot be followed ({error})") from error
        for slot, owner in zip(node.outputs, results, strict=True):
            if slot is not None:
                self._of[slot] = self._fill(owner) if _adds_constants(node) else owner

    def _results(self, node: Node) -> Sequence[Owner]:
        if node.name in MOVES and node.function is not None:
            result = node.function(**self._owner_arguments(node))
            return result if isinstance(result, list | tuple) else [result]
        return [self._spread(node, slot) for slot in node.outputs]

    def _owner_arguments(self, node: Node) -> dict[str, Any]:
        arguments = tree_map(self._own, node.arguments)
        is_scalar = node.name in FILLS and not isinstance(arguments.get("value"), Tensor)
        return {**arguments, "value": NOBODY} if is_scalar else arguments

    def _own(self, leaf: Any) -> Any:
        """An argument of a moving operation, with owners in place of floating values."""
        if isinstance(leaf, Slot):
            return self._of[leaf.index]
        is_value = isinstance(leaf, Tensor) and leaf.is_floating_point()
        return torch.full((), NOBODY, dtype=torch.int32, device=leaf.device).expand(leaf.shape) if is_value else leaf

    def _spread(self, node: Node, slot: int | None) -> Owner:
        """The owners of a result that has the batch where its largest operand has it."""
        if slot is None:
            return torch.empty(0)
        shape = self.tape.values[slot].shape
        largest, value = max(values_of(self.tape, node.arguments), key=lambda pair: pair[1].numel())
        owner = self._of[largest]
        if node.name == "convolution" or "pool" in node.name:
            return owner[(slice(None), *(slice(0, 1),) * (owner.ndim - 1))].expand(shape)
        if node.name == "linear":
            return owner.narrow(-1, 0, 1).expand(shape)
        if node.name in PRODUCTS:
            is_left = any(index == largest for key in ("self", "mat1", "batch1") for index, _ in _pairs(self.tape, node, key))
            return (owner.narrow(-1, 0, 1) if is_left else owner.narrow(-2, 0, 1)).expand(shape)
        if node.name in VIEWS:
            return owner.reshape(shape)
        if node.name == "as_strided" and value.shape != shape:
            raise node.refuse("reads memory in an order of its own")
        if node.name == "glu":
            return owner.chunk(2, node.arguments.get("dim", -1))[0]
        if node.name in ("index_add", "scatter_add"):
            return self._scatter(node)
        return _reduce(owner, shape, node) if node.name in SUMS and value.shape != shape else owner.expand(shape)

    def _scatter(self, node: Node) -> Owner:
        call = {name: self._own(value) for name, value in node.arguments.items()}
        if node.name == "scatter_add":
            return call["self"].scatter(call["dim"], call["index"], call["src"].contiguous())
        return call["self"].index_copy(call["dim"], call["index"], call["source"].contiguous())

    def _fill(self, owner: Owner) -> Owner:
        """Gives entries without an owner the owner of the other entries of their slice along some axis."""
        if not owner.numel() or owner.amin() >= 0:
            return owner
        for axis in range(owner.ndim):
            other_axes = [candidate for candidate in range(owner.ndim) if candidate != axis]
            along = owner.amax(other_axes, keepdim=True) if other_axes else owner
            if bool(((owner == along) | (owner == NOBODY)).all()):
                return along.expand(owner.shape)
        return owner


def _adds_constants(node: Node) -> bool:
    """Whether entries of the result may come from constants alone."""
    leaves = tree_flatten(node.arguments)[0]
    return node.name in FILLS or any(isinstance(leaf, Tensor) and leaf.is_floating_point() for leaf in leaves)


def _pairs(tape: Tape, node: Node, key: str):
    return values_of(tape, node.arguments.get(key))


def _reduce(owner: Owner, shape: torch.Size, node: Node) -> Owner:
    axes = node.arguments.get("dim")
    axes = list(range(owner.ndim)) if axes is None or axes == [] else [axes] if isinstance(axes, int) else list(axes)
    owners = owner.amax(axes, keepdim=bool(node.arguments.get("keepdim", False)))
    return owners.reshape(shape)
