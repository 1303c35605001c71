from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from headcount.importance.base import BlockImportance, ImportanceInfo, WeightedValues, per_token
from headcount.models.modules import in_float32_or_float64
from headcount.models.observe import Observation


@dataclass(frozen=True)
class OutputNorm(BlockImportance):
    """Head-output norm: the mean over tokens of ‖head_h(x)_t W_O,h‖₂, what the head adds to the residual stream.

    Kobayashi et al. 2020, "Attention is Not Only a Weight", measure vectors instead of weights in the same spirit.
    """

    info = ImportanceInfo(needs={"outputs"}, higher_is_keep=True, cost="one forward pass", source="Kobayashi et al. 2020")

    def of_block(self, observation: Observation) -> WeightedValues:
        """Returns the mean norm of what each head adds, over each example's tokens."""
        assert observation.outputs is not None and observation.projection is not None
        return per_token(projected_norm(observation.outputs, observation.projection), observation.queries)


def projected_norm(
    outputs: Float[Tensor, "batch q heads head_dim"], projection: Float[Tensor, "heads head_dim width"]
) -> Float[Tensor, "batch q heads"]:
    """Returns ‖x W‖₂ for every head, [batch, q, heads], through the small matrix W Wᵀ instead of the wide x W."""
    x = in_float32_or_float64(outputs)
    w = projection.to(x.dtype)
    gram = w @ w.transpose(-1, -2)  # [heads, head_dim, head_dim]
    squares = torch.einsum("bqhd,hde,bqhe->bqh", x, gram, x)
    return squares.clamp(min=0).sqrt()
