"""The options that name a text: a file, an embedded language, or the texts of a task; with trees by a parser where one is named."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from headcount.app.console.inputs import ModelAndTaskOptions, check_exists
from headcount.core.errors import unknown_name_error

EMBEDDED = ("english", "tavi", "translation", "rare-words")
TEXT_COLUMNS = ("text_column", "text_pair_column")
TASK_OPTIONS = ("train", "eval", "label_column", "source_column", "target_column", "image_column", "document_column", "task_option")

TextFile = Annotated[Path | None, typer.Option("--text", metavar="FILE", help="CoNLL-U, plain text (a sentence a line), or a table.")]
EmbeddedTextName = Annotated[
    str | None, typer.Option("--embedded", metavar="NAME", help="Instead of a file: english, tavi, translation or rare-words, embedded.")
]
ParserName = Annotated[
    str | None,
    typer.Option("--parser", metavar="WHICH", help="Trees for text that has none: spacy:PIPELINE or stanza:LANGUAGE, if installed."),
]


def check_exactly_one_text(data: ModelAndTaskOptions, text_file: Path | None, embedded_name: str | None) -> None:
    """Raises BadParameter unless the command line names one text, with only those options that apply to it."""
    options = {"--text": text_file, "--embedded": embedded_name, "--task": data.task}
    named = [name for name, value in options.items() if value is not None]
    if len(named) != 1:
        raise typer.BadParameter(f"name one text: --text FILE, --embedded NAME or --task TASK; got {' and '.join(named) or 'none of them'}")
    if data.task is None:
        _check_options_unset(data, TASK_OPTIONS, "--task")
    if embedded_name is not None:
        _check_options_unset(data, TEXT_COLUMNS, "--text or --task")
    check_at_most_one_text(text_file, embedded_name)


def check_at_most_one_text(text_file: Path | None, embedded_name: str | None) -> None:
    """Raises for two texts, and for a file or an embedded text that does not exist."""
    if text_file is not None and embedded_name is not None:
        raise typer.BadParameter("name one text: --text FILE or --embedded NAME, not both")
    if embedded_name is not None and embedded_name not in EMBEDDED:
        raise unknown_name_error("embedded text", embedded_name, EMBEDDED)
    if text_file is not None:
        check_exists(text_file)


def _check_options_unset(data: ModelAndTaskOptions, option_names: Iterable[str], owning_flag: str) -> None:
    unsuitable = next((name for name in option_names if getattr(data, name)), None)
    if unsuitable is not None:
        raise typer.BadParameter(f"--{unsuitable.replace('_', '-')} goes with {owning_flag}; leave it out")
