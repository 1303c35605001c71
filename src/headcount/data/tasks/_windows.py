"""Running text for language models: windows of a fixed number of tokens, or an example for each line or paragraph; and which tokens are masked."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from itertools import islice, tee
from typing import Any, Literal

import numpy as np

from headcount.core.errors import DataError
from headcount.core.files import is_folder
from headcount.core.options import option
from headcount.data.metrics import IGNORED
from headcount.data.readers.lines import count_lines, read_lines, uncompressed_suffix
from headcount.data.readers.tables import (
    SINGLE,
    TABLES,
    ColumnGroup,
    ColumnLayout,
    Source,
    read_rows,
    row_step,
    source_label,
    warn_of_unread_rows,
)
from headcount.data.task import Split, Text, Texts
from headcount.data.task_builder import TaskBuilder, TaskRequest
from headcount.data.tasks._splits import read_splits
from headcount.data.tasks._tokenize import encode, max_example_tokens

WINDOW = 512
"""Tokens in a window where model and tokenizer allow more and max_length is not given."""
MASKED_SHARE = 0.15
TEXT_ARGUMENTS = ("train", "eval", "text_column", "max_length", "truncate")
"""The arguments of `open_task` that tasks on running text use."""


PositionAndText = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Passage:
    """The tokens of one example, their position in the source, and their text; windows begin and end within words, so they have none."""

    ids: list[int]
    origin: str
    text: str | None = None

    def identity_bytes(self) -> bytes:
        """Returns what makes two passages equal: their tokens."""
        return np.asarray(self.ids, dtype=np.int64).tobytes()


@dataclass(frozen=True)
class LanguageModelling(TaskBuilder):
    """What the tasks on running text share."""

    _: KW_ONLY
    by: Literal["window", "line", "paragraph"] = option("window", "What an example is: a window of tokens, a line, or a paragraph")

    def passages_by_split(self, request: TaskRequest) -> dict[Split, list[Passage]]:
        """Returns the examples of each split."""
        return read_splits(request, lambda source: self._passages(request, source), Passage.identity_bytes)

    def texts(self, request: TaskRequest) -> Texts | None:
        """Returns the texts of lines or paragraphs; None for windows."""
        if self.by == "window":
            return None

        def read_texts(split: Split) -> Iterator[Text]:
            return (Text(passage.origin, passage.text or "") for passage in self.passages_by_split(request)[split])

        return Texts(read_texts, request.max_length, request.truncate)

    def _passages(self, request: TaskRequest, source: Source) -> Iterator[Passage]:
        """Yields the examples of text files or of a dataset with a column of text."""
        if self.by == "window":
            if request.truncate:
                raise DataError(
                    f"task '{request.name}' by windows cuts nothing off, so truncate means nothing; leave it out, or use by=line"
                )
            yield from _token_windows(request, source_label(source), _rows_from_beginning(request, source))
            return
        rows = _text_rows(request, source, request.max_rows) if self.by == "line" else _paragraphs(_rows_from_beginning(request, source))
        to_encode, again = tee((origin, text) for origin, text in rows if text.strip())
        for encoded, (origin, text) in zip(encode(request, to_encode), again, strict=True):
            yield Passage(encoded["input_ids"], origin, text)


def _rows_from_beginning(request: TaskRequest, source: Source) -> Iterator[PositionAndText]:
    """Yields the rows that a limited task reads of running text, from its beginning."""
    for number, row in enumerate(_text_rows(request, source, None)):
        if number == request.max_rows:
            warn_of_unread_rows(source_label(source), number, None)
            return
        yield row


def _text_rows(request: TaskRequest, source: Source, max_rows: int | None) -> Iterator[PositionAndText]:
    """Yields position and text of each line or row; of a source with more than `max_rows`, at most so many, spread evenly over it."""
    if not isinstance(source, tuple) or uncompressed_suffix(source[0]) in TABLES or is_folder(source[0]):
        named = {"text": request.text_column} if request.text_column else {}
        layout = ColumnLayout((ColumnGroup({"text": "text_column"}, SINGLE),), {1: ("text",)}, named)
        yield from ((row.origin, row.text("text")) for row in read_rows(source, layout, max_rows))
        return
    if request.text_column:
        raise DataError(f"{source_label(source)} is plain text, so it has no column '{request.text_column}'; leave text_column out")
    step = 1 if max_rows is None else row_step(source_label(source), sum(map(count_lines, source)), max_rows)
    for path in source:
        yield from ((f"{path}, line {number}", text) for number, text in read_lines(path, step))


def _paragraphs(rows: Iterable[PositionAndText]) -> Iterator[PositionAndText]:
    """Yields the lines up to an empty one as one text, with the position of the first."""
    start, paragraph = "", []
    for origin, text in rows:
        if text.strip():
            start = start if paragraph else origin
            paragraph.append(text)
        elif paragraph:
            yield start, "\n".join(paragraph)
            paragraph = []
    if paragraph:
        yield start, "\n".join(paragraph)


def _token_windows(request: TaskRequest, source_name: str, rows: Iterable[PositionAndText]) -> Iterator[Passage]:
    """Yields all tokens in windows with the tokenizer's special tokens; a last window of a single token is left out."""
    before, after = _special_ids_before_and_after(request.tokenizer)
    length = min(max_example_tokens(request) or WINDOW, request.max_length or WINDOW)
    room = length - len(before) - len(after)
    if room < 2:
        raise DataError(f"max_length {length} leaves {room} tokens beside {len(before) + len(after)} special ones; give a greater one")
    tokens = (request.tokenizer(piece, add_special_tokens=False, verbose=False)["input_ids"] for piece in _join_texts_of_256_rows(rows))
    for number, ids in enumerate(_cut_into_windows(tokens, room)):
        yield Passage([*before, *ids, *after], f"{source_name}, window {number}")


def _join_texts_of_256_rows(rows: Iterable[PositionAndText]) -> Iterator[str]:
    """Yields the text of 256 rows at a time."""
    texts = (text + "\n" for _, text in rows)
    while piece := "".join(islice(texts, 256)):
        if piece.strip():
            yield piece


def _cut_into_windows(tokens: Iterable[list[int]], window_length: int) -> Iterator[list[int]]:
    pending: array[int] = array("i")
    for ids in tokens:
        pending.extend(ids)
        while len(pending) >= window_length:
            yield pending[:window_length].tolist()
            del pending[:window_length]
    if len(pending) > 1:
        yield pending.tolist()


def _special_ids_before_and_after(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Returns the special tokens that the tokenizer sets before and after a text."""
    plain = tokenizer("a", add_special_tokens=False)["input_ids"]
    complete = tokenizer("a")["input_ids"]
    start = next((i for i in range(len(complete)) if complete[i : i + len(plain)] == plain), 0)
    return complete[:start], complete[start + len(plain) :]


def mask_tokens(
    ids: list[int], seed_and_example_number: tuple[int, int], *, mask_id: int, special_ids: frozenset[int]
) -> dict[str, list[int]]:
    """Returns tokens of which 15 % of the ordinary ones, and at least one, are replaced by the mask token; only these have labels.

    The choice depends on the seed and the number of the example alone, so that every run masks the same tokens.
    """
    draws = np.frombuffer(hashlib.shake_128(repr(seed_and_example_number).encode()).digest(4 * len(ids)), dtype="<u4") / 2**32
    ordinary = [index for index, token in enumerate(ids) if token not in special_ids]
    if not ordinary:
        raise DataError(f"example {seed_and_example_number[1]} holds special tokens only, so nothing in it can be masked; remove it")
    chosen = {index for index in ordinary if draws[index] < MASKED_SHARE} or {min(ordinary, key=lambda index: draws[index])}
    return {
        "input_ids": [mask_id if index in chosen else token for index, token in enumerate(ids)],
        "labels": [token if index in chosen else IGNORED for index, token in enumerate(ids)],
    }


def mask_id(request: TaskRequest) -> int:
    """Returns the tokenizer's mask token."""
    token = getattr(request.tokenizer, "mask_token_id", None)
    if token is None:
        raise DataError(f"the tokenizer has no mask token, so task '{request.name}' is not for its model; try causal-lm")
    return token
