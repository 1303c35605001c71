"""What removing a share of the heads saves at most, by arithmetic on shapes: attention is only a part of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from torch import Tensor, nn

from headcount.core.heads import AttentionBlock, Head
from headcount.core.plan import Plan
from headcount.models.dummy_inputs.text import naming_inputs_in_errors, probe_inputs
from headcount.models.head_map import HeadMap
from headcount.models.modules import unwrap
from headcount.models.observe import evaluating, frozen_parameters
from headcount.models.state import forward_preserving_state
from headcount.surgery.cost import cost
from headcount.surgery.cut import count_removed_parameters


@dataclass(frozen=True, slots=True)
class Savings:
    """What the removal of heads saves, and what the whole model has.

    Attributes:
        n_removed: How many heads go: the whole KV groups that save most parameters.
        n_heads: How many heads the model has.
        parameters: The parameters that go.
        all_parameters: Those of the model.
        flops: The FLOPs that go from a pass over `tokens` positions: two for every weight of theirs at every position, and those of attention itself.
        all_flops: Those of the model; None where it has no weights to count a pass with.
        tokens: How many positions the pass has; 0 where it was not counted.
        kv_bytes: The bytes of key-value cache per token that go.
        all_kv_bytes: Those of the model; 0 where it keeps none.
    """

    n_removed: int
    n_heads: int
    parameters: int
    all_parameters: int
    flops: int
    all_flops: int | None
    tokens: int
    kv_bytes: int
    all_kv_bytes: int


def largest_savings(model: nn.Module, heads: HeadMap, max_removed_share: float = 0.5) -> Savings:
    """Returns what removing at most this share of the heads saves at most, in whole KV groups of blocks that can be cut."""
    units = [unit for unit in heads.units() if all(heads.block_of(head).can_cut for head in unit)]
    saved = {unit: count_removed_parameters(heads, Plan.removing(unit)) for unit in units}
    removed: list[tuple[Head, ...]] = []
    for unit in sorted(units, key=lambda unit: -saved[unit] / len(unit)):
        if sum(map(len, removed)) + len(unit) <= max_removed_share * len(heads):
            removed.append(unit)
    removed_heads = [head for unit in removed for head in unit]
    parameters = sum(saved[unit] for unit in removed)
    dense_cost = None if next(model.parameters()).is_meta else cost(model, heads=heads)
    element_size = next(model.parameters()).element_size()
    kv_of = {block.path: _cached_numbers_per_head(block) * element_size for block in heads.blocks}
    tokens = 0 if dense_cost is None else dense_cost.tokens
    flops = 0.0 if dense_cost is None else _flops_of_units(model, heads, {unit: saved[unit] for unit in removed})
    has_cache = dense_cost is None or dense_cost.kv_bytes_per_token > 0
    return Savings(
        n_removed=len(removed_heads),
        n_heads=len(heads),
        parameters=parameters,
        all_parameters=sum(parameter.numel() for parameter in model.parameters()),
        flops=round(flops),
        all_flops=None if dense_cost is None else dense_cost.flops,
        tokens=tokens,
        kv_bytes=round(sum(kv_of[heads.block_of(head).path] for head in removed_heads)) if has_cache else 0,
        all_kv_bytes=round(sum(kv_of[block.path] * block.n_heads for block in heads.blocks)) if has_cache else 0,
    )


def _flops_of_units(model: nn.Module, heads: HeadMap, parameters_by_unit: Mapping[tuple[Head, ...], int]) -> float:
    """Returns the FLOPs that some heads take of a pass over the probe batch: those of their weights, by unit, and of attention itself."""
    inner = unwrap(model)
    batch, positions = probe_inputs(inner), dict[str, int]()
    n_rows = next(len(value) for value in batch.values() if isinstance(value, Tensor) and value.ndim > 1)

    def make_position_counting_hook(projection_path: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda _, args: positions.update([(projection_path, args[0].shape[:-1].numel())])

    with ExitStack() as hooks:
        for path in {projection.path for block in heads.blocks for projection in (block.q, block.k, block.v, block.o)}:
            hooks.callback(inner.get_submodule(path).register_forward_pre_hook(make_position_counting_hook(path)).remove)
        with naming_inputs_in_errors(inner, batch, is_dummy=True), evaluating(inner), frozen_parameters(inner):
            forward_preserving_state(inner, batch)
    total = 0.0
    for unit, parameters in parameters_by_unit.items():
        block = heads.block_of(unit[0])
        at = [positions.get(projection.path, 0) for projection in (block.q, block.k, block.v, block.o)]
        total += 2 * parameters * sum(at) / len(at)
        total += len(unit) * 2 * at[0] * at[1] / n_rows * (block.head_dim + block.value_dim)
    return total


def _cached_numbers_per_head(block: AttentionBlock) -> float:
    """Returns how many numbers of keys and values one query head stands for in the cache of a token."""
    if block.kind != "decoder-self" or block.kv_source or not block.n_heads:
        return 0.0
    return (block.head_dim + block.value_dim) * block.n_kv_heads / block.n_heads
