"""`headcount study`: the papers' experiments. The options of a study are its declared fields; its class is imported only when it is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headcount.app.console.declared import build_declared_command, build_group
from headcount.app.console.inputs import Limit, ModelAndTaskOptions, NewHead, RunOptions, TaskName
from headcount.app.console.options import Device, Dtype, Out, Seed
from headcount.app.console.run_folder import open_run
from headcount.app.console.session import Session
from headcount.app.console.text import Embedded, File, Parser, check_at_most_one_text, check_exactly_one_text
from headcount.core.registry import STUDIES

if TYPE_CHECKING:
    from headcount.studies._base import StudyInfo

OutRequired = Annotated[
    Path, typer.Option("--out", metavar="RUN", help="The run folder: what is finished is kept there, and the same command goes on from it.")
]
ComparedRun = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder that `headcount compare` made.", show_default=False)]


def build() -> typer.Typer:
    """Returns the group of all studies."""
    return build_group("study", STUDIES, "The papers' experiments as commands; each names its own arguments.", build_command)


def build_command(name: str) -> Any:
    """Returns the command of a study: its declared options, and those of the inputs that it uses."""
    cls: Any = STUDIES.get(name)
    return build_declared_command(name, cls, _list_input_parameters(cls.info), _run)


def _run(session: Session, study: Any, values: Mapping[str, Any]) -> None:
    request = Request(**values)
    request.check_text_for(study.info)
    with open_run(session, RunOptions(request.out or request.comparison)) as run:
        from headcount.app.jobs.study import run_study_command

        run_study_command(session, study, request, run)


def _list_input_parameters(info: StudyInfo) -> list[tuple[str, Any, Any]]:
    """Returns the parameters of the inputs of a study: model and data, text, run folder; each as its name, annotation and default."""
    annotations: list[tuple[str, Any, Any]] = [("seed", Seed, 0)]
    if "model" in info.needs:
        annotations = [("common", ModelAndTaskOptions, Parameter.empty)]
        annotations += [("new_head", NewHead, False)] if {"task", "run"} <= info.needs else []
    elif "comparison" in info.needs:
        annotations += [("comparison", ComparedRun, Parameter.empty), ("task", TaskName, None), ("limit", Limit, None)]
        annotations += [("device", Device, "auto"), ("dtype", Dtype, "auto")]
    if info.uses("text"):
        annotations += [("text", File, None), ("embedded", Embedded, None), ("parser", Parser, None)]
    if "comparison" not in info.needs:
        annotations.append(("out", OutRequired, Parameter.empty) if "run" in info.needs else ("out", Out, None))
    return annotations


@dataclass(frozen=True, slots=True)
class Request:
    """The inputs that a command line names for a study."""

    common: ModelAndTaskOptions | None = None
    comparison: Path | None = None
    task: str | None = None
    limit: int | None = None
    device: str = "auto"
    dtype: str = "auto"
    new_head: bool = False
    seed: int = 0
    text: Path | None = None
    embedded: str | None = None
    parser: str | None = None
    out: Path | None = None

    @property
    def has_text(self) -> bool:
        """Whether a text or a task is named."""
        task = self.task if self.common is None else self.common.task
        return self.text is not None or self.embedded is not None or task is not None

    def check_text_for(self, info: StudyInfo) -> None:
        """Raises BadParameter unless the text that a study needs is named, once and with only those options that apply to it."""
        if "text" in info.needs or ("comparison" in info.needs and self.has_text):
            check_exactly_one_text(self.common or ModelAndTaskOptions("", task=self.task), self.text, self.embedded)
        check_at_most_one_text(self.text, self.embedded)
