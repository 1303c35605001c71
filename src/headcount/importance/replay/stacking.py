"""Stacked batches: A copies of B examples in one batch, row a * B + b, and the axis along which each tensor of a model holds its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from headcount.models.modules import Batch

Axes = tuple[int | None, ...]
"""For each leaf of an output the axis of its rows; None for what does not depend on the number of rows."""

CLOSE = {torch.float64: 1e-8, torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.1}
"""Tolerance between two evaluations of the same rows in batches of different size; different rows differ by more."""

MAIN_INPUTS = ("input_ids", "inputs_embeds", "pixel_values", "input_features", "input_values", "decoder_input_ids")


def batch_rows(batch: Batch) -> int:
    """The number of examples in a batch."""
    tensors = [batch[name] for name in MAIN_INPUTS if isinstance(batch.get(name), Tensor)]
    tensors += [value for value in batch.values() if isinstance(value, Tensor) and value.ndim]
    return int(tensors[0].shape[0]) if tensors else 1


def _per_row(value: Any, rows: int) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0 and value.shape[0] == rows


def stack_batch(batch: Batch, rows: int, copies: int) -> dict[str, Any]:
    """The batch `copies` times over; what has no row per example is left alone."""
    return {name: tile(value, 0, copies) if _per_row(value, rows) else value for name, value in batch.items()}


def first_rows(batch: Batch, rows: int, count: int) -> dict[str, Any]:
    """The first `count` examples of a batch."""
    return {name: value[:count] if _per_row(value, rows) else value for name, value in batch.items()}


def tile(tensor: Tensor, axis: int, copies: int) -> Tensor:
    """A new tensor with `copies` copies along an axis, one after the other."""
    return tensor.repeat(*(copies if dimension == axis else 1 for dimension in range(tensor.ndim)))


def row_axis(single: Tensor, double: Tensor) -> int | None:
    """The axis along which `double` holds the rows of `single` twice, None where the two are the same; raises ValueError for anything else."""
    if single.ndim != double.ndim or single.dtype != double.dtype:
        raise ValueError("its type depends on the number of rows")
    differing = [axis for axis in range(single.ndim) if single.shape[axis] != double.shape[axis]]
    if len(differing) > 1 or any(double.shape[axis] != 2 * single.shape[axis] for axis in differing):
        raise ValueError(f"its shape goes from {tuple(single.shape)} to {tuple(double.shape)} with twice the rows")
    axis = differing[0] if differing else None
    if not _close(single if axis is None else tile(single, axis, 2), double):
        raise ValueError("its values depend on the number of rows")
    return axis


def _close(first: Tensor, second: Tensor) -> bool:
    if not first.is_floating_point():
        return torch.equal(first, second)
    limit = CLOSE.get(first.dtype, 0.1)
    return bool(torch.allclose(first, second, rtol=limit, atol=limit, equal_nan=True))


def flatten(output: Any) -> tuple[list[Any], TreeSpec]:
    """The leaves of a module's output; raises ValueError where one is neither tensor nor plain value, such as a cache."""
    leaves, spec = tree_flatten(output)
    odd = next((leaf for leaf in leaves if not isinstance(leaf, Tensor | None | bool | int | float | str)), None)
    if odd is not None:
        raise ValueError(f"it returns a {type(odd).__name__}")
    return leaves, spec


@dataclass(frozen=True, slots=True)
class Layout:
    """How the output of one module holds its rows."""

    spec: TreeSpec
    axes: Axes

    @classmethod
    def between(cls, single: Any, double: Any) -> Layout:
        """The layout, from outputs for a batch and for the same batch twice over; raises ValueError where rows cannot be told."""
        (leaves, spec), (double_leaves, double_spec) = flatten(single), flatten(double)
        if spec != double_spec:
            raise ValueError("its structure depends on the number of rows")
        return cls(spec, tuple(cls._axis(leaf, double_leaf) for leaf, double_leaf in zip(leaves, double_leaves, strict=True)))

    @staticmethod
    def _axis(single: Any, double: Any) -> int | None:
        if isinstance(single, Tensor) and isinstance(double, Tensor):
            return row_axis(single, double)
        if single is not double and single != double:
            raise ValueError("a value in it depends on the number of rows")
        return None

    def stack(self, leaves: Sequence[Any], copies: int, replaced: Mapping[int, Any] | None = None) -> Any:
        """The output for stacked rows; `replaced` leaves are stacked already."""
        replacements = replaced or {}
        stacked = [
            replacements[position] if position in replacements else leaf if axis is None else tile(leaf, axis, copies)
            for position, (leaf, axis) in enumerate(zip(leaves, self.axes, strict=True))
        ]
        return tree_unflatten(stacked, self.spec)

    def first_half(self, leaves: Sequence[Any]) -> list[Any]:
        """The leaves of the first half of the rows."""
        return [leaf if axis is None else leaf.narrow(axis, 0, leaf.shape[axis] // 2) for leaf, axis in zip(leaves, self.axes, strict=True)]
