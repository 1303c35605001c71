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
PageFile = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="The file to write; RUN/report.html by default.")]
FiguresFolder = Annotated[
    Path | None,
    typer.Option("--figures", metavar="DIR", help="Also write all figures of the run there, as SVG and PDF; say which it lacks."),
]
MaxMb = Annotated[float, typer.Option("--max-mb", metavar="MB", help="The largest size of the file; attention maps are left out first.")]


@command
def run(
    session: Session,
    run: RunPath,
    run_b: SecondRun = None,
    out: PageFile = None,
    figures: FiguresFolder = None,
    max_mb: MaxMb = 2.0,
) -> None:
    """Write the report of a run: head map, curves, costs, roles, attention, all in one file without a network."""
    if run_b is not None and run.resolve() == run_b.resolve():
        raise typer.BadParameter(f"{run} would be compared with itself; name another run, or one alone")
    from headcount.app.jobs.report import write_page_and_figures

    write_page_and_figures(session, run, run_b, out, figures, max_mb)
