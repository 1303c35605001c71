"""Pruners: ask for K heads, get the best K-head model. One method per file, found by its name."""

from __future__ import annotations

from headcount.pruners._contract import About, Choice, Work
from headcount.pruners._prune import PRUNERS, Method, Pruned, carry_out, fold, parse_method, prune

__all__ = ["PRUNERS", "About", "Choice", "Method", "Pruned", "Work", "carry_out", "fold", "parse_method", "prune"]
