"""`headcount study`: the papers' experiments. The options of a study are its declared fields; its class is imported only when it is named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass
from inspect import Parameter, Signature, getdoc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from headcount.app.console import inputs
from headcount.app.console.command import command
from headcount.app.console.format import format_training
from headcount.app.console.options import Device, Dtype, Seed
from headcount.app.console.pruning import split_methods
from headcount.app.console.run_folder import Out, RunFolder
from headcount.app.console.session import Session
from headcount.app.console.text import Embedded, File, Parser, check_embedded, check_text, open_corpus
from headcount.core.errors import OptionError, unknown
from headcount.core.files import reopened_model
from headcount.core.options import Option, format_value, options_of, parse_value
from headcount.core.registry import STUDIES
from headcount.core.study_result import Table

if TYPE_CHECKING:
    from headcount.behaviour.base import Corpus
    from headcount.data.task import Task
    from headcount.models.head_map import HeadMap
    from headcount.studies._base import LoadedModel, Study, StudyInfo

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
    app.callback()(_describe_group)
    return app


def _describe_group() -> None:
    """The papers' experiments as commands; each names its own arguments."""


def build_command(name: str) -> Any:
    """Returns the command of a study: its declared options, and those of the inputs that it uses."""
    cls: Any = STUDIES.get(name)
    declared = options_of(cls)
    inputs_of_study = _input_parameters(cls.info)
    required = [parameter for parameter in inputs_of_study if parameter.default is Parameter.empty]
    parameters = [*required, *map(_parameter, declared), *(parameter for parameter in inputs_of_study if parameter not in required)]

    def body(session: Session, **values: Any) -> None:
        options = {option.name: _read(option, values.pop(option.name), name) for option in declared}
        try:
            run_study(session, cls(**{option: value for option, value in options.items() if value is not MISSING}), Request(**values))
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
        annotations = [("common", inputs.TaskOptions, Parameter.empty)]
    elif "comparison" in info.needs:
        annotations += [("comparison", ComparedRun, Parameter.empty), ("task", inputs.TaskName, None), ("limit", inputs.Limit, None)]
        annotations += [("device", Device, "auto"), ("dtype", Dtype, "auto")]
    if info.uses("text"):
        annotations += [("text", File, None), ("embedded", Embedded, None), ("parser", Parser, None)]
    if "comparison" not in info.needs:
        annotations.append(("out", OutRequired, Parameter.empty) if "run" in info.needs else ("out", Out, None))
    return [Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=hint) for name, hint, default in annotations]


def _parameter(option: Option) -> Parameter:
    """Returns the command-line argument or option of a declared option; values are read as text and checked by the study."""
    is_required = option.default is MISSING
    plain: Any = bool if option.is_flag else list[str] if option.is_list else str
    word = option.name.replace("_", "-")
    metavar = "|".join(map(str, option.choices)) or (word.upper() if not option.is_list else f"{word.upper().removesuffix('S')},…")
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


def _read(option: Option, value: Any, study: str) -> Any:
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

    common: inputs.TaskOptions | None = None
    comparison: Path | None = None
    task: str | None = None
    limit: int | None = None
    device: str = "auto"
    dtype: str = "auto"
    seed: int = 0
    text: Path | None = None
    embedded: str | None = None
    parser: str | None = None
    out: Path | None = None

    def model_and_data(self) -> inputs.TaskOptions:
        """Returns the options of model and data; of a comparison, those by which its run was made."""
        if self.common is not None:
            return self.common
        if self.comparison is None:
            return inputs.TaskOptions("", seed=self.seed)
        from headcount.runs.store import Run

        record = Run.open(self.comparison).record()
        loading = inputs.ModelOptions(device=self.device, dtype=self.dtype).as_recorded(record.config)
        name = reopened_model(record.model.name, record.config)
        return inputs.TaskOptions(name, task=self.task, limit=self.limit, seed=self.seed, **loading._asdict())


def run_study(session: Session, study: Study, request: Request) -> None:
    """Runs a study on what a command line names, and prints its tables, its notes and its verdict."""
    from headcount.studies import _results
    from headcount.studies._base import StudyContext

    needs, data = study.info.needs, request.model_and_data()
    sources = ConsoleSources(session, data, request)
    if "text" in needs or ("comparison" in needs and sources.has_text):
        check_text(data, request.text, request.embedded)
    check_embedded(request.text, request.embedded)
    with RunFolder(request.out or request.comparison).open(session) as run:
        if needs & {"run", "comparison"} and run is None:
            raise typer.BadParameter(f"study {study.name} is led by one process; start it without torchrun")
        context = StudyContext(
            sources,
            model=data.model or None,
            run=run,
            seed=data.seed,
            command=session.command,
            progress=session.progress,
            note=session.note,
            note_training=lambda estimate: session.note(format_training(**asdict(estimate))),
            **data.reading,
        )
        result = _results.run_study(study, context)
    for table in result.tables:
        if table.is_printed:
            print_table(session, table)
    for sentence in (*result.notes, result.sentence):
        session.line(sentence)
    session.result({"study": study.name, **result.measurements, "notes": list(result.notes), "sentence": result.sentence})


@dataclass(frozen=True, slots=True)
class ConsoleSources:
    """Opens models, tasks and texts as the command line says, and notes what was opened."""

    session: Session
    data: inputs.TaskOptions
    request: Request

    @property
    def task_name(self) -> str:
        """The name of the task; empty if the head of the model decides."""
        return self.data.task or ""

    @property
    def has_text(self) -> bool:
        """Whether a text or a task is named."""
        return self.request.text is not None or self.request.embedded is not None or self.data.task is not None

    def load_model(self, name: str, *, as_configured: bool = False, new_classes: Sequence[str] = ()) -> LoadedModel:
        """Returns the model of a folder, hub id or embedded name, of the class that the command line chose unless `as_configured`."""
        from headcount.app.console.models import open_model
        from headcount.studies._base import LoadedModel, new_head_options

        loading = {field: getattr(self.data, field) for field in inputs.ModelOptions._fields}
        if as_configured:
            loading["auto"] = None
        model, _, folder = open_model(self.session, name, **{**loading, **(new_head_options(new_classes) if new_classes else {})})
        return LoadedModel(name, model, folder)

    def read_heads(self, name: str) -> HeadMap:
        """Returns the heads of a model."""
        from headcount.models.head_map import HeadMap
        from headcount.surgery.load import load

        data = self.data
        return HeadMap.of(load(name, auto=data.auto, allow_pickle=data.allow_pickle, trust_remote_code=data.trust_remote_code))

    def read_tokenizer(self, loaded: LoadedModel) -> Any:
        """Returns the tokenizer or image processor in the folder of a model."""
        assert loaded.folder is not None
        return inputs.reader_of(loaded.model, loaded.folder, self.data.trust_remote_code)

    def open_task(self, loaded: LoadedModel, name: str | None = None, options: Mapping[str, str] | None = None) -> Task:
        """Returns the task of the command line, or the named one, for a model."""
        assert loaded.folder is not None
        task_options = [*(self.data.task_option or []), *(f"{option}={value}" for option, value in (options or {}).items())]
        data = self.data._replace(task=name or self.data.task, task_option=task_options or None)
        return data.open_task(self.session, loaded.model, loaded.folder)

    def open_corpus(self, loaded: LoadedModel, task: Task | None = None) -> Corpus:
        """Returns the text of the command line, or else of the task, aligned with the tokens of a model."""
        assert loaded.folder is not None
        text = {"text": self.request.text, "embedded": self.request.embedded, "parser": self.request.parser}
        return open_corpus(self.session, self.data, loaded.model, loaded.folder, task=task, **text)

    def opening_record(self, name: str) -> dict[str, Any]:
        """Returns what it takes to open the model of that name and the task again."""
        return self.data._replace(model=name).opened


def print_table(session: Session, table: Table) -> None:
    """Prints a table; numbers without intervals stand at the right of their column."""
    formatted = table.format()
    columns = zip(formatted.headings, formatted.are_numbers, formatted.have_intervals, strict=True)
    right = [heading for heading, is_number, has_interval in columns if is_number and not has_interval]
    if table.title:
        session.line(table.title)
    session.table(formatted.headings, formatted.rows, right=right)
