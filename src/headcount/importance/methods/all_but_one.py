from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headcount.core.options import option
from headcount.importance.base import BatchImportance, ImportanceInfo, ScoreContext
from headcount.importance.interventions import InterventionEffects, gate_keeping_target


@dataclass(frozen=True)
class AllButOneImportance(BatchImportance):
    """All but one: how much the loss of an example rises when a head is the only one left in its block; all other blocks stay whole.

        L(x; ξ_h' = 0 for all h' ≠ h of the block) − L(x; ξ = 1), the mean over examples

    Michel, Levy, Neubig 2019: a block whose best head costs little can live on that head alone, so less is better. Variants as for ablation.
    `headcount study all-but-one` picks the best head of every layer on one split and reports it on another.
    """

    variant: Literal["zero", "mean", "uniform"] = option("zero", "What replaces the outputs of the ablated heads")
    info = ImportanceInfo(
        needs={"labels"},
        higher_is_keep=False,
        cost="about half a forward pass for each head",
        source="Michel et al. 2019",
        sees_projection=False,
    )

    def measure(self, context: ScoreContext) -> InterventionEffects:
        """Returns a function that reduces each block to each of its heads; `mean` reads the data once more for the means."""
        return InterventionEffects(context, self.variant, gate_keeping_target)
