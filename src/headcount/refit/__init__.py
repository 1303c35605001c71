"""Repair without training: output projections refitted in closed form for the heads that stay, or the means of those that go in their bias."""

from __future__ import annotations

from headcount.refit.fit import Fitted
from headcount.refit.means import Ablation, check_ablation, fold_means
from headcount.refit.repair import EXAMPLES, Repaired, refit, repair

__all__ = ["EXAMPLES", "Ablation", "Fitted", "Repaired", "check_ablation", "fold_means", "refit", "repair"]
