"""Opening the text of a command line: a file, the embedded language, or the texts of a task; with trees by a parser where one is named."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headcount.app.console import inputs
from headcount.core.errors import ArtifactError, UnsupportedModel, unknown
from headcount.data.embedded.sentences import draw_sentences as draw
from headcount.data.embedded.sentences import draw_translations
from headcount.data.text.parsers import parse_sentences, parser_of
from headcount.data.text.sentences import read_text

if TYPE_CHECKING:
    from torch import nn

    from headcount.app.console.session import Session
    from headcount.behaviour.base import Corpus
    from headcount.data.task import Task
    from headcount.data.text.annotated import Annotated as Sentence

KINDS = ("english", "tavi", "translation")
COLUMNS = ("text_column", "text_pair_column")
OF_TASKS = ("train", "eval", "label_column", "source_column", "target_column", "image_column", "task_option")

File = Annotated[Path | None, typer.Option("--text", metavar="FILE", help="CoNLL-U, plain text (a sentence a line), or a table.")]
Embedded = Annotated[
    str | None, typer.Option("--embedded", metavar="NAME", help="Instead of a file: english, tavi or translation, embedded.")
]
Parser = Annotated[
    str | None,
    typer.Option("--parser", metavar="WHICH", help="Trees for text that has none: spacy:PIPELINE or stanza:LANGUAGE, if installed."),
]


def check_text(given: inputs.TaskOptions, text: Path | None, embedded: str | None) -> None:
    """Raises unless one text is named, and only options that mean something to it."""
    named = [name for name, value in (("--text", text), ("--embedded", embedded), ("--task", given.task)) if value is not None]
    if len(named) != 1:
        told = " and ".join(named) or "none of them"
        raise typer.BadParameter(f"name one text: --text FILE, --embedded NAME or --task TASK; got {told}")
    if given.task is None:
        _refuse(given, OF_TASKS, "--task")
    if embedded is not None:
        _refuse(given, COLUMNS, "--text or --task")
    check_embedded(text, embedded)


def check_embedded(text: Path | None, embedded: str | None) -> None:
    """Raises for two texts, and for an embedded one that does not exist."""
    if text is not None and embedded is not None:
        raise typer.BadParameter("name one text: --text FILE or --embedded NAME, not both")
    if embedded is not None and embedded not in KINDS:
        raise unknown("embedded text", embedded, KINDS)


def _refuse(given: inputs.TaskOptions, names: Iterable[str], owner: str) -> None:
    wrong = next((name for name in names if getattr(given, name)), None)
    if wrong is not None:
        raise typer.BadParameter(f"--{wrong.replace('_', '-')} goes with {owner}; leave it out")


def corpus(
    session: Session,
    given: inputs.TaskOptions,
    live: nn.Module,
    folder: Path,
    *,
    text: Path | None = None,
    embedded: str | None = None,
    parser: str | None = None,
    task: Task | None = None,
    split: str = "calibration",
) -> Corpus:
    """The corpus of the text that a command line names, for a model and the tokenizer in its folder.

    Where roles are set beside a `task`, that one is read if no other text is named, and column names are the task's.
    """
    from headcount.behaviour.given import corpus_of

    tokenizer, trees = inputs.reader_of(live, folder, given.trust_remote_code), trees_of(parser)
    if text is not None or embedded is not None:
        _check_reads_text(live, folder, tokenizer)
    if text is None and embedded is None:
        task = task or given.open_task(session, live, folder)
        return corpus_of(live, task, tokenizer, split=split, limit=given.limit, trees=trees)  # pyright: ignore[reportArgumentType]
    how: dict[str, Any] = {"max_length": given.max_length, "truncate": given.truncate}
    if embedded == "translation":  # the embedded translator was trained without a delimiter in front
        how |= {"add_special_tokens": False, "end": (tokenizer.eos_token_id,)}
    named = {} if task else {name: getattr(given, name) for name in COLUMNS}
    return corpus_of(live, _sentences(given, text, embedded, named), tokenizer, limit=given.limit, trees=trees, **how)


def _check_reads_text(live: Any, folder: Path, tokenizer: Any) -> None:
    if getattr(live, "main_input_name", "input_ids") == "pixel_values":
        raise UnsupportedModel(f"{type(live).__name__} reads images, not text; give some with --task image-classification --train FOLDER")
    if tokenizer is None:
        raise ArtifactError(f"{folder} holds no tokenizer, so no text can be read; save the model's tokenizer there (tokenizer.json)")


def trees_of(parser: str | None) -> Any:
    """What parses sentences that have no trees, if a parser is named."""
    if parser is None:
        return None

    parse = parser_of(parser)
    return lambda sentences: parse_sentences(sentences, parse)


def _sentences(given: inputs.TaskOptions, text: Path | None, embedded: str | None, named: dict[str, Any]) -> Iterable[Sentence]:
    if embedded is None:
        return read_text(text, **named)
    from headcount.behaviour.given import SENTENCES

    number = given.limit or SENTENCES
    if embedded == "translation":
        return draw_translations(number=number, seed=given.seed)
    return draw(embedded, number, seed=given.seed)  # pyright: ignore[reportArgumentType]
