"""The best single head of every layer, chosen on the selection split and reported on the report split."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from headcount.core.heads import Head
from headcount.core.stats.significance import Difference, paired_bootstrap, paired_t
from headcount.data.evaluate import evaluate
from headcount.importance.score import score
from headcount.models.gates import HeadGates
from headcount.studies._base import Ablation, StudyContext
from headcount.studies._gated import means_for
from headcount.studies._results import correct_rows

EVERYWHERE = "everywhere"


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One block, or all of them: the heads that stay, the rise of the loss where they were chosen, and rise and metric on the report split."""

    block: str
    heads: tuple[str, ...]
    chosen_rise: float | None
    rise: Difference
    metric: float | None
    metric_change: Difference | None
    n_examples: int
    p: float
    q: float = 1.0


def reduce_layers(context: StudyContext, ablation: Ablation) -> list[LayerRow]:
    """Returns a row for every block reduced to its best head, and a last one for the best head everywhere at once."""
    model, task, heads, seed = context.loaded.model, context.task, context.loaded.heads, context.seed
    limit, batch_size = context.limit, context.batch_size
    with context.progress("scoring") as advance:
        scores = score(
            model, task, f"all-but-one:{ablation}", split="selection", seed=seed, limit=limit, batch_size=batch_size, progress=advance
        )
    means = means_for(model, task, ablation, limit, "selection")
    dense = evaluate(model, task, limit=limit, batch_size=batch_size)
    best = {block.name: min(block.heads, key=lambda head: (scores[head], head)) for block in heads.blocks if block.n_heads}
    choices: list[tuple[str, list[Head], float | None]] = [(name, [head], scores[head]) for name, head in best.items()]
    rows = []
    for name, kept_heads, chosen_rise in [*choices, (EVERYWHERE, list(best.values()), None)]:
        reduced = {block.name for block in heads.blocks if name in (block.name, EVERYWHERE)}
        stays = [float(head in kept_heads or heads.block_of(head).name not in reduced) for head in heads]
        with HeadGates(model, torch.tensor(stays, dtype=torch.float64), how=ablation, means=means):
            pruned = evaluate(model, task, limit=limit, batch_size=batch_size)
        change = None
        if task.metric is not None and dense.parts is not None and pruned.parts is not None:
            change = paired_bootstrap(dense.parts, pruned.parts, task.metric.total, seed=seed)
        rise = paired_t(pruned.losses - dense.losses)
        rows.append(LayerRow(name, tuple(map(str, kept_heads)), chosen_rise, rise, pruned.value, change, dense.n_examples, rise.p))
    return correct_rows(rows)
