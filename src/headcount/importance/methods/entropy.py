from __future__ import annotations

from dataclasses import dataclass

import torch

from headcount.importance.base import BlockImportance, ImportanceInfo, WeightedValues, per_token
from headcount.models.modules import in_float32_or_float64
from headcount.models.observe import Observation


@dataclass(frozen=True)
class Entropy(BlockImportance):
    """Attention entropy: the mean over tokens of −Σ_k p_k ln p_k, in nats. Low entropy means a focused head, so less is kept first.

    Clark et al. 2019, "What Does BERT Look At?".
    """

    info = ImportanceInfo(
        needs={"attention"},
        higher_is_keep=False,
        cost="one forward pass",
        source="Clark et al. 2019, What Does BERT Look At?",
        sees_projection=False,
        describes=True,
    )

    def of_block(self, observation: Observation) -> WeightedValues:
        """Returns the mean entropy of each example's attention rows."""
        assert observation.attention is not None
        rows = torch.special.entr(in_float32_or_float64(observation.attention)).sum(-1)
        return per_token(rows.transpose(1, 2), observation.queries)
