from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from headcount.core.options import option
from headcount.importance.base import BatchImportance, BatchMeasurement, ImportanceInfo, ScoreContext
from headcount.importance.relevance.relevance import Relevance, relevance
from headcount.models.head_map import HeadMap
from headcount.models.modules import Batch


@dataclass(frozen=True)
class LRP(BatchImportance):
    """LRP relevance: the relevance of the predicted logit that arrives at a head's output, as a share of its block's, mean over examples.

    Every block sums to 1 by definition, so that no further normalisation belongs to it. Voita et al. 2019 after Ding et al. 2017 and Bach et al.
    2015. Variants: `alpha-beta` normalises positive and negative contributions apart (α = β = 0.5), so that relevance is never negative; under
    `epsilon` it can be, and its size counts. An example with several predictions (tokens) propagates them together, each starting with relevance 1.
    What biases, constants and ε take is reported as `leakage`.
    The ε rule divides by sums that may nearly cancel, which magnifies rounding: every batch runs a second time with random last bits, and the column
    `rounding` says how far that moves each score.
    """

    variant: Literal["alpha-beta", "epsilon"] = option("alpha-beta", "The rule that shares relevance among the terms of a sum")
    info = ImportanceInfo(
        needs={"outputs"},
        higher_is_keep=True,
        cost="one recorded forward pass and a walk back of many times its cost, twice for epsilon",
        source="Voita et al. 2019",
    )

    @property
    def rule(self) -> str:
        """The rule, which the name of the default variant leaves out."""
        return f"{self.variant} rule"

    def measure(self, context: ScoreContext) -> Callable[[Batch], BatchMeasurement]:
        """Returns a function that measures each head's share of its block's relevance, and the share of all relevance that leaked."""

        def measure_batch(batch: Batch) -> BatchMeasurement:
            result = relevance(context.model, batch, rule=self.variant)
            shares, rounding = _absolute_shares_of_block(context.heads, result), None
            if self.variant == "epsilon":
                rounded = relevance(context.model, batch, rule=self.variant, noise_seed=context.seed)
                rounding = _absolute_shares_of_block(context.heads, rounded) - shares
            return BatchMeasurement(shares, rounding=rounding, conditions={"leakage": result.leaked / result.started})

        return measure_batch


def _absolute_shares_of_block(heads: HeadMap, result: Relevance) -> Float[Tensor, "batch heads"]:
    """Returns the size of every head's relevance as a share of that of its block."""
    sizes = result.heads.abs()
    for block in heads.blocks:
        span = heads.positions(block)
        total = sizes[:, span].sum(-1, keepdim=True)
        sizes[:, span] /= total.where(total > 0, 1.0)
    return sizes
