"""The files of a paper's experiments on a model: those of every study, a summary of all of them, and the bibliography."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headcount.core.errors import MissingExtra
from headcount.core.files import make_folder, write_atomic
from headcount.core.study_result import StudyResult, Table
from headcount.runs.artifacts import safe_name
from headcount.runs.study_files import figure_file_name, write_study_files

PAPERS = "papers"
"""The folder of a run that holds the files of papers, each in a folder of its own."""
SUMMARY, BIBLIOGRAPHY = "summary.md", "references.bib"


@dataclass(frozen=True, slots=True)
class PaperEntry:
    """One experiment of a paper: its result, or why there is none, what the paper reports, and the command that measures it."""

    id: str
    title: str
    part: str
    result: StudyResult | None
    reason: str = ""
    published: Table | None = None
    command: str = ""


@dataclass(frozen=True, slots=True)
class PaperSummary:
    """A paper on one model: its reference, the command that ran, the conditions of all experiments, and the experiments in order."""

    name: str
    title: str
    bibtex: str
    command: str
    conditions: Sequence[str]
    entries: Sequence[PaperEntry]


def write_paper_summary_and_files(page: PaperSummary, folder: Path) -> Path:
    """Writes the files of every experiment, the summary and the bibliography to a folder, and returns the path of the summary.

    Raises:
        MissingExtra: matplotlib is not installed, so that no figure is drawn; everything else is written.
    """
    make_folder(folder)
    problem = None
    for entry in page.entries:
        if entry.result is not None:
            try:
                write_study_files(entry.result, folder / safe_name(entry.id))
            except MissingExtra as error:
                problem = error
    write_atomic(folder / BIBLIOGRAPHY, f"{page.bibtex}\n".encode())
    write_atomic(folder / SUMMARY, summary_to_markdown(page).encode())
    if problem is not None:
        raise problem
    return folder / SUMMARY


def summary_to_markdown(page: PaperSummary) -> str:
    """Returns the summary as Markdown: figures, tables and verdicts of all experiments, with the paper's own values beside ours."""
    lines = [f"# {page.title}", "", *page.conditions, f"Made by: `{page.command}`", ""]
    for entry in page.entries:
        lines += [f"## {entry.id}: {entry.title}", "", f"*{page.name}, {entry.part}*" if entry.part else f"*{page.name}*", ""]
        if entry.result is None:
            lines += [f"Not measured: {entry.reason}.", ""]
            continue
        lines += [entry.result.sentence, ""]
        for figure in entry.result.figures:
            alt_text = re.sub(r"[\\\[\]]", r"\\\g<0>", figure.title).replace("\n", " ")
            lines += [f"![{alt_text}]({safe_name(entry.id)}/{figure_file_name(figure, 'svg')})", ""]
        for table in entry.result.tables:
            lines += _table_to_markdown(table) if table.is_printed else []
        if entry.published is not None:
            lines += published_to_markdown(entry.published)
        lines += [*(f"- {note}" for note in entry.result.notes), ""]
    return "\n".join(lines).rstrip() + "\n"


def published_to_markdown(table: Table) -> list[str]:
    """Returns the lines of the summary about what the paper reports."""
    return ["As published:", "", *_table_to_markdown(table)]


def _table_to_markdown(table: Table) -> list[str]:
    formatted = table.format()
    alignment = ["---:" if is_number else "---" for is_number in formatted.are_numbers]
    rows = [formatted.headings, alignment, *formatted.rows]
    escaped_rows = [[cell.replace("|", r"\|").replace("\n", " ") for cell in row] for row in rows]
    lines = [f"| {' | '.join(row)} |" for row in escaped_rows]
    return [*([f"{table.title}:", ""] if table.title else []), *lines, ""]
