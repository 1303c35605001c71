"""LRP relevance: the relevance of the predicted logit that arrives at a head's output, as a share of its block's, mean over examples.

Every block sums to 1 by definition, so that no further normalisation belongs to it. Voita et al. 2019 after Ding et al. 2017 and Bach et al. 2015.
Variants: `alpha-beta` normalises positive and negative contributions apart (α = β = 0.5), so that relevance is never negative; under `epsilon` it can
be, and its size counts. An example with several predictions (tokens) propagates them together, each starting with relevance 1. What biases, constants
and ε take is reported as `leakage`.
The ε rule divides by sums that may nearly cancel, which magnifies rounding: every batch runs a second time with random last bits, and the column
`rounding` says how far that moves each score.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxtyping import Float
from torch import Tensor

from headcount.importance.base import About, Work
from headcount.importance.relevance.relevance import Relevance, relevance
from headcount.models.head_map import HeadMap

ABOUT = About(
    needs=frozenset({"outputs"}),
    higher_is_keep=True,
    cost="one recorded forward pass and a walk back of many times its cost, twice for epsilon",
    source="Voita et al. 2019",
    variants=("alpha-beta", "epsilon"),
)


def of_batch(work: Work, batch: Mapping[str, Any], variant: str) -> dict[str, Tensor]:
    """Each head's share of its block's relevance, the share of all relevance that leaked, and under `epsilon` what rounding changes."""
    rule: Any = variant
    result = relevance(work.model, batch, rule=rule)
    parts = {"": _block_shares(work.heads, result), "leakage": result.leaked / result.started}
    if variant == "epsilon":
        rounded = relevance(work.model, batch, rule=rule, noise_seed=work.seed)
        parts["rounding"] = _block_shares(work.heads, rounded) - parts[""]
    return parts


def _block_shares(heads: HeadMap, result: Relevance) -> Float[Tensor, "batch heads"]:
    """The size of every head's relevance, as a share of that of its block."""
    sizes = result.heads.abs()
    for block in heads.blocks:
        span = heads.positions(block)
        total = sizes[:, span].sum(-1, keepdim=True)
        sizes[:, span] /= total.where(total > 0, 1.0)
    return sizes
