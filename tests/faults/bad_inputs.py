"""The catalogue of bad inputs: every one ends in a typed error that names the value and what to do, within bounds of time and memory."""

from __future__ import annotations

import bad_configs  # noqa: F401
import bad_data  # noqa: F401
import bad_lines  # noqa: F401
import bad_models  # noqa: F401
import bad_plans  # noqa: F401
import bad_runs  # noqa: F401
import bad_tables  # noqa: F401
from bad_kit import CASES, Call, Case, Kit, Refused, Stock

WANTED = {"models": 30, "configs": 20, "data": 20, "plans": 15, "score tables": 15, "run folders": 10, "command lines": 10}
"""How many cases each group has at least."""

__all__ = ["CASES", "WANTED", "Call", "Case", "Kit", "Refused", "Stock"]
