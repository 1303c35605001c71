"""Evaluations of a model whose layers lose their heads: thirds, single layers, consecutive and spread-out pairs of every stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import nn

from headcount.core.evaluation import Evaluation
from headcount.core.heads import AttentionBlock, Head
from headcount.core.stats.corrected_rows import add_q_values
from headcount.core.stats.means import mean_interval
from headcount.data.share_above_chance import Share, score_of_best_constant_answer, share_above_chance_left
from headcount.data.task import Task
from headcount.models.head_map import HeadMap
from headcount.runs.store import Run
from headcount.studies._base import Progress, StudyAblation, StudyContext
from headcount.studies._gated import PairedChange, evaluate_without, measure_means_for_ablation, measure_paired_change

THIRD, LAYER, CONSECUTIVE, SPREAD = "third", "layer", "consecutive", "spread"


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers of one stack that lose their heads together."""

    kind: str
    name: str
    stack: str
    layers: tuple[int, ...]
    heads: tuple[Head, ...]


def group_layers(heads: HeadMap, kinds: Sequence[str] = (THIRD, LAYER, CONSECUTIVE, SPREAD)) -> list[LayerGroup]:
    """Returns the thirds, single layers and pairs of every stack; thirds need three layers, spread-out pairs four."""
    groups: list[LayerGroup] = []
    for stack in dict.fromkeys(block.stack for block in heads.blocks):
        blocks = sorted((block for block in heads.blocks if block.stack == stack and block.n_heads), key=lambda block: block.layer)
        for kind in kinds:
            for name, part in _group_blocks_of_stack(kind, blocks):
                layers = tuple(block.layer for block in part)
                addresses = "+".join([part[0].name, *(f"L{layer}" for layer in layers[1:])])
                title = f"{name} ({addresses})" if name else addresses
                groups.append(LayerGroup(kind, title, stack, layers, tuple(head for block in part for head in block.heads)))
    return groups


def _group_blocks_of_stack(group_kind: str, blocks: list[AttentionBlock]) -> list[tuple[str, list[AttentionBlock]]]:
    depth, half = len(blocks), len(blocks) // 2
    if group_kind == LAYER:
        return [("", [block]) for block in blocks]
    if group_kind == THIRD:
        if depth < 3:
            return []
        side = round(depth / 3)  # bottom and top are of one size, so that they can be compared
        return [("bottom", blocks[:side]), ("middle", blocks[side : depth - side]), ("top", blocks[depth - side :])]
    if group_kind == CONSECUTIVE:
        return [("", [blocks[i], blocks[i + 1]]) for i in range(depth - 1)] if depth > 2 else []
    return [("", [blocks[i], blocks[i + half]]) for i in range(depth - half)] if half > 1 else []


@dataclass(frozen=True, slots=True)
class GroupRow:
    """The model without the heads of a group of layers: its loss and metric, and their change from the dense model."""

    group: LayerGroup
    loss: float
    value: float | None
    drop: PairedChange
    share: Share
    p: float | None
    q: float | None = None

    def to_dict(self) -> dict[str, object]:
        """Returns the row as plain data."""
        group = self.group
        names = {"kind": group.kind, "name": group.name, "stack": group.stack, "layers": list(group.layers), "heads": len(group.heads)}
        return {
            **names,
            "loss": self.loss,
            "value": self.value,
            **self.drop.to_dict(),
            **self.share.to_dict(),
            "p": self.p,
            "q": self.q,
        }


@dataclass(frozen=True, slots=True)
class LayerPairRow:
    """A quantity of the loss of one stack without two layers, its mean over consecutive and over spread-out pairs, and their difference.

    The quantity is the rise of the loss, or its excess over the rises without each of the two layers alone.
    """

    stack: str
    quantity: str
    consecutive: float
    spread: float
    difference: float
    low: float | None
    high: float | None
    p: float | None


class LayerRemovals(NamedTuple):
    """The evaluation of the dense model, a row for every group of layers, and rows of consecutive against spread-out pairs by stack."""

    dense: Evaluation
    groups: list[GroupRow]
    pairs: list[LayerPairRow]


def evaluate_layer_removals(
    model: nn.Module,
    task: Task,
    heads: HeadMap,
    *,
    ablation: StudyAblation = "zero",
    run: Run | None = None,
    progress: Progress | None = None,
    seed: int = 0,
    limit: int | None = None,
    batch_size: int | None = None,
) -> LayerRemovals:
    """Evaluates the model as it is, and without the heads of every group of layers."""
    groups = group_layers(heads)
    means = measure_means_for_ablation(model, task, ablation, limit)
    dense = evaluate_without(run, "dense", model, task, (), limit=limit, batch_size=batch_size)
    evaluations: dict[tuple[str, str], Evaluation] = {}
    for number, group in enumerate(groups):
        evaluations[group.kind, group.name] = evaluate_without(
            run, f"without {group.name}", model, task, group.heads, ablation=ablation, means=means, limit=limit, batch_size=batch_size
        )
        if progress is not None:
            progress(number + 1, len(groups))
    chance = score_of_best_constant_answer(model, task, limit)
    rows = []
    for group in groups:
        pruned = evaluations[group.kind, group.name]
        drop = measure_paired_change(dense, pruned, task, seed=seed)
        share = share_above_chance_left(dense, pruned, task, chance, seed=seed)
        rows.append(GroupRow(group, pruned.loss, pruned.value, drop, share, drop.score.p))
    return LayerRemovals(dense, add_q_values(rows), _compare_consecutive_with_spread_pairs(groups, evaluations, dense))


def _compare_consecutive_with_spread_pairs(
    groups: Sequence[LayerGroup], evaluations_by_kind_and_name: Mapping[tuple[str, str], Evaluation], dense: Evaluation
) -> list[LayerPairRow]:
    """Returns, by stack, the mean rise of the loss and the mean excess of consecutive minus spread-out pairs, paired over examples."""
    rise = {(group.kind, group.name): evaluations_by_kind_and_name[group.kind, group.name].losses - dense.losses for group in groups}
    of_layer = {(group.stack, group.layers[0]): rise[group.kind, group.name] for group in groups if group.kind == LAYER}
    rows = []
    for stack in dict.fromkeys(group.stack for group in groups):
        means: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        for kind in (CONSECUTIVE, SPREAD):
            pairs = [group for group in groups if (group.stack, group.kind) == (stack, kind)]
            rises = [rise[group.kind, group.name] for group in pairs]
            excesses = [rise[group.kind, group.name] - sum(of_layer[stack, layer] for layer in group.layers) for group in pairs]
            if pairs:
                means[kind] = np.mean(rises, axis=0), np.mean(excesses, axis=0)
        for index, quantity in enumerate(("rise", "excess")) if len(means) == 2 else ():
            consecutive, spread = means[CONSECUTIVE][index], means[SPREAD][index]
            gap = mean_interval(consecutive - spread)
            mean_values = float(consecutive.mean()), float(spread.mean())
            rows.append(LayerPairRow(stack, quantity, *mean_values, gap.difference, gap.low, gap.high, gap.p))
    return rows


def measure_layer_removals(context: StudyContext, ablation: StudyAblation) -> LayerRemovals:
    """Returns what `evaluate_layer_removals` measures on the model and task of a study."""
    task = context.task
    with context.progress("removing layers", "groups") as advance:
        return evaluate_layer_removals(
            context.loaded.model,
            task,
            context.loaded.heads,
            ablation=ablation,
            run=context.run,
            progress=advance,
            seed=context.seed,
            limit=context.limit,
            batch_size=context.batch_size,
        )
