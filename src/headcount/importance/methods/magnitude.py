"""Magnitude: the Frobenius norm of all weights that belong to a head, its share of Q, K, V and O. Needs no data.

A KV head counts in full for each of its query heads. There are no examples, so there is no standard error.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headcount.core.heads import AttentionBlock
from headcount.importance.base import About, Work
from headcount.models.modules import unwrap
from headcount.models.weights import PARTS, weights_of

ABOUT = About(
    needs=frozenset({"weights"}), higher_is_keep=True, cost="reads the weights once", source="Han et al. 2015", sees_projection=False
)


def of_model(work: Work, _variant: str) -> Tensor:
    """The norm of every head's weights."""
    return torch.cat([_of_block(unwrap(work.model), block) for block in work.heads.blocks])


def _of_block(model: nn.Module, block: AttentionBlock) -> Tensor:
    squares = torch.zeros(block.n_heads, dtype=torch.float64)
    for part in PARTS:
        squares += torch.tensor([float((weight.double() ** 2).sum()) for weight in weights_of(model, block, part)], dtype=torch.float64)
    return squares.sqrt()
