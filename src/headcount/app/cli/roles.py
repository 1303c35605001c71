"""`headcount roles`: what every head does, tested over sentences."""

from __future__ import annotations

from typing import Annotated

import typer

from headcount.app.console.command import command
from headcount.app.console.inputs import ModelAndTaskOptions, RunOptions, SplitText
from headcount.app.console.options import split_at_commas
from headcount.app.console.run_folder import open_run
from headcount.app.console.session import Session
from headcount.app.console.text import EmbeddedTextName, ParserName, TextFile, check_exactly_one_text
from headcount.core.definition import DEFAULT_DEFINITION, N_SWAPS


def _check_names_a_role(role_names: str | None) -> str | None:
    if role_names is not None and not split_at_commas(role_names):
        raise typer.BadParameter("--only needs the name of a role, such as offset or syntax:nsubj")
    return role_names


RoleNamesText = Annotated[
    str | None,
    typer.Option(
        "--only",
        metavar="NAME,…",
        callback=_check_names_a_role,
        help="Roles of `headcount ls roles`: all of a name, or one as name:variant.",
    ),
]
RoleDefinitionText = Annotated[
    str,
    typer.Option(
        "--definition",
        metavar="NAME(…)",
        help="When a head has a role, of `headcount ls definitions`: beyond-distance, pande2021 as published, voita2019, …",
    ),
]
NumberOfSwaps = Annotated[
    int,
    typer.Option(
        "--swaps",
        min=0,
        help="How often sentences get annotations of others of equal length, to estimate how many labels are false; 0 for no estimate.",
    ),
]
ShowAll = Annotated[bool, typer.Option("--all", help="Show every head × role, every pair of roles and every disagreement.")]
DEFAULT_FOLDER = RunOptions()


@command
def run(
    session: Session,
    data: ModelAndTaskOptions,
    text: TextFile = None,
    embedded: EmbeddedTextName = None,
    parser: ParserName = None,
    only: RoleNamesText = None,
    run_options: RunOptions = DEFAULT_FOLDER,
    split_name: SplitText = "calibration",
    definition: RoleDefinitionText = DEFAULT_DEFINITION,
    swaps: NumberOfSwaps = N_SWAPS,
    show_all: ShowAll = False,
) -> None:
    """Label every head with what it does, how strongly, and how sure that is: on a text, or on the texts or images of a task."""
    check_exactly_one_text(data, text, embedded)
    with open_run(session, run_options) as run_folder:
        from headcount.app.jobs.roles import RoleRequest, label_heads

        names = split_at_commas(only) if only else None
        request = RoleRequest(names, definition, swaps, text=text, embedded=embedded, parser=parser, split=split_name)
        label_heads(session, data, request, run_folder, show_all=show_all)
