"""A cheap score against true ablation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headcount.stats.calibration import reliability
from headcount.stats.correlation import correlate
from headcount.stats.ranks import Overlap, overlap
from headcount.stats.samples import Estimate, Samples, StatisticsError, derived


@dataclass(frozen=True, slots=True)
class Agreement:
    """A cheap score against the truth: Spearman with interval and p-value, shared lowest and highest k, and the noise ceiling.

    The ceiling √reliability(truth) is the correlation that the true scores themselves would have with the truth as measured.
    """

    spearman: Estimate
    p: float
    lowest: Overlap
    highest: Overlap
    ceiling: float


def agreement(
    cheap: Samples, truth: Samples, k: int, *, seed: int, paired: bool = False, repeats: int = 2000, level: float = 0.95
) -> Agreement:
    """How well a cheap score stands in for true ablation, both with more meaning keep (`Samples.signed`).

    p is two-sided for no association between the rankings: t = r √((n−2)/(1−r²)) over heads.
    """
    from scipy import special

    rho = correlate(cheap, truth, seed=seed, paired=paired, repeats=repeats, level=level)
    free = cheap.n_heads - 2
    if free < 1:
        raise StatisticsError(f"agreement needs 3 heads or more, got {cheap.n_heads}")
    t = abs(rho.value) * np.sqrt(free / max((1 - rho.value) * (1 + rho.value), np.finfo(float).tiny))
    means = cheap.means(), truth.means()
    ceiling = float(np.sqrt(reliability(truth, seed=derived(seed, 2)).value))
    return Agreement(rho, 2 * float(special.stdtr(free, -t)), overlap(*means, k), overlap(*means, k, end="highest"), ceiling)
