"""A cheap score against true ablation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headcount.core.errors import StatisticsError
from headcount.core.stats.calibration import reliability
from headcount.core.stats.correlation import Correlated, correlate
from headcount.core.stats.ranks import Overlap, overlap
from headcount.core.stats.samples import Samples, derived


@dataclass(frozen=True, slots=True)
class Agreement:
    """A cheap score against the truth: Spearman with interval and p-value over examples, shared lowest and highest k, and the noise ceiling.

    The ceiling √reliability(truth) is the correlation that the true scores themselves would have with the truth as measured.
    """

    spearman: Correlated
    lowest: Overlap
    highest: Overlap
    ceiling: float


def agreement(
    cheap: Samples, truth: Samples, k: int, *, seed: int, paired: bool = False, repeats: int = 2000, level: float = 0.95
) -> Agreement:
    """How well a cheap score stands in for true ablation, both with more meaning keep (`Samples.signed`)."""
    rho = correlate(cheap, truth, seed=seed, paired=paired, repeats=repeats, level=level)
    if cheap.n_heads < 3:
        raise StatisticsError(f"agreement needs 3 heads or more, got {cheap.n_heads}")
    means = cheap.means(), truth.means()
    ceiling = float(np.sqrt(reliability(truth, seed=derived(seed, 2)).value))
    return Agreement(rho, overlap(*means, k), overlap(*means, k, end="highest"), ceiling)
