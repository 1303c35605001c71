"""What a task is made by: a `TaskBuilder` (one file each in `headcount.data.tasks`) and the `TaskRequest` that says for which model and data.

Third parties add a task by `@TASKS.register("name")` or by an entry point in the group `headcount.tasks`.
"""

from __future__ import annotations

import os
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from headcount.core.errors import DataError
from headcount.core.options import Configurable, format_value, options_of
from headcount.core.registry import TASKS
from headcount.data.readers.tables import Source, max_rows_for_limit

if TYPE_CHECKING:
    from torch import nn

    from headcount.data.task import Task

COLUMNS = ("text_column", "text_pair_column", "label_column", "source_column", "target_column", "image_column", "document_column")
ARGUMENTS = ("train", "eval", *COLUMNS, "max_length", "truncate")
"""Arguments of `open_task` that a task may or may not use."""


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """What a task uses and measures.

    Args:
        uses: Those of ARGUMENTS that the task uses; the others are refused.
        model: The class that loads a model with the right head, for messages.
        metric: The metrics of the task, in words.
    """

    uses: tuple[str, ...]
    model: str
    metric: str

    def __post_init__(self) -> None:
        unknown = sorted(set(self.uses) - set(ARGUMENTS))
        if unknown:
            raise ValueError(f"uses holds {', '.join(unknown)}, but open_task takes {', '.join(ARGUMENTS)}")


@dataclass(frozen=True)
class TaskRequest:
    """The model and the data of a task; values are checked when it is made.

    Calibration comes from `train`, selection and report come from `eval`; a single source is divided in three. `tokenizer` is the image
    processor for images. `name` is that of the task, with its variant, for messages and tables.
    """

    name: str
    model: nn.Module
    tokenizer: Any = None
    train: Source = None
    eval: Source = None
    text_column: str | None = None
    text_pair_column: str | None = None
    label_column: str | None = None
    source_column: str | None = None
    target_column: str | None = None
    image_column: str | None = None
    document_column: str | None = None
    max_length: int | None = None
    truncate: bool = False
    limit: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in COLUMNS:
            column = getattr(self, name)
            if column == "":
                raise DataError(f"{name} must be the name of a column, got {column!r}; leave it out to find the column by its usual names")
        for name in ("train", "eval"):
            object.__setattr__(self, name, _as_source(name, getattr(self, name)))

    @property
    def max_rows(self) -> int | None:
        """The most rows that are read of a source; None where the task has no limit."""
        return None if self.limit is None else max_rows_for_limit(self.limit)


def _as_source(name: str, source: Any) -> Source:
    """Returns a dataset unchanged, and one file or several as a tuple of paths."""
    if source is None or hasattr(source, "column_names"):
        return source
    paths = [source] if isinstance(source, str | os.PathLike) else source
    if not isinstance(paths, list | tuple) or not all(isinstance(path, str | os.PathLike) for path in paths):
        raise DataError(f"{name} must be a file, a list of parallel files, or a datasets.Dataset; got {type(source).__name__}")
    return tuple(Path(path) for path in paths) or None


@dataclass(frozen=True)
class TaskBuilder(Configurable):
    """Builds a `Task` for a model from data. Its options are what only this task takes.

    In text a variant stands after a slash: `demo/entailment(size=64)` is `Demo("entailment", size=64)`.
    """

    info: ClassVar[TaskInfo]

    def build(self, request: TaskRequest) -> Task:
        """Returns the task.

        Raises:
            DataError: the model, the tokenizer or the data do not fit the task.
        """
        raise NotImplementedError

    def read_classes(self, request: TaskRequest) -> tuple[str, ...]:
        """Returns the names of the classes in the data, for the new head of a pre-trained model; the model of the request is not used.

        Raises:
            DataError: the task has no classes of texts, or the data do not tell them.
        """
        raise DataError(f"task '{request.name}' has no classes of texts, so that its data do not say what a new head looks like")

    @classmethod
    def parse(cls, task: str | TaskBuilder) -> TaskBuilder:
        """Returns the builder that a text describes, `name/variant(option=value;…)`; a builder is returned as it is.

        Raises:
            UnknownName: there is no such task, variant or option.
            OptionError: a value has the wrong type or is out of range.
            DataError: the task needs a variant, or has none.
        """
        if not isinstance(task, str):
            return TASKS.parse(task, TaskBuilder)
        address, bracket, options = task.partition("(")
        name, _, variant = address.strip().replace("/", ":", 1).partition(":")
        positional = [option for option in options_of(TASKS.get(name.strip())) if option.is_positional]
        if not variant and positional and positional[0].default is MISSING:
            choices = (f"{name}/{format_value(choice)}" for choice in positional[0].choices)
            raise DataError(f"task '{name}' has variants; name one: {', '.join(choices)}")
        if variant and not positional:
            raise DataError(f"task '{name}' has no variants, so '{name}/{variant}' names nothing; write '{name}'")
        return TASKS.parse(f"{name}:{variant}{bracket}{options}" if variant else f"{name}{bracket}{options}", TaskBuilder)

    def __str__(self) -> str:
        """Returns the text that makes the builder, with the variant after a slash."""
        address, bracket, options = Configurable.__str__(self).partition("(")
        return address.replace(":", "/") + bracket + options

    @property
    def label(self) -> str:
        """The name of the task with its variant, for tables."""
        return str(self).partition("(")[0]
