"""What a repair-aware choice knows of a model: for every block the products of its projection's inputs, and of the gradients at its output."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headcount.core.errors import NonFinite
from headcount.core.heads import AttentionBlock, Head
from headcount.data.checks import check_batch
from headcount.data.chunks import batch_size_of, chunks, rows_of
from headcount.data.losses import ExampleLosses, OneByOne, finite_losses
from headcount.data.task import Data, Split, Task
from headcount.models.head_map import HeadMap
from headcount.models.modules import pad_id, unwrap
from headcount.models.observe import evaluating, frozen, model_inputs
from headcount.models.ownership import for_owner, holds
from headcount.models.state import forward
from headcount.pruning.repair.least_squares import with_ones
from headcount.pruning.repair.projection import has_bias, inputs_of, projection, read, real_rows
from headcount.pruning.repair.removal_order import Surgeon


@dataclass(slots=True)
class Moments:
    """Second moments of one block over tokens: of the projection's inputs, and of the gradients at its output."""

    block: AttentionBlock
    gram: Tensor
    metric: Tensor
    n: int = 0
    examples: int = 0

    def surgeon(self, weights: Tensor, units: list[list[int]]) -> Surgeon:
        """The surgeon of the block; `units` are the inputs that go together."""
        return Surgeon.of(self.gram, weights, self.metric / max(self.n, 1), units, max(self.examples, 1))


@holds("a survey of its blocks")
def survey(
    model: nn.Module, data: Data, *, split: Split = "calibration", limit: int = 512, batch_size: int | None = None
) -> dict[str, Moments]:
    """The moments of every block that has heads, from one pass forward and backward over the data."""
    inner: Any = unwrap(model)
    found = {block.path: _empty(inner, block) for block in HeadMap.of(inner).blocks if block.n_heads}
    losses = ExampleLosses(inner, data.loss if isinstance(data, Task) else None)
    with evaluating(inner), frozen(inner), _Collector(inner, found) as collector:
        for chunk in chunks(data, split=split, limit=limit, pad_id=pad_id(inner)):
            for places, batch in chunk.batches(batch_size or batch_size_of(data)):
                collector.add(batch, [chunk.first + place for place in places], losses)
    return found


def _empty(model: nn.Module, block: AttentionBlock) -> Moments:
    module = projection(model, block)
    width, outputs = read(module).shape
    like = {"dtype": torch.float64, "device": module.weight.device}
    return Moments(block, torch.zeros(width, width, **like), torch.zeros(outputs, outputs, **like))


class _Collector:
    """Hooks that sum up what meets and leaves the output projections."""

    def __init__(self, model: nn.Module, found: dict[str, Moments]) -> None:
        self.model, self.found = model, found
        self.batch: dict[str, Any] = {}
        self._met: list[tuple[Moments, Tensor]] = []
        self._stack = ExitStack()

    def __enter__(self) -> _Collector:
        for moments in self.found.values():
            module = self.model.get_submodule(moments.block.o.path)
            self._stack.callback(module.register_forward_hook(for_owner(self.model, self._hook(moments))).remove)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(self, batch: Any, numbers: list[int], losses: ExampleLosses) -> None:
        """One batch forward and backward."""
        batch = model_inputs(batch, self.model)
        check_batch(self.model, batch, numbers)
        try:
            self._run(batch, numbers, losses)
        except OneByOne:
            for row, number in enumerate(numbers):
                self._run(rows_of(batch, [row]), [number], losses)

    def _run(self, batch: dict[str, Any], numbers: list[int], losses: ExampleLosses) -> None:
        self.batch, self._met = batch, []
        with torch.enable_grad():
            made = finite_losses(losses(forward(self.model, batch), batch), numbers)
            for moments, columns in self._met:
                moments.gram.addmm_(columns.T, columns)
                moments.n += len(columns)
            made.sum().backward()
        for moments in self.found.values():
            moments.examples += len(numbers)

    def _hook(self, moments: Moments) -> Callable[..., Tensor]:
        def ran(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
            inputs = real_rows(self.model, moments.block, self.batch, args[0].detach())
            columns = (with_ones(inputs) if has_bias(module) else inputs).double()
            self._met.append((moments, columns))
            leaf = output if output.requires_grad else output.detach().requires_grad_(True)
            leaf.register_hook(self._arrived(moments, self.batch))
            return leaf

        return ran

    def _arrived(self, moments: Moments, batch: dict[str, Any]) -> Callable[[Tensor], None]:
        def gradient(values: Tensor) -> None:
            rows = real_rows(self.model, moments.block, batch, values.detach()).double()
            if not bool(torch.isfinite(rows).all()):
                raise NonFinite(f"the gradient at block {moments.block.name} is not finite; look at the model's outputs")
            moments.metric.addmm_(rows.T, rows)

        return gradient


def surgeons(
    model: nn.Module, found: dict[str, Moments], units: tuple[tuple[Head, ...], ...]
) -> Iterator[tuple[list[tuple[Head, ...]], Surgeon]]:
    """For every block, the units that have heads in it and the surgeon that can remove these."""
    for moments in found.values():
        block, module = moments.block, projection(model, moments.block)
        present = [unit for unit in units if not set(unit).isdisjoint(block.heads)]
        rows = [inputs_of(block, tuple(block.position(head) for head in unit if head in block.heads)) for unit in present]
        yield present, moments.surgeon(read(module), rows)


Unit = tuple[Head, ...]


def removal_order(model: nn.Module, data: Data, *, units: tuple[Unit, ...] | None = None, **options: Any) -> list[tuple[Unit, float]]:
    """All units in the order in which they go, cheapest first after repair, with the rise of the loss expected of each (half the cost)."""
    inner = unwrap(model)
    by_block = list(surgeons(inner, survey(inner, data, **options), HeadMap.of(inner).units() if units is None else units))
    parts: dict[Unit, list[tuple[int, int]]] = defaultdict(list)  # where a unit has heads: block, and number of the unit there
    for block, (present, _) in enumerate(by_block):
        for number, unit in enumerate(present):
            parts[unit].append((block, number))
    order: list[tuple[Unit, float]] = []
    costs = [surgeon.costs() for _, surgeon in by_block]
    while parts:
        cheapest = min(parts, key=lambda unit: (sum(costs[block][number] for block, number in parts[unit]), parts[unit]))
        order.append((cheapest, sum(by_block[block][1].remove(number) for block, number in parts[cheapest]) / 2))
        for block, _ in parts.pop(cheapest):
            costs[block] = by_block[block][1].costs()
    return order
