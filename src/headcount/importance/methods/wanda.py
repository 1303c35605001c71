"""Wanda-style: Σ over the head's inputs j of the output projection of ‖X_j‖₂ Σ_i |W_ij|, with ‖X_j‖₂ the root mean square over tokens.

Sun et al. 2024, "A Simple and Effective Pruning Approach for Large Language Models", summed over the weights of a head.
"""

from __future__ import annotations

from torch import Tensor, nn

from headcount.core.heads import AttentionBlock
from headcount.importance.base import About
from headcount.importance.methods.fluctuation import mean_over_tokens
from headcount.models.observe import Observation, projection_of

ABOUT = About(needs=frozenset({"outputs"}), higher_is_keep=True, cost="one forward pass", source="Sun et al. 2024")


def of_block(seen: Observation, _variant: str) -> tuple[Tensor, Tensor]:
    """The mean square of each input of the output projection, [batch, heads, head_dim]."""
    assert seen.outputs is not None
    return mean_over_tokens(seen.outputs.double() ** 2, seen.queries)


def combine(features: Tensor, model: nn.Module, block: AttentionBlock, _variant: str) -> Tensor:
    """Root mean squares times the weights that they meet, [..., heads, head_dim] -> [..., heads]."""
    weights = projection_of(model, block).double().abs().sum(-1).cpu()  # [heads, head_dim]
    return (features.sqrt() * weights).sum(-1)
