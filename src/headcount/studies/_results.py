"""The rows of a study as an artifact of a run, which writes them as a table, and the correction of their p-values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headcount.core.stats.significance import benjamini_hochberg
from headcount.models.provenance import provenance
from headcount.runs.artifacts import ArtifactKey
from headcount.runs.store import Run
from headcount.runs.tables import STUDY

SIGNIFICANT = 0.05
"""The corrected p-value up to which a difference counts as significant."""


def keep_rows(run: Run | None, study: str, request: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """Commits the rows of a study to a run, if there is one that this process leads."""
    if run is not None and run.leads:
        run.present(run.commit(ArtifactKey(STUDY, study, dict(request)), {"rows": [dict(row) for row in rows]}, provenance=provenance()))


def correct_rows(rows: Sequence[dict[str, Any]], p: str = "p", q: str = "q") -> None:
    """Adds to every row its p-value corrected over the rows that have one (Benjamini–Hochberg), and None to the rows without."""
    tested = [row for row in rows if row[p] is not None]
    corrected = benjamini_hochberg([row[p] for row in tested]) if tested else []
    for row in rows:
        row[q] = None
    for row, value in zip(tested, corrected, strict=True):
        row[q] = float(value)


def format_interval(value: float, low: float | None, high: float | None, form: str = "+.3g") -> str:
    """Returns a number with its interval as text, such as `+0.12 (+0.05 … +0.19)`; without an interval, the number alone."""
    ends = "" if low is None or high is None else f" ({format(low, form)} … {format(high, form)})"
    return f"{format(value, form)}{ends}"
