"""`headcount report`: one run, or the comparison of two, as one HTML file. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headcount.app.console.command import command
from headcount.app.console.session import Session

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.", show_default=False)]
SecondRun = Annotated[
    Path | None, typer.Argument(metavar="RUN_B", help="A second run of the same heads: B − A is shown.", show_default=False)
]
Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="The file to write; RUN/report.html by default.")]
Figures = Annotated[Path | None, typer.Option("--figures", metavar="DIR", help="Also write figures for papers there, as SVG and PDF.")]
MaxMb = Annotated[float, typer.Option("--max-mb", metavar="MB", help="The largest size of the file; attention maps are left out first.")]


@command
def run(
    session: Session,
    run: RunPath,
    run_b: SecondRun = None,
    out: Out = None,
    figures: Figures = None,
    max_mb: MaxMb = 2.0,
) -> None:
    """Write the report of a run: head map, curves, costs, roles, attention, all in one file without a network."""
    from headcount.runs.report.compare import why_not_comparable
    from headcount.runs.report.sentences import missing_model_warnings
    from headcount.runs.report.write import MEGABYTE, too_large, write_report
    from headcount.runs.store import Run

    if run_b is not None and run.resolve() == run_b.resolve():
        raise typer.BadParameter(f"{run} would be compared with itself; name another run, or one alone")
    session.doing("reading the run")
    first, second = Run.open(run), Run.open(run_b) if run_b is not None else None
    path = write_report(first, second, out, max_mb=max_mb)
    for opened in filter(None, (first, second)):
        for text in missing_model_warnings(opened, opened.record()):
            session.note(f"warning: {opened.folder}: {text}")
    reason = None if second is None else why_not_comparable(first, second)
    if reason:
        session.note(f"warning: {reason}")
    if path.stat().st_size > max_mb * MEGABYTE:
        session.note(f"warning: {too_large(path.stat().st_size, round(max_mb * MEGABYTE))}")
    figure_paths: list[Path] = []
    if figures is not None:
        from headcount.runs.report.figures import write_figures

        session.doing("drawing figures")
        figure_paths = write_figures(first, figures)
    session.note(f"{path.stat().st_size / 1e6:.2f} MB; open it in a browser")
    for written in (path, *figure_paths):
        session.line(str(written))
    session.result({"report": str(path), "bytes": path.stat().st_size, "figures": [str(figure) for figure in figure_paths]})
    session.next("serve", *filter(None, (run, run_b)))
