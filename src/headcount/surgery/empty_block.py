"""What stands in a block that lost all its heads: projections without weights around one idle head.

The block's own code goes on running, so its return values, its cache entry (decoders read their length from layer 0) and its shared position
bias stay as they were; the idle head reads zeros and writes only the output bias.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headcount.models.modules import is_transposed, linear_in_and_out_size


class _EmptyProjection(nn.Module):
    is_ghost = True

    def __init__(self, layer: nn.Module, axis: int) -> None:
        super().__init__()
        weight = layer._parameters["weight"]
        assert weight is not None
        size = linear_in_and_out_size(layer)
        assert size is not None
        self.in_features, self.out_features = size
        shape = list(weight.shape)
        shape[axis] = 0
        self.weight = nn.Parameter(weight.data.new_empty(shape), requires_grad=False)  # nothing to train, and DDP waits for what trains
        self.train(layer.training)


class ZeroProjection(_EmptyProjection):
    """A q, k, v or fused projection that gives `width` zeros per token; its weight has no rows left."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__(layer, axis=1 if is_transposed(layer) else 0)
        self.width = width
        self.out_features = 0
        bias = layer._parameters.get("bias")
        self.bias = None if bias is None else nn.Parameter(bias.data.new_empty(0), requires_grad=False)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Zeros of the idle head's width."""
        return hidden_states.new_zeros((*hidden_states.shape[:-1], self.width))

    def extra_repr(self) -> str:
        """The shape, for print(model)."""
        return f"in_features={self.in_features}, heads=0"


class BiasOnlyProjection(_EmptyProjection):
    """An output projection whose weight has no columns left: it gives its bias, whatever comes in."""

    def __init__(self, layer: nn.Module, value_dim: int) -> None:
        super().__init__(layer, axis=0 if is_transposed(layer) else 1)
        self.value_dim = value_dim
        self.in_features = 0
        bias = layer._parameters.get("bias")
        self.bias = None if bias is None else nn.Parameter(bias.data, requires_grad=bias.requires_grad)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """The bias, or zeros, for every token."""
        shape = (*hidden_states.shape[:-1], self.out_features)
        return (
            hidden_states.new_zeros(shape)
            if self.bias is None
            else self.bias.to(hidden_states.dtype).expand(shape) + torch.zeros_like(hidden_states[..., :1])
        )

    def extra_repr(self) -> str:
        """The shape, for print(model)."""
        return f"out_features={self.out_features}, heads=0"
