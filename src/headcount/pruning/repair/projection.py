"""The output projection of a block as a matrix that can be read and written: one row per input, and the bias as the last row."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from headcount.core.errors import UnsupportedModel
from headcount.core.heads import AttentionBlock
from headcount.models.modules import Batch, is_transposed
from headcount.models.observe import real_query_mask

LinearProjection = nn.Linear | Conv1D
"""A layer that is inputs times its weight, plus its bias if it has one; Conv1D holds the weight transposed."""


def output_projection(model: nn.Module, block: AttentionBlock) -> LinearProjection:
    """Returns the output projection of a block.

    Raises:
        UnsupportedModel: its weights cannot be written to.
    """
    block.require_one_output("a change of the output projection")
    module: Any = model.get_submodule(block.o.path)
    if not _is_plain_linear(module):
        raise UnsupportedModel(
            f"the output projection of block {block.name} is a {type(module).__name__}, whose weights cannot be refitted; merge adapters, or load "
            "the model without quantisation, or prune without repair"
        )
    return module


def _is_plain_linear(module: Any) -> bool:
    """Whether a module is inputs times its weight plus its bias: by its type, or, of relatives of nn.Linear, by what it returns."""
    if type(module) is nn.Linear or is_transposed(module):
        return module.weight.is_floating_point()
    if not isinstance(module, nn.Linear) or not module.weight.is_floating_point():
        return False
    with torch.no_grad():
        weight = module.weight
        probe = torch.linspace(-1, 1, weight.shape[1], dtype=weight.dtype, device=weight.device)[None]
        return torch.allclose(module.forward(probe), nn.functional.linear(probe, weight, module.bias), rtol=1e-2, atol=1e-3)


def has_bias(module: LinearProjection) -> bool:
    """Whether a projection adds a bias."""
    return getattr(module, "bias", None) is not None


def read_weight_and_bias(module: LinearProjection) -> Float[Tensor, "inputs_and_bias outputs"]:
    """Returns the weight of a projection in float64, a row per input, with its bias, if it has one, as the last row."""
    weight = module.weight.detach().double()
    weight = weight if is_transposed(module) else weight.T
    return torch.cat([weight, module.bias.detach().double()[None]]) if has_bias(module) else weight.clone()


@torch.no_grad()
def write_weight_and_bias(module: LinearProjection, matrix: Float[Tensor, "inputs_and_bias outputs"]) -> None:
    """Writes the weight, and the bias in the last row if the projection has one, as `read_weight_and_bias` returns them."""
    rows = matrix[:-1] if has_bias(module) else matrix
    module.weight.copy_(rows if is_transposed(module) else rows.T)
    if has_bias(module):
        module.bias.copy_(matrix[-1])


def rows_of_heads(block: AttentionBlock, head_positions: Iterable[int]) -> list[int]:
    """Returns the rows of the projection's matrix that belong to some heads of a block, named by their positions in it."""
    return [position * block.value_dim + entry for position in head_positions for entry in range(block.value_dim)]


def rows_of_real_tokens(model: nn.Module, block: AttentionBlock, batch: Batch, states: Tensor) -> Float[Tensor, "tokens width"]:
    """Returns the rows of a block's input or output that stand for real tokens; padding is left out."""
    ordered = states.transpose(0, 1) if block.time_first and states.ndim == 3 else states
    if ordered.ndim != 3:
        ordered = ordered.reshape(1 if ordered.ndim == 2 else ordered.shape[0], -1, ordered.shape[-1])
    mask = real_query_mask(model, block, batch, *ordered.shape[:2])
    return ordered[mask]
