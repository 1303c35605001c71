"""What studies share with runs: the folder they keep results in, and their rows as an artifact, of which the run makes a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from headcount.runs.store import Run

Folder = Annotated[
    Path, typer.Option("--out", metavar="RUN", help="The run folder: what is finished is kept there, and the same command goes on from it.")
]


def led(run: Run | None, study: str) -> Run:
    """The run, which a study that keeps its work needs."""
    if run is None:
        raise typer.BadParameter(f"study {study} is led by one process; start it without torchrun")
    return run


def keep_rows(run: Run | None, study: str, asked: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """Makes the rows of a study a result of the run, with a table of their own."""
    if run is None or not run.leads:
        return
    from headcount.models.provenance import provenance
    from headcount.runs.artifacts import ArtifactKey
    from headcount.runs.tables import STUDY

    run.present(run.commit(ArtifactKey(STUDY, study, dict(asked)), {"rows": [dict(row) for row in rows]}, provenance=provenance()))


def corrected(rows: Sequence[dict[str, Any]], p: str = "p", q: str = "q") -> None:
    """Adds to every row the p-value corrected over all of them that have one (Benjamini–Hochberg), None to the others."""
    from headcount.core.stats.significance import benjamini_hochberg

    tested = [row for row in rows if row[p] is not None]
    made = benjamini_hochberg([row[p] for row in tested]) if tested else []
    for row in rows:
        row[q] = None
    for row, value in zip(tested, made, strict=True):
        row[q] = float(value)
