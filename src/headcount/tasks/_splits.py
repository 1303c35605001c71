"""The three splits of a task: fixed, disjoint, and the same on every machine.

Examples are ranked by a hash of their content and dealt out by rank, so that equal examples share a split and every split keeps its share;
within a split they stay in the order of the file. Nothing depends on a seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TypeVar

from headcount.data import SPLITS, Split
from headcount.errors import DataError
from headcount.tasks import Request, Source

T = TypeVar("T")
Read = Callable[[Source], Iterable[T]]


def each(make: Callable[[Split], T]) -> dict[Split, T]:
    """What is made for each split."""
    return {split: make(split) for split in SPLITS}


def parts(items: Sequence[T], key: Callable[[T], bytes], shares: Sequence[int]) -> list[list[T]]:
    """`items` in disjoint parts of about these shares; a distinct item is in one part only."""
    digests = [hashlib.sha256(key(item)).digest() for item in items]
    ranked = sorted(set(digests))
    ends = [len(ranked) * sum(shares[: i + 1]) // sum(shares) for i in range(len(shares))]
    place = {digest: sum(rank >= end for end in ends) for rank, digest in enumerate(ranked)}
    return [[item for item, digest in zip(items, digests, strict=True) if place[digest] == i] for i in range(len(shares))]


def divide(request: Request, read: Read[T], key: Callable[[T], bytes]) -> dict[Split, list[T]]:
    """The examples of each split, at most `request.limit`: calibration from `train`, selection and report from the halves of `eval`.

    A single source is divided in one half and two quarters.
    """
    train, held_out = request.train, request.eval
    _check_sources(request)
    if train is None or held_out is None:
        made = parts(_all(read, source := held_out if train is None else train), key, (2, 1, 1))
        return _cut(request, made, source)
    calibration = list(islice(read(train), request.limit))
    if not calibration:
        raise _empty(train)
    return _cut(request, [calibration, *parts(_all(read, held_out), key, (1, 1))], held_out)


def _check_sources(request: Request) -> None:
    if request.train is None and request.eval is None:
        raise DataError(f"task '{request.name}' needs data: --train FILE, and --eval FILE or a part of the same file is held out")
    if isinstance(request.train, tuple) and isinstance(request.eval, tuple):
        same = {path.resolve() for path in request.train} & {path.resolve() for path in request.eval}
        if same:
            raise DataError(f"train and eval are the same file, {min(same)}; give one of them, and fixed parts of it are used")


def told(source: Source) -> str:
    """A source in words."""
    return " + ".join(map(str, source)) if isinstance(source, tuple) else "the dataset"


def _empty(source: Source) -> DataError:
    return DataError(f"{told(source)} is empty: no example in it; give a file with examples")


def _all(read: Read[T], source: Source) -> list[T]:
    items = list(read(source))
    if not items:
        raise _empty(source)
    return items


def _cut(request: Request, made: list[list[T]], source: Source) -> dict[Split, list[T]]:
    if not all(made):
        number = sum(map(len, made[-2:])) if request.train is not None and request.eval is not None else sum(map(len, made))
        raise DataError(
            f"{told(source)} has {number} examples, too few different ones to be divided into disjoint splits; give more, "
            "at least 2 for eval, 4 for a single file"
        )
    return {split: items[: request.limit] for split, items in zip(SPLITS, made, strict=True)}
