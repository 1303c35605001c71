"""Text in whatever form a caller has it, as sentences: texts, pairs of texts, examples of a task, columns of a dataset."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from headcount.core.errors import DataError
from headcount.data.task import Text
from headcount.data.text.annotated import Annotated, pair
from headcount.data.text.sentences import plain, read_text

N_PAIR = 2


def sentences_of(given: Any) -> Iterator[Annotated]:
    """The sentences of a file, a datasets.Dataset, or of texts, pairs of texts (two strings) and annotated sentences in any mixture."""
    if isinstance(given, str | os.PathLike) or hasattr(given, "column_names"):
        return read_text(given)
    return (_sentence(item, f"sentence {number}") for number, item in enumerate(given))


def of_examples(texts: Iterable[Text]) -> Iterator[Annotated]:
    """The sentences that the examples of a task say; words are what white space sets apart."""
    for text in texts:
        first = plain(text.text, text.where)
        whole = first if text.pair is None else pair(first, plain(text.pair, text.where))
        yield whole if text.target is None else replace(whole, target=plain(text.target, text.where))


def _sentence(item: Any, where: str) -> Annotated:
    if isinstance(item, Annotated):
        return item
    if isinstance(item, str):
        return plain(item, where)
    if isinstance(item, list | tuple) and len(item) == N_PAIR and all(isinstance(part, str) for part in item):
        return pair(*(plain(part, where) for part in item))
    raise DataError(f"{where} must be a text, a pair of two texts or an annotated sentence, got {type(item).__name__}")
