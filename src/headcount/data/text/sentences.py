"""Text as sentences: lines or paragraphs of a file, columns of tables and datasets, texts, pairs, and examples of a task.

Without annotation, words are separated by white space.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headcount.core.errors import DataError, unknown_name_error
from headcount.core.files import is_folder
from headcount.data.readers.conllu import read_conllu
from headcount.data.readers.lines import read_lines, uncompressed_suffix
from headcount.data.readers.tables import PAIRS, SINGLE, TABLES, ColumnGroup, ColumnLayout, TableRow, read_rows
from headcount.data.text.annotated import Annotated, Word, join_pair

if TYPE_CHECKING:
    from headcount.data.task import Text

By = Literal["line", "paragraph"]
BY = ("line", "paragraph")
WORD = re.compile(r"\S+")
NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]+)?")


def split_words(text: str, origin: str = "a sentence") -> Annotated:
    """Returns a text with its words, without a tree."""
    words = tuple(Word(match[0], "", "", None, "", match.start(), match.end()) for match in WORD.finditer(text))
    if not words:
        raise DataError(f"{origin}: the text is empty; remove it")
    return Annotated(text, words, origin=origin)


def read_annotated(
    source: str | Path | Any, *, by: By = "line", text_column: str | None = None, text_pair_column: str | None = None
) -> Iterator[Annotated]:
    """Yields the sentences of a treebank (.conllu), of a table or a datasets.Dataset, or of plain text (any other file), one at a time.

    Of a table, the columns named, or those with usual names; without a header one column of texts, or two of pairs. Plain text is taken `by` line
    or paragraph, and empty lines count for nothing.
    """
    if by not in BY:
        raise unknown_name_error("way to divide a text", by, BY)
    if text_pair_column and not text_column:
        raise DataError(f"text_pair_column is '{text_pair_column}', but text_column is not given; name both")
    named = {role: name for role, name in (("text", text_column), ("text_pair", text_pair_column)) if name}
    if not isinstance(source, str | os.PathLike):
        return _read_table_rows(source, "the dataset", by, named)
    path = Path(source)
    if is_folder(path) or uncompressed_suffix(path) in TABLES:
        return _read_table_rows((path,), str(path), by, named)
    if named:
        raise DataError(f"{path} has no columns that can be named, so it has no '{next(iter(named.values()))}'; leave the columns out")
    if uncompressed_suffix(path) != ".conllu":
        return _read_text_lines(path, by)
    if by != "line":
        raise DataError(f"{path} is a treebank, which is read by sentence; leave by={by} out")
    return read_conllu(path)


def _read_table_rows(source: Any, label: str, by: By, column_of_role: Mapping[str, str]) -> Iterator[Annotated]:
    if by != "line":
        raise DataError(f"{label} is a table, which is read by row; leave by={by} out")
    group = ColumnGroup({"text": "text_column", "text_pair": "text_pair_column"}, (*PAIRS, *SINGLE))
    rows = read_rows(source, ColumnLayout((group,), {1: ("text",), 2: ("text", "text_pair")}, column_of_role))
    return _require_nonempty(
        (_row_to_sentence(row, refuse_number_as_pair=not number and not column_of_role) for number, row in enumerate(rows)), label
    )


def _row_to_sentence(row: TableRow, *, refuse_number_as_pair: bool) -> Annotated:
    """Returns the text or pair of a row; raises DataError if the second text is a number, hence a label, where that is refused."""
    text = split_words(row.text("text"), row.origin)
    if "text_pair" not in row.values:
        return text
    if refuse_number_as_pair and NUMBER.fullmatch(row.text("text_pair").strip()):
        raise DataError(
            f"{row.origin}: the second text is {row.text('text_pair')!r}, which is a label rather than a text. Keep the texts alone "
            "(cut -f1 FILE > texts.txt), name the columns in a first line, or read it as a task, classification"
        )
    return join_pair(text, split_words(row.text("text_pair"), row.origin))


def _read_text_lines(path: Path, by: By) -> Iterator[Annotated]:
    """Yields the lines that are not empty, or by=paragraph runs of them."""
    runs = (list(run) for full, run in groupby(read_lines(path), lambda line: bool(line[1].strip())) if full)
    texts = (
        ((run[0][0], "\n".join(text for _, text in run)) for run in runs) if by == "paragraph" else (line for run in runs for line in run)
    )
    return _require_nonempty((split_words(text, f"{path}, line {number}") for number, text in texts), str(path))


def _require_nonempty(sentences: Iterator[Annotated], label: str) -> Iterator[Annotated]:
    is_empty = True
    for sentence in sentences:
        is_empty = False
        yield sentence
    if is_empty:
        raise DataError(f"{label} is empty; give a file with text")


def sentences_of(source: Any) -> Iterator[Annotated]:
    """Yields the sentences of a file, a datasets.Dataset, or of texts, pairs of texts (two strings) and annotated sentences in any mixture."""
    if isinstance(source, str | os.PathLike) or hasattr(source, "column_names"):
        return read_annotated(source)
    return (_annotate_item(item, f"sentence {number}") for number, item in enumerate(source))


def annotate_examples(texts: Iterable[Text]) -> Iterator[Annotated]:
    """Yields the sentences of the examples of a task; words are separated by white space."""
    for text in texts:
        first = split_words(text.text, text.origin)
        sentence = first if text.pair is None else join_pair(first, split_words(text.pair, text.origin))
        yield sentence if text.target is None else replace(sentence, target=split_words(text.target, text.origin))


def _annotate_item(item: Any, origin: str) -> Annotated:
    if isinstance(item, Annotated):
        return item
    if isinstance(item, str):
        return split_words(item, origin)
    if isinstance(item, list | tuple) and len(item) == 2 and all(isinstance(part, str) for part in item):
        return join_pair(*(split_words(part, origin) for part in item))
    raise DataError(f"{origin} must be a text, a pair of two texts or an annotated sentence, got {type(item).__name__}")
