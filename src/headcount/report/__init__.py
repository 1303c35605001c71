"""The report of a run: one file that opens in any browser, made out of the files of the run folder alone. Knows no torch."""

from __future__ import annotations

from headcount.report.collect import collect
from headcount.report.page import page
from headcount.report.write import write_report

__all__ = ["collect", "page", "write_report"]
