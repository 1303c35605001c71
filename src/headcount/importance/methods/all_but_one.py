"""All but one: how much the loss of an example rises when a head is the only one left in its block; all other blocks stay whole.

Michel, Levy, Neubig 2019: a block whose best head costs little can live on that head alone, so less is better. Variants as for ablation.
`headcount study all-but-one` picks the best head of every layer on one split and reports it on another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from headcount.importance.base import About, Work
from headcount.importance.interventions import Ablation, none_but

ABOUT = About(
    needs=frozenset({"labels"}),
    higher_is_keep=False,
    cost="about half a forward pass for each head",
    source="Michel et al. 2019",
    variants=("zero", "mean", "uniform"),
    sees_projection=False,
)


def prepare(work: Work, variant: str) -> None:
    """Makes the ablation ready; `mean` reads the data once more for the means."""
    work.kept[f"all-but-one:{variant}"] = Ablation(work, variant, none_but)


def of_batch(work: Work, batch: Mapping[str, Any], variant: str) -> dict[str, Tensor]:
    """The rise of every example's loss with only that head of the block, and what it adds to the metric."""
    return work.kept[f"all-but-one:{variant}"](batch)
