"""What else depends on heads: per-head tensors, arguments with a head axis, and what makes a cut impossible."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from headcount.core.heads import HeadArgument, Projection, Rows, Slice, Unit
from headcount.models.archs import names
from headcount.models.archs.families import FULL_WIDTH_NORM
from headcount.models.archs.geometry import Geometry, family_of
from headcount.models.modules import is_transposed, join_path, linear_in_and_out_size

MERGE_FIRST = "is wrapped by an adapter; merge it first (model.merge_and_unload())"
QUANTISED = "is quantised or packed; load the model in a floating-point dtype (or dequantize() it) first"
OFFLOADED = "is offloaded to the meta device; load the model onto one device first"


def head_arguments_of(module: nn.Module) -> tuple[HeadArgument, ...]:
    """Returns the forward arguments of a module that carry a head axis."""
    known = inspect.signature(type(module).forward).parameters
    shared = hasattr(module, "has_relative_attention_bias")
    table = module._modules.get("relative_attention_bias") if shared else None
    shape = (table.num_embeddings, table.embedding_dim) if isinstance(table, nn.Embedding) else None
    family = family_of(module)
    candidates = (*names.HEAD_ARGUMENTS, *family.head_arguments)
    present = [name for name in candidates if name in known and name not in family.headless_arguments]
    if "alibi" in present and "attention_mask" in known:
        present.append("attention_mask")  # Falcon adds the slopes to the mask, which then has heads
    # LayoutLM's biases come in for every layer; only T5 and its relatives return theirs to the next one.
    return tuple(HeadArgument(name, shared and name == "position_bias", shape) for name in present)


def projection_slices(model: nn.Module, projection: Projection) -> list[Slice]:
    """Returns the weight and bias of a projection, cut on the side where its heads lie."""
    layer = model.get_submodule(projection.path)
    weight = layer._parameters["weight"]
    assert weight is not None
    outward = projection.role != "o"
    axis = int(is_transposed(layer) == outward)
    slices = [Slice(f"{projection.path}.weight", tuple(weight.shape), axis, projection.rows, projection.unit)]
    bias = layer._parameters.get("bias")
    if outward and bias is not None:
        slices.append(Slice(f"{projection.path}.bias", tuple(bias.shape), 0, projection.rows, projection.unit))
    return slices


def further_projections_of_heads(model: nn.Module, module: nn.Module, path: str, geometry: Geometry) -> tuple[Projection, ...]:
    """Returns the further projections of the same heads that a family's row names."""
    parent, twins = path.rpartition(".")[0], []
    for role, name in family_of(module).twins:
        layer: Any = model.get_submodule(join_path(parent, name))
        if getattr(layer, "is_ghost", False):
            size = layer.value_dim if role == "o" else layer.width
        else:
            size = (linear_in_and_out_size(layer) or (0, 0))[role != "o"] // geometry.n_heads
        twins.append(Projection(role, join_path(parent, name), Rows(geometry.n_heads, size), "head"))
    return tuple(twins)


def _divide_axis_into_heads(geometry: Geometry, axis_size: int, tensor_path: str) -> tuple[Rows, Unit] | None:
    """Returns how an axis is divided into heads, or None. One entry per head counts only in known tables if head_dim is the same number."""
    heads, kv = geometry.n_heads, geometry.n_kv_heads
    if not set(names.PER_HEAD_LAYERS).isdisjoint(tensor_path.split(".")) and heads and axis_size % heads == 0:
        return Rows(heads, axis_size // heads), "head"
    for dim in (geometry.head_dim, geometry.value_dim):
        if axis_size == heads * dim and heads > 1:
            return Rows(heads, dim), "head"
        if axis_size == kv * dim and kv > 1:
            return Rows(kv, dim), "kv_head"
    known = any(table in tensor_path for table in names.PER_HEAD_TABLES)
    if axis_size == heads and (known or heads not in (geometry.head_dim, geometry.value_dim)):
        return Rows(heads, 1), "head"
    if axis_size == kv and kv > 1 and kv not in (geometry.head_dim, geometry.value_dim):
        return Rows(kv, 1), "kv_head"
    return None


def _candidate_head_axes(tensor_owner: nn.Module, tensor_shape: torch.Size) -> list[int]:
    """Returns the axes that may hold heads, the likeliest first: a linear layer's outputs, a table's columns, else from the front."""
    if linear_in_and_out_size(tensor_owner) is not None:
        return [len(tensor_shape) - 1 if is_transposed(tensor_owner) else 0]
    order = list(range(len(tensor_shape)))
    return order[::-1] if isinstance(tensor_owner, nn.Embedding) else order


def _parameters_outside_projections(
    module: nn.Module, projection_paths: set[str], module_path: str
) -> Iterator[tuple[str, torch.Tensor, nn.Module]]:
    for owner_path, owner in module.named_modules(prefix=module_path):
        if any(owner_path == taken_path or owner_path.startswith(f"{taken_path}.") for taken_path in projection_paths):
            continue
        for name, tensor in owner._parameters.items():
            if tensor is not None:
                yield join_path(owner_path, name), tensor, owner


def is_shared_by_heads(path: str) -> bool:
    """Returns whether a path inside an attention module leads to something that all heads share."""
    return not set(names.SHARED_PARTS).isdisjoint(path.split("."))


def _is_norm(module: nn.Module) -> bool:
    return "norm" in type(module).__name__.lower()


def slices_of_further_tensors(module: nn.Module, path: str, geometry: Geometry) -> list[Slice]:
    """Returns every further tensor of an attention module that has heads along an axis."""
    taken = {projection.path for projection in (geometry.q, geometry.k, geometry.v, geometry.o)}
    shared_table = any(argument.returned for argument in head_arguments_of(module))
    slices = []
    for name, tensor, owner in _parameters_outside_projections(module, taken, path):
        if shared_table and isinstance(owner, nn.Embedding):
            continue  # the table serves other layers too: it stays whole, each layer takes its own heads of the bias
        if (_is_norm(owner) and tensor.ndim == 1) or is_shared_by_heads(name.removeprefix(f"{path}.")):
            continue
        axes = _candidate_head_axes(owner, tensor.shape)
        if any(table in name for table in names.PER_HEAD_TABLES):  # an axis that counts heads, before one that is as wide as all of them
            axes = [axis for axis in axes if tensor.shape[axis] == geometry.n_heads] or axes
        for axis in axes:
            units = _divide_axis_into_heads(geometry, tensor.shape[axis], name)
            if units is not None:
                slices.append(Slice(name, tuple(tensor.shape), axis, *units, extra=True))
                break
    return slices


def projection_problem(model: nn.Module, projection: Projection) -> str:
    """Returns why a projection has no plain weight that could be read and cut; empty if it has one."""
    layer = model.get_submodule(projection.path)
    weight = layer._parameters.get("weight")
    if weight is None:
        reason = MERGE_FIRST if hasattr(layer, "base_layer") else QUANTISED
        return f"'{projection.path}' {reason}"
    if weight.is_meta and getattr(layer, "_hf_hook", None) is not None:
        return f"'{projection.path}' {OFFLOADED}"
    size = linear_in_and_out_size(layer)
    expected = size if is_transposed(layer) else (size or ())[::-1]
    if tuple(weight.shape) != tuple(expected or ()) or not weight.is_floating_point():
        return f"'{projection.path}' {QUANTISED}"
    return ""


def _norm_problem(module: nn.Module, geometry: Geometry) -> str:
    """Returns FULL_WIDTH_NORM if queries or keys are normalised over all heads at once, else an empty text."""
    widths = {geometry.n_heads * geometry.head_dim, geometry.n_kv_heads * geometry.head_dim} - {geometry.head_dim}
    for name, child in module._modules.items():
        weight = getattr(child, "weight", None) if child is not None else None
        spans_heads = isinstance(weight, torch.Tensor) and weight.ndim == 1 and weight.shape[0] in widths
        if spans_heads and child is not None and _is_norm(child) and name[:1] in "qk":
            return FULL_WIDTH_NORM
    return ""


def gate_only_reason(model: nn.Module, module: nn.Module, geometry: Geometry) -> str:
    """Returns why a cut of this block cannot equal a gate; empty if it can."""
    reason = family_of(module).gate_only or _norm_problem(module, geometry)
    for projection in (geometry.q, geometry.k, geometry.v, geometry.o):
        reason = reason or projection_problem(model, projection)
    return reason
