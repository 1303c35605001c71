"""What goes through a model: tasks, datasets or plain batches, cut into fixed chunks of examples in a fixed order.

A chunk does not depend on the batch size or on how many processes share the work, so sums over chunks in their order do not either.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from headcount.core.errors import DataError
from headcount.data.task import CollatedExamples, DataSource, Example, Split, Task, pad
from headcount.models.modules import Batch

CHUNK = 128
"""Examples per chunk."""
BATCH = 32
"""Examples per batch where neither the call nor the task names a number."""
Collate = Callable[[list[Example]], Batch]
NumbersInChunk = list[int]
"""Numbers of examples, counted from 0 at the first one of their chunk."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive examples; `first` is the number of the first one. Batches of a chunk are padded together.

    `digest` is the concatenation of the hashes of its examples, so that the digest of all chunks does not depend on where a chunk ends.
    """

    first: int
    size: int
    digest: bytes
    _make: Callable[[NumbersInChunk], Batch]
    _lengths: tuple[int, ...]

    def example_hashes(self) -> list[bytes]:
        """Returns a hash of the content of every example; of a plain batch, of the batch and the place in it."""
        size = hashlib.sha256().digest_size
        if len(self.digest) == size * self.size:
            return [self.digest[start : start + size] for start in range(0, len(self.digest), size)]
        return [hashlib.sha256(self.digest + number.to_bytes(4)).digest() for number in range(self.size)]

    def batch(self, numbers: NumbersInChunk) -> Batch:
        """Returns some examples of the chunk, by their numbers in it, as one batch."""
        return self._make(numbers)

    def batches(self, batch_size: int, n_shortest_skipped: int = 0) -> Iterator[tuple[NumbersInChunk, Batch]]:
        """Yields batches of at most `batch_size` examples, from the shortest on, with their numbers; skips the `n_shortest_skipped`."""
        order = sorted(range(self.size), key=lambda i: (self._lengths[i], i))
        for first in range(n_shortest_skipped, self.size, batch_size):
            numbers = order[first : first + batch_size]
            yield numbers, self._make(numbers)


def chunks(
    data: DataSource, *, split: Split = "calibration", limit: int | None = None, chunk_size: int = CHUNK, pad_id: int = 0
) -> Iterator[Chunk]:
    """Yields the examples of `data` in order, at most `limit`, in chunks of `chunk_size`. Of plain batches each is a chunk.

    Raises:
        DataError: `limit` is below 1, the data are empty, or a batch is no mapping of tensors.
    """
    if limit is not None and limit < 1:
        raise DataError(f"limit must be 1 or more, got {limit}")
    source = _examples_and_collate(data, split, pad_id)
    pieces = _chunk_examples(*source, limit, chunk_size) if source else _chunk_batches(_plain_batches(data), limit)
    is_empty = True
    for chunk in pieces:
        is_empty = False
        yield chunk
    if is_empty:
        raise DataError("the data are empty: no batch came. An iterator can be read once; pass a list or a DataLoader to use data again")


def batches(data: DataSource, *, split: Split = "calibration", limit: int | None = None, pad_id: int = 0) -> Iterator[Batch]:
    """Yields the examples of `data`, at most `limit`, in batches of the task's size; plain batches without a limit come unchanged."""
    if limit is not None or _examples_and_collate(data, split, pad_id) is not None:
        for chunk in chunks(data, split=split, limit=limit, pad_id=pad_id):
            yield from (batch for _, batch in chunk.batches(default_batch_size(data)))
        return
    for batch in _plain_batches(data):
        _check_mapping(batch)
        yield batch


def _plain_batches(data: DataSource) -> Iterable[Batch]:
    """Returns data that are no examples as batches; one batch is a list of one."""
    if data is None:
        raise DataError("there are no data: pass a task, a dataset or batches")
    return [cast(Batch, data)] if isinstance(data, Mapping) else cast(Iterable[Batch], data)


def number_of_examples(data: DataSource, split: Split = "calibration", limit: int | None = None) -> int | None:
    """Returns how many examples there are, at most `limit`; None where that is not known before they are read."""
    examples: Any = data.split(split) if isinstance(data, Task) else data if hasattr(data, "column_names") else None
    if isinstance(data, CollatedExamples):
        examples = data.examples
    if examples is None:
        return None
    return len(examples) if limit is None else min(limit, len(examples))


def default_batch_size(data: DataSource) -> int:
    """Returns how many examples of the data are read at a time: the task's batch size, else 32."""
    return (data.batch_size if isinstance(data, Task) else None) or BATCH


def n_rows(batch: Batch) -> int:
    """Returns how many examples a batch holds: the first size of its inputs."""
    names = ("input_ids", "inputs_embeds", "pixel_values", "input_values", "input_features")
    ordered = [batch[name] for name in names if name in batch] + list(batch.values())
    first = next((value for value in ordered if isinstance(value, Tensor) and value.ndim), None)
    if first is None:
        raise DataError(f"a batch holds tensors whose first size is the number of examples; this one has {', '.join(batch) or 'nothing'}")
    return int(first.shape[0])


def select_rows(batch: Batch, rows: slice | list[int]) -> dict[str, Any]:
    """Returns a batch of some examples of a batch."""
    total = n_rows(batch)
    return {
        name: value[rows] if isinstance(value, Tensor) and value.ndim and value.shape[0] == total else value
        for name, value in batch.items()
    }


def _examples_and_collate(data: Any, split: Split, pad_id: int) -> tuple[Sequence[Example], Collate] | None:
    """Returns the examples of a task or dataset and how they become a batch; None for plain batches."""
    if isinstance(data, Task):
        return data.split(split), data.collate
    if isinstance(data, CollatedExamples):
        return data.examples, data.collate
    if not hasattr(data, "column_names"):
        return None
    if not len(data):
        raise DataError("the dataset is empty; give one with examples")
    text_columns = [name for name, value in data[0].items() if isinstance(value, str)]
    if text_columns:
        raise DataError(
            f"column '{text_columns[0]}' of the dataset holds text; a model takes tokens. Tokenise the dataset and remove text columns, or make "
            "a task of it (see docs/tasks.md)"
        )
    return data, lambda examples: pad(examples, pad_id)


def _chunk_examples(examples: Sequence[Example], collate: Collate, limit: int | None, chunk_size: int) -> Iterator[Chunk]:
    n_examples = len(examples) if limit is None else min(limit, len(examples))
    for first in range(0, n_examples, chunk_size):
        part = [examples[i] for i in range(first, min(first + chunk_size, n_examples))]
        tokens = [example.get("input_ids", ()) for example in part]
        lengths = tuple(len(ids) if hasattr(ids, "__len__") else 0 for ids in tokens)
        yield Chunk(
            first, len(part), b"".join(map(hash_example, part)), lambda numbers, part=part: collate([part[i] for i in numbers]), lengths
        )


def _chunk_batches(plain_batches: Iterable[Batch], limit: int | None) -> Iterator[Chunk]:
    first = 0
    for batch in plain_batches:
        if limit is not None and first >= limit:
            return
        chunk = _chunk_batch(batch, first)
        if limit is not None and first + chunk.size > limit:
            chunk = _chunk_batch(select_rows(batch, slice(0, limit - first)), first)
        yield chunk
        first += chunk.size


def _chunk_batch(batch: Batch, first_example_number: int) -> Chunk:
    _check_mapping(batch)
    size, mask = n_rows(batch), batch.get("attention_mask")
    if not size:
        raise DataError(f"the batch that begins at example {first_example_number} is empty; leave such batches out")
    has_lengths = isinstance(mask, Tensor) and mask.ndim == 2 and mask.shape[0] == size and not mask.is_floating_point()
    lengths = batch["attention_mask"].sum(-1).tolist() if has_lengths else [0] * size
    every = list(range(size))
    return Chunk(
        first_example_number,
        size,
        hash_example(batch),
        lambda numbers: batch if numbers == every else select_rows(batch, numbers),
        tuple(lengths),
    )


def _check_mapping(batch: Batch) -> None:
    if not isinstance(batch, Mapping):
        raise DataError(f"data must yield batches (mappings of tensors that model(**batch) takes), got {type(batch).__name__}")


def hash_example(example: Example) -> bytes:
    """Returns the SHA-256 of the names and values of an example."""
    digest = hashlib.sha256()
    for name in sorted(example):
        value = example[name]
        digest.update(name.encode())
        if isinstance(value, Tensor):
            digest.update(str((value.dtype, tuple(value.shape))).encode())
            digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        else:
            digest.update(json.dumps(value, default=lambda v: v.tolist() if hasattr(v, "tolist") else repr(v)).encode())
    return digest.digest()
