from __future__ import annotations

from dataclasses import dataclass

from headcount.importance.base import BlockImportance, ImportanceInfo, WeightedValues, per_token
from headcount.models.modules import in_float32_or_float64
from headcount.models.observe import Observation


@dataclass(frozen=True)
class ActivationNorm(BlockImportance):
    """Activation norm: the mean over tokens of ‖head_h(x)_t‖₂, before the output projection.

    Muralidharan et al. 2024, "Compact Language Models via Pruning and Knowledge Distillation" (Minitron), eq. for attention heads.
    """

    info = ImportanceInfo(
        needs={"outputs"}, higher_is_keep=True, cost="one forward pass", source="Muralidharan et al. 2024", sees_projection=False
    )

    def of_block(self, observation: Observation) -> WeightedValues:
        """Returns the mean norm of each head's output over each example's tokens."""
        assert observation.outputs is not None
        return per_token(in_float32_or_float64(observation.outputs).norm(dim=-1), observation.queries)
