"""Fewer examples of a split, drawn by the hash of their content: the first ones of a file may be of one kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256

from headcount.core.errors import DataError
from headcount.data.chunks import hash_example
from headcount.data.task import SPLITS, Example, Split, Task


class _Drawn(Sequence[Example]):
    """Some examples of a split, read when they are asked for."""

    def __init__(self, examples: Sequence[Example], positions: Sequence[int]) -> None:
        self._examples, self._positions = examples, positions

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, index: int) -> Example:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._examples[self._positions[index]]


def limit_splits_by_hash(task: Task, limit: int | None) -> Task:
    """Returns the task with at most `limit` examples of each split, as `limit_split_by_hash` chooses them."""
    for split in SPLITS:
        task = limit_split_by_hash(task, split, limit)
    return task


def limit_split_by_hash(task: Task, split: Split, limit: int | None) -> Task:
    """Returns the task with at most `limit` examples of a split, those of the smallest content hashes, in their order.

    Where the split names documents, these are drawn one after another by the hashes of their names.
    """
    examples = task.split(split)
    if limit is not None and limit < 1:
        raise DataError(f"limit must be 1 or more, got {limit}")
    if limit is None or limit >= len(examples):
        return task
    names = task.documents.get(split)
    of_document = [b"" if names is None else sha256(repr(names[number]).encode()).digest() for number in range(len(examples))]
    hashes = [(of_document[number], hash_example(examples[number]), number) for number in range(len(examples))]
    positions = sorted(number for _, _, number in sorted(hashes)[:limit])
    documents = {
        name: [of_split[number] for number in positions] if name == split else of_split for name, of_split in task.documents.items()
    }
    return replace(task, documents=documents, **{split: _Drawn(examples, positions)})
