from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from headcount.core.heads import AttentionBlock
from headcount.importance.base import FeatureImportance, ImportanceInfo, WeightedValues, per_token
from headcount.models.observe import Observation, output_projection_by_head


@dataclass(frozen=True)
class Wanda(FeatureImportance):
    """Wanda-style: Σ over the head's inputs j of the output projection of ‖X_j‖₂ Σ_i |W_ij|, with ‖X_j‖₂ the root mean square over tokens.

    Sun et al. 2024, "A Simple and Effective Pruning Approach for Large Language Models", summed over the weights of a head.
    """

    info = ImportanceInfo(needs={"outputs"}, higher_is_keep=True, cost="one forward pass", source="Sun et al. 2024")

    def of_block(self, observation: Observation) -> WeightedValues:
        """Returns the mean square of each input of the output projection, [batch, heads, head_dim]."""
        assert observation.outputs is not None
        return per_token(observation.outputs.double() ** 2, observation.queries)

    def combine(
        self, features: Float[Tensor, "*leading heads features"], model: nn.Module, block: AttentionBlock
    ) -> Float[Tensor, "*leading heads"]:
        """Returns root mean squares times the weights that they meet, [..., heads, head_dim] -> [..., heads]."""
        weights = output_projection_by_head(model, block).double().abs().sum(-1).cpu()  # [heads, head_dim]
        return (features.sqrt() * weights).sum(-1)
