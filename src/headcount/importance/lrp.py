"""LRP relevance: the relevance of the predicted logit that arrives at a head's output, as a share of its block's, mean over examples.

Every block sums to 1 by definition, so that no further normalisation belongs to it. Voita et al. 2019 after Ding et al. 2017 and Bach et al. 2015.
Variants: `alpha-beta` normalises positive and negative contributions apart (α = β = 0.5), so that relevance is never negative; under `epsilon` it can
be, and its size counts. An example with several predictions (tokens) propagates them together, each starting with relevance 1. What biases, constants
and ε take is reported as `leakage`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from headcount.importance._contract import About, Work
from headcount.relevance import relevance

ABOUT = About(
    needs=frozenset({"outputs"}),
    higher_is_keep=True,
    cost="one recorded forward pass and a walk back of many times its cost",
    source="Voita et al. 2019",
    variants=("alpha-beta", "epsilon"),
)


def of_batch(work: Work, batch: Mapping[str, Any], variant: str) -> dict[str, Tensor]:
    """Each head's share of its block's relevance, and the share of all relevance that leaked."""
    found = relevance(work.model, batch, rule=variant)  # pyright: ignore[reportArgumentType]
    sizes = found.heads.abs()
    for block in work.heads.blocks:
        span = work.heads.positions(block)
        total = sizes[:, span].sum(-1, keepdim=True)
        sizes[:, span] /= total.where(total > 0, 1.0)
    return {"": sizes, "leakage": found.leaked / found.started}
