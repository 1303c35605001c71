"""The three splits of a task: fixed, disjoint, and the same on every machine.

The value of a hash of its content decides the split of an example, so that equal examples share a split and no other example, no limit and no
seed changes it. Examples stand in the order of their hashes, so that the first ones of a split are a sample of it, however the file is sorted. A
limited task keeps the first ones of each split.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappush, heapreplace
from itertools import accumulate
from typing import TypeVar

from headcount.core.errors import DataError
from headcount.data.readers.tables import Source, source_label, warn_of_unread_rows
from headcount.data.task import SPLITS, Split
from headcount.data.task_builder import TaskRequest

T = TypeVar("T")
SourceReader = Callable[[Source], Iterable[T]]
HASHES = 2**64
"""How many values a hash can have here."""


def for_each_split(make: Callable[[Split], T]) -> dict[Split, T]:
    """Returns what `make` returns for each split."""
    return {split: make(split) for split in SPLITS}


def split_by_hash(items: Iterable[T], key: Callable[[T], bytes], shares: Sequence[int], limit: int | None = None) -> list[list[T]]:
    """Returns `items` in disjoint parts of about these shares, smallest hashes first; of each part at most `limit` items.

    Items are read one at a time, and no more than `limit` of each part are in memory.
    """
    ends = [total * HASHES // sum(shares) for total in accumulate(shares)]
    heaps: list[list[tuple[int, int, T]]] = [[] for _ in shares]
    for number, item in enumerate(items):
        value = int.from_bytes(hashlib.sha256(key(item)).digest()[:8])
        heap = heaps[bisect_right(ends, value)]
        entry = (-value, -number, item)  # the largest hash is on top; no two numbers are equal, so items are never compared
        if limit is None:
            heap.append(entry)
        elif len(heap) < limit:
            heappush(heap, entry)
        elif entry[:2] > heap[0][:2]:
            heapreplace(heap, entry)
    return [[item for _, _, item in sorted(heap, key=lambda entry: entry[:2], reverse=True)] for heap in heaps]


def read_splits(request: TaskRequest, read: SourceReader[T], key: Callable[[T], bytes]) -> dict[Split, list[T]]:
    """Returns the examples of each split, at most `request.limit`: calibration from `train`, selection and report from the halves of `eval`.

    A single source is divided in one half and two quarters. A limited task reads at most `request.max_rows` examples of a source.
    """
    train, held_out = request.train, request.eval
    _check_sources(request)

    def divide_source_by_hash(source: Source, split_names: Sequence[Split], split_shares: Sequence[int]) -> dict[Split, list[T]]:
        divided = split_by_hash(_read_limited(request, read, source), key, split_shares, request.limit)
        empty = next((name for name, items in zip(split_names, divided, strict=True) if not items), None)
        if empty is not None:
            raise DataError(
                f"{source_label(source)} has {sum(map(len, divided))} examples, too few different ones to be divided into disjoint splits: a hash of "
                f"its content names the split of each, and none falls into {empty}; give more"
            )
        return dict(zip(split_names, divided, strict=True))

    if train is None or held_out is None:
        return divide_source_by_hash(held_out if train is None else train, SPLITS, (2, 1, 1))
    return {**divide_source_by_hash(train, SPLITS[:1], (1,)), **divide_source_by_hash(held_out, SPLITS[1:], (1, 1))}


def _check_sources(request: TaskRequest) -> None:
    if request.train is None and request.eval is None:
        raise DataError(
            f"task '{request.name}' needs data: give train, and eval or a part of train is held out; "
            "or name a task that comes with data, such as demo/entailment"
        )
    if isinstance(request.train, tuple) and isinstance(request.eval, tuple):
        same = {path.resolve() for path in request.train} & {path.resolve() for path in request.eval}
        if same:
            raise DataError(f"train and eval are the same file, {min(same)}; give one of them, and fixed parts of it are used")


def _read_limited(request: TaskRequest, read: SourceReader[T], source: Source) -> Iterator[T]:
    """Yields the examples of a source, at most as many as a limited task reads; raises DataError where there is none."""
    number = -1
    for number, item in enumerate(read(source)):
        if request.max_rows is not None and number >= request.max_rows:
            warn_of_unread_rows(source_label(source), number, None)
            return
        yield item
    if number < 0:
        raise DataError(f"{source_label(source)} is empty: no example in it; give a file with examples")
