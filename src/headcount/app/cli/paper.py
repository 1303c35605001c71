"""`headcount paper`: all experiments of a paper on one model. The further inputs of a paper are its declared fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headcount.app.console.declared import InputParameter, build_declared_command, build_group
from headcount.app.console.inputs import ModelAndTaskOptions, NewHead
from headcount.app.console.run_folder import lead_run
from headcount.app.console.session import Session
from headcount.app.console.text import EmbeddedTextName, ParserName, TextFile, check_at_most_one_text
from headcount.core.registry import PAPERS

if TYPE_CHECKING:
    from headcount.studies._paper import Paper

Only = Annotated[
    str | None, typer.Option("--only", metavar="ITEM,…", help="Items of the paper alone, by id or place: M1, 'Fig. 3'.", show_default=False)
]
OutUnlessListed = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="RUN",
        help="The run folder, which --list alone can do without: what is finished is kept there, and the same command goes on from it.",
        show_default=False,
    ),
]
SUMMARY = "The experiments of a paper on your model: its figures and tables from one command that can be stopped and resumed."
ListItems = Annotated[bool, typer.Option("--list", help="List the items and what each needs, and stop.")]


def build() -> typer.Typer:
    """Returns the group of all papers."""
    return build_group("paper", PAPERS, SUMMARY, build_paper_command)


@dataclass(frozen=True, slots=True)
class PaperRequest:
    """The inputs that a command line names for the experiments of a paper."""

    common: ModelAndTaskOptions
    out: Path | None = None
    text: Path | None = None
    embedded: str | None = None
    parser: str | None = None
    only: str | None = None
    list_items: bool = False
    new_head: bool = False


def build_paper_command(paper_name: str) -> Any:
    """Returns the command of a paper: its declared options, and those of its model, data and text."""
    inputs = [
        InputParameter("common", ModelAndTaskOptions, Parameter.empty),
        InputParameter("new_head", NewHead, False),
        InputParameter("out", OutUnlessListed, None),
        InputParameter("only", Only, None),
        InputParameter("list_items", ListItems, False),
        InputParameter("text", TextFile, None),
        InputParameter("embedded", EmbeddedTextName, None),
        InputParameter("parser", ParserName, None),
    ]
    return build_declared_command(paper_name, PAPERS.get(paper_name), inputs, _run_paper)


def _run_paper(session: Session, paper: Paper, input_values: Mapping[str, Any]) -> None:
    request = PaperRequest(**input_values)
    check_at_most_one_text(request.text, request.embedded)
    from headcount.app.jobs.paper import run_paper_items, show_paper_items

    if request.list_items:
        show_paper_items(session, paper, request)
        return
    if request.out is None:
        raise typer.BadParameter("name a run folder: --out RUN. It keeps what is finished")
    with lead_run(session, request.out, "paper is led by one process; start it without torchrun") as run:
        run_paper_items(session, paper, request, run)
