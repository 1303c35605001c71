from __future__ import annotations

from dataclasses import dataclass

from headcount.importance.base import BlockImportance, ImportanceInfo, WeightedValues, per_token
from headcount.models.observe import Observation


@dataclass(frozen=True)
class Confidence(BlockImportance):
    """Confidence: the mean over tokens of the largest attention weight, max_k p_k, delimiters excluded as keys k.

    Voita et al. 2019, "Analyzing Multi-Head Self-Attention". Where neither the task nor the configuration names special tokens, none is excluded.
    """

    info = ImportanceInfo(
        needs={"attention"},
        higher_is_keep=True,
        cost="one forward pass",
        source="Voita et al. 2019",
        sees_projection=False,
        describes=True,
    )

    def of_block(self, observation: Observation) -> WeightedValues:
        """Returns the mean over each example's tokens of the largest weight on an ordinary token."""
        weights = observation.attention
        assert weights is not None
        if observation.special_keys is not None:
            weights = weights.masked_fill(observation.special_keys[:, None, None, :], 0)
        return per_token(weights.amax(-1).transpose(1, 2), observation.queries)
