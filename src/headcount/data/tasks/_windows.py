"""Running text for language models: windows of a fixed number of tokens, or an example for each line or paragraph."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, tee
from typing import Any

import numpy as np

from headcount.core.errors import DataError
from headcount.data.open_task import Request
from headcount.data.readers.lines import count_lines, kind_of, lines
from headcount.data.readers.tables import SINGLE, TABLES, Group, Layout, Source, read, step_of, warn_of_rest
from headcount.data.task import Split, Text, Texts
from headcount.data.tasks._splits import told
from headcount.data.tasks._tokenize import encode, longest, texts_of

BY = ("window", "line", "paragraph")
WINDOW = 512
"""Tokens in a window where model and tokenizer allow more and max_length is not given."""


@dataclass(frozen=True, slots=True)
class Passage:
    """The tokens of one example, and where they stand."""

    ids: list[int]
    where: str
    text: str | None = None
    """What a line or paragraph says; windows begin and end within words."""

    def key(self) -> bytes:
        """Its content."""
        return np.asarray(self.ids, dtype=np.int64).tobytes()


def passages(request: Request, source: Source) -> Iterator[Passage]:
    """The examples of text files or of a dataset with a column of text."""
    by = request.choice("by", BY)
    if by == "window":
        if request.truncate:
            raise DataError(f"task '{request.name}' by windows cuts nothing off, so truncate means nothing; leave it out, or say by=line")
        yield from _windows(request, source)
    else:
        wanted = _texts(request, source) if by == "line" else _paragraphs(_texts(request, source))
        kept, again = tee((where, text) for where, text in wanted if text.strip())
        for made, (where, text) in zip(encode(request, kept), again, strict=True):
            yield Passage(made["input_ids"], where, text)


def texts(request: Request, divided: Callable[[], Mapping[Split, Sequence[Passage]]]) -> Texts | None:
    """What the passages say; None by windows."""
    if request.choice("by", BY) == "window":
        return None
    return texts_of(request, lambda split: (Text(passage.where, passage.text or "") for passage in divided()[split]))


def _texts(request: Request, source: Source) -> Iterator[tuple[str, str]]:
    """(where it stands, text) of each line or row. Of more than a limited task reads, single lines are spread over it, running text begins it."""
    by_line = request.choice("by", BY) == "line"
    rows = _rows(request, source, request.most_rows if by_line else None)
    for number, row in enumerate(rows):
        if not by_line and number == request.most_rows:
            warn_of_rest(told(source), number, None)
            return
        yield row


def _rows(request: Request, source: Source, most: int | None) -> Iterator[tuple[str, str]]:
    if not isinstance(source, tuple) or kind_of(source[0]) in TABLES or source[0].is_dir():
        named = {"text": request.text_column} if request.text_column else {}
        layout = Layout((Group({"text": "text_column"}, SINGLE),), {1: ("text",)}, named)
        yield from ((row.where, row.text("text")) for row in read(source, layout, most))
        return
    if request.text_column:
        raise DataError(f"{told(source)} is plain text, so it has no column '{request.text_column}'; leave text_column out")
    step = 1 if most is None else step_of(told(source), sum(map(count_lines, source)), most)
    for path in source:
        yield from ((f"{path}, line {number}", text) for number, text in lines(path, step))


def _paragraphs(texts: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Lines up to an empty one, as one text."""
    where, kept = "", []
    for place, text in texts:
        if text.strip():
            where = where if kept else place
            kept.append(text)
        elif kept:
            yield where, "\n".join(kept)
            kept = []
    if kept:
        yield where, "\n".join(kept)


def _windows(request: Request, source: Source) -> Iterator[Passage]:
    """All tokens in a row, cut into windows that each get the tokenizer's special tokens; a last window of a single token is left out."""
    before, after = _special(request.tokenizer)
    allowed = longest(request)
    length = min(allowed or WINDOW, request.max_length or WINDOW)
    room = length - len(before) - len(after)
    if room < 2:
        raise DataError(f"max_length {length} leaves {room} tokens beside {len(before) + len(after)} special ones; give a greater one")
    for number, ids in enumerate(_runs(_tokens(request, source), room)):
        yield Passage([*before, *ids, *after], f"{told(source)}, window {number}")


def _runs(tokens: Iterable[list[int]], room: int) -> Iterator[list[int]]:
    kept: array[int] = array("i")
    for ids in tokens:
        kept.extend(ids)
        while len(kept) >= room:
            yield kept[:room].tolist()
            del kept[:room]
    if len(kept) > 1:
        yield kept.tolist()


def _tokens(request: Request, source: Source) -> Iterator[list[int]]:
    texts = (text + "\n" for _, text in _texts(request, source))
    while chunk := "".join(islice(texts, 256)):
        if chunk.strip():
            yield request.tokenizer(chunk, add_special_tokens=False, verbose=False)["input_ids"]


def _special(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The special tokens that the tokenizer sets before and after a text."""
    inner = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    start = next((i for i in range(len(whole)) if whole[i : i + len(inner)] == inner), 0)
    return whole[:start], whole[start + len(inner) :]
