"""Repair: the output projections of a pruned model, refitted in closed form so that its blocks give what the dense model's gave. No training.

Block after block from the input on, on the pruned model's own inputs, in one pass: see `lockstep` and `fit`. Cross-attention, grouped KV heads,
causal models and any number type go the same way; padding counts nowhere. docs/repair.md has what it recovers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypedDict, Unpack

import torch
from torch import Tensor, nn

from headcount.core.errors import DataError
from headcount.core.heads import AttentionBlock
from headcount.core.plan import Plan
from headcount.data.chunks import batch_size_of, chunks
from headcount.data.task import Data, Split, Task
from headcount.models.head_map import HeadMap
from headcount.models.modules import Batch, pad_id, unwrap
from headcount.models.observe import evaluating, model_inputs
from headcount.models.ownership import for_owner, holds
from headcount.models.randomness import fork_rng
from headcount.models.state import copy_model
from headcount.pruning.repair.least_squares import Fitted, Products, fit, with_ones
from headcount.pruning.repair.lockstep import Lockstep
from headcount.pruning.repair.projection import has_bias, inputs_of, projection, read, real_rows, write

By = Literal["weights", "gates"]
EXAMPLES, CHECKED = 512, 128
IN_FLIGHT = 2**19
"""Tokens that may be on their way at once, those of the check included; more calibration data are read once for every block."""
PASSES = 512
"""Batches that may be on their way at once: each has two threads."""


@dataclass(frozen=True, slots=True)
class Repaired:
    """The model with refitted output projections, in the shape it had, and what came of each block."""

    model: nn.Module
    blocks: dict[str, Fitted]


class Options(TypedDict, total=False):
    """How a repair is made: all keyword arguments of `repair` and `refit`."""

    split: Split
    limit: int
    batch_size: int
    share: float | None
    by: By


def repair(model: nn.Module, plan: Plan, data: Data, **options: Unpack[Options]) -> nn.Module:
    """A copy of a model, in its shape, whose output projections make up for the heads that the plan removes; `cut` it by the same plan then.

    `data` is a Task, a dataset or batches. `limit` examples of the `split` (512, calibration) are fitted. λ is chosen by the error on the selection
    split of a task, or on the last fifth of the batches, unless `share` (of the mean diagonal) names it. Refused where the data have fewer tokens
    than a block has inputs. `by="gates"` fits one number per head, with which its part of the projection is multiplied, instead of the weights.
    """
    return refit(model, plan, data, **options).model


@holds("a repair")
def refit(model: nn.Module, plan: Plan, data: Data, **options: Unpack[Options]) -> Repaired:
    """Like `repair`, with what came of each block."""
    dense: Any = unwrap(model)
    heads = HeadMap.of(dense)
    plan.check(heads)
    touched = [block for block in heads.blocks if len(plan.kept_positions(block)) < block.n_heads]
    if not touched:
        return Repaired(copy_model(dense), {})
    for block in touched:
        projection(dense, block)
    fitting, checking = _batches(
        dense, data, options.get("split", "calibration"), options.get("limit", EXAMPLES), options.get("batch_size", batch_size_of(data))
    )
    pruned = copy_model(dense)
    work = _Refit(dense, pruned, plan, touched, options.get("share"), options.get("by", "weights"))
    with evaluating(dense), evaluating(pruned), fork_rng(()):
        work.run(fitting, checking)
    return Repaired(pruned, work.found)


def _batches(model: nn.Module, data: Data, split: Split, limit: int, size: int) -> tuple[list[Batch], list[Batch]]:
    """The batches of the fit and of the check."""
    if limit < 1 or size < 1:
        raise DataError(f"limit and batch_size must be 1 or more, got {limit} and {size}")

    def read_split(name: Split, number: int) -> list[Batch]:
        found = chunks(data, split=name, limit=number, pad_id=pad_id(model))
        return [model_inputs(batch, model) for chunk in found for _, batch in chunk.batches(size)]

    fitting = read_split(split, limit)
    if isinstance(data, Task):
        return fitting, read_split("selection", min(CHECKED, limit))
    fifth = len(fitting) // 5
    return (fitting[:-fifth], fitting[-fifth:]) if fifth else (fitting, [])


class _Refit:
    """One repair on its way."""

    def __init__(
        self, dense: nn.Module, pruned: nn.Module, plan: Plan, touched: Sequence[AttentionBlock], share: float | None, by: By
    ) -> None:
        self.dense, self.pruned, self.share, self.by = dense, pruned, share, by
        self.blocks = {block.path: block for block in touched}
        self.kept = {block.path: inputs_of(block, plan.kept_positions(block)) for block in touched}
        self.found: dict[str, Fitted] = {}
        self.old: dict[str, Tensor] = {}
        self._silence()

    def _silence(self) -> None:
        """Takes the removed heads out of the pruned model: their rows of the projection become zero."""
        for path, block in self.blocks.items():
            module = projection(self.pruned, block)
            matrix = read(module)
            gone = sorted(set(range(block.n_heads * block.value_dim)) - set(self.kept[path]))
            self.old[path] = matrix[self._rows(path, module)]
            matrix[gone] = 0
            write(module, matrix)

    def _rows(self, path: str, module: Any) -> list[int]:
        """The rows of the matrix that are fitted: those of the heads that stay, and the bias."""
        return [*self.kept[path], len(read(module)) - 1] if has_bias(module) else self.kept[path]

    def run(self, fitting: list[Batch], checking: list[Batch]) -> None:
        """Fits every block on the batches."""
        calls = self._calls(fitting[0])
        batches = [(batch, False) for batch in fitting] + [(batch, True) for batch in checking]
        once = [path for path in calls if calls[path] == 1]
        tokens = sum(_size(batch) for batch, _ in batches)
        together = (tokens <= IN_FLIGHT and len(batches) <= PASSES) or len(batches) == 1
        if together and once:
            self._pass(batches, solved=once)
        elif once:
            for path in once:
                self._pass(batches, solved=[path], in_waves=True)
        several = [path for path in calls if calls[path] > 1]
        if several:
            self._pass(batches, solved=[], summed=several, in_waves=not together)

    def _calls(self, batch: Batch) -> dict[str, int]:
        """How often each block runs in one pass, in the order in which they run first."""
        counts: Counter[str] = Counter()

        def count(path: str, *_: Any) -> None:
            counts[path] += 1

        with ExitStack() as stack:
            for path, block in self.blocks.items():
                hook = for_owner(self.dense, partial(count, path))
                stack.callback(self.dense.get_submodule(block.o.path).register_forward_hook(hook).remove)
            self.dense(**batch)
        silent = next((block.name for path, block in self.blocks.items() if path not in counts), None)
        if silent is not None:
            raise DataError(f"the data do not run block {silent}, so it cannot be refitted; give batches that reach it")
        return dict(counts)

    def _pass(self, batches: list[tuple[Batch, bool]], *, solved: list[str], summed: Sequence[str] = (), in_waves: bool = False) -> None:
        """Runs all batches in step: `solved` blocks are fitted when all have reached them, `summed` ones at the end."""
        sums = _Sums(self)
        wanted = frozenset([*solved, *summed])

        def between(key: Any) -> None:
            if not in_waves and key[0] in solved:
                self._solve(key[0], sums)

        for wave in _waves(batches) if in_waves else [batches]:
            lockstep = Lockstep(between)
            with _Hooks(self, lockstep, sums, wanted) as hooks:
                lockstep.run([job for batch, is_check in wave for job in hooks.jobs(batch, is_check)])
        for path in [*solved, *summed] if in_waves else summed:
            self._solve(path, sums)

    def _solve(self, path: str, sums: _Sums) -> None:
        block, module = self.blocks[path], projection(self.pruned, self.blocks[path])
        fitting, checking = sums.of(path, False), sums.of(path, True)
        bias, rows = has_bias(module), self._rows(path, module)
        if fitting is None or fitting.n <= len(rows):
            raise DataError(
                f"block {block.name} has {len(rows)} inputs to refit and the calibration data {0 if fitting is None else fitting.n} tokens; give "
                f"more than {len(rows)} tokens (a larger limit), or prune without repair"
            )
        if not rows:
            return
        size = block.value_dim if self.by == "gates" else None
        made = fit(fitting, checking, self.old[path], bias=bias, share=self.share, per_head=size)
        matrix = read(module)
        matrix[rows] = made.weights
        write(module, matrix)
        self.found[block.name] = made


def _size(batch: Batch) -> int:
    """How many tokens a batch brings, roughly: the entries of its widest input of whole numbers, or of images' patches."""
    sizes = [value.numel() for name, value in batch.items() if isinstance(value, Tensor) and not value.is_floating_point()]
    return max(sizes, default=max((value.shape[0] * 256 for value in batch.values() if isinstance(value, Tensor)), default=1))


def _waves(batches: list[tuple[Batch, bool]]) -> Iterable[list[tuple[Batch, bool]]]:
    wave: list[tuple[Batch, bool]] = []
    for one in batches:
        if wave and (len(wave) == PASSES or sum(_size(batch) for batch, _ in [*wave, one]) > IN_FLIGHT):
            yield wave
            wave = []
        wave.append(one)
    yield wave


class _Sums:
    """The products of every block, of the fit's batches and of the check's."""

    def __init__(self, work: _Refit) -> None:
        self.work = work
        self._found: dict[tuple[str, bool], Products] = {}

    def add(self, path: str, is_check: bool, inputs: Tensor, outputs: Tensor) -> None:
        """Adds the tokens of one batch."""
        module = projection(self.work.pruned, self.work.blocks[path])
        columns = inputs[:, self.work.kept[path]]
        columns = with_ones(columns) if has_bias(module) else columns
        if (path, is_check) not in self._found:
            self._found[path, is_check] = Products.empty(columns.shape[1], outputs.shape[1], columns.device)
        self._found[path, is_check].add(columns, outputs)

    def of(self, path: str, is_check: bool) -> Products | None:
        """The products of a block, if any token came."""
        return self._found.get((path, is_check))


class _Hooks:
    """Pauses the dense and the pruned pass of every batch at each block, and sums up what the one gives for what the other gets."""

    def __init__(self, work: _Refit, lockstep: Lockstep, sums: _Sums, wanted: frozenset[str]) -> None:
        self.work, self.lockstep, self.sums, self.wanted = work, lockstep, sums, wanted
        self._stack = ExitStack()
        self._now: _Place | None = None

    def __enter__(self) -> _Hooks:
        for path, block in self.work.blocks.items():
            if path in self.wanted:
                given = self.work.dense.get_submodule(block.o.path).register_forward_hook(
                    for_owner(self.work.dense, self._dense(path, block))
                )
                taken = self.work.pruned.get_submodule(block.o.path).register_forward_pre_hook(self._pruned(path, block))
                self._stack.callback(given.remove)
                self._stack.callback(taken.remove)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def jobs(self, batch: Batch, is_check: bool) -> list[Callable[[], None]]:
        """The two passes of a batch: the dense model's, then the pruned one's."""
        place = _Place(batch, is_check)

        def run(model: nn.Module) -> Callable[[], None]:
            def job() -> None:
                self._set(place)
                with torch.no_grad():
                    model(**batch)

            return job

        return [run(self.work.dense), run(self.work.pruned)]

    def _set(self, place: _Place) -> None:
        self._now = place

    def _dense(self, path: str, block: AttentionBlock) -> Callable[..., None]:
        def gave(_module: nn.Module, _args: Any, output: Tensor) -> None:
            place = self._here()
            place.outputs[path].append(real_rows(self.work.dense, block, place.batch, output))
            self._pause(place, path, "dense")

        return gave

    def _pruned(self, path: str, block: AttentionBlock) -> Callable[..., None]:
        def gets(_module: nn.Module, args: tuple[Any, ...]) -> None:
            place = self._here()
            inputs = real_rows(self.work.pruned, block, place.batch, args[0])
            self.sums.add(path, place.is_check, inputs, place.outputs[path].pop(0))
            self._pause(place, path, "pruned")

        return gets

    def _here(self) -> _Place:
        assert self._now is not None
        return self._now

    def _pause(self, place: _Place, path: str, which: str) -> None:
        place.calls[path, which] += 1
        self.lockstep.pause((path, place.calls[path, which]))
        self._set(place)


class _Place:
    """One batch on its way: what the dense model gave in each block, until the pruned one gets there."""

    def __init__(self, batch: Batch, is_check: bool) -> None:
        self.batch, self.is_check = batch, is_check
        self.outputs: dict[str, list[Tensor]] = defaultdict(list)
        self.calls: Counter[tuple[str, str]] = Counter()
