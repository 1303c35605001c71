"""The best single head of every layer, chosen on the selection split and reported on the report split."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from headcount.core.evaluation import PairedDifference, rise_of_loss
from headcount.core.heads import Head
from headcount.core.stats.corrected_rows import add_q_values
from headcount.core.stats.means import MeanDifference
from headcount.core.stats.significance import benjamini_hochberg
from headcount.importance.settings import ScoreSettings
from headcount.studies._base import StudyAblation, StudyContext
from headcount.studies._gated import evaluate_without, measure_means_for_ablation
from headcount.workflows.grid import evaluation_minus_baseline
from headcount.workflows.score import score_into

EVERYWHERE = "everywhere"


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One block, or all of them, reduced to its best head.

    `chosen_rise` and `chosen_change` are those of the loss and of the metric on the selection split, where the heads were chosen, `rise` and
    `metric_change` those on the report split; q corrects the p-value of the rise, `metric_q` that of the change of the metric, over all rows.
    """

    block: str
    kind: str
    layer: int | None
    heads: tuple[str, ...]
    chosen_rise: float
    chosen_change: PairedDifference | None
    rise: MeanDifference
    metric: float | None
    metric_change: PairedDifference | None
    n_examples: int
    p: float | None
    q: float | None = None
    metric_q: float | None = None


def measure_layers_reduced_to_best_head(context: StudyContext, ablation: StudyAblation) -> list[LayerRow]:
    """Returns a row for every block reduced to its best head, and a last one for the best head everywhere at once."""
    model, task, heads, seed = context.loaded.model, context.task, context.loaded.heads, context.seed
    settings = ScoreSettings(split="selection", seed=seed, limit=context.limit, batch_size=context.batch_size)
    with context.progress("scoring") as advance:
        (scores,) = score_into(context.run, model, task, [f"all-but-one:{ablation}"], settings, progress=advance).values()
    means = measure_means_for_ablation(model, task, ablation, context.limit, "selection")
    evaluate = partial(evaluate_without, context.run, limit=context.limit, batch_size=context.batch_size)
    dense = evaluate("dense", model, task, ())
    chosen_dense = evaluate("dense on selection", model, task, (), split="selection")
    blocks = {block.name: block for block in heads.blocks if block.n_heads}
    best = {name: min(block.heads, key=lambda head: (scores[head], head)) for name, block in blocks.items()}
    choices: dict[str, list[Head]] = {name: [head] for name, head in best.items()} | {EVERYWHERE: list(best.values())}
    rows = []
    for name, kept_heads in choices.items():
        reduced = blocks.values() if name == EVERYWHERE else [blocks[name]]
        removed = [head for block in reduced for head in block.heads if head not in kept_heads]
        label = f"{name} reduced to {'one head' if name == EVERYWHERE else kept_heads[0]}, {ablation}"
        pruned = evaluate(label, model, task, removed, ablation=ablation, means=means)
        chosen = evaluate(f"{label}, on selection", model, task, removed, ablation=ablation, means=means, split="selection")
        changes = None, None
        if task.metric is not None:
            changes = (
                evaluation_minus_baseline(chosen_dense, chosen, task, seed=seed),
                evaluation_minus_baseline(dense, pruned, task, seed=seed),
            )
        rise = rise_of_loss(dense, pruned)
        block = blocks.get(name)
        rows.append(
            LayerRow(
                name,
                EVERYWHERE if block is None else block.kind,
                None if block is None else block.layer,
                tuple(map(str, kept_heads)),
                chosen.loss - chosen_dense.loss,
                changes[0],
                rise,
                pruned.value,
                changes[1],
                dense.n_examples,
                rise.p,
            )
        )
    return _correct_metric_p_values(add_q_values(rows))


def _correct_metric_p_values(rows: list[LayerRow]) -> list[LayerRow]:
    """Returns the rows with the corrected p-value of the change of the metric, where there is one."""
    has_p = [row.metric_change is not None and row.metric_change.p is not None for row in rows]
    p_values = [row.metric_change.p for row in rows if row.metric_change is not None and row.metric_change.p is not None]
    corrected = iter(benjamini_hochberg(p_values).tolist() if p_values else ())
    return [replace(row, metric_q=next(corrected)) if tested else row for row, tested in zip(rows, has_p, strict=True)]
