"""The groups of options that commands share: the model, the data of its task, and the run folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from headcount.app.console.options import (
    LOCAL,
    AllowPickle,
    AutoClass,
    Device,
    Dtype,
    Engine,
    Join,
    Model,
    OptionalOutRun,
    Seed,
    TrustRemoteCode,
    Workers,
)
from headcount.core.errors import DataError
from headcount.core.files import absolute_path_if_exists, model_path_entry, path_exists

TaskName = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="TASK",
        help="A task of `headcount ls tasks`, such as glue/sst2; else the one the model is made for.",
    ),
]
Train = Annotated[list[Path] | None, typer.Option("--train", metavar="FILE", help="Calibration data; twice for parallel files.")]
Eval = Annotated[list[Path] | None, typer.Option("--eval", metavar="FILE", help="Data for selection and report; twice for parallel files.")]
TextColumn = Annotated[str | None, typer.Option("--text-column", metavar="NAME", help="The column of the text.")]
TextPairColumn = Annotated[str | None, typer.Option("--text-pair-column", metavar="NAME", help="The column of the second text.")]
LabelColumn = Annotated[str | None, typer.Option("--label-column", metavar="NAME", help="The column of the label.")]
SourceColumn = Annotated[str | None, typer.Option("--source-column", metavar="NAME", help="The column of the text to translate.")]
TargetColumn = Annotated[str | None, typer.Option("--target-column", metavar="NAME", help="The column of the translation.")]
MaxLength = Annotated[int | None, typer.Option("--max-length", metavar="N", min=2, help="The longest example, in tokens; see --truncate.")]
Truncate = Annotated[bool, typer.Option("--truncate", help="Truncate longer texts instead of refusing them.")]
DocumentColumn = Annotated[
    str | None, typer.Option("--document-column", metavar="NAME", help="The column that names the document of an example.")
]
ImageColumn = Annotated[str | None, typer.Option("--image-column", metavar="NAME", help="The column of the image.")]
TaskOption = Annotated[
    list[str] | None,
    typer.Option("--task-option", metavar="NAME=VALUE", help="An option of this task alone, such as metric=chrf, by=line or num_beams=4."),
]
NewHead = Annotated[
    bool,
    typer.Option(
        "--new-head",
        help="Give a pre-trained model an untrained head for the classes in the data, drawn by --seed, for commands and items that train it.",
    ),
]
Limit = Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Read at most that many examples of each split.")]
SplitText = Annotated[str, typer.Option("--split", metavar="NAME", help="calibration, selection or report.")]


def _check_batch_size(text: str) -> str:
    if text != "auto" and not (text.isdecimal() and int(text) > 0):
        raise typer.BadParameter(f"--batch-size is a number from 1 on, or auto; got {text}")
    return text


BatchSize = Annotated[
    str, typer.Option("--batch-size", metavar="N", callback=_check_batch_size, help="A number or auto; halved when memory runs out.")
]


def parse_named_values(texts: list[str] | None, flag: str) -> dict[str, str]:
    """Returns the values of a repeated option NAME=VALUE by name, hyphens in which count as underscores; a name may come once."""
    values: dict[str, str] = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise typer.BadParameter(f"{flag} takes NAME=VALUE, got {text!r}")
        field_name = name.replace("-", "_")
        if field_name in values:
            raise typer.BadParameter(f"{flag} names {name} twice, with {values[field_name]!r} and {value!r}; give it once")
        values[field_name] = value
    return values


def check_exists(path: Path) -> None:
    """Raises DataError for a file or folder that does not exist, before a model is loaded."""
    if not path_exists(path):
        raise DataError(f"no file {path}; check its name")


class ModelOptions(NamedTuple):
    """How a model is loaded."""

    device: Device = "auto"
    dtype: Dtype = "auto"
    auto: AutoClass = None
    allow_pickle: AllowPickle = False
    trust_remote_code: TrustRemoteCode = False

    def fill_from_run_config(self, run_config: Mapping[str, Any]) -> ModelOptions:
        """Returns the options with which the model of a run was loaded, where this command line does not name others."""
        recorded = run_config.get("opened") or {}
        dtype = recorded.get("dtype", "auto") if self.dtype == "auto" else self.dtype
        return self._replace(auto=self.auto or recorded.get("auto"), dtype=dtype)


DEFAULT_LOADING = ModelOptions()


class ModelAndTaskOptions(NamedTuple):
    """MODEL, how it is loaded, and its task and data, under the names of their Python arguments."""

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
    document_column: DocumentColumn = None
    task_option: TaskOption = None
    max_length: MaxLength = None
    truncate: Truncate = False
    limit: Limit = None
    batch_size: BatchSize = "auto"
    auto: AutoClass = None
    device: Device = "auto"
    dtype: Dtype = "auto"
    seed: Seed = 0
    allow_pickle: AllowPickle = False
    trust_remote_code: TrustRemoteCode = False

    @property
    def model_options(self) -> ModelOptions:
        """How the model is loaded."""
        return ModelOptions(**{name: getattr(self, name) for name in ModelOptions._fields})

    @property
    def examples_per_batch(self) -> int | None:
        """The batch size as a number; None where the largest that fits is chosen."""
        return None if self.batch_size == "auto" else int(self.batch_size)

    def check_data_files_exist(self) -> None:
        """Raises DataError for a file of data that does not exist."""
        for path in (*(self.train or ()), *(self.eval or ())):
            check_exists(path)

    def open_task_arguments(self) -> dict[str, Any]:
        """Returns the arguments of `headcount.open_task` beside the task, the model and its tokenizer."""
        names = ("train", "eval", "max_length", "truncate", "limit", "seed", *(name for name in self._fields if name.endswith("_column")))
        return {name: getattr(self, name) for name in names}

    def opening_record(self) -> dict[str, Any]:
        """Returns the options that open model and task again, as plain data, without those that have no value."""
        names = ("task", "train", "eval", *(name for name in self._fields if name.endswith("_column")), "task_option", "max_length")
        options = {name: getattr(self, name) for name in (*names, "truncate", "limit", "auto", "dtype", "seed")}
        options |= {name: [absolute_path_if_exists(path) for path in options[name]] for name in ("train", "eval") if options[name]}
        options = {name: value for name, value in options.items() if value not in (None, False, [])}
        texts = {name: [str(item) for item in value] for name, value in options.items() if isinstance(value, list | tuple)}
        return {**options, **texts, **model_path_entry(self.model)}


class RunOptions(NamedTuple):
    """The run folder for the results of a command, and the processes that share its work."""

    out: OptionalOutRun = None
    workers: Workers = 1
    engine: Engine = LOCAL
    join: Join = False
