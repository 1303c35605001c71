"""Rounding as random noise, so that a second pass shows how far rounding alone moves a result.

Sums (matrix products, means, softmax, norms) and functions such as exp differ in their last bit between processors, libraries and shapes of a
batch. Each of their results is multiplied by 1 + δ with δ uniform in ±1 unit in the last place of its dtype, and so is the relevance that an
operation hands down (random rounding: Vignes 1993; Parker 1997). Sums and products of two numbers are exact to half a unit everywhere, and
masks are made of them, so these stay as they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

ROUNDED = {
    "mm", "bmm", "addmm", "baddbmm", "addbmm", "addmv", "mv", "dot", "linear", "convolution", "sum", "mean", "var", "var_mean", "std", "norm",
    "linalg_vector_norm", "logsumexp", "_softmax", "_log_softmax", "native_layer_norm", "native_group_norm", "native_batch_norm", "rms_norm",
    "_fused_rms_norm", "exp", "log", "sin", "cos", "tanh", "sigmoid", "erf", "gelu", "silu", "mish", "softplus", "rsqrt", "pow",
}  # fmt: skip
"""Operations whose last bit depends on the processor, the library or the shape of the batch."""


class RoundingNoise:
    """Noise of the size of rounding, the same for the same seed and sequence of operations."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def add_noise_to_result(self, operation_name: str, result: Any) -> Any:
        """Returns the result of an operation, with noise in its first tensor if processors round it differently."""
        if operation_name not in ROUNDED:
            return result
        if isinstance(result, tuple | list):
            return type(result)([self.add_noise(result[0]), *result[1:]])
        return self.add_noise(result)

    def add_noise(self, values: Tensor) -> Tensor:
        """Returns floating-point values with noise of one unit in the last place; others unchanged."""
        if not isinstance(values, Tensor) or not values.is_floating_point():
            return values
        size = torch.finfo(values.dtype).eps
        noise = torch.empty(values.shape, dtype=torch.float64, device=values.device)
        if values.device not in self._generators:
            self._generators[values.device] = torch.Generator(values.device).manual_seed(self.seed)
        noise.uniform_(-size, size, generator=self._generators[values.device])
        return torch.addcmul(values.double(), values.double(), noise).to(values.dtype)
