"""Opening the TASK of a command line, and the options that say where its data are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headcount.cli._session import Session
from headcount.errors import ArtefactError

if TYPE_CHECKING:
    from torch import nn

    from headcount.data import Task
    from headcount.stream import Progress

TaskName = Annotated[
    str | None,
    typer.Option("--task", metavar="TASK", help="A task of `headcount ls tasks`, such as glue/sst2; else the one the model is made for."),
]
Train = Annotated[list[Path] | None, typer.Option("--train", metavar="FILE", help="Calibration data; twice for parallel files.")]
Eval = Annotated[list[Path] | None, typer.Option("--eval", metavar="FILE", help="Data for selection and report; twice for parallel files.")]
TextColumn = Annotated[str | None, typer.Option("--text-column", metavar="NAME", help="The column of the text.")]
TextPairColumn = Annotated[str | None, typer.Option("--text-pair-column", metavar="NAME", help="The column of the second text.")]
LabelColumn = Annotated[str | None, typer.Option("--label-column", metavar="NAME", help="The column of the label.")]
SourceColumn = Annotated[str | None, typer.Option("--source-column", metavar="NAME", help="The column of the text to translate.")]
TargetColumn = Annotated[str | None, typer.Option("--target-column", metavar="NAME", help="The column of the translation.")]
MaxLength = Annotated[int | None, typer.Option("--max-length", min=2, help="The longest example, in tokens; see --truncate.")]
Truncate = Annotated[bool, typer.Option("--truncate", help="Cut longer texts off instead of refusing them.")]
ImageColumn = Annotated[str | None, typer.Option("--image-column", metavar="NAME", help="The column of the image.")]
TaskOptions = Annotated[
    list[str] | None,
    typer.Option("--task-option", metavar="NAME=VALUE", help="What only this task takes, such as metric=chrf, by=line or num_beams=4."),
]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="Read at most that many examples of a split.")]
Split = Annotated[str, typer.Option("--split", metavar="NAME", help="calibration, selection or report.")]


def _batch_size(text: str) -> str:
    if text != "auto" and not (text.isdecimal() and int(text) > 0):
        raise typer.BadParameter(f"--batch-size is a number from 1 on, or auto; got {text}")
    return text


BatchSize = Annotated[
    str, typer.Option("--batch-size", metavar="N", callback=_batch_size, help="A number or auto; falls by halves when memory runs out.")
]


def number(text: str) -> int | None:
    """A batch size as a number, None for auto."""
    return None if text == "auto" else int(text)


def pairs(texts: list[str] | None) -> dict[str, str]:
    """Options of the form NAME=VALUE, by name."""
    found = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise typer.BadParameter(f"--task-option takes NAME=VALUE, got {text!r}")
        found[name.replace("-", "_")] = value
    return found


@dataclass(frozen=True, slots=True)
class Source:
    """Where a command line says that data are."""

    task: str | None
    options: dict[str, Any]

    def open(self, model: nn.Module, folder: Path) -> Task:
        """The task, for a model and the tokenizer in its folder."""
        from headcount.tasks import open_task

        return open_task(self.task, model, reader_of(model, folder), **self.options)


def reader_of(model: nn.Module, folder: Path) -> Any:
    """The tokenizer of a model folder, or its image processor for a model that reads images; None where there is none."""
    import transformers

    reads_images = getattr(model, "main_input_name", "input_ids") == "pixel_values"
    auto: Any = transformers.AutoImageProcessor if reads_images else transformers.AutoTokenizer
    files = ("preprocessor_config.json",) if reads_images else ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "spiece.model")
    if not any((folder / name).is_file() for name in files):
        return None
    try:
        return auto.from_pretrained(folder)
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise ArtefactError(f"{folder} holds a tokenizer that cannot be read: {error}") from error


@contextmanager
def progress(session: Session, what: str) -> Iterator[Progress]:
    """A bar on stderr with what is left, or a line now and then where no terminal reads it."""
    import sys

    if session.quiet or not sys.stderr.isatty():
        yield _lines(session, what)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _lines(session: Session, what: str) -> Progress:
    import time

    start = last = time.monotonic()

    def say(done: int, total: int | None) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= 10 and done != total:
            left = f", about {(now - start) / done * (total - done):.0f} s left" if total else ""
            session.note(f"{what}: {done} of {total or '?'} examples{left}")
            last = now

    return say
