"""Magnitude: the Frobenius norm of all weights that belong to a head, its share of Q, K, V and O. Needs no data.

A KV head counts in full for each of its query heads. There are no examples, so there is no standard error.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from headcount.heads import AttentionBlock
from headcount.importance._contract import About, Work

ABOUT = About(
    needs=frozenset({"weights"}), higher_is_keep=True, cost="reads the weights once", source="Han et al. 2015", sees_projection=False
)


def of_model(work: Work, _variant: str) -> Tensor:
    """The norm of every head's weights."""
    tensors = dict(work.model.named_parameters())
    return torch.cat([_of_block(block, tensors) for block in work.heads.blocks])


def _of_block(block: AttentionBlock, tensors: Mapping[str, Tensor]) -> Tensor:
    squares = torch.zeros(block.n_heads, dtype=torch.float64)
    for cut in block.slices:
        if cut.extra or not cut.tensor.endswith("weight") or cut.tensor not in tensors:
            continue
        weight = tensors[cut.tensor].detach()
        per_unit = [
            float((weight.index_select(cut.axis, torch.tensor(list(cut.rows.of(unit)), device=weight.device)).double() ** 2).sum())
            for unit in range(cut.rows.count)
        ]
        for position in range(block.n_heads):
            squares[position] += per_unit[position if cut.unit == "head" else block.group(position)]
    return squares.sqrt()
