"""Runs: a folder of finished cells, which can be stopped, killed, copied and taken up again; readable without torch."""

from __future__ import annotations

from headcount.runs.store import Run, describe_run

__all__ = ["Run", "describe_run"]
