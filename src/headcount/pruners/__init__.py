"""Pruners: ask for K heads, get the best K-head model. One method per file, found by its name."""

from __future__ import annotations

from headcount.pruners._contract import About, Choice, Work, check_size, read_options, size_option
from headcount.pruners._prune import Method, Pruned, carry_out, check_stand_in, fold, parse_method, prune
from headcount.pruners._scope import only
from headcount.registry import PRUNERS

__all__ = [
    "PRUNERS",
    "About",
    "Choice",
    "Method",
    "Pruned",
    "Work",
    "carry_out",
    "check_size",
    "check_stand_in",
    "fold",
    "only",
    "parse_method",
    "prune",
    "read_options",
    "size_option",
]
