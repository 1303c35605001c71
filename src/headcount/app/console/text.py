"""Opening the text of a command line: a file, an embedded language, or the texts of a task; with trees by a parser where one is named."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headcount.app.console import inputs
from headcount.core.errors import ArtifactError, UnsupportedModel, unknown
from headcount.data.embedded.sentences import draw_sentences, draw_translations
from headcount.data.text.sentences import read_text

if TYPE_CHECKING:
    from torch import nn

    from headcount.app.console.session import Session
    from headcount.behaviour.base import Corpus
    from headcount.data.task import Task
    from headcount.data.text.annotated import Annotated as Sentence

EMBEDDED = ("english", "tavi", "translation")
TEXT_COLUMNS = ("text_column", "text_pair_column")
TASK_OPTIONS = ("train", "eval", "label_column", "source_column", "target_column", "image_column", "task_option")

File = Annotated[Path | None, typer.Option("--text", metavar="FILE", help="CoNLL-U, plain text (a sentence a line), or a table.")]
Embedded = Annotated[
    str | None, typer.Option("--embedded", metavar="NAME", help="Instead of a file: english, tavi or translation, embedded.")
]
Parser = Annotated[
    str | None,
    typer.Option("--parser", metavar="WHICH", help="Trees for text that has none: spacy:PIPELINE or stanza:LANGUAGE, if installed."),
]


def check_text(arguments: inputs.TaskOptions, text: Path | None, embedded: str | None) -> None:
    """Raises BadParameter unless the command line names one text, with only those options that apply to it."""
    options = {"--text": text, "--embedded": embedded, "--task": arguments.task}
    named = [name for name, value in options.items() if value is not None]
    if len(named) != 1:
        raise typer.BadParameter(f"name one text: --text FILE, --embedded NAME or --task TASK; got {' and '.join(named) or 'none of them'}")
    if arguments.task is None:
        _check_unset(arguments, TASK_OPTIONS, "--task")
    if embedded is not None:
        _check_unset(arguments, TEXT_COLUMNS, "--text or --task")
    check_embedded(text, embedded)


def check_embedded(text: Path | None, embedded: str | None) -> None:
    """Raises for two texts, and for an embedded one that does not exist."""
    if text is not None and embedded is not None:
        raise typer.BadParameter("name one text: --text FILE or --embedded NAME, not both")
    if embedded is not None and embedded not in EMBEDDED:
        raise unknown("embedded text", embedded, EMBEDDED)


def _check_unset(arguments: inputs.TaskOptions, names: Iterable[str], owner: str) -> None:
    unsuitable = next((name for name in names if getattr(arguments, name)), None)
    if unsuitable is not None:
        raise typer.BadParameter(f"--{unsuitable.replace('_', '-')} goes with {owner}; leave it out")


def open_corpus(
    session: Session,
    arguments: inputs.TaskOptions,
    model: nn.Module,
    folder: Path,
    *,
    text: Path | None = None,
    embedded: str | None = None,
    parser: str | None = None,
    task: Task | None = None,
    split: str = "calibration",
) -> Corpus:
    """Returns the corpus of the text that a command line names, for a model and the tokenizer in its folder.

    Where roles are compared with a `task`, that one is read if no other text is named, and column names are the task's.
    """
    from headcount.behaviour.corpus import SENTENCES, read_corpus

    tokenizer: Any = inputs.reader_of(model, folder, arguments.trust_remote_code)
    if text is None and embedded is None:
        task = task or arguments.open_task(session, model, folder)
        return read_corpus(model, task, tokenizer, split=split, limit=arguments.limit, parser=parser)  # pyright: ignore[reportArgumentType]
    if getattr(model, "main_input_name", "input_ids") == "pixel_values":
        raise UnsupportedModel(f"{type(model).__name__} reads images, not text; give some with --task image-classification --train FOLDER")
    if tokenizer is None:
        raise ArtifactError(f"{folder} holds no tokenizer, so no text can be read; save the model's tokenizer there (tokenizer.json)")
    sentences: Iterable[Sentence]
    if embedded is None:
        sentences = read_text(text, **({} if task else {name: getattr(arguments, name) for name in TEXT_COLUMNS}))
    elif embedded == "translation":
        sentences = draw_translations(number=arguments.limit or SENTENCES, seed=arguments.seed)
    else:
        sentences = draw_sentences(embedded, arguments.limit or SENTENCES, seed=arguments.seed)  # pyright: ignore[reportArgumentType]
    has_own_end = embedded == "translation"  # the embedded translator was trained without a delimiter in front
    return read_corpus(
        model,
        sentences,
        tokenizer,
        limit=arguments.limit,
        parser=parser,
        max_length=arguments.max_length,
        truncate=arguments.truncate,
        add_special_tokens=not has_own_end,
        end=(tokenizer.eos_token_id,) if has_own_end else (),
    )
