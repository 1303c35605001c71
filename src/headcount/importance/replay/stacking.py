"""Stacked batches: A copies of B examples in one batch, where row a * B + b is example b of copy a; and the row axis of a model's tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from headcount.models.modules import Batch

Axes = tuple[int | None, ...]
"""The row axis of each leaf of an output; None for a leaf that does not depend on the number of rows."""

CLOSE = {torch.float64: 1e-8, torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.1}
"""Tolerance between two evaluations of the same rows in batches of different size; different rows differ by more."""

MAIN_INPUTS = ("input_ids", "inputs_embeds", "pixel_values", "input_features", "input_values", "decoder_input_ids")


def count_batch_rows(batch: Batch) -> int:
    """Returns the number of examples in a batch."""
    tensors = [batch[name] for name in MAIN_INPUTS if isinstance(batch.get(name), Tensor)]
    tensors += [value for value in batch.values() if isinstance(value, Tensor) and value.ndim]
    return int(tensors[0].shape[0]) if tensors else 1


def _has_row_axis(value: Any, n_rows: int) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0 and value.shape[0] == n_rows


def stack_batch(batch: Batch, n_rows: int, copies: int) -> dict[str, Any]:
    """Returns `copies` copies of the batch in one; entries without a row per example stay as they are."""
    return {name: tile_copies(value, 0, copies) if _has_row_axis(value, n_rows) else value for name, value in batch.items()}


def take_first_rows_of_batch(batch: Batch, n_rows: int, n_first: int) -> dict[str, Any]:
    """Returns the first `n_first` of the `n_rows` examples of a batch."""
    return {name: value[:n_first] if _has_row_axis(value, n_rows) else value for name, value in batch.items()}


def tile_copies(tensor: Tensor, axis: int, copies: int) -> Tensor:
    """Returns a new tensor with `copies` copies along an axis, one after the other."""
    return tensor.repeat(*(copies if dimension == axis else 1 for dimension in range(tensor.ndim)))


def find_row_axis(single: Tensor, double: Tensor) -> int | None:
    """Returns the axis along which `double` holds the rows of `single` twice; None if the two are the same.

    Raises:
        ValueError: `double` is neither, with the reason.
    """
    if single.ndim != double.ndim or single.dtype != double.dtype:
        raise ValueError("its type depends on the number of rows")
    differing = [axis for axis in range(single.ndim) if single.shape[axis] != double.shape[axis]]
    if len(differing) > 1 or any(double.shape[axis] != 2 * single.shape[axis] for axis in differing):
        raise ValueError(f"its shape goes from {tuple(single.shape)} to {tuple(double.shape)} with twice the rows")
    axis = differing[0] if differing else None
    expected = single if axis is None else tile_copies(single, axis, 2)
    limit = CLOSE.get(expected.dtype, 0.1)
    is_float = expected.is_floating_point()
    if not (torch.allclose(expected, double, rtol=limit, atol=limit, equal_nan=True) if is_float else torch.equal(expected, double)):
        raise ValueError("its values depend on the number of rows")
    return axis


def flatten_output(output: Any) -> tuple[list[Any], TreeSpec]:
    """Returns the leaves of a module's output and its structure.

    Raises:
        ValueError: a leaf is neither a tensor nor a plain value, such as a cache.
    """
    leaves, spec = tree_flatten(output)
    opaque = next((leaf for leaf in leaves if not isinstance(leaf, Tensor | None | bool | int | float | str)), None)
    if opaque is not None:
        raise ValueError(f"it returns a {type(opaque).__name__}")
    return leaves, spec


@dataclass(frozen=True, slots=True)
class OutputLayout:
    """How the output of one module holds its rows: its structure, and the row axis of each leaf."""

    spec: TreeSpec
    axes: Axes

    @classmethod
    def between(cls, single: Any, double: Any) -> OutputLayout:
        """Returns the layout of a module from its outputs for a batch and for two stacked copies of it.

        Raises:
            ValueError: the second output is not that of stacked copies, with the reason.
        """
        (leaves, spec), (double_leaves, double_spec) = flatten_output(single), flatten_output(double)
        if spec != double_spec:
            raise ValueError("its structure depends on the number of rows")
        return cls(spec, tuple(cls._row_axis_of_leaf(leaf, double_leaf) for leaf, double_leaf in zip(leaves, double_leaves, strict=True)))

    @staticmethod
    def _row_axis_of_leaf(single: Any, double: Any) -> int | None:
        if isinstance(single, Tensor) and isinstance(double, Tensor):
            return find_row_axis(single, double)
        if single is not double and single != double:
            raise ValueError("a value in it depends on the number of rows")
        return None

    def stack(self, leaves: Sequence[Any], copies: int, stacked_leaves: Mapping[int, Any] | None = None) -> Any:
        """Returns the output for stacked copies of the rows; some leaves, by position, are passed as `stacked_leaves` instead."""
        already = stacked_leaves or {}
        stacked = [
            already[position] if position in already else leaf if axis is None else tile_copies(leaf, axis, copies)
            for position, (leaf, axis) in enumerate(zip(leaves, self.axes, strict=True))
        ]
        return tree_unflatten(stacked, self.spec)

    def first_half_of_rows(self, leaves: Sequence[Any]) -> list[Any]:
        """Returns the leaves with the first half of their rows."""
        return [leaf if axis is None else leaf.narrow(axis, 0, leaf.shape[axis] // 2) for leaf, axis in zip(leaves, self.axes, strict=True)]
