"""Treebanks in CoNLL-U, plain or gzipped: https://universaldependencies.org/format.html

A multi-word token (`1-2`) is what stands in the text; its words have their own characters where their forms spell it, else all of them.
Empty nodes (`1.1`) are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headcount.core.errors import DataError
from headcount.data.readers.conll import FIELDS, NUMBER, Line, sentences
from headcount.data.readers.coreference import DEFAULT, clusters, place_of_name
from headcount.data.text.annotated import Annotated, Note, Word, inside

COMMENT = re.compile(r"#\s*(text|global\.Entity)\s*=\s*(.*?)\s*")


@dataclass(frozen=True, slots=True)
class _Token:
    """What stands in the text: a word, or several under one form."""

    row: Line
    words: list[Line]

    @property
    def space_after(self) -> bool:
        return self.row.misc.get("SpaceAfter") != "No"


@dataclass(slots=True)
class _Block:
    """A sentence in the making."""

    tokens: list[_Token] = field(default_factory=list)
    words: list[Line] = field(default_factory=list)
    last: int = 0
    """The last word of the multi-word token that is open."""
    empty_mentions: int = 0

    def add(self, row: Line) -> None:
        number = NUMBER.fullmatch(row.cells[0])
        if number is None or (number["last"] and number["empty"]):
            raise row.wrong(f"the ID is {row.cells[0]!r}; it is a number (1), a range (1-2) or an empty node (1.1)")
        if number["empty"]:
            self.empty_mentions += row.misc.get("Entity", "").count("(")
        elif number["last"]:
            self._add_range(row, int(number["first"]), int(number["last"]))
        else:
            self._add_word(row, int(number["first"]))

    def _add_range(self, row: Line, first: int, last: int) -> None:
        if first != len(self.words) + 1 or last < first or self.last >= first:
            raise row.wrong(f"the range {row.cells[0]} cannot follow word {len(self.words)}; it stands right before its first word")
        self.last = last
        self.tokens.append(_Token(row, []))

    def _add_word(self, row: Line, number: int) -> None:
        if number != len(self.words) + 1:
            raise row.wrong(f"word {number} follows word {len(self.words)}; words are numbered from 1 without gaps")
        self.words.append(row)
        if number <= self.last:
            self.tokens[-1].words.append(row)
        else:
            self.tokens.append(_Token(row, [row]))


def read_conllu(path: str | Path) -> Iterator[Annotated]:
    """The sentences of a treebank, in order, one at a time; what is wrong with it is told with its line."""
    path, place, empty = Path(path), 0, True
    for texts, rows in sentences(path):
        comments = {found[1]: found[2] for text in texts if (found := COMMENT.fullmatch(text))}
        place = place_of_name(comments.get("global.Entity", DEFAULT)) if "global.Entity" in comments else place
        if rows:
            empty = False
            yield _sentence(rows, comments.get("text"), place)
    if empty:
        raise DataError(f"{path} holds no sentence; a CoNLL-U file has a line of {len(FIELDS)} columns for each word")


def _sentence(rows: Sequence[Line], text: str | None, place: int) -> Annotated:
    block = _Block()
    for row in rows:
        block.add(row)
    if block.last > len(block.words):
        raise block.tokens[-1].row.wrong(f"the range {block.tokens[-1].row.cells[0]} goes beyond the last word, {len(block.words)}")
    if not block.words:
        raise rows[0].wrong("the sentence has no words")
    text, starts, rebuilt = _text(block.tokens, text)
    spans = [
        span
        for token, start in zip(block.tokens, starts, strict=True)
        for span in inside(token.row.form, [row.form for row in token.words], start)
    ]
    words = tuple(_word(row, head, span) for row, head, span in zip(block.words, _heads(block.words), spans, strict=True))
    found, left_out = clusters([row.misc.get("Entity", "") for row in block.words], place)
    notes = (Note.REBUILT,) * rebuilt + (Note.MENTION,) * (left_out + block.empty_mentions)
    return Annotated(text, words, found, where=rows[0].where, notes=notes)


def _word(row: Line, head: int | None, span: tuple[int, int]) -> Word:
    _, form, lemma, upos, _, _, _, relation, _, _ = row.cells
    return Word(form, form if form == "_" else _known(lemma), _known(upos), head, _known(relation), *span)


def _known(cell: str) -> str:
    return "" if cell == "_" else cell


def _text(tokens: Sequence[_Token], given: str | None) -> tuple[str, list[int], bool]:
    """The text, where each token begins, and whether it had to be built from the forms against the text that was given."""
    starts = None if given is None else _starts(tokens, given)
    if given is not None and starts is not None:
        return given, starts, False
    made, starts = "", []
    for token in tokens:
        starts.append(len(made))
        made += token.row.form + " " * token.space_after
    return made.removesuffix(" ") if tokens[-1].space_after else made, starts, given is not None


def _starts(tokens: Sequence[_Token], text: str) -> list[int] | None:
    """Where each form begins in a text that holds all of them, and white space between them where it must be; None if it does not."""
    starts, at, spaced = [], 0, False
    for token in tokens:
        begin = _skip_white(text, at) if spaced else at
        if not text.startswith(token.row.form, begin) or (spaced and begin == at):
            return None
        starts.append(begin)
        at, spaced = begin + len(token.row.form), token.space_after
    return starts if at == len(text) else None


def _skip_white(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _heads(words: Sequence[Line]) -> list[int | None]:
    """The governor of every word from 0, -1 for roots; None for all where the column is empty throughout."""
    if all(row.cells[6] == "_" for row in words):
        return [None] * len(words)
    heads = [_head(row, len(words)) for row in words]
    if -1 not in heads:
        raise words[0].wrong("the sentence that begins here has no root; one of its words has head 0")
    for number, row in enumerate(words):
        _check_reaches_root(number, row, heads)
    return list(heads)


def _head(row: Line, n_words: int) -> int:
    text = row.cells[6]
    if not (text.isascii() and text.isdecimal()):
        raise row.wrong(f"the head of '{row.form}' is {text!r}; it is the number of a word, or 0 for the root")
    if int(text) > n_words or text == row.cells[0]:
        told = "that is the word itself" if text == row.cells[0] else f"the sentence has {n_words} words"
        raise row.wrong(f"the head of '{row.form}' is {text}, but {told}")
    return int(text) - 1


def _check_reaches_root(number: int, row: Line, heads: Sequence[int]) -> None:
    at = number
    for _ in heads:
        at = heads[at]
        if at < 0:
            return
    raise row.wrong(f"the heads from '{row.form}' on go in a circle, so they never reach the root")
