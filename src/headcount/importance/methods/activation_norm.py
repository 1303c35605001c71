"""Activation norm: the mean over tokens of ‖head_h(x)_t‖₂, before the output projection.

Muralidharan et al. 2024, "Compact Language Models via Pruning and Knowledge Distillation" (Minitron), eq. for attention heads.
"""

from __future__ import annotations

from torch import Tensor

from headcount.importance.base import About, per_token
from headcount.models.modules import at_least_single
from headcount.models.observe import Observation

ABOUT = About(
    needs=frozenset({"outputs"}), higher_is_keep=True, cost="one forward pass", source="Muralidharan et al. 2024", sees_projection=False
)


def of_block(seen: Observation, _variant: str) -> tuple[Tensor, Tensor]:
    """The mean norm of each head's output over each example's tokens."""
    assert seen.outputs is not None
    return per_token(at_least_single(seen.outputs).norm(dim=-1), seen.queries)
