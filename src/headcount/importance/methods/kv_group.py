from __future__ import annotations

from dataclasses import dataclass

from headcount.importance.base import BlockImportance, ImportanceInfo, WeightedValues, per_token
from headcount.importance.methods.output_norm import projected_norm
from headcount.models.observe import Observation


@dataclass(frozen=True)
class KVGroup(BlockImportance):
    """KV-group contribution: the mean over tokens of ‖Σ_h head_h(x)_t W_O,h‖₂ over the query heads h that share a KV head.

    Every head carries the value of its group, the unit that shrinks the cache when it goes. Without grouped heads it is the head-output norm.
    """

    info = ImportanceInfo(needs={"outputs"}, higher_is_keep=True, cost="one forward pass", source="the output norm, group by group")

    def of_block(self, observation: Observation) -> WeightedValues:
        """Returns the mean norm of what each head's group adds, over each example's tokens."""
        assert observation.outputs is not None and observation.projection is not None
        groups, size = observation.block.n_kv_heads, observation.block.group_size
        outputs = observation.outputs.unflatten(2, (groups, size)).flatten(3)  # [batch, q, kv_heads, size * head_dim]
        projection = observation.projection.unflatten(0, (groups, size)).flatten(1, 2)
        return per_token(projected_norm(outputs, projection).repeat_interleave(size, dim=-1), observation.queries)
