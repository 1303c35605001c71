"""Budgets other than a number of heads: which units go so that parameters, KV cache or latency fit into a limit at the least loss of score.

Inside a block units go in the order of their scores, so that a block is a curve: what removing its n lowest units loses, and what the rest costs. The
best point of every curve within the limit is found by dynamic programming over the costs, rounded up to 1/4096 of the limit so that it is kept.
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
from headcount.surgery.cut import cut, removed_parameters

GRAINS = 4096


@dataclass(frozen=True, slots=True)
class Curve:
    """One block: its units, lowest first, what removing the first n of them loses, and what it then costs."""

    units: list[tuple[Head, ...]]
    losses: list[float]
    costs: list[float]


def allocate(curves: Sequence[Curve], limit: float) -> list[int]:
    """How many units each block loses: the least loss whose costs add up to the limit at most."""
    grain = limit / GRAINS
    sizes = [np.ceil(np.asarray(curve.costs) / grain - 1e-9).astype(int) for curve in curves]
    best = np.full(GRAINS + 1, np.inf)
    best[0] = 0.0
    choice: list[np.ndarray] = []
    for curve, size in zip(curves, sizes, strict=True):
        found, taken = np.full(GRAINS + 1, np.inf), np.zeros(GRAINS + 1, dtype=int)
        for number, (loss, taking) in enumerate(zip(curve.losses, size, strict=True)):
            if taking > GRAINS:
                continue
            moved = np.concatenate([np.full(taking, np.inf), best[: GRAINS + 1 - taking]]) + loss
            better = moved < found
            found[better], taken[better] = moved[better], number
        best = found
        choice.append(taken)
    if not np.isfinite(best).any():
        least = fsum(min(curve.costs) for curve in curves)
        raise PlanError(
            f"even without all heads that may go, the attention blocks cost {least:g}, more than the {limit:g} left for them; raise the limit"
        )
    place = int(np.argmin(best))
    numbers = []
    for taken, size in zip(reversed(choice), reversed(sizes), strict=True):
        number = int(taken[place])
        numbers.append(number)
        place -= int(size[number])
    return numbers[::-1]


def plan_within(model: nn.Module, heads: HeadMap, scores: Scores, budget: Budget) -> Plan:
    """The plan that keeps the most score within a limit of parameters, KV bytes per token or latency."""
    assert budget.limit is not None
    what, limit = budget.limit
    blocks = [block for block in heads.blocks if block.n_heads and block.can_cut]
    fixed, costs = {"parameters": _parameters, "kv_bytes": _kv_bytes, "latency": _latency}[what](model, heads, blocks, budget)
    if limit <= fixed:
        raise PlanError(f"{what} of {limit:g} cannot be met: what no head can change already takes {fixed:g}")
    curves = [_curve(block, heads, scores, budget, cost_of) for block, cost_of in zip(blocks, costs, strict=True)]
    removed = [
        head
        for curve, number in zip(curves, allocate(curves, limit - fixed), strict=True)
        for unit in curve.units[:number]
        for head in unit
    ]
    return Plan.removing(removed, protected=budget.protected)


def _curve(block: AttentionBlock, heads: HeadMap, scores: Scores, budget: Budget, costs: Sequence[float]) -> Curve:
    worth, ties = scores.keep_values(), dict(zip(scores.heads, scores.ties(), strict=True))
    units = [unit for unit in heads.units() if unit[0] in block.heads and not budget.protected.intersection(unit)]
    kept = [unit for unit in heads.units() if unit[0] in block.heads and budget.protected.intersection(unit)]
    order = sorted(units, key=lambda unit: (fsum(worth[head] for head in unit) / len(unit), -min(ties[head] for head in unit)))
    size = sum(head in block.heads for head in units[0]) if units else 1
    able = max(0, min(len(order), (block.n_heads - budget.floor) // size))
    low = min((worth[head] for head in worth), default=0.0)
    losses = np.concatenate([[0.0], np.cumsum([fsum(worth[head] - min(low, 0.0) for head in unit) for unit in order[:able]])])
    total = len(units) + len(kept)
    return Curve(order, losses.tolist(), [costs[total - number] for number in range(able + 1)])


def _parameters(model: nn.Module, heads: HeadMap, blocks: Sequence[AttentionBlock], _budget: Budget) -> tuple[float, list[list[float]]]:
    """What is there without any head, and what every block adds with n units left."""
    total = sum(parameter.numel() for parameter in model.parameters())
    found = []
    for block in blocks:
        units = [unit for unit in heads.units() if unit[0] in block.heads]
        gone = [
            removed_parameters(heads, Plan.removing([head for unit in units[:number] for head in unit])) for number in range(len(units) + 1)
        ]
        found.append([float(gone[-1] - gone[len(units) - left]) for left in range(len(units) + 1)])
    return total - fsum(costs[-1] for costs in found), found


def _kv_bytes(model: nn.Module, heads: HeadMap, blocks: Sequence[AttentionBlock], _budget: Budget) -> tuple[float, list[list[float]]]:
    total = cost(model, heads=heads).kv_bytes_per_token
    if not total:
        raise PlanError("this model keeps no keys and values from token to token, so that it has no budget of kv_bytes")
    size = next(model.parameters()).element_size()
    found = []
    for block in blocks:
        units = sum(unit[0] in block.heads for unit in heads.units())
        caches = block.kind == "decoder-self" and not block.kv_source and units
        each = (block.head_dim + block.value_dim) * size * block.n_kv_heads / units if caches else 0.0
        found.append([each * max(left, 1) for left in range(units + 1)])  # a block without heads keeps one idle head in the cache
    return max(0.0, total - fsum(costs[-1] for costs in found)), found


def _latency(model: nn.Module, heads: HeadMap, blocks: Sequence[AttentionBlock], budget: Budget) -> tuple[float, list[list[float]]]:
    """Measured: the model whole, with half of the units of all blocks of a shape, with one, and with one in all blocks; in between it is linear.

    What blocks of each shape save is scaled to what all of them save together, so that noise cannot make a model free.
    """
    shapes: dict[tuple[Any, ...], list[AttentionBlock]] = {}
    for block in blocks:
        shapes.setdefault((block.kind, block.n_heads, block.n_kv_heads, block.head_dim), []).append(block)
    models: dict[str, nn.Module] = {"whole": model}
    for number, members in enumerate(shapes.values()):
        for share in (0.5, 0.0):
            models[f"{number} {share}"] = cut(model, Plan.removing(_beyond(heads, members, share)))
    models["least"] = cut(model, Plan.removing(_beyond(heads, blocks, 0.0)))
    timings = {t.name: t.seconds for t in bench(models, batches=(budget.bench_batch,), lengths=(budget.bench_length,), rounds=7)}
    found: dict[str, list[float]] = {}
    for number, members in enumerate(shapes.values()):
        for block in members:
            units = sum(unit[0] in block.heads for unit in heads.units())
            known = [(1, timings[f"{number} 0.0"]), (max(1, units // 2), timings[f"{number} 0.5"]), (units, timings["whole"])]
            x, y = zip(*sorted(dict(known).items()), strict=True)
            line = np.maximum.accumulate(np.interp(range(units + 1), x, y)) if len(x) > 1 else np.zeros(units + 1)
            each = (line - line[1 if units else 0]) / len(members)
            found[block.path] = [max(0.0, float(value)) for value in each]
    base, spent = min(timings["whole"], timings["least"]), fsum(costs[-1] for costs in found.values())
    scale = (timings["whole"] - base) / spent if spent else 0.0
    return base, [[value * scale for value in found[block.path]] for block in blocks]


def _beyond(heads: HeadMap, members: Sequence[AttentionBlock], share: float) -> list[Head]:
    """The heads that go so that a share of the units of some blocks is left, one at least."""
    gone = []
    for block in members:
        units = [unit for unit in heads.units() if unit[0] in block.heads]
        gone += [head for unit in units[max(1, int(len(units) * share)) :] for head in unit]
    return gone
