"""Importance: how much every head matters, one method per file, found by its name."""

from __future__ import annotations

from headcount.importance._contract import About, Observation, Work, per_token
from headcount.importance._resume import score_into
from headcount.importance._score import Method, score, score_all
from headcount.importance._verdict import Verdict, agreements, check_lowest, measures_loss, signed_samples, stabilities, verdicts
from headcount.registry import METHODS

__all__ = [
    "METHODS",
    "About",
    "Method",
    "Observation",
    "Verdict",
    "Work",
    "agreements",
    "check_lowest",
    "measures_loss",
    "per_token",
    "score",
    "score_all",
    "score_into",
    "signed_samples",
    "stabilities",
    "verdicts",
]
