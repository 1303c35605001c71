"""Mean attention distance: the mean over tokens of Σ_k p_k |q − k|, in tokens.

It describes a head rather than ranking it: that far-reaching heads are kept first is a convention. In cross-attention the distance is between
places in two different sequences. Vig and Belinkov 2019, "Analyzing the Structure of Attention in a Transformer Language Model".
"""

from __future__ import annotations

import torch
from torch import Tensor

from headcount.importance.base import About, per_token
from headcount.models.observe import Observation

ABOUT = About(
    needs=frozenset({"attention"}),
    higher_is_keep=True,
    cost="one forward pass",
    source="Vig and Belinkov 2019",
    sees_projection=False,
    describes=True,
)


def of_block(seen: Observation, _variant: str) -> tuple[Tensor, Tensor]:
    """The mean distance that each example's tokens look."""
    assert seen.attention is not None
    p = seen.attention
    q, k = (torch.arange(n, device=p.device) for n in p.shape[-2:])
    places = q + (p.shape[-1] - p.shape[-2] if seen.block.kind != "cross" else 0)  # prefixes stand before the first query
    far = (places[:, None] - k[None, :]).abs().to(p.dtype)
    return per_token((p * far).sum(-1).transpose(1, 2), seen.queries)
