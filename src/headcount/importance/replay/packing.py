"""Faster linear layers on a CPU: weights laid out once for oneDNN's kernel, which then multiplies many stacked batches with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headcount.importance.replay.calls import standing_in

SMALLEST = 1 << 14
"""Weights with fewer numbers are not worth a layout of their own."""

LARGEST_TOTAL = 1 << 29
"""The most numbers that are laid out a second time, 2 GiB in float32; larger models keep the kernel they have."""


def _plain_layers(model: nn.Module) -> dict[str, nn.Linear]:
    """The plain float32 linear layers on a CPU; subclasses and layers with a forward pass of their own compute something else."""
    layers = {path: module for path, module in model.named_modules() if type(module) is nn.Linear and "forward" not in module.__dict__}
    return {path: layer for path, layer in layers.items() if _fits(layer.weight)}


def _fits(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.is_contiguous() and weight.numel() >= SMALLEST


def _pack(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
    ops: Any = torch.ops.mkldnn
    weight, bias = ops._reorder_linear_weight(layer.weight.detach(), None), layer.bias

    def forward(input: Tensor) -> Tensor:
        if input.dtype != torch.float32 or not input.numel():
            return nn.functional.linear(input, layer.weight, bias)
        return ops._linear_pointwise(input.contiguous(), weight, bias, "none", [], "")

    return forward


@contextmanager
def packed_linears(model: nn.Module) -> Iterator[None]:
    """Linear layers with packed weights inside the context, where the kernel exists; rounding differs, nothing else."""
    layers = _plain_layers(model) if torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise") else {}
    if not layers or sum(layer.weight.numel() for layer in layers.values()) > LARGEST_TOTAL:
        yield
        return
    with standing_in(model, {path: _pack(layer) for path, layer in layers.items()}):
        yield
