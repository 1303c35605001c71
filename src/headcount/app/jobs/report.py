"""`headcount report`: writes the page and the figures of a run. Imports no torch."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from headcount.app.console.missing_figures import MissingFigure, find_missing_figures
from headcount.app.console.session import Session
from headcount.app.console.words import prune_command
from headcount.runs.report.compare import why_not_comparable
from headcount.runs.report.figures import write_figures_with_matplotlib
from headcount.runs.report.sentences import missing_model_warnings
from headcount.runs.report.write import MEGABYTE, too_large_sentence, write_report
from headcount.runs.store import Run


def write_page_and_figures(
    session: Session, run_a: Path, run_b: Path | None, page_file: Path | None, figures_folder: Path | None, max_megabytes: float
) -> None:
    """Writes the page of a run, or of the comparison of two, and the figures of the first if a folder for them is named."""
    session.begin_work("reading the run")
    first, second = Run.open(run_a), Run.open(run_b) if run_b is not None else None
    path = write_report(first, second, page_file, max_mb=max_megabytes, prune_command=prune_command)
    for run in filter(None, (first, second)):
        for text in missing_model_warnings(run, run.record()):
            session.write_note(f"warning: {run.folder}: {text}")
    reason = None if second is None else why_not_comparable(first, second)
    if reason:
        session.write_note(f"warning: {reason}")
    if path.stat().st_size > max_megabytes * MEGABYTE:
        session.write_note(f"warning: {too_large_sentence(path.stat().st_size, round(max_megabytes * MEGABYTE))}")
    figures: list[Path] = []
    missing: list[MissingFigure] = []
    if figures_folder is not None:
        session.begin_work("drawing figures")
        figure_files = write_figures_with_matplotlib(first, figures_folder)
        figures, missing = figure_files.paths, find_missing_figures(first, figure_files.data)
    session.write_note(f"{path.stat().st_size / 1e6:.2f} MB; open it in a browser")
    for written in (path, *figures):
        session.write_line(str(written))
    for figure in missing:
        session.write_note(f"not drawn: {figure.name}: {figure.reason}" + (f"; {figure.command}" if figure.command else ""))
    session.write_json(
        {
            "report": str(path),
            "bytes": path.stat().st_size,
            "figures": list(map(str, figures)),
            "not_drawn": list(map(asdict, missing)),
        }
    )
    session.suggest_next("serve", *filter(None, (run_a, run_b)))
