"""Repair without training: output projections refitted in closed form for the heads that stay."""

from __future__ import annotations

from headcount.refit.fit import Fitted
from headcount.refit.repair import EXAMPLES, Repaired, refit, repair

__all__ = ["EXAMPLES", "Fitted", "Repaired", "refit", "repair"]
