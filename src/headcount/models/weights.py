"""The weights of single heads in the projections of their block."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headcount.core.errors import UnsupportedModel
from headcount.core.heads import AttentionBlock
from headcount.models.archs.dependents import projection_problem, projection_slices

PARTS = ("q", "k", "v", "o")


def weights_of(model: nn.Module, block: AttentionBlock, projection_role: str) -> list[Tensor]:
    """The weight of every head of a block in one projection; heads of one KV group share those of K and V.

    Raises UnsupportedModel where the projection has no plain weight: under adapters, quantised or offloaded.
    """
    projection = getattr(block, projection_role)
    problem = projection_problem(model, projection)
    if problem:
        raise UnsupportedModel(f"the weights of single heads cannot be read in block {block.name}: {problem}")
    cut, *_ = projection_slices(model, projection)
    weight = model.get_parameter(cut.tensor).detach()
    units = [weight.index_select(cut.axis, torch.tensor(list(cut.rows.of(unit)), device=weight.device)) for unit in range(cut.rows.count)]
    return [units[position if cut.unit == "head" else block.group(position)] for position in range(block.n_heads)]
