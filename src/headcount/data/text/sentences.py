"""Text without annotation: lines or paragraphs of a file, columns of tables and datasets, pairs; words are what white space sets apart."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from headcount.core.errors import DataError, unknown
from headcount.data.readers.conllu import read_conllu
from headcount.data.readers.lines import kind_of, lines
from headcount.data.readers.tables import PAIRS, SINGLE, TABLES, Group, Layout, Row, read
from headcount.data.text.annotated import Annotated, Word, pair

By = Literal["line", "paragraph"]
BY = ("line", "paragraph")
WORD = re.compile(r"\S+")
NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]+)?")


def plain(text: str, where: str = "a sentence") -> Annotated:
    """A text with its words; no tree is known."""
    words = tuple(Word(found[0], "", "", None, "", found.start(), found.end()) for found in WORD.finditer(text))
    if not words:
        raise DataError(f"{where}: the text is empty; remove it")
    return Annotated(text, words, where=where)


def read_text(
    source: str | Path | Any, *, by: By = "line", text_column: str | None = None, text_pair_column: str | None = None
) -> Iterator[Annotated]:
    """The sentences of a treebank (.conllu), of a table or a datasets.Dataset, or of plain text (any other file), one at a time.

    Of a table, the columns named, or those with usual names; without a header one column of texts, or two of pairs. Plain text is taken `by` line
    or paragraph, and empty lines count for nothing.
    """
    if by not in BY:
        raise unknown("way to divide a text", by, BY)
    if text_pair_column and not text_column:
        raise DataError(f"text_pair_column is '{text_pair_column}', but text_column is not given; name both")
    named = {role: name for role, name in (("text", text_column), ("text_pair", text_pair_column)) if name}
    if not isinstance(source, str | os.PathLike):
        return _table(source, "the dataset", by, named)
    path = Path(source)
    if path.is_dir() or kind_of(path) in TABLES:
        return _table((path,), str(path), by, named)
    if named:
        raise DataError(f"{path} has no columns that can be named, so it has no '{next(iter(named.values()))}'; leave the columns out")
    return _treebank(path, by) if kind_of(path) == ".conllu" else _lines(path, by)


def _treebank(path: Path, by: By) -> Iterator[Annotated]:
    if by != "line":
        raise DataError(f"{path} is a treebank, which is read by sentence; leave by={by} out")
    return read_conllu(path)


def _table(source: Any, told: str, by: By, named: Mapping[str, str]) -> Iterator[Annotated]:
    if by != "line":
        raise DataError(f"{told} is a table, which is read by row; leave by={by} out")
    group = Group({"text": "text_column", "text_pair": "text_pair_column"}, (*PAIRS, *SINGLE))
    rows = read(source, Layout((group,), {1: ("text",), 2: ("text", "text_pair")}, named))
    return _some((_row(row, first=not number and not named) for number, row in enumerate(rows)), told)


def _row(row: Row, *, first: bool) -> Annotated:
    """The text or pair of a row; of the `first` of columns that nobody named, a second text that is a number is taken for a label."""
    text = plain(row.text("text"), row.where)
    if "text_pair" not in row.values:
        return text
    if first and NUMBER.fullmatch(row.text("text_pair").strip()):
        raise DataError(
            f"{row.where}: the second text is {row.text('text_pair')!r}, which is a label rather than a text. Keep the texts alone "
            "(cut -f1 FILE > texts.txt), name the columns in a first line, or read it as a task: --task classification --train FILE"
        )
    return pair(text, plain(row.text("text_pair"), row.where))


def _lines(path: Path, by: By) -> Iterator[Annotated]:
    """Runs of lines with content are paragraphs; each of their lines is a text of its own by line."""
    runs = (list(run) for full, run in groupby(lines(path), lambda line: bool(line[1].strip())) if full)
    texts = (
        ((run[0][0], "\n".join(text for _, text in run)) for run in runs) if by == "paragraph" else (line for run in runs for line in run)
    )
    return _some((plain(text, f"{path}, line {number}") for number, text in texts), str(path))


def _some(sentences: Iterator[Annotated], told: str) -> Iterator[Annotated]:
    found = False
    for sentence in sentences:
        found = True
        yield sentence
    if not found:
        raise DataError(f"{told} is empty; give a file with text")
