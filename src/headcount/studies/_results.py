"""The description of a run by a study, its rows as an artifact of the run, which writes them as a table, and the correction of p-values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from headcount.core.stats.significance import benjamini_hochberg
from headcount.models.provenance import machine_of, model_record, provenance
from headcount.runs.artifacts import ArtifactKey
from headcount.runs.describe import describe_run as describe
from headcount.runs.store import Run
from headcount.runs.tables import STUDY
from headcount.studies._base import LoadedModel, StudyContext


class TestedRow(Protocol):
    """A frozen dataclass with a p-value, None where nothing was tested, and its corrected p-value."""

    @property
    def p(self) -> float | None:
        """The p-value."""
        ...

    @property
    def q(self) -> float | None:
        """The p-value corrected over the rows of a table."""
        ...


Row = TypeVar("Row", bound=TestedRow)


def correct_rows(rows: Sequence[Row]) -> list[Row]:
    """Returns the rows with q, their p-value corrected over the rows that have one (Benjamini–Hochberg); None for rows without."""
    p_values = [row.p for row in rows if row.p is not None]
    corrected = iter(benjamini_hochberg(p_values) if p_values else ())
    values: list[Any] = [{"q": None if row.p is None else float(next(corrected))} for row in rows]
    return [replace(row, **value) for row, value in zip(rows, values, strict=True)]  # pyright: ignore[reportArgumentType]


def describe_run(context: StudyContext, loaded: LoadedModel, config: Mapping[str, object]) -> None:
    """Writes the model and the configuration of a study to the run folder of the context, if there is one.

    Raises:
        ArtifactError: the run folder belongs to another model.
    """
    if context.run is None:
        return
    with context.progress("hashing the weights"):
        record = describe(
            model_record(loaded.model, loaded.name),
            command=context.command,
            seed=context.seed,
            task=context.sources.task_name,
            config={**config, "opened": context.sources.opening_record(loaded.name)},
            machine=machine_of(loaded.model),
        )
        context.run.describe(record, loaded.heads)


def keep_rows(run: Run | None, study: str, request: Mapping[str, object], rows: Sequence[Mapping[str, object]]) -> None:
    """Commits the rows of a study to a run, if there is one that this process leads."""
    if run is not None and run.leads:
        run.present(run.commit(ArtifactKey(STUDY, study, dict(request)), {"rows": [dict(row) for row in rows]}, provenance=provenance()))
