"""Faster linear layers on a CPU: weights are packed once for oneDNN's kernel, which then multiplies many stacked batches with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headcount.importance.replay.calls import replace_forwards

MIN_WEIGHTS = 1 << 14
"""Smaller weight matrices gain nothing from being packed."""

MAX_TOTAL_WEIGHTS = 1 << 29
"""The most weights that are copied, 2 GiB in float32; larger models keep their own kernel."""


def _can_pack(layer: nn.Linear) -> bool:
    """Whether a linear layer is plain, in float32 and on a CPU; subclasses and replaced forward passes compute something else."""
    weight = layer.weight
    if type(layer) is not nn.Linear or "forward" in layer.__dict__:
        return False
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.is_contiguous() and weight.numel() >= MIN_WEIGHTS


def _make_packed_forward(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
    """Returns a forward pass of the layer with packed weights."""
    ops: Any = torch.ops.mkldnn
    weight, bias = ops._reorder_linear_weight(layer.weight.detach(), None), layer.bias

    def forward(input: Tensor) -> Tensor:
        if input.dtype != torch.float32 or not input.numel():
            return nn.functional.linear(input, layer.weight, bias)
        return ops._linear_pointwise(input.contiguous(), weight, bias, "none", [], "")

    return forward


@contextmanager
def packed_linears(model: nn.Module) -> Iterator[None]:
    """Inside, linear layers use packed weights where the kernel exists; results differ by rounding only."""
    layers: dict[str, nn.Linear] = {}
    if torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        layers = {path: module for path, module in model.named_modules() if isinstance(module, nn.Linear) and _can_pack(module)}
    if not layers or sum(layer.weight.numel() for layer in layers.values()) > MAX_TOTAL_WEIGHTS:
        yield
        return
    with replace_forwards(model, {path: _make_packed_forward(layer) for path, layer in layers.items()}):
        yield
