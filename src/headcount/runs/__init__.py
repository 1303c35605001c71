"""Runs: a folder of finished results, written atomically, readable without torch."""

from __future__ import annotations

from headcount.runs.store import Run, describe_run

__all__ = ["Run", "describe_run"]
