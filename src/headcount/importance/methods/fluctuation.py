from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headcount.core.heads import AttentionBlock
from headcount.importance.base import FeatureImportance, ImportanceInfo, WeightedValues, per_token
from headcount.models.observe import Observation, output_projection_by_head


@dataclass(frozen=True)
class Fluctuation(FeatureImportance):
    """Fluctuation: Σ over the head's inputs j of the output projection of Var(x_j) ‖W_:j‖₂², the variance being taken over tokens.

    What never changes can be folded into the bias, so only what fluctuates is worth a head. An et al. 2024, "Fluctuation-based Adaptive Structured
    Pruning for Large Language Models" (FLAP). Scores of a block are standardised to mean 0 and standard deviation 1 (normalise="standard"), so that
    blocks can be compared.
    """

    info = ImportanceInfo(needs={"outputs"}, higher_is_keep=True, cost="one forward pass", source="An et al. 2024", normalise="standard")

    def of_block(self, observation: Observation) -> WeightedValues:
        """Returns means and mean squares of the inputs of the output projection, [batch, heads, 2 * head_dim]."""
        assert observation.outputs is not None
        x = observation.outputs.double()
        return per_token(torch.cat([x, x**2], dim=-1), observation.queries)

    def combine(
        self, features: Float[Tensor, "*leading heads means_and_mean_squares"], model: nn.Module, block: AttentionBlock
    ) -> Float[Tensor, "*leading heads"]:
        """Returns variances times squared weights, [..., heads, 2 * head_dim] -> [..., heads]."""
        mean, square = features.chunk(2, dim=-1)
        weights = (output_projection_by_head(model, block).double() ** 2).sum(-1).cpu()
        return ((square - mean**2).clamp(min=0) * weights).sum(-1)
