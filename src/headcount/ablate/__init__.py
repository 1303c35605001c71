"""Exact ablation of every head on a batch, much faster than one evaluation per head."""

from headcount.ablate.engine import Ablator
from headcount.ablate.replay import Change

__all__ = ["Ablator", "Change"]
