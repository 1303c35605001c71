"""The studies and papers of a run for the page: sentences, tables, figures as data, and what the papers report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headcount.core.registry import STUDIES
from headcount.core.study_result import Cell, Column, StudyResult, Table
from headcount.runs.artifacts import Artifact
from headcount.runs.paper_files import PaperEntry
from headcount.runs.paper_pages import read_paper_pages
from headcount.runs.report import contract
from headcount.runs.report.plain import format_count, round_number
from headcount.runs.report.scores import summary_of_registered
from headcount.runs.store import Run
from headcount.runs.tables import STUDY

DIGITS = 7
"""Significant digits of the numbers of studies, so that what the page shows is what their tables show."""


def collect_studies(run: Run) -> list[contract.StudyPage]:
    """Returns the page of every study of a run."""
    pages: list[contract.StudyPage] = []
    for name, artifact in run.results(STUDY).items():
        inputs = artifact.key.inputs
        conditions = [f"{key.capitalize()}: {inputs[key]}." for key in ("model", "task", "seed") if inputs.get(key) not in (None, "")]
        if inputs.get("limit"):
            conditions.append(f"At most {format_count(inputs['limit'], 'example')} of each split.")
        pages.append(
            {
                "name": name,
                "about": summary_of_registered(STUDIES, name),
                "command": artifact.content.get("command", ""),
                "conditions": conditions,
                "result": pack_result(unpack_study(artifact)),
            }
        )
    return pages


def unpack_study(artifact: Artifact) -> StudyResult:
    """Returns the result in the artifact of a study; one that holds rows alone has a single table of them."""
    if "result" in artifact.content:
        return StudyResult.from_dict(artifact.content["result"])
    rows: Sequence[Mapping[str, object]] = artifact.content["rows"]
    names = list(dict.fromkeys(key for row in rows for key in row))
    cells = tuple(tuple(_pack_cell(row.get(name)) for name in names) for row in rows)
    return StudyResult(artifact.key.name, (Table("rows", tuple(map(Column, names)), cells),), "")


def collect_papers(run: Run) -> list[contract.PaperPage]:
    """Returns the page of every paper of a run, with its experiments in order."""
    return [
        {
            "name": page.name,
            "title": page.title,
            "bibtex": page.bibtex,
            "command": page.command,
            "conditions": list(page.conditions),
            "items": [_pack_paper_entry(entry) for entry in page.entries],
        }
        for page in read_paper_pages(run)
    ]


def _pack_paper_entry(entry: PaperEntry) -> contract.PaperItem:
    return {
        "id": entry.id,
        "title": entry.title,
        "part": entry.part,
        "reason": entry.reason,
        "command": entry.command,
        "result": None if entry.result is None else pack_result(entry.result),
        "published": None if entry.published is None else pack_table(entry.published),
    }


def pack_result(result: StudyResult) -> contract.StudyResultData:
    """Returns a result as the page reads it, its numbers rounded."""
    return {
        "study": result.study,
        "sentence": result.sentence,
        "notes": list(result.notes),
        "tables": [pack_table(table) for table in result.tables],
        "figures": [_round_numbers(figure.to_dict()) for figure in result.figures],
    }


def pack_table(table: Table) -> contract.StudyTable:
    """Returns a table as the page reads it, its numbers rounded."""
    columns: list[contract.StudyColumn] = [
        {
            "name": column.name,
            "unit": column.unit,
            "format": column.format,
            "interval": None if column.interval is None else list(column.interval),
        }
        for column in table.columns
    ]
    return {
        "name": table.name,
        "title": table.title,
        "columns": columns,
        "rows": [[_pack_cell(cell) for cell in row] for row in table.rows_with_rounding_errors_zeroed()],
        "is_printed": table.is_printed,
    }


def _pack_cell(value: object) -> Cell:
    if value is None or isinstance(value, bool | str):
        return value
    return _round_numbers(value) if isinstance(value, int | float) else str(value)


def _round_numbers(value: Any) -> Any:
    """Returns plain data with every number rounded; None where it is not finite."""
    if isinstance(value, dict):
        return {name: _round_numbers(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_round_numbers(inner) for inner in value]
    if isinstance(value, bool) or not isinstance(value, float):
        return value
    return round_number(value, DIGITS) if value - value == 0 else None
