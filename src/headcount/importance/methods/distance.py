from __future__ import annotations

from dataclasses import dataclass

import torch

from headcount.importance.base import BlockImportance, ImportanceInfo, WeightedValues, per_token
from headcount.models.observe import Observation


@dataclass(frozen=True)
class Distance(BlockImportance):
    """Mean attention distance: the mean over tokens of Σ_k p_k |q − k|, in tokens.

    It describes a head rather than ranking it: that far-reaching heads are kept first is a convention. In cross-attention the distance is between
    positions in two different sequences. Vig and Belinkov 2019, "Analyzing the Structure of Attention in a Transformer Language Model".
    """

    info = ImportanceInfo(
        needs={"attention"},
        higher_is_keep=True,
        cost="one forward pass",
        source="Vig and Belinkov 2019",
        sees_projection=False,
        describes=True,
    )

    def of_block(self, observation: Observation) -> WeightedValues:
        """Returns the mean distance of attention over each example's tokens."""
        p = observation.attention
        assert p is not None
        n_queries, n_keys = p.shape[-2:]
        prefix = 0 if observation.block.kind == "cross" else n_keys - n_queries  # prefixes stand before the first query
        queries = torch.arange(n_queries, device=p.device) + prefix
        keys = torch.arange(n_keys, device=p.device)
        distances = (queries[:, None] - keys[None, :]).abs().to(p.dtype)
        return per_token((p * distances).sum(-1).transpose(1, 2), observation.queries)
