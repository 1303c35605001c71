"""Mean ablation as a cut: what the removed heads give on average, in the bias of their block's output projection.

    b_O ← b_O + Σ_h removed  E[head_h(x)] W_O,h

The model that is cut then is the dense one under `headcount.mask(how="mean")`, token by token. Uniform attention depends on the input, so that it
has no such form: it exists as a gate alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from headcount.core.errors import UnsupportedModel
from headcount.core.heads import AttentionBlock
from headcount.core.plan import Plan
from headcount.data.chunks import batches
from headcount.data.task import Data
from headcount.models.head_map import HeadMap
from headcount.models.modules import pad_id, unwrap
from headcount.models.observe import mean_outputs
from headcount.models.state import copy_model
from headcount.pruning.repair.projection import (
    LinearProjection,
    has_bias,
    output_projection,
    read_weight_and_bias,
    rows_of_heads,
    write_weight_and_bias,
)
from headcount.pruning.repair.repair import FIT_EXAMPLES


def require_biases(model: nn.Module, heads: HeadMap, attention_kinds: Sequence[str] = ()) -> None:
    """Raises UnsupportedModel where an output projection of these attention_kinds (of all, if none are named) has no bias to hold means."""
    for block in heads.blocks:
        if block.n_heads and (not attention_kinds or block.kind in attention_kinds):
            _output_projection_with_bias(model, block)


def _output_projection_with_bias(model: nn.Module, block: AttentionBlock) -> LinearProjection:
    """Returns the output projection of a block; raises UnsupportedModel if it has no bias."""
    module = output_projection(model, block)
    if not has_bias(module):
        raise UnsupportedModel(
            f"the output projection of block {block.name} has no bias that could hold the mean output of a removed head; prune with ablation zero, "
            "with repair (which refits the weights), or look at means as gates (headcount.mask with how='mean')"
        )
    return module


@torch.no_grad()
def fold_means(model: nn.Module, plan: Plan, data: Data, heads: HeadMap, *, limit: int = FIT_EXAMPLES) -> nn.Module:
    """Returns a copy of a model, in its shape, whose biases hold the mean outputs of the heads that the plan removes; `cut` it by the same plan then.

    Means are those of the dense model over the real tokens of `limit` calibration examples.
    """
    folded = copy_model(unwrap(model))
    plan.check(heads)
    removed = {block: sorted(set(range(block.n_heads)) - set(plan.kept_positions(block))) for block in heads.blocks}
    projections = {block: _output_projection_with_bias(folded, block) for block, positions in removed.items() if positions}
    if not projections:
        return folded
    means = mean_outputs(folded, batches(data, limit=limit, pad_id=pad_id(folded)), blocks=heads.blocks)
    for block, module in projections.items():
        matrix = read_weight_and_bias(module)
        matrix[-1] += means[block.path][removed[block]].flatten().to(matrix) @ matrix[rows_of_heads(block, removed[block])]
        write_weight_and_bias(module, matrix)
    return folded
