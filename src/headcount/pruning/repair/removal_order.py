"""Repair-aware choice: which heads can go at the least cost once the rest of the block has been refitted (structured optimal brain surgeon).

    cost of unit u = tr( [(G⁻¹)_uu]⁻¹ W_u M W_uᵀ ) / N,   then   W ← W − G⁻¹_{:,u} [(G⁻¹)_uu]⁻¹ W_u,   G⁻¹ ← G⁻¹ − G⁻¹_{:,u} [(G⁻¹)_uu]⁻¹ G⁻¹_{u,:}

G = Σ xᵀx over the tokens of N examples, x the inputs of the output projection and a one, which is never removed; M = Σ g gᵀ / tokens, g the gradient
of an example's loss with respect to the block's output. With δ what the block's output changes by, the cost is the mean over examples of
Σ_tokens (g·δ)², if g and δ are independent: twice the rise of the loss, to second order, in the same unit for all blocks. With M = I and N = 1 the
accumulated cost is the squared error of a direct refit. Hassibi & Stork 1993; second moments of gradients as in Kwon et al. 2022.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headcount.core.errors import NonFinite
from headcount.core.heads import AttentionBlock, Head
from headcount.data.checks import check_batch
from headcount.data.chunks import chunks, default_batch_size, select_rows
from headcount.data.losses import ExampleLosses, OneByOne, require_finite_losses
from headcount.data.task import Data, Split, Task
from headcount.models.head_map import HeadMap
from headcount.models.modules import Batch, pad_id, unwrap
from headcount.models.observe import evaluating, frozen_parameters, model_inputs
from headcount.models.ownership import holds_model, restrict_to_owner
from headcount.models.state import forward_preserving_state
from headcount.pruning.repair.least_squares import append_ones
from headcount.pruning.repair.projection import (
    LinearProjection,
    has_bias,
    output_projection,
    read_weight_and_bias,
    rows_of_heads,
    rows_of_real_tokens,
)

JITTER = 1e-8
"""What is added to the diagonal of G before it is inverted, as a share of its mean."""
RemovalUnit = tuple[Head, ...]
"""Heads that can only be removed together."""
RemovalOrder = list[tuple[RemovalUnit, float]]
"""Units in the order in which they go, each with the rise of the loss that is expected of its removal."""


@dataclass(slots=True)
class Surgeon:
    """Removes units from one block: the inverse of G and the refitted weights, for the inputs that are not removed yet."""

    inverse: Float[Tensor, "inputs inputs"]
    weights: Float[Tensor, "inputs outputs"]
    sensitivity: Float[Tensor, "outputs outputs"]
    """M: how much the loss feels a change of the block's output."""
    units: dict[int, list[int]]
    """The inputs of every unit that is not removed yet, by the number of the unit."""
    n_examples: int
    total_cost: float = 0.0

    @classmethod
    def before_any_removal(
        cls,
        gram: Float[Tensor, "inputs inputs"],
        weights: Float[Tensor, "inputs outputs"],
        sensitivity: Float[Tensor, "outputs outputs"],
        input_rows_by_unit: Sequence[Sequence[int]],
        n_examples: int,
    ) -> Surgeon:
        """Returns the surgeon of a block before anything is removed."""
        gram = gram.double()
        mean = float(gram.diagonal().mean())
        jitter = torch.eye(len(gram), dtype=torch.float64, device=gram.device) * (mean * JITTER if mean > 0 else 1.0)
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(gram + jitter))
        rows = {number: list(unit) for number, unit in enumerate(input_rows_by_unit)}
        return cls(inverse, weights.double().clone(), sensitivity.double(), rows, n_examples)

    def cost_of_removing_each_unit(self) -> dict[int, float]:
        """Returns what removing each unit would cost now."""
        return {unit: self._removal_cost(rows) for unit, rows in self.units.items()}

    def _removal_cost(self, input_rows: list[int]) -> float:
        solution = torch.linalg.solve(self.inverse[input_rows][:, input_rows], self.weights[input_rows])
        return max(float((solution * (self.weights[input_rows] @ self.sensitivity)).sum()) / self.n_examples, 0.0)

    def remove_unit(self, unit: int) -> float:
        """Removes a unit, refits the others, and returns what that cost."""
        rows = self.units.pop(unit)
        cost = self._removal_cost(rows)
        solution = torch.linalg.solve(self.inverse[rows][:, rows], torch.cat([self.weights[rows], self.inverse[rows]], dim=1))
        column = self.inverse[:, rows]
        n_outputs = self.weights.shape[1]
        self.weights -= column @ solution[:, :n_outputs]
        self.inverse -= column @ solution[:, n_outputs:]
        self.weights[rows] = 0
        self.inverse[rows] = 0
        self.inverse[:, rows] = 0
        self.total_cost += cost
        return cost


@dataclass(slots=True)
class ProjectionGrams:
    """Sums of products of one block over tokens: of the inputs of its output projection, and of the gradients at its output."""

    block: AttentionBlock
    input_gram: Float[Tensor, "inputs inputs"]
    gradient_gram: Float[Tensor, "outputs outputs"]
    n_tokens: int = 0
    n_examples: int = 0

    @classmethod
    def empty(cls, model: nn.Module, block: AttentionBlock) -> ProjectionGrams:
        """Returns the sums over no token."""
        module = output_projection(model, block)
        n_inputs, n_outputs = read_weight_and_bias(module).shape
        zeros = torch.zeros(n_inputs, n_inputs, dtype=torch.float64, device=module.weight.device)
        return cls(block, zeros, zeros.new_zeros(n_outputs, n_outputs))

    def make_surgeon(self, weights: Float[Tensor, "inputs outputs"], input_rows_by_unit: Sequence[Sequence[int]]) -> Surgeon:
        """Returns the surgeon of the block before anything is removed."""
        return Surgeon.before_any_removal(
            self.input_gram, weights, self.gradient_gram / max(self.n_tokens, 1), input_rows_by_unit, max(self.n_examples, 1)
        )


@holds_model("a measurement of its blocks")
def measure_grams(
    model: nn.Module, heads: HeadMap, data: Data, *, split: Split = "calibration", limit: int = 512, batch_size: int | None = None
) -> dict[str, ProjectionGrams]:
    """Returns the Gram matrices of every block that has heads, by its path, from one pass forward and backward over the data."""
    inner: Any = unwrap(model)
    grams = {block.path: ProjectionGrams.empty(inner, block) for block in heads.blocks if block.n_heads}
    losses = ExampleLosses(inner, data.loss if isinstance(data, Task) else None)
    with evaluating(inner), frozen_parameters(inner), _GramHooks(inner, grams) as hooks:
        for chunk in chunks(data, split=split, limit=limit, pad_id=pad_id(inner)):
            for rows, batch in chunk.batches(batch_size or default_batch_size(data)):
                hooks.add_batch(batch, [chunk.first + row for row in rows], losses)
    return grams


class _GramHooks:
    """Hooks on the output projections that add the inputs and the gradients of a batch to the grams of their blocks."""

    def __init__(self, model: nn.Module, grams: dict[str, ProjectionGrams]) -> None:
        self.model, self.grams = model, grams
        self._batch: Batch = {}
        self._inputs: list[tuple[ProjectionGrams, Tensor]] = []
        self._stack = ExitStack()

    def __enter__(self) -> _GramHooks:
        for grams in self.grams.values():
            module = self.model.get_submodule(grams.block.o.path)
            self._stack.callback(module.register_forward_hook(restrict_to_owner(self.model, self._hook_collecting_inputs(grams))).remove)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add_batch(self, batch: Batch, example_numbers: list[int], losses: ExampleLosses) -> None:
        """Runs a batch forward and backward."""
        inputs = model_inputs(batch, self.model)
        check_batch(self.model, inputs, example_numbers)
        try:
            self._run_and_add_products(inputs, example_numbers, losses)
        except OneByOne:
            for row, number in enumerate(example_numbers):
                self._run_and_add_products(select_rows(inputs, [row]), [number], losses)

    def _run_and_add_products(self, batch: Batch, example_numbers: list[int], losses: ExampleLosses) -> None:
        self._batch, self._inputs = batch, []
        with torch.enable_grad():
            example_losses = require_finite_losses(losses(forward_preserving_state(self.model, batch), batch), example_numbers)
            for grams, inputs in self._inputs:
                grams.input_gram.addmm_(inputs.T, inputs)
                grams.n_tokens += len(inputs)
            example_losses.sum().backward()
        for grams in self.grams.values():
            grams.n_examples += len(example_numbers)

    def _hook_collecting_inputs(self, grams: ProjectionGrams) -> Callable[..., Tensor]:
        def collect_inputs(module: LinearProjection, args: tuple[Any, ...], output: Tensor) -> Tensor:
            inputs = rows_of_real_tokens(self.model, grams.block, self._batch, args[0].detach())
            self._inputs.append((grams, (append_ones(inputs) if has_bias(module) else inputs).double()))
            leaf = output if output.requires_grad else output.detach().requires_grad_(True)
            leaf.register_hook(self._hook_adding_gradients(grams, self._batch))
            return leaf

        return collect_inputs

    def _hook_adding_gradients(self, grams: ProjectionGrams, batch: Batch) -> Callable[[Tensor], None]:
        def add_gradients(gradient: Tensor) -> None:
            rows = rows_of_real_tokens(self.model, grams.block, batch, gradient.detach()).double()
            if not bool(torch.isfinite(rows).all()):
                raise NonFinite(f"the gradient at block {grams.block.name} is not finite; look at the model's outputs")
            grams.gradient_gram.addmm_(rows.T, rows)

        return add_gradients


def order_units_by_removal_cost(
    model: nn.Module, heads: HeadMap, data: Data, *, units: tuple[RemovalUnit, ...] | None = None, limit: int = 512
) -> RemovalOrder:
    """Returns all units in the order in which they go, cheapest first after repair, with the rise of the loss expected of each (half the cost).

    Costs are measured on `limit` calibration examples; `units` are by default the heads that share keys and values.
    """
    inner = unwrap(model)
    units = heads.units() if units is None else units
    surgeons: list[Surgeon] = []
    parts: dict[RemovalUnit, list[tuple[int, int]]] = defaultdict(list)  # where a unit has heads: surgeon, and number of the unit there
    for grams in measure_grams(inner, heads, data, limit=limit).values():
        block = grams.block
        rows: list[list[int]] = []
        for unit in units:
            if positions := [block.position(head) for head in unit if head in block.heads]:
                parts[unit].append((len(surgeons), len(rows)))
                rows.append(rows_of_heads(block, positions))
        surgeons.append(grams.make_surgeon(read_weight_and_bias(output_projection(inner, block)), rows))
    order: RemovalOrder = []
    costs = [surgeon.cost_of_removing_each_unit() for surgeon in surgeons]
    while parts:
        cheapest = min(parts, key=lambda unit: (sum(costs[index][number] for index, number in parts[unit]), parts[unit]))
        order.append((cheapest, sum(surgeons[index].remove_unit(number) for index, number in parts[cheapest]) / 2))
        for index, _ in parts.pop(cheapest):
            costs[index] = surgeons[index].cost_of_removing_each_unit()
    return order
