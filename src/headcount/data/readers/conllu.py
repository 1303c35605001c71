"""Treebanks in CoNLL-U, plain or gzipped: https://universaldependencies.org/format.html

A multi-word token (`1-2`) is what stands in the text; its words have their own characters where their forms spell it, else all of them.
Empty nodes (`1.1`) are left out. Coreference is read in the bracket notation of CorefUD (`Entity=` in the MISC column), as far as mentions
lie within one sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from headcount.core.errors import DataError
from headcount.data.readers.lines import read_lines
from headcount.data.text.annotated import Annotated, Cluster, Note, Span, Word, character_spans_of_words

FIELDS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
"""The columns."""
NUMBER = re.compile(r"(?P<first>[0-9]+)(?:-(?P<last>[0-9]+))?(?P<empty>\.[0-9]+)?")
"""The ID of a word (1), of a multi-word token (1-2) or of an empty node (1.1)."""
COMMENT = re.compile(r"#\s*(text|global\.Entity)\s*=\s*(.*?)\s*")
MENTION = re.compile(r"(\()?([^()]+)(\))?")


@dataclass(frozen=True, slots=True)
class ConlluLine:
    """A line of a CoNLL-U file, split into its columns."""

    path: Path
    number: int
    cells: Sequence[str]

    @property
    def position(self) -> str:
        """File and line, for messages."""
        return f"{self.path}, line {self.number}"

    def error(self, message: str) -> DataError:
        """Returns the error that says what is wrong with the line."""
        return DataError(f"{self.position}: {message}")

    @property
    def form(self) -> str:
        """The word as it is written."""
        return self.cells[1]

    @property
    def misc(self) -> dict[str, str]:
        """The last column by name."""
        return {name: value for name, _, value in (part.partition("=") for part in self.cells[9].split("|"))}


def read_sentence_lines(path: Path) -> Iterator[tuple[list[str], list[ConlluLine]]]:
    """Yields the comments and the lines of each run of lines, in order; comments may stand alone.

    Raises:
        DataError: a line that is not CoNLL-U, with its number.
    """
    is_first = True
    for has_text, group in groupby(read_lines(path), lambda line: bool(line[1].strip())):
        numbered = list(group) if has_text else []
        comments = [text for _, text in numbered if text.startswith("#")]
        sentence = [_parse_line(path, number, text, is_in_first_sentence=is_first) for number, text in numbered if not text.startswith("#")]
        is_first = is_first and not sentence
        if numbered:
            yield comments, sentence


def _parse_line(path: Path, line_number: int, text: str, *, is_in_first_sentence: bool) -> ConlluLine:
    cells = text.split("\t")
    if len(cells) != len(FIELDS):
        hint = " This is no CoNLL-U file." if is_in_first_sentence and not NUMBER.fullmatch(cells[0]) else ""
        raise DataError(f"{path}, line {line_number} has {len(cells)} columns, but CoNLL-U has {len(FIELDS)}, set apart by tabs.{hint}")
    line = ConlluLine(path, line_number, cells)
    if not line.form:
        raise line.error("the form is empty; a word has characters")
    return line


@dataclass(frozen=True, slots=True)
class _Token:
    """What stands in the text: a word, or several under one form."""

    row: ConlluLine
    words: list[ConlluLine]

    @property
    def space_after(self) -> bool:
        return self.row.misc.get("SpaceAfter") != "No"


@dataclass(slots=True)
class _Sentence:
    """A sentence while its lines are read."""

    tokens: list[_Token] = field(default_factory=list)
    words: list[ConlluLine] = field(default_factory=list)
    last: int = 0
    """The last word of the multi-word token that is open."""
    empty_mentions: int = 0

    def add_line(self, row: ConlluLine) -> None:
        number = NUMBER.fullmatch(row.cells[0])
        if number is None or (number["last"] and number["empty"]):
            raise row.error(f"the ID is {row.cells[0]!r}; it is a number (1), a range (1-2) or an empty node (1.1)")
        if number["empty"]:
            self.empty_mentions += row.misc.get("Entity", "").count("(")
        elif number["last"]:
            first, last = int(number["first"]), int(number["last"])
            if first != len(self.words) + 1 or last < first or self.last >= first:
                raise row.error(f"the range {row.cells[0]} cannot follow word {len(self.words)}; it stands right before its first word")
            self.last = last
            self.tokens.append(_Token(row, []))
        else:
            self._add_word(row, int(number["first"]))

    def _add_word(self, row: ConlluLine, number: int) -> None:
        if number != len(self.words) + 1:
            raise row.error(f"word {number} follows word {len(self.words)}; words are numbered from 1 without gaps")
        self.words.append(row)
        if number <= self.last:
            self.tokens[-1].words.append(row)
        else:
            self.tokens.append(_Token(row, [row]))


def read_conllu(path: str | Path) -> Iterator[Annotated]:
    """Yields the sentences of a treebank, in order, one at a time.

    Raises:
        DataError: the file is not CoNLL-U, with the line, or holds no sentence.
    """
    path, name_field_index, is_empty = Path(path), 0, True
    for texts, rows in read_sentence_lines(path):
        comments = {match[1]: match[2] for text in texts if (match := COMMENT.fullmatch(text))}
        name_field_index = index_of_entity_name_field(comments["global.Entity"]) if "global.Entity" in comments else name_field_index
        if rows:
            is_empty = False
            yield _build_sentence(rows, comments.get("text"), name_field_index)
    if is_empty:
        raise DataError(f"{path} holds no sentence; a CoNLL-U file has a line of {len(FIELDS)} columns for each word")


def _build_sentence(rows: Sequence[ConlluLine], text: str | None, name_field_index: int) -> Annotated:
    sentence = _Sentence()
    for row in rows:
        sentence.add_line(row)
    if sentence.last > len(sentence.words):
        raise sentence.tokens[-1].row.error(
            f"the range {sentence.tokens[-1].row.cells[0]} goes beyond the last word, {len(sentence.words)}"
        )
    if not sentence.words:
        raise rows[0].error("the sentence has no words")
    placed = _place_tokens(sentence.tokens, text)
    spans = [
        span
        for token, start in zip(sentence.tokens, placed.starts, strict=True)
        for span in character_spans_of_words(token.row.form, [row.form for row in token.words], start)
    ]
    words = tuple(
        _build_word(row, head, span)
        for row, head, span in zip(sentence.words, _governors_or_minus_1_for_roots(sentence.words), spans, strict=True)
    )
    coreference = find_clusters([row.misc.get("Entity", "") for row in sentence.words], name_field_index)
    notes = (Note.REBUILT,) * placed.is_rebuilt + (Note.MENTION,) * (coreference.n_mentions_left_out + sentence.empty_mentions)
    return Annotated(placed.text, words, coreference.clusters, origin=rows[0].position, notes=notes)


def _build_word(row: ConlluLine, governor: int | None, span: tuple[int, int]) -> Word:
    _, form, lemma, upos, _, _, _, relation, _, _ = row.cells
    return Word(
        form,
        form if form == "_" else _blank_if_underscore(lemma),
        _blank_if_underscore(upos),
        governor,
        _blank_if_underscore(relation),
        *span,
    )


def _blank_if_underscore(cell: str) -> str:
    return "" if cell == "_" else cell


class _PlacedTokens(NamedTuple):
    """A text and the start of each token in it; `is_rebuilt` where it was built from the forms, because the stated text does not hold them."""

    text: str
    starts: list[int]
    is_rebuilt: bool


def _place_tokens(tokens: Sequence[_Token], stated_text: str | None) -> _PlacedTokens:
    starts = None if stated_text is None else _find_token_starts(tokens, stated_text)
    if stated_text is not None and starts is not None:
        return _PlacedTokens(stated_text, starts, False)
    text, starts = "", []
    for token in tokens:
        starts.append(len(text))
        text += token.row.form + " " * token.space_after
    return _PlacedTokens(text.removesuffix(" ") if tokens[-1].space_after else text, starts, stated_text is not None)


def _find_token_starts(tokens: Sequence[_Token], text: str) -> list[int] | None:
    """Returns the start of each form in a text that holds all of them, with white space between them where there must be; None if it does not."""
    starts, end, needs_space = [], 0, False
    for token in tokens:
        start = end
        while needs_space and start < len(text) and text[start].isspace():
            start += 1
        if not text.startswith(token.row.form, start) or (needs_space and start == end):
            return None
        starts.append(start)
        end, needs_space = start + len(token.row.form), token.space_after
    return starts if end == len(text) else None


def _governors_or_minus_1_for_roots(words: Sequence[ConlluLine]) -> list[int] | list[None]:
    """Returns the governor of every word, counted from 0, -1 for roots; None for all where the column is empty throughout."""
    if all(row.cells[6] == "_" for row in words):
        return [None] * len(words)
    heads = [_governor_or_minus_1_for_root(row, len(words)) for row in words]
    if -1 not in heads:
        raise words[0].error("the sentence that begins here has no root; one of its words has head 0")
    for number, row in enumerate(words):
        _check_reaches_root(number, row, heads)
    return heads


def _governor_or_minus_1_for_root(row: ConlluLine, n_words: int) -> int:
    text = row.cells[6]
    if not (text.isascii() and text.isdecimal()):
        raise row.error(f"the head of '{row.form}' is {text!r}; it is the number of a word, or 0 for the root")
    if int(text) > n_words or text == row.cells[0]:
        reason = "that is the word itself" if text == row.cells[0] else f"the sentence has {n_words} words"
        raise row.error(f"the head of '{row.form}' is {text}, but {reason}")
    return int(text) - 1


def _check_reaches_root(word_index: int, row: ConlluLine, governors: Sequence[int]) -> None:
    for _ in governors:
        word_index = governors[word_index]
        if word_index < 0:
            return
    raise row.error(f"the heads from '{row.form}' on go in a circle, so they never reach the root")


def index_of_entity_name_field(fields: str) -> int:
    """Returns which of the fields that `# global.Entity` states, separated by hyphens, names the entity."""
    names = fields.split("-")
    return next((names.index(name) for name in ("eid", "GRP") if name in names), 0)


class Clusters(NamedTuple):
    """The entities with two or more mentions, and how many mentions were left out."""

    clusters: tuple[Cluster, ...]
    n_mentions_left_out: int


def find_clusters(entity_marks: Sequence[str], name_field_index: int = 0) -> Clusters:
    """Returns the entities that are mentioned, from the mark of every word, of whose fields one names the entity.

    Left out are mentions in several parts (`e1[1/2]`), and those that open or close in another sentence.
    """
    open_mentions: dict[str, list[int]] = {}
    mentions: dict[str, list[Span]] = {}
    left_out = 0
    for word, mark in enumerate(entity_marks):
        for opens, inner, closes in MENTION.findall(mark):
            fields = inner.split("-")
            name = fields[name_field_index] if name_field_index < len(fields) else fields[0]
            if "[" in name:
                left_out += bool(opens)
                continue
            if opens:
                open_mentions.setdefault(name, []).append(word)
            if closes and open_mentions.get(name):
                mentions.setdefault(name, []).append((open_mentions[name].pop(), word + 1))
            elif closes:
                left_out += 1
    left_out += sum(map(len, open_mentions.values()))
    return Clusters(tuple(tuple(sorted(spans)) for spans in mentions.values() if len(spans) > 1), left_out)
