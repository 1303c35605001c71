"""KV-group contribution: the mean over tokens of ‖Σ_h head_h(x)_t W_O,h‖₂ over the query heads h that share a KV head.

Every head carries the value of its group, the unit that shrinks the cache when it goes. Without grouped heads it is the head-output norm.
"""

from __future__ import annotations

from torch import Tensor

from headcount.importance.base import About, per_token
from headcount.importance.methods.output_norm import projected_norm
from headcount.models.observe import Observation

ABOUT = About(needs=frozenset({"outputs"}), higher_is_keep=True, cost="one forward pass", source="the output norm, group by group")


def of_block(seen: Observation, _variant: str) -> tuple[Tensor, Tensor]:
    """The mean norm of what each head's group adds, over each example's tokens."""
    assert seen.outputs is not None and seen.projection is not None
    groups, size = seen.block.n_kv_heads, seen.block.group_size
    outputs = seen.outputs.unflatten(2, (groups, size)).flatten(3)  # [batch, q, kv_heads, size * head_dim]
    projection = seen.projection.unflatten(0, (groups, size)).flatten(1, 2)
    return per_token(projected_norm(outputs, projection).repeat_interleave(size, dim=-1), seen.queries)
