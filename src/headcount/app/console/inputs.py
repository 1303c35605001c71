"""The options of commands that name a model and a task, and how these are opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from headcount.app.console.options import AllowPickle, Auto, Device, Dtype, Model, Seed, TrustRemoteCode
from headcount.app.console.session import Session
from headcount.core.files import absolute_path, opened_model
from headcount.data.open_task import default_task, open_task
from headcount.data.task_builder import TaskBuilder

if TYPE_CHECKING:
    from torch import nn

    from headcount.data.task import Task
    from headcount.models.head_map import HeadMap

TaskName = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="TASK",
        help="A task of `headcount ls tasks`, such as glue/sst2; else the one the model is made for (roles: name a text or a task).",
    ),
]
Train = Annotated[list[Path] | None, typer.Option("--train", metavar="FILE", help="Calibration data; twice for parallel files.")]
Eval = Annotated[list[Path] | None, typer.Option("--eval", metavar="FILE", help="Data for selection and report; twice for parallel files.")]
TextColumn = Annotated[str | None, typer.Option("--text-column", metavar="NAME", help="The column of the text.")]
TextPairColumn = Annotated[str | None, typer.Option("--text-pair-column", metavar="NAME", help="The column of the second text.")]
LabelColumn = Annotated[str | None, typer.Option("--label-column", metavar="NAME", help="The column of the label.")]
SourceColumn = Annotated[str | None, typer.Option("--source-column", metavar="NAME", help="The column of the text to translate.")]
TargetColumn = Annotated[str | None, typer.Option("--target-column", metavar="NAME", help="The column of the translation.")]
MaxLength = Annotated[int | None, typer.Option("--max-length", min=2, help="The longest example, in tokens; see --truncate.")]
Truncate = Annotated[bool, typer.Option("--truncate", help="Truncate longer texts instead of refusing them.")]
ImageColumn = Annotated[str | None, typer.Option("--image-column", metavar="NAME", help="The column of the image.")]
TaskOption = Annotated[
    list[str] | None,
    typer.Option("--task-option", metavar="NAME=VALUE", help="An option of this task alone, such as metric=chrf, by=line or num_beams=4."),
]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="Read at most that many examples of each split.")]
Split = Annotated[str, typer.Option("--split", metavar="NAME", help="calibration, selection or report.")]


def _batch_size(text: str) -> str:
    if text != "auto" and not (text.isdecimal() and int(text) > 0):
        raise typer.BadParameter(f"--batch-size is a number from 1 on, or auto; got {text}")
    return text


BatchSize = Annotated[
    str, typer.Option("--batch-size", metavar="N", callback=_batch_size, help="A number or auto; halved when memory runs out.")
]


def pairs(texts: list[str] | None, option: str) -> dict[str, str]:
    """Returns the values of an option that is given as NAME=VALUE, by name."""
    values = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise typer.BadParameter(f"{option} takes NAME=VALUE, got {text!r}")
        values[name.replace("-", "_")] = value
    return values


class ModelOptions(NamedTuple):
    """The options for loading a model."""

    device: Device = "auto"
    dtype: Dtype = "auto"
    auto: Auto = None
    allow_pickle: AllowPickle = False
    trust_remote_code: TrustRemoteCode = False

    def open(self, session: Session, model: str) -> tuple[nn.Module, HeadMap, Path]:
        """Returns the model, its heads and its folder."""
        from headcount.app.console.models import open_model

        return open_model(session, model, **self._asdict())

    def as_recorded(self, config: Mapping[str, Any]) -> ModelOptions:
        """Returns the options with which the model of a run was loaded, unless other ones were given."""
        opened = config.get("opened") or {}
        dtype = opened.get("dtype", "auto") if self.dtype == "auto" else self.dtype
        return self._replace(auto=self.auto or opened.get("auto"), dtype=dtype)


DEFAULT_LOADING = ModelOptions()
"""The defaults of all options for loading a model."""


class TaskOptions(NamedTuple):
    """MODEL, the options for loading it, and the options of its task and data, under the names of their Python arguments."""

    model: Model
    task: TaskName = None
    train: Train = None
    eval: Eval = None
    text_column: TextColumn = None
    text_pair_column: TextPairColumn = None
    label_column: LabelColumn = None
    source_column: SourceColumn = None
    target_column: TargetColumn = None
    image_column: ImageColumn = None
    task_option: TaskOption = None
    max_length: MaxLength = None
    truncate: Truncate = False
    limit: Limit = None
    batch_size: BatchSize = "auto"
    auto: Auto = None
    device: Device = "auto"
    dtype: Dtype = "auto"
    seed: Seed = 0
    allow_pickle: AllowPickle = False
    trust_remote_code: TrustRemoteCode = False

    @property
    def reading(self) -> dict[str, Any]:
        """The arguments `limit` and `batch_size` of functions that read data."""
        return {"limit": self.limit, "batch_size": None if self.batch_size == "auto" else int(self.batch_size)}

    @property
    def of_task(self) -> list[str]:
        """The words of a command line that name the task and its data, and how both are opened."""
        from headcount.runs.report.commands import task_words

        return task_words(self._asdict())

    @property
    def opened(self) -> dict[str, Any]:
        """The options that open model and task again, as plain data, without those that were not given."""
        names = ("task", "train", "eval", *(name for name in self._fields if name.endswith("_column")), "task_option", "max_length")
        options = {name: getattr(self, name) for name in (*names, "truncate", "limit", "auto", "dtype", "seed")}
        options |= {name: [absolute_path(path) for path in options[name]] for name in ("train", "eval") if options[name]}
        options = {name: value for name, value in options.items() if value not in (None, False, [])}
        texts = {name: [str(item) for item in value] for name, value in options.items() if isinstance(value, list | tuple)}
        return {**options, **texts, **opened_model(self.model)}

    def open_model(self, session: Session) -> tuple[nn.Module, HeadMap, Path]:
        """Returns the model, its heads and its folder."""
        return ModelOptions(**{name: getattr(self, name) for name in ModelOptions._fields}).open(session, self.model)

    def open_task(self, session: Session, model: nn.Module, folder: Path) -> Task:
        """Returns the task, for a model and the tokenizer in its folder."""
        from headcount.data.task import SPLITS

        session.doing("reading the data")
        names = ("train", "eval", "max_length", "truncate", "limit", "seed", *(name for name in self._fields if name.endswith("_column")))
        arguments: dict[str, Any] = {name: getattr(self, name) for name in names}
        builder = TaskBuilder.parse(self.task or default_task(model)).with_texts(pairs(self.task_option, "--task-option"))
        task = open_task(builder, model, reader_of(model, folder, self.trust_remote_code), **arguments)
        task = replace(task, batch_size=self.reading["batch_size"])
        sizes = ", ".join(f"{len(task.split(split))} {split}" for split in SPLITS)
        session.note(f"task {task.name}: {sizes}; seed {self.seed}")
        return task


def reader_of(model: nn.Module, folder: Path, trust: bool = False) -> Any:
    """Returns the tokenizer or image processor of a model folder, None if it has none."""
    from headcount.data.readers.processor import reader_of as read

    return read(model, folder, trust)
