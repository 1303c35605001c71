"""`headcount study`: the papers' experiments. The options of a study are its declared fields; its class is imported only when it is named."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from inspect import Parameter, Signature, getdoc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from headcount.app.console.command import command
from headcount.app.console.inputs import Limit, NewHead, TaskName, TaskOptions
from headcount.app.console.options import Device, Dtype, Out, Seed
from headcount.app.console.pruning import split_methods
from headcount.app.console.session import Session
from headcount.app.console.text import Embedded, File, Parser
from headcount.core.errors import OptionError, unknown
from headcount.core.options import Option, format_value, options_of, parse_value
from headcount.core.registry import STUDIES

if TYPE_CHECKING:
    from headcount.studies._base import StudyInfo

OutRequired = Annotated[
    Path, typer.Option("--out", metavar="RUN", help="The run folder: what is finished is kept there, and the same command goes on from it.")
]
ComparedRun = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder that `headcount compare` made.", show_default=False)]


class Studies(TyperGroup):
    """The studies; the help of the group reads their summaries without importing them."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Returns the names of all registered studies."""
        return STUDIES.names()

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Returns a command without options, for the list of commands; None for an unknown study."""
        return TyperCommand(cmd_name, help=STUDIES.summary(cmd_name)) if cmd_name in STUDIES.names() else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Returns the study named by the first argument with all its options."""
        name, *following = args
        if name.startswith("-"):
            return super().resolve_command(ctx, args)
        if name not in STUDIES.names():
            raise unknown("study", name, STUDIES.names())
        return name, build_command(name), following


def build() -> typer.Typer:
    """Returns the group of all studies."""
    app = typer.Typer(name="study", cls=Studies, add_completion=False, rich_markup_mode="rich", no_args_is_help=True)

    @app.callback()
    def describe_group() -> None:
        """The papers' experiments as commands; each names its own arguments."""

    return app


def build_command(name: str) -> Any:
    """Returns the command of a study: its declared options, and those of the inputs that it uses."""
    cls: Any = STUDIES.get(name)
    declared = options_of(cls)
    inputs_of_study = _input_parameters(cls.info)
    required = [parameter for parameter in inputs_of_study if parameter.default is Parameter.empty]
    parameters = [*required, *map(_option_parameter, declared), *(parameter for parameter in inputs_of_study if parameter not in required)]

    def body(session: Session, **values: Any) -> None:
        options = {option.name: _parse_option(option, values.pop(option.name), name) for option in declared}
        try:
            study = cls(**{option: value for option, value in options.items() if value is not MISSING})
            from headcount.app.jobs.study import run_study

            run_study(session, study, Request(**values))
        except OptionError as error:
            raise typer.BadParameter(str(error)) from error

    body.__signature__ = Signature([Parameter("session", Parameter.POSITIONAL_OR_KEYWORD), *parameters])  # pyright: ignore[reportFunctionMemberAccess]
    body.__annotations__ = {"session": Session, **{parameter.name: parameter.annotation for parameter in parameters}}
    body.__doc__ = getdoc(cls)
    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    app.command(name)(command(body))
    return typer.main.get_command(app)


def _input_parameters(info: StudyInfo) -> list[Parameter]:
    """Returns the parameters of the inputs of a study: model and data, text, run folder."""
    annotations: list[tuple[str, Any, Any]] = [("seed", Seed, 0)]
    if "model" in info.needs:
        annotations = [("common", TaskOptions, Parameter.empty)]
        annotations += [("new_head", NewHead, False)] if {"task", "run"} <= info.needs else []
    elif "comparison" in info.needs:
        annotations += [("comparison", ComparedRun, Parameter.empty), ("task", TaskName, None), ("limit", Limit, None)]
        annotations += [("device", Device, "auto"), ("dtype", Dtype, "auto")]
    if info.uses("text"):
        annotations += [("text", File, None), ("embedded", Embedded, None), ("parser", Parser, None)]
    if "comparison" not in info.needs:
        annotations.append(("out", OutRequired, Parameter.empty) if "run" in info.needs else ("out", Out, None))
    return [Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=hint) for name, hint, default in annotations]


def _option_parameter(option: Option) -> Parameter:
    """Returns the command-line argument or option of a declared option; values are read as text and checked by the study."""
    is_required = option.default is MISSING
    plain: Any = bool if option.is_flag else list[str] if option.is_list else str
    word = option.name.replace("_", "-")
    noun = word.rpartition("-")[2].upper()
    metavar = "|".join(map(str, option.choices)) or (f"{noun.removesuffix('S')},…" if option.is_list else noun)
    if option.is_positional:
        metavar = metavar.replace(",…", "…")
        information: Any = typer.Argument(metavar=metavar if is_required else f"[{metavar}]", help=f"{option.help}.", show_default=False)
    else:
        default = (
            "" if is_required or option.default in (None, (), False) else f" (default: {format_value(option.default).replace('+', ',')})"
        )
        flag = f"--{word}/--no-{word}" if option.is_flag else f"--{word}"
        information = typer.Option(flag, metavar=None if option.is_flag else metavar, help=f"{option.help}{default}.", show_default=False)
    hint = Annotated[plain if is_required else plain | None, information]
    return Parameter(option.name, Parameter.KEYWORD_ONLY, default=Parameter.empty if is_required else None, annotation=hint)


def _parse_option(option: Option, value: Any, study: str) -> Any:
    """Returns the value of a declared option for that of the command line, MISSING if that has none.

    A list is a repeated option or a text with commas; commas of NAME=VALUE and within parentheses divide nothing.
    """
    if value is None or value == []:
        return MISSING
    if isinstance(value, list) and not option.is_positional:
        value = [part for text in value for part in ([text] if "=" in text.partition("(")[0] else split_methods(text))]
    return value if isinstance(value, bool) else parse_value(option, value, study)


@dataclass(frozen=True, slots=True)
class Request:
    """The inputs that a command line names for a study."""

    common: TaskOptions | None = None
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
