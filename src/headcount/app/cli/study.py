"""`headcount study`: the papers' experiments. The options of a study are its declared fields; its class is imported only when it is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headcount.app.console.declared import InputParameter, build_declared_command, build_group
from headcount.app.console.inputs import Limit, ModelAndTaskOptions, NewHead, RunOptions, TaskName
from headcount.app.console.options import Device, Dtype, OptionalOutRun, Seed
from headcount.app.console.run_folder import open_run
from headcount.app.console.session import Session
from headcount.app.console.text import EmbeddedTextName, ParserName, TextFile, check_at_most_one_text, check_exactly_one_text
from headcount.core.registry import STUDIES

if TYPE_CHECKING:
    from headcount.studies._base import Study, StudyInfo

SUMMARY = "The papers' experiments as commands; each names its own arguments."
OutRequired = Annotated[
    Path, typer.Option("--out", metavar="RUN", help="The run folder: what is finished is kept there, and the same command goes on from it.")
]
ComparedRun = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder that `headcount compare` made.", show_default=False)]


def build() -> typer.Typer:
    """Returns the group of all studies."""
    return build_group("study", STUDIES, SUMMARY, build_study_command)


def build_study_command(study_name: str) -> Any:
    """Returns the command of a study: its declared options, and those of the inputs that it uses."""
    cls: Any = STUDIES.get(study_name)
    return build_declared_command(study_name, cls, _list_input_parameters(cls.info), _run_study)


def _run_study(session: Session, study: Study, input_values: Mapping[str, Any]) -> None:
    request = Request(**input_values)
    request.check_text_for(study.info)
    with open_run(session, RunOptions(request.out or request.comparison)) as run:
        from headcount.app.jobs.study import run_study_command

        run_study_command(session, study, request, run)


def _list_input_parameters(info: StudyInfo) -> list[InputParameter]:
    """Returns the parameters of the inputs of a study: model and data, text, run folder."""
    parameters = [InputParameter("seed", Seed, 0)]
    if "model" in info.needs:
        parameters = [InputParameter("common", ModelAndTaskOptions, Parameter.empty)]
        parameters += [InputParameter("new_head", NewHead, False)] if {"task", "run"} <= info.needs else []
    elif "comparison" in info.needs:
        parameters += [
            InputParameter("comparison", ComparedRun, Parameter.empty),
            InputParameter("task", TaskName, None),
            InputParameter("limit", Limit, None),
        ]
        parameters += [InputParameter("device", Device, "auto"), InputParameter("dtype", Dtype, "auto")]
    if info.uses("text"):
        parameters += [
            InputParameter("text", TextFile, None),
            InputParameter("embedded", EmbeddedTextName, None),
            InputParameter("parser", ParserName, None),
        ]
    if "comparison" not in info.needs:
        parameters.append(
            InputParameter("out", OutRequired, Parameter.empty) if "run" in info.needs else InputParameter("out", OptionalOutRun, None)
        )
    return parameters


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
    def has_text_or_task(self) -> bool:
        """Whether a text or a task is named."""
        task = self.task if self.common is None else self.common.task
        return self.text is not None or self.embedded is not None or task is not None

    def check_text_for(self, info: StudyInfo) -> None:
        """Raises BadParameter unless the text that a study needs is named, once and with only those options that apply to it."""
        if "text" in info.needs or ("comparison" in info.needs and self.has_text_or_task):
            check_exactly_one_text(self.common or ModelAndTaskOptions("", task=self.task), self.text, self.embedded)
        check_at_most_one_text(self.text, self.embedded)
