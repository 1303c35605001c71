"""Budgets other than a number of heads: which units go so that parameters, KV cache or latency fit into a limit at the least loss of score.

Inside a block units go in the order of their scores, so that a block is a curve: what removing its n lowest units loses, and what the others
cost. The best point of every curve within the limit is found by dynamic programming over the costs, rounded up to 1/4096 of the limit so that it is
kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any

import numpy as np
from torch import nn

from headcount.core.budget import Budget
from headcount.core.errors import PlanError
from headcount.core.heads import AttentionBlock, Head
from headcount.core.plan import Plan
from headcount.core.scores import Scores
from headcount.models.head_map import HeadMap
from headcount.surgery.bench import bench
from headcount.surgery.cost import cost
from headcount.surgery.cut import count_removed_parameters, cut

GRAINS = 4096
"""Equal parts of the limit in which costs are counted."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One block: its units, lowest score first, what removing the first n of them loses, and what the block then costs."""

    units: list[tuple[Head, ...]]
    losses: list[float]
    costs: list[float]


@dataclass(frozen=True, slots=True)
class Costs:
    """What a model costs: what no head can change, and for every block what it costs with 0, 1, … all of its units."""

    fixed: float
    by_block: list[list[float]]


def count_removed_units_by_block(curves: Sequence[Curve], cost_limit: float) -> list[int]:
    """Returns how many units each block loses: the least loss of score whose costs add up to the limit at most.

    Raises:
        PlanError: even the lowest costs of all blocks add up to more.
    """
    grain = cost_limit / GRAINS
    costs_in_grains = [np.ceil(np.asarray(curve.costs) / grain - 1e-9).astype(int) for curve in curves]
    least_loss = np.full(GRAINS + 1, np.inf)  # by the grains that the blocks so far cost together
    least_loss[0] = 0.0
    choices: list[np.ndarray] = []
    for curve, costs in zip(curves, costs_in_grains, strict=True):
        best, n_removed = np.full(GRAINS + 1, np.inf), np.zeros(GRAINS + 1, dtype=int)
        for number, (loss, cost_here) in enumerate(zip(curve.losses, costs, strict=True)):
            if cost_here > GRAINS:
                continue
            total = np.concatenate([np.full(cost_here, np.inf), least_loss[: GRAINS + 1 - cost_here]]) + loss
            is_better = total < best
            best[is_better], n_removed[is_better] = total[is_better], number
        least_loss = best
        choices.append(n_removed)
    if not np.isfinite(least_loss).any():
        least = fsum(min(curve.costs) for curve in curves)
        raise PlanError(
            f"even without all heads that may go, the attention blocks cost {least:g}, more than the {cost_limit:g} left for them; raise the limit"
        )
    spent = int(np.argmin(least_loss))
    numbers = []
    for n_removed, costs in zip(reversed(choices), reversed(costs_in_grains), strict=True):
        number = int(n_removed[spent])
        numbers.append(number)
        spent -= int(costs[number])
    return numbers[::-1]


def plan_within_limit(model: nn.Module, heads: HeadMap, scores: Scores, budget: Budget) -> Plan:
    """Returns the plan that keeps the most score within a budget's limit of parameters, KV bytes per token or latency."""
    assert budget.limit is not None
    resource, limit = budget.limit
    blocks = [block for block in heads.blocks if block.n_heads and block.can_cut]
    measure = {"parameters": _parameter_costs, "kv_bytes": _kv_byte_costs, "latency": _measure_latency_costs}[resource]
    costs = measure(model, heads, blocks, budget)
    if limit <= costs.fixed:
        raise PlanError(f"{resource} of {limit:g} cannot be met: what no head can change already takes {costs.fixed:g}")
    curves = [_removal_curve(block, heads, scores, budget, block_costs) for block, block_costs in zip(blocks, costs.by_block, strict=True)]
    removed = [
        head
        for curve, number in zip(curves, count_removed_units_by_block(curves, limit - costs.fixed), strict=True)
        for unit in curve.units[:number]
        for head in unit
    ]
    return Plan.removing(removed, protected=budget.protected)


def _removal_curve(block: AttentionBlock, heads: HeadMap, scores: Scores, budget: Budget, costs_by_n_kept: Sequence[float]) -> Curve:
    """Returns the curve of a block; `costs_by_n_kept` are those of the block with 0, 1, … all of its units."""
    values, ties = scores.keep_values(), dict(zip(scores.heads, scores.ties(), strict=True))
    block_units = _units_of_block(block, heads)
    free = [unit for unit in block_units if not budget.protected.intersection(unit)]
    order = sorted(free, key=lambda unit: (fsum(values[head] for head in unit) / len(unit), -min(ties[head] for head in unit)))
    unit_size = sum(head in block.heads for head in free[0]) if free else 1
    max_removed = max(0, min(len(order), (block.n_heads - budget.floor) // unit_size))
    lowest = min((values[head] for head in values), default=0.0)
    losses = np.concatenate([[0.0], np.cumsum([fsum(values[head] - min(lowest, 0.0) for head in unit) for unit in order[:max_removed]])])
    return Curve(order, losses.tolist(), [costs_by_n_kept[len(block_units) - number] for number in range(max_removed + 1)])


def _units_of_block(block: AttentionBlock, heads: HeadMap) -> list[tuple[Head, ...]]:
    """Returns the units of a block: heads that share keys and values."""
    return [unit for unit in heads.units() if unit[0] in block.heads]


def _parameter_costs(model: nn.Module, heads: HeadMap, blocks: Sequence[AttentionBlock], _budget: Budget) -> Costs:
    by_block = []
    for block in blocks:
        units = _units_of_block(block, heads)
        savings = [
            count_removed_parameters(heads, Plan.removing([head for unit in units[:number] for head in unit]))
            for number in range(len(units) + 1)
        ]
        by_block.append([float(savings[-1] - savings[len(units) - n_kept]) for n_kept in range(len(units) + 1)])
    total = sum(parameter.numel() for parameter in model.parameters())
    return Costs(total - fsum(costs[-1] for costs in by_block), by_block)


def _kv_byte_costs(model: nn.Module, heads: HeadMap, blocks: Sequence[AttentionBlock], _budget: Budget) -> Costs:
    total = cost(model, heads=heads).kv_bytes_per_token
    if not total:
        raise PlanError("this model keeps no keys and values from token to token, so that it has no budget of kv_bytes")
    element_size = next(model.parameters()).element_size()
    by_block = []
    for block in blocks:
        n_units = len(_units_of_block(block, heads))
        has_cache = block.kind == "decoder-self" and not block.kv_source and n_units
        unit_bytes = (block.head_dim + block.value_dim) * element_size * block.n_kv_heads / n_units if has_cache else 0.0
        # a block without heads keeps one idle head in the cache
        by_block.append([unit_bytes * max(n_kept, 1) for n_kept in range(n_units + 1)])
    return Costs(max(0.0, total - fsum(costs[-1] for costs in by_block)), by_block)


def _measure_latency_costs(model: nn.Module, heads: HeadMap, blocks: Sequence[AttentionBlock], budget: Budget) -> Costs:
    """Measures the dense model, and models with half of the units of all blocks of a shape, with one, and with one in all blocks.

    In between, latency is linear in the number of units. What blocks of each shape save is scaled to what all of them save together, so that noise
    cannot make a model free.
    """
    shapes: dict[tuple[Any, ...], list[AttentionBlock]] = {}
    for block in blocks:
        shapes.setdefault((block.kind, block.n_heads, block.n_kv_heads, block.head_dim), []).append(block)
    models: dict[str, nn.Module] = {"dense": model}
    for number, members in enumerate(shapes.values()):
        for share in (0.5, 0.0):
            models[f"{number} {share}"] = cut(model, Plan.removing(_heads_beyond_kept_share(heads, members, share)))
    models["least"] = cut(model, Plan.removing(_heads_beyond_kept_share(heads, blocks, 0.0)))
    timings = {t.name: t.seconds for t in bench(models, batches=(budget.bench_batch,), lengths=(budget.bench_length,), rounds=7)}
    by_path: dict[str, list[float]] = {}
    for number, members in enumerate(shapes.values()):
        for block in members:
            n_units = len(_units_of_block(block, heads))
            points = [(1, timings[f"{number} 0.0"]), (max(1, n_units // 2), timings[f"{number} 0.5"]), (n_units, timings["dense"])]
            x, y = zip(*sorted(dict(points).items()), strict=True)
            line = np.maximum.accumulate(np.interp(range(n_units + 1), x, y)) if len(x) > 1 else np.zeros(n_units + 1)
            savings = (line - line[1 if n_units else 0]) / len(members)
            by_path[block.path] = [max(0.0, float(value)) for value in savings]
    fixed, total = min(timings["dense"], timings["least"]), fsum(costs[-1] for costs in by_path.values())
    scale = (timings["dense"] - fixed) / total if total else 0.0
    return Costs(fixed, [[value * scale for value in by_path[block.path]] for block in blocks])


def _heads_beyond_kept_share(heads: HeadMap, blocks: Sequence[AttentionBlock], kept_share: float) -> list[Head]:
    """Returns the heads to remove so that a share of the units of every block stays, one at least."""
    removed = []
    for block in blocks:
        units = _units_of_block(block, heads)
        removed += [head for unit in units[max(1, int(len(units) * kept_share)) :] for head in unit]
    return removed
