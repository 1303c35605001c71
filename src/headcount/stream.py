"""Runs a measurement over data block by block: in fixed order, whatever the batch size or the number of processes, in bounded memory.

Results of a block are per-example numbers in float64. Every process sees all results in the order of the blocks, so what is summed from them is
bit for bit the same for one process and for several. When memory runs out, the batch size falls by halves.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headcount.data import BLOCK, Block, Data, Split, blocks, number_of_examples
from headcount.errors import HeadcountError, OutOfMemory
from headcount.losses import OneByOne
from headcount.metrics import Batch

Measured = Mapping[str, np.ndarray]
"""Named per-example arrays, [examples, ...] in float64."""
Measure = Callable[[Batch, list[int]], Mapping[str, Tensor]]
"""(batch, the numbers of its examples) -> per-example tensors by name."""
Progress = Callable[[int, int | None], None]
"""(examples done, examples in all if known)."""
BATCH = 32


@dataclass(slots=True)
class Reading:
    """How data are read, and what came of it: `batch_size` is the one in use, `fingerprint` the hash of the examples read so far."""

    data: Data
    split: Split = "calibration"
    limit: int | None = None
    batch_size: int | None = None
    pad_id: int = 0
    progress: Progress | None = None
    block_size: int = BLOCK
    examples: int = 0
    _hash: Any = field(default_factory=hashlib.sha256)

    def __post_init__(self) -> None:
        if self.batch_size is not None and self.batch_size < 1:
            raise HeadcountError(f"batch_size must be 1 or more, got {self.batch_size}")

    @property
    def fingerprint(self) -> str:
        """The hash of all examples read, in order."""
        return self._hash.hexdigest()[:32]

    def blocks(self) -> Iterator[Block]:
        """The blocks of the data."""
        size = max(self.block_size, self.batch_size or 0)
        return blocks(self.data, split=self.split, limit=self.limit, size=size, pad_id=self.pad_id)

    def took(self, block: Block) -> None:
        """Notes that a block is done."""
        self.examples += block.size
        self._hash.update(block.digest)
        if self.progress is not None:
            self.progress(self.examples, number_of_examples(self.data, self.split, self.limit))


def world() -> tuple[int, int]:
    """This process's number and how many there are; joins the others when a launcher such as torchrun started several."""
    if not (torch.distributed.is_available() and (torch.distributed.is_initialized() or int(os.environ.get("WORLD_SIZE", "1")) > 1)):
        return 0, 1
    from accelerate import PartialState

    state = PartialState()
    return state.process_index, state.num_processes


def stream(reading: Reading, measure: Measure) -> Iterator[Measured]:
    """Per-example results of one block after another, the same in every process."""
    rank, number = world()
    source = reading.blocks()
    while turn := list(islice(source, number)):
        mine = _try(reading, turn[rank], measure) if rank < len(turn) else None
        for block, result in zip(turn, _gather(mine, number), strict=False):
            if isinstance(result, BaseException):
                raise result
            assert result is not None
            reading.took(block)
            yield result


def _try(reading: Reading, block: Block, measure: Measure) -> Measured | HeadcountError:
    """The results of a block; when others wait, an error is handed to them too instead of leaving them waiting."""
    try:
        return _measure(reading, block, measure)
    except HeadcountError as error:
        if world()[1] == 1:
            raise
        return error


def _gather(mine: Any, number: int) -> list[Any]:
    if number == 1:
        return [mine]
    from accelerate.utils import gather_object

    return gather_object([mine])


def _measure(reading: Reading, block: Block, measure: Measure) -> Measured:
    while True:
        size = reading.batch_size or min(BATCH, block.size)
        try:
            return _by_batches(block, size, measure)
        except OneByOne:
            reading.batch_size = 1
        except (RuntimeError, MemoryError) as error:
            if not memory_ran_out(error):
                raise
            if size == 1:
                raise OutOfMemory(
                    f"memory ran out on a single example (one of {block.first} to {block.first + block.size - 1}): {error}. "
                    "Shorten the examples (max_length), use bfloat16, or a machine with more memory."
                ) from error
            reading.batch_size = size // 2


def memory_ran_out(error: BaseException) -> bool:
    """Whether an error says that there is no memory left."""
    texts = ("out of memory", "DefaultCPUAllocator", "can't allocate memory")
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(text in str(error) for text in texts)


def reraise_memory(error: Exception) -> None:
    """Raises an error again if it says that memory ran out: a smaller batch may do, so nothing else is to be concluded from it."""
    if memory_ran_out(error):
        raise error


def _by_batches(block: Block, size: int, measure: Measure) -> Measured:
    results: dict[str, np.ndarray] = {}
    for places, batch in block.batches(size):
        for name, values in measure(batch, [block.first + place for place in places]).items():
            array = values.detach().double().cpu().numpy()
            if name not in results:
                results[name] = np.full((block.size, *array.shape[1:]), np.nan)
            results[name][places] = array
    return results
