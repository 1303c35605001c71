"""Translations: sentences beside those of another language, with the words that correspond."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from headcount.core.errors import DataError
from headcount.data.readers.lines import read_lines
from headcount.data.text.annotated import Annotated

LINK = re.compile(r"([0-9]+)-([0-9]+)")


def read_links(path: str | Path) -> Iterator[frozenset[tuple[int, int]]]:
    """Yields word alignments, a line for each sentence: `0-0 1-2`, source word and target word, from 0 (the format of fast_align and its kin)."""
    for number, text in read_lines(Path(path)):
        links = [(part, LINK.fullmatch(part)) for part in text.split()]
        wrong = next((part for part, link in links if link is None), None)
        if wrong is not None:
            raise DataError(f"{path}, line {number}: {wrong!r} is no alignment of two words; 3-5 aligns word 3 with word 5, from 0")
        yield frozenset((int(link[1]), int(link[2])) for _, link in links if link)


def translations(
    sources: Iterable[Annotated], targets: Iterable[Annotated], links: Iterable[frozenset[tuple[int, int]]] | None = None
) -> Iterator[Annotated]:
    """Yields each source sentence with its translation and, if given, its word alignments; there must be as many of each."""
    columns = [sources, targets] if links is None else [sources, targets, links]
    for number, row in enumerate(zip_longest(*columns)):
        if any(value is None for value in row):
            names = ("sources", "targets", "links")
            short = ", ".join(name for name, value in zip(names, row, strict=False) if value is None)
            raise DataError(f"translations must have as many sources, targets and links, but there are only {number} {short}")
        yield replace(row[0], target=row[1], links=row[2] if links is not None else frozenset())
