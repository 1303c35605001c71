"""Runs a measurement over data block by block: in fixed order, whatever the batch size or the number of processes, in bounded memory.

Results of a block are per-example numbers in float64. Every process sees all results in the order of the blocks, so what is summed from them is
bit for bit the same for one process and for several. When memory runs out, the batch size falls by halves.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from headcount.core.errors import HeadcountError, NothingLeft, OutOfMemory, memory_ran_out
from headcount.data.losses import OneByOne
from headcount.data.task import BATCH, BLOCK, Block, Data, Split, Task, blocks, number_of_examples
from headcount.models.modules import Batch

Measured = Mapping[str, np.ndarray]
"""Named per-example arrays, [examples, ...] in float64."""
Kept = tuple[Measured, int | None]
Measure = Callable[[Batch, list[int]], Mapping[str, Tensor]]
"""(batch, the numbers of its examples) -> per-example tensors by name."""
Progress = Callable[[int, int | None], None]
"""(examples done, examples in all if known)."""
SMALL, LONG = 4 * 2**20, 1.0
"""Results of a block are kept if they are smaller than that (bytes), or took longer than that (seconds)."""


class Memory(Protocol):
    """Where the results of blocks are kept, so that a pass goes on where it stopped and several processes can share one."""

    @property
    def shared(self) -> bool:
        """Whether other processes may be at blocks of this pass."""
        ...

    @property
    def leads(self) -> bool:
        """Whether this process makes the result out of the blocks."""
        ...

    @property
    def over(self) -> bool:
        """Whether the result is there already, made by the process that leads."""
        ...

    def has(self, block: Block) -> bool:
        """Whether a block is finished."""
        ...

    def get(self, block: Block) -> Kept | None:
        """The results of a block, if it is finished, and the size of the batches they were made in."""
        ...

    def put(self, block: Block, measured: Measured, batch_size: int | None) -> None:
        """Keeps the results of a block."""
        ...

    def claim(self, block: Block) -> AbstractContextManager[bool]:
        """Whether this process may compute a block, while the context lasts."""
        ...


@dataclass(slots=True)
class Reading:
    """How data are read, and what came of it: `batch_size` is the one in use, `fingerprint` the hash of the examples read so far.

    With a `memory`, blocks that are finished are taken from it, and others are kept in it.
    """

    data: Data
    split: Split = "calibration"
    limit: int | None = None
    batch_size: int | None = None
    pad_id: int = 0
    progress: Progress | None = None
    block_size: int = BLOCK
    memory: Memory | None = None
    examples: int = 0
    _hash: Any = field(default_factory=hashlib.sha256)
    _size: int = field(init=False)

    def __post_init__(self) -> None:
        if self.batch_size is None and isinstance(self.data, Task):
            self.batch_size = self.data.batch_size
        if self.batch_size is not None and self.batch_size < 1:
            raise HeadcountError(f"batch_size must be 1 or more, got {self.batch_size}")
        self._size = max(self.block_size, self.batch_size or 0)  # blocks stay what they are when the batch size falls

    @property
    def fingerprint(self) -> str:
        """The hash of all examples read, in order."""
        return self._hash.hexdigest()[:32]

    def blocks(self) -> Iterator[Block]:
        """The blocks of the data."""
        return blocks(self.data, split=self.split, limit=self.limit, size=self._size, pad_id=self.pad_id)

    def recalls(self, kept: Kept) -> Measured:
        """The results of a block that was finished before; the batch size that it fell to holds from then on, as if it were computed now."""
        measured, size = kept
        if size is not None:
            self.batch_size = size if self.batch_size is None else min(size, self.batch_size)
        return measured

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

    state = PartialState(cpu=not torch.accelerator.is_available())  # unless told, accelerate takes processes without one for strangers
    return state.process_index, state.num_processes


def agree(value: Any) -> Any:
    """The first process's value, in every process."""
    if world()[1] == 1:
        return value
    from accelerate.utils import broadcast_object_list

    return broadcast_object_list([value])[0]


def fingerprint(reading: Reading) -> str:
    """The hash of all examples that would be read, without measuring anything."""
    other = replace(reading, progress=None, memory=None, examples=0, _hash=hashlib.sha256())
    for block in other.blocks():
        other.took(block)
    return other.fingerprint


def stream(reading: Reading, measure: Measure) -> Iterator[Measured]:
    """Per-example results of one block after another, the same in every process."""
    rank, number = world()
    memory = reading.memory if rank == 0 else None
    if number == 1 and memory is not None:
        yield from _remembered(reading, measure, memory)
        return
    source = reading.blocks()
    while turn := list(islice(source, number)):
        known = agree([None if memory is None else memory.get(block) for block in turn])
        mine = _try(reading, turn[rank], measure) if rank < len(turn) and known[rank] is None else None
        for block, before, result in zip(turn, known, _gather(mine, number), strict=False):
            if isinstance(result, BaseException):
                raise result
            if memory is not None and before is None:
                _keep(reading, memory, block, result)
            reading.took(block)
            yield result if before is None else reading.recalls(before)


def _remembered(reading: Reading, measure: Measure, memory: Memory) -> Iterator[Measured]:
    """One block after another, from memory where it is finished; where another process is at one, work is shared until all are."""
    if memory.shared:
        _share(reading, measure, memory)
    for block in reading.blocks():
        known = memory.get(block)
        result = None if known is None else reading.recalls(known)
        if result is None:
            with memory.claim(block) as mine:
                result = _kept(reading, block, measure, memory) if mine else None
        if result is None:
            _share(reading, measure, memory)
            result = _kept(reading, block, measure, memory)
        reading.took(block)
        yield result


def _kept(reading: Reading, block: Block, measure: Measure, memory: Memory) -> Measured:
    """The results of a block that this process has claimed, kept if that is worth it."""
    known = memory.get(block)
    if known is not None:
        return reading.recalls(known)
    start = time.monotonic()
    measured = _measure(reading, block, measure)
    if _is_worth(measured, time.monotonic() - start):
        _keep(reading, memory, block, measured)
    return measured


def _is_worth(measured: Measured, seconds: float) -> bool:
    return seconds > LONG or sum(values.nbytes for values in measured.values()) < SMALL


def _keep(reading: Reading, memory: Memory, block: Block, measured: Measured) -> None:
    """Keeps what is finite: other numbers are for the caller to refuse, and are never written."""
    if all(np.isfinite(values).all() for values in measured.values()):
        memory.put(block, measured, reading.batch_size)


def _share(reading: Reading, measure: Measure, memory: Memory) -> None:
    """Computes blocks that nobody else is at until all are finished; what a process that died was at is taken over."""
    total = number_of_examples(reading.data, reading.split, reading.limit)
    done, left = 0, []
    for block in reading.blocks():
        if _is_settled(reading, block, measure, memory):
            done += block.size
        else:
            left.append(block)
        if reading.progress is not None:
            reading.progress(done, total)
    while left:
        time.sleep(0.1)
        left = [block for block in left if not _is_settled(reading, block, measure, memory)]
    if not memory.leads:
        raise NothingLeft("there is nothing left to do")


def _is_settled(reading: Reading, block: Block, measure: Measure, memory: Memory) -> bool:
    """Whether nobody else is at a block; one that is not finished is computed here."""
    if memory.over:
        raise NothingLeft("there is nothing left to do")
    if memory.has(block):
        return True
    with memory.claim(block) as mine:
        if mine and not memory.has(block) and not memory.over:  # blocks are removed once the result is there
            _keep(reading, memory, block, _measure(reading, block, measure))
        return mine


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
    """The results of a block. When memory runs out, the batch size falls and the pass goes on with the batch that did not fit."""
    results: dict[str, np.ndarray] = {}
    measured, numbers = 0, []
    while measured < block.size:
        size = reading.batch_size or min(BATCH, block.size)
        try:
            for numbers, batch in block.batches(size, measured):
                _add(results, block, numbers, measure(batch, [block.first + number for number in numbers]))
                measured += len(numbers)
        except OneByOne:
            reading.batch_size = 1
        except (RuntimeError, MemoryError) as error:
            if not memory_ran_out(error):
                raise
            if len(numbers) > 1:
                _check_longest(block, numbers[-1], measure)
                reading.batch_size = len(numbers) // 2
            else:
                raise _too_large(block, error) from error
    return results


def _check_longest(block: Block, number: int, measure: Measure) -> None:
    """Raises OutOfMemory if an example does not fit alone: no smaller batch helps then, and none is tried."""
    try:
        measure(block.batch([number]), [block.first + number])
    except (RuntimeError, MemoryError) as error:
        if memory_ran_out(error):
            raise _too_large(block, error) from error
        raise


def _too_large(block: Block, error: BaseException) -> OutOfMemory:
    return OutOfMemory(
        f"memory ran out on a single example (one of {block.first} to {block.first + block.size - 1}): {error}. "
        "Shorten the examples (max_length), use bfloat16, or a machine with more memory."
    )


def reraise_memory(error: Exception) -> None:
    """Raises an error again if it says that memory ran out: a smaller batch may do, so nothing else is to be concluded from it."""
    if memory_ran_out(error):
        raise error


def _add(results: dict[str, np.ndarray], block: Block, numbers: list[int], measured: Mapping[str, Tensor]) -> None:
    """Puts the results of a batch where its examples stand in the block."""
    for name, values in measured.items():
        array = values.detach().double().cpu().numpy()
        if name not in results:
            results[name] = np.full((block.size, *array.shape[1:]), np.nan)
        results[name][numbers] = array
