"""`headcount roles`: what every head does, tested over sentences."""

from __future__ import annotations

from typing import Annotated

import typer

from headcount.app.console.command import command
from headcount.app.console.inputs import RunOptions, Split, TaskOptions
from headcount.app.console.options import check_choice, split
from headcount.app.console.run_folder import open_run
from headcount.app.console.session import Session
from headcount.app.console.text import Embedded, File, Parser, check_text

CORRECTIONS = ("bh", "bonferroni", "none")


def _check_only(text: str | None) -> str | None:
    if text is not None and not split(text):
        raise typer.BadParameter("--only needs the name of a role, such as offset or syntax:nsubj")
    return text


Only = Annotated[
    str | None,
    typer.Option(
        "--only", metavar="NAME,…", callback=_check_only, help="Roles of `headcount ls roles`: all of a name, or one as name:variant."
    ),
]
Tau = Annotated[float, typer.Option("--tau", metavar="X", min=0.0, help="The bias that a head must exceed: 3 is the published threshold.")]
Alpha = Annotated[float, typer.Option("--alpha", metavar="X", min=1e-6, max=0.5, help="The level of the test after correction.")]
Correct = Annotated[
    str,
    typer.Option(
        "--correct",
        metavar="HOW",
        callback=check_choice("correction", CORRECTIONS),
        help="bh, bonferroni or none, over all heads and roles.",
    ),
]
Everything = Annotated[bool, typer.Option("--all", help="Show every head × role, every pair of roles and every disagreement.")]
DEFAULT_FOLDER = RunOptions()


@command
def run(
    session: Session,
    data: TaskOptions,
    text: File = None,
    embedded: Embedded = None,
    parser: Parser = None,
    only: Only = None,
    folder: RunOptions = DEFAULT_FOLDER,
    split_name: Split = "calibration",
    tau: Tau = 3.0,
    alpha: Alpha = 0.05,
    correct: Correct = "bh",
    everything: Everything = False,
) -> None:
    """Label every head with what it does, how strongly, and how sure that is: on a text, or on the texts or images of a task."""
    check_text(data, text, embedded)
    with open_run(session, folder) as run_folder:
        from headcount.app.jobs.roles import RoleRequest, label_heads

        names = split(only) if only else None
        request = RoleRequest(names, tau, alpha, correct, text=text, embedded=embedded, parser=parser, split=split_name)
        label_heads(session, data, request, run_folder, show_all=everything)
