"""Ablation: how much the loss of an example rises when one head is gated away and all others stay.

    L(x; ξ_h = 0) − L(x; ξ = 1), the mean over examples

Michel, Levy, Neubig 2019. The change of the task's metric stands beside it. Variants (Budhraja et al. 2020): `zero` removes the head's output,
`mean` puts its mean over the data in its place, `uniform` lets it attend to all visible keys alike. Exact: equal to an evaluation under gates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from headcount.importance.base import About, Work
from headcount.importance.interventions import Ablation, all_but

ABOUT = About(
    needs=frozenset({"labels"}),
    higher_is_keep=True,
    cost="about half a forward pass for each head",
    source="Michel et al. 2019",
    variants=("zero", "mean", "uniform"),
    measures_loss=True,
)


def prepare(work: Work, variant: str) -> None:
    """Makes the ablation ready; `mean` reads the data once more for the means."""
    work.kept[f"ablation:{variant}"] = Ablation(work, variant, all_but)


def of_batch(work: Work, batch: Mapping[str, Any], variant: str) -> dict[str, Tensor]:
    """The rise of every example's loss without each head, and what it adds to the metric."""
    return work.kept[f"ablation:{variant}"](batch)
