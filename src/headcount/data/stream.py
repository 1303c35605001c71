"""A measurement over data, chunk by chunk: in fixed order, whatever the batch size or the number of processes, in bounded memory.

Results of a chunk are per-example numbers and sums over its examples, in float64. Every process sees all results in the order of the chunks, so
what is summed from them is bit for bit the same for one process and for several. When memory runs out, the batch size falls by halves.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from headcount.core.errors import HeadcountError, NothingLeft, OutOfMemory, is_out_of_memory
from headcount.core.progress import Progress
from headcount.data.chunks import BATCH, CHUNK, Chunk, NumbersInChunk, chunks, number_of_examples
from headcount.data.losses import OneByOne
from headcount.data.task import DataSource, Split, Task
from headcount.models.modules import Batch

Measured = Mapping[str, np.ndarray]
"""Named per-example arrays, [examples, ...], and sums over the examples of a chunk, in float64."""
StoredResult = tuple[Measured, int | None]
"""The results of a finished chunk, and the batch size that they were computed with."""


@dataclass(frozen=True, slots=True, eq=False)
class Summed:
    """A result that is summed over the examples of a batch; batches of a chunk are added."""

    value: Tensor


Measure = Callable[[Batch, list[int]], Mapping[str, Tensor | Summed]]
"""(batch, the numbers of its examples) -> per-example tensors and sums by name."""
SMALL, LONG = 4 * 2**20, 1.0
"""Results of a chunk are stored if they are smaller than that (bytes), or took longer than that (seconds)."""


@runtime_checkable
class ChunkStore(Protocol):
    """Stores the results of chunks, so that a pass resumes where it stopped and several processes can share one."""

    @property
    def is_shared(self) -> bool:
        """Whether other processes may compute chunks of this pass."""
        ...

    @property
    def leads(self) -> bool:
        """Whether this process computes the final result from the chunks."""
        ...

    @property
    def has_final_result(self) -> bool:
        """Whether the leading process has stored the final result."""
        ...

    def has_result(self, chunk: Chunk, /) -> bool:
        """Whether a chunk is finished."""
        ...

    def get(self, chunk: Chunk, /) -> StoredResult | None:
        """Returns the results of a chunk and their batch size; None if it is not finished."""
        ...

    def put(self, chunk: Chunk, /, measured: Measured, batch_size: int | None) -> None:
        """Stores the results of a chunk."""
        ...

    def claim(self, chunk: Chunk, /) -> AbstractContextManager[bool]:
        """A context with True if this process may compute the chunk, False if another one is computing it."""
        ...


@dataclass(slots=True)
class Reading:
    """How data are read, and the state of the pass: the batch size in use, and the hashes of the examples read so far.

    With a `chunk_store`, finished chunks are taken from it, and others are stored in it.
    """

    data: DataSource
    split: Split = "calibration"
    limit: int | None = None
    batch_size: int | None = None
    pad_id: int = 0
    progress: Progress | None = None
    chunk_size: int = CHUNK
    chunk_store: ChunkStore | None = None
    examples: int = 0
    hashes: list[bytes] = field(default_factory=list)
    _hash: Any = field(default_factory=hashlib.sha256)
    _size: int = field(init=False)

    def __post_init__(self) -> None:
        if self.batch_size is None and isinstance(self.data, Task):
            self.batch_size = self.data.batch_size
        if self.batch_size is not None and self.batch_size < 1:
            raise HeadcountError(f"batch_size must be 1 or more, got {self.batch_size}")
        self._size = max(self.chunk_size, self.batch_size or 0)  # chunks stay the same when the batch size falls

    @property
    def fingerprint(self) -> str:
        """The hash of all examples read, in order."""
        return self._hash.hexdigest()[:32]

    def chunks(self) -> Iterator[Chunk]:
        """Yields the chunks of the data."""
        return chunks(self.data, split=self.split, limit=self.limit, chunk_size=self._size, pad_id=self.pad_id)

    def adopt_stored_result(self, stored: StoredResult) -> Measured:
        """Returns stored results, and takes over the batch size to which they fell, as if the chunk were computed now."""
        measured, size = stored
        if size is not None:
            self.batch_size = size if self.batch_size is None else min(size, self.batch_size)
        return measured

    def add_chunk(self, chunk: Chunk) -> None:
        """Counts and hashes a finished chunk, and reports progress."""
        self.examples += chunk.size
        self.hashes += chunk.example_hashes()
        self._hash.update(chunk.digest)
        if self.progress is not None:
            self.progress(self.examples, number_of_examples(self.data, self.split, self.limit))


def rank_and_world_size() -> tuple[int, int]:
    """Returns the rank of this process and the number of processes; joins the others if a launcher such as torchrun started several."""
    if not (torch.distributed.is_available() and (torch.distributed.is_initialized() or int(os.environ.get("WORLD_SIZE", "1")) > 1)):
        return 0, 1
    from accelerate import PartialState

    state = PartialState(cpu=not torch.accelerator.is_available())  # without cpu=True it ignores other processes on a CPU
    return state.process_index, state.num_processes


def broadcast_from_first(value: Any) -> Any:
    """Returns the first process's value, in every process."""
    if rank_and_world_size()[1] == 1:
        return value
    from accelerate.utils import broadcast_object_list

    return broadcast_object_list([value])[0]


def fingerprint(reading: Reading) -> str:
    """Returns the hash of all examples that would be read, without measuring anything."""
    dry = replace(reading, progress=None, chunk_store=None, examples=0, hashes=[], _hash=hashlib.sha256())
    for chunk in dry.chunks():
        dry.add_chunk(chunk)
    return dry.fingerprint


def stream(reading: Reading, measure: Measure) -> Iterator[Measured]:
    """Yields the per-example results of one chunk after another, the same in every process."""
    rank, n_processes = rank_and_world_size()
    chunk_store = reading.chunk_store if rank == 0 else None
    if n_processes == 1 and chunk_store is not None:
        yield from _stream_with_store(reading, measure, chunk_store)
        return
    source = reading.chunks()
    while turn := list(islice(source, n_processes)):
        stored = broadcast_from_first([None if chunk_store is None else chunk_store.get(chunk) for chunk in turn])
        measured = _measure_or_error(reading, turn[rank], measure) if rank < len(turn) and stored[rank] is None else None
        for chunk, before, result in zip(turn, stored, _gather_from_processes(measured, n_processes), strict=False):
            if isinstance(result, BaseException):
                raise result
            if chunk_store is not None and before is None:
                _store_if_finite(reading, chunk_store, chunk, result)
            reading.add_chunk(chunk)
            yield result if before is None else reading.adopt_stored_result(before)


def _stream_with_store(reading: Reading, measure: Measure, chunk_store: ChunkStore) -> Iterator[Measured]:
    """Yields results from the store where a chunk is finished. If another process is computing one, the rest of the pass is shared with it."""
    if chunk_store.is_shared:
        _compute_shared_chunks(reading, measure, chunk_store)
    for chunk in reading.chunks():
        stored = chunk_store.get(chunk)
        result = None if stored is None else reading.adopt_stored_result(stored)
        if result is None:
            with chunk_store.claim(chunk) as is_claimed:
                result = _compute_or_restore(reading, chunk, measure, chunk_store) if is_claimed else None
        if result is None:
            _compute_shared_chunks(reading, measure, chunk_store)
            result = _compute_or_restore(reading, chunk, measure, chunk_store)
        reading.add_chunk(chunk)
        yield result


def _compute_or_restore(reading: Reading, chunk: Chunk, measure: Measure, chunk_store: ChunkStore) -> Measured:
    """Returns the results of a chunk that this process has claimed; stores them if they are small or took long."""
    stored = chunk_store.get(chunk)
    if stored is not None:
        return reading.adopt_stored_result(stored)
    start = time.monotonic()
    measured = _measure_within_memory(reading, chunk, measure)
    if time.monotonic() - start > LONG or sum(values.nbytes for values in measured.values()) < SMALL:
        _store_if_finite(reading, chunk_store, chunk, measured)
    return measured


def _store_if_finite(reading: Reading, chunk_store: ChunkStore, chunk: Chunk, measured: Measured) -> None:
    """Stores results if all are finite; the caller refuses others, and they are never written."""
    if all(np.isfinite(values).all() for values in measured.values()):
        chunk_store.put(chunk, measured, reading.batch_size)


def _compute_shared_chunks(reading: Reading, measure: Measure, chunk_store: ChunkStore) -> None:
    """Computes chunks that no other process is computing, until all are finished; takes over those of a process that died."""
    total = number_of_examples(reading.data, reading.split, reading.limit)
    n_finished, unfinished = 0, []
    for chunk in reading.chunks():
        if _ensure_chunk_finished_unless_claimed_elsewhere(reading, chunk, measure, chunk_store):
            n_finished += chunk.size
        else:
            unfinished.append(chunk)
        if reading.progress is not None:
            reading.progress(n_finished, total)
    while unfinished:
        time.sleep(0.1)
        unfinished = [
            chunk for chunk in unfinished if not _ensure_chunk_finished_unless_claimed_elsewhere(reading, chunk, measure, chunk_store)
        ]
    if not chunk_store.leads:
        raise NothingLeft("there is nothing left to do")


def _ensure_chunk_finished_unless_claimed_elsewhere(reading: Reading, chunk: Chunk, measure: Measure, chunk_store: ChunkStore) -> bool:
    """Computes and stores a chunk that is not finished; returns False if another process is computing it."""
    if chunk_store.has_final_result:
        raise NothingLeft("there is nothing left to do")
    if chunk_store.has_result(chunk):
        return True
    with chunk_store.claim(chunk) as is_claimed:
        # chunks are removed once the final result is stored
        if is_claimed and not chunk_store.has_result(chunk) and not chunk_store.has_final_result:
            _store_if_finite(reading, chunk_store, chunk, _measure_within_memory(reading, chunk, measure))
        return is_claimed


def _measure_or_error(reading: Reading, chunk: Chunk, measure: Measure) -> Measured | HeadcountError:
    """Returns the results of a chunk; with several processes, an error is returned, so that all of them raise it instead of waiting."""
    try:
        return _measure_within_memory(reading, chunk, measure)
    except HeadcountError as error:
        if rank_and_world_size()[1] == 1:
            raise
        return error


def _gather_from_processes(value: Any, n_processes: int) -> list[Any]:
    if n_processes == 1:
        return [value]
    from accelerate.utils import gather_object

    return gather_object([value])


def _measure_within_memory(reading: Reading, chunk: Chunk, measure: Measure) -> Measured:
    """Returns the results of a chunk. When memory runs out, the batch size is halved and the pass continues with the batch that did not fit."""
    results: dict[str, np.ndarray] = {}
    n_measured, numbers = 0, []
    while n_measured < chunk.size:
        size = reading.batch_size or min(BATCH, chunk.size)
        try:
            for numbers, batch in chunk.batches(size, n_measured):
                _write_batch_into_chunk(results, chunk, numbers, measure(batch, [chunk.first + number for number in numbers]))
                n_measured += len(numbers)
        except OneByOne:
            reading.batch_size = 1
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if len(numbers) > 1:
                _check_fits_alone(chunk, numbers[-1], measure)
                reading.batch_size = len(numbers) // 2
            else:
                raise _too_large_error(chunk, error) from error
    return results


def _check_fits_alone(chunk: Chunk, number_in_chunk: int, measure: Measure) -> None:
    """Raises OutOfMemory if an example does not fit alone, because no smaller batch helps then."""
    try:
        measure(chunk.batch([number_in_chunk]), [chunk.first + number_in_chunk])
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            raise _too_large_error(chunk, error) from error
        raise


def _too_large_error(chunk: Chunk, error: BaseException) -> OutOfMemory:
    return OutOfMemory(
        f"memory ran out on a single example (one of {chunk.first} to {chunk.first + chunk.size - 1}): {error}. "
        "Shorten the examples (max_length), use bfloat16, or a machine with more memory."
    )


def _write_batch_into_chunk(
    results_of_chunk: dict[str, np.ndarray], chunk: Chunk, numbers: NumbersInChunk, measured_on_batch: Mapping[str, Tensor | Summed]
) -> None:
    """Writes the results of a batch into the rows of its examples; adds its sums."""
    for name, values in measured_on_batch.items():
        if isinstance(values, Summed):
            array = values.value.detach().double().cpu().numpy()
            results_of_chunk[name] = results_of_chunk[name] + array if name in results_of_chunk else array
            continue
        array = values.detach().double().cpu().numpy()
        if name not in results_of_chunk:
            results_of_chunk[name] = np.full((chunk.size, *array.shape[1:]), np.nan)
        results_of_chunk[name][numbers] = array
