"""Random weights that leave no part of a model switched off."""

from __future__ import annotations

import math
import re

import torch
from torch import Tensor, nn

GAIN = 1.25
_SPREAD = 0.1
# Scales and gates that start at or near zero would hide everything that they multiply.
_SCALE = re.compile(r"(lambda|gamma|layer_?scale|gate|gating|alpha|_scale|\bscale|factor)(_?\d+)?(\.(weight|scale|lambda1|gamma))?$", re.I)


@torch.no_grad()
def draw_weights(model: nn.Module, generator: torch.Generator) -> None:
    """Overwrites every trainable parameter in place; buffers and fixed tables stay as they are."""
    modules = dict(model.named_modules())
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.is_floating_point():
            owner = modules[name.rpartition(".")[0]]
            parameter.copy_(_draw_parameter(name, parameter, owner, generator))


def _draw_parameter(name: str, parameter: Tensor, module: nn.Module, generator: torch.Generator) -> Tensor:
    noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    if parameter.ndim >= 2 and not name.endswith("original0"):
        return noise * GAIN / math.sqrt(_fan_in(parameter, module))
    start = parameter.to("cpu", torch.float64)
    if _SCALE.search(name) and (start.abs() < 0.5).all():
        start = torch.ones_like(start)
    return start + _SPREAD * noise


def _fan_in(parameter: Tensor, module: nn.Module) -> int:
    if isinstance(module, (nn.modules.conv._ConvNd, nn.Linear)) or "parametri" in type(module).__name__.lower():
        return max(1, math.prod(parameter.shape[1:]))
    if type(module).__name__ == "Conv1D":
        return parameter.shape[0]
    return max(1, parameter.shape[-1])
