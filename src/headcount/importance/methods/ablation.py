from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headcount.core.options import option
from headcount.importance.base import BatchImportance, ImportanceInfo, ScoreContext
from headcount.importance.interventions import InterventionEffects, gate_removing_target


@dataclass(frozen=True)
class Ablation(BatchImportance):
    """Ablation: how much the loss of an example rises when one head is gated away and all others stay.

        L(x; ξ_h = 0) − L(x; ξ = 1), the mean over examples

    Michel, Levy, Neubig 2019. The change of the task's metric stands beside it. Variants (Budhraja et al. 2020): `zero` removes the head's output,
    `mean` puts its mean over the data in its place, `uniform` lets it attend to all visible keys alike. Exact: equal to an evaluation under gates.
    """

    variant: Literal["zero", "mean", "uniform"] = option("zero", "What replaces the output of the ablated head")
    info = ImportanceInfo(
        needs={"labels"},
        higher_is_keep=True,
        cost="about half a forward pass for each head",
        source="Michel et al. 2019",
        measures_loss=True,
        adaptive=True,
    )

    def measure(self, context: ScoreContext) -> InterventionEffects:
        """Returns a function that ablates every head on a batch; `mean` reads the data once more for the means."""
        return InterventionEffects(context, self.variant, gate_removing_target)
