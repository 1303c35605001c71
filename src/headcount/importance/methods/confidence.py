"""Confidence: the mean over tokens of the largest attention weight, delimiters excluded as targets.

Voita et al. 2019, "Analyzing Multi-Head Self-Attention". Where neither the task nor the configuration names special tokens, none is excluded.
"""

from __future__ import annotations

from torch import Tensor

from headcount.importance.base import About, per_token
from headcount.models.observe import Observation

ABOUT = About(
    needs=frozenset({"attention"}),
    higher_is_keep=True,
    cost="one forward pass",
    source="Voita et al. 2019",
    sees_projection=False,
    describes=True,
)


def of_block(seen: Observation, _variant: str) -> tuple[Tensor, Tensor]:
    """The mean over each example's tokens of the largest weight on an ordinary token."""
    assert seen.attention is not None
    weights = seen.attention
    if seen.special_keys is not None:
        weights = weights.masked_fill(seen.special_keys[:, None, None, :], 0)
    return per_token(weights.amax(-1).transpose(1, 2), seen.queries)
