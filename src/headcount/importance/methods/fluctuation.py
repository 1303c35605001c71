"""Fluctuation: Σ over the head's inputs j of the output projection of Var(x_j) ‖W_:j‖₂², the variance being taken over tokens.

What never changes can be folded into the bias, so only what fluctuates is worth a head. An et al. 2024, "Fluctuation-based Adaptive Structured
Pruning for Large Language Models" (FLAP). Scores of a block are standardised to mean 0 and standard deviation 1 (normalise="standard"), so that
blocks can be compared.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headcount.core.heads import AttentionBlock
from headcount.importance.base import About
from headcount.models.observe import Observation, projection_of

ABOUT = About(needs=frozenset({"outputs"}), higher_is_keep=True, cost="one forward pass", source="An et al. 2024", normalise="standard")


def mean_over_tokens(values: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
    """The mean over each example's real tokens of [batch, q, heads, features], with their number as weight."""
    number = queries.sum(-1)
    total = torch.where(queries[..., None, None], values, 0).sum(1)
    return total / number.clamp(min=1)[:, None, None], number[:, None].double()


def of_block(seen: Observation, _variant: str) -> tuple[Tensor, Tensor]:
    """Means and mean squares of the inputs of the output projection, [batch, heads, 2 * head_dim]."""
    assert seen.outputs is not None
    x = seen.outputs.double()
    return mean_over_tokens(torch.cat([x, x**2], dim=-1), seen.queries)


def combine(features: Tensor, model: nn.Module, block: AttentionBlock, _variant: str) -> Tensor:
    """Variances times squared weights, [..., heads, 2 * head_dim] -> [..., heads]."""
    mean, square = features.chunk(2, dim=-1)
    weights = (projection_of(model, block).double() ** 2).sum(-1).cpu()
    return ((square - mean**2).clamp(min=0) * weights).sum(-1)
