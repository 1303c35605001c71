"""Lines of CoNLL-U files, plain or gzipped, sentence by sentence: https://universaldependencies.org/format.html"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from headcount.core.errors import DataError
from headcount.data.readers.lines import lines

FIELDS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
"""The columns."""
NUMBER = re.compile(r"(?P<first>[0-9]+)(?:-(?P<last>[0-9]+))?(?P<empty>\.[0-9]+)?")
"""The ID of a word (1), of a multi-word token (1-2) or of an empty node (1.1)."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line with its cells."""

    path: Path
    number: int
    cells: Sequence[str]

    @property
    def where(self) -> str:
        """File and line, for messages."""
        return f"{self.path}, line {self.number}"

    def wrong(self, message: str) -> DataError:
        """The error that tells what is wrong with the line."""
        return DataError(f"{self.where}: {message}")

    @property
    def form(self) -> str:
        """The word as it is written."""
        return self.cells[1]

    @property
    def misc(self) -> dict[str, str]:
        """The last column by name."""
        return {name: value for name, _, value in (part.partition("=") for part in self.cells[9].split("|"))}


def sentences(path: Path) -> Iterator[tuple[list[str], list[Line]]]:
    """The comments and the lines of each run of lines, in order; comments may stand alone. What is wrong with a line is told with its number."""
    empty = True
    for full, group in groupby(lines(path), lambda line: bool(line[1].strip())):
        block = list(group) if full else []
        comments = [text for _, text in block if text.startswith("#")]
        found = [_line(path, number, text, first=empty) for number, text in block if not text.startswith("#")]
        empty = empty and not found
        if block:
            yield comments, found


def _line(path: Path, number: int, text: str, *, first: bool) -> Line:
    cells = text.split("\t")
    if len(cells) != len(FIELDS):
        hint = " This is no CoNLL-U file." if first and not NUMBER.fullmatch(cells[0]) else ""
        raise DataError(f"{path}, line {number} has {len(cells)} columns, but CoNLL-U has {len(FIELDS)}, set apart by tabs.{hint}")
    line = Line(path, number, cells)
    if not line.form:
        raise line.wrong("the form is empty; a word has characters")
    return line
