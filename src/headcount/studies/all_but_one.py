from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass, replace
from typing import TYPE_CHECKING, Literal

from headcount.core.options import option
from headcount.core.stats.significance import Difference, benjamini_hochberg, paired_bootstrap, paired_t
from headcount.core.study_result import Column, StudyResult, Table, interval_columns
from headcount.studies._base import Progress, Study, StudyContext, StudyInfo
from headcount.studies._results import SIGNIFICANT, format_interval

if TYPE_CHECKING:
    from headcount.core.heads import Head

EVERYWHERE = "everywhere"
Ablation = Literal["zero", "mean", "uniform"]


@dataclass(frozen=True)
class AllButOne(Study):
    """Can a layer live on one head? The best single head of every layer, chosen on one split and reported on another; and one head everywhere.

    Michel et al. 2019 (section 3.3): most layers lose little when reduced to their best head, the last encoder-decoder layer a lot. Choosing and
    reporting on the same examples would flatter; here the head is chosen on the selection split, and loss and metric are those of the report split.
    """

    _: KW_ONLY
    how: Literal["zero", "mean", "uniform"] = option(
        "zero", "What stands in for the other heads: nothing, their mean output, or uniform attention"
    )
    info = StudyInfo(paper="Michel et al. 2019, section 3.3", needs=frozenset({"model", "task"}))

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns a row for every block reduced to its best head, and a last one for the best head everywhere at once."""
        task = context.task
        with context.progress("scoring") as advance:
            rows = reduce_layers(context, self.how, advance)
        metric = task.metric.name if task.metric else ""
        return StudyResult(
            study=str(self),
            tables=(_table(rows, metric),),
            sentence=_verdict(rows),
            measurements={"model": context.model_name, "task": task.name, "how": self.how, "layers": [asdict(row) for row in rows]},
        )


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One block, or all of them: the heads that stay, the rise of the loss where they were chosen, and rise and metric on the report split."""

    block: str
    kept: tuple[str, ...]
    chosen_rise: float | None
    rise: Difference
    metric: float | None
    metric_change: Difference | None
    q: float


def reduce_layers(context: StudyContext, ablation: Ablation, progress: Progress | None = None) -> list[LayerRow]:
    """Returns a row for every block reduced to its best head, and a last one for the best head everywhere at once."""
    import torch

    from headcount.data.evaluate import evaluate
    from headcount.importance.score import score
    from headcount.models.gates import HeadGates
    from headcount.studies._gated import means_for

    model, task, heads, seed = context.loaded.model, context.task, context.loaded.heads, context.seed
    limit, batch_size = context.limit, context.batch_size
    scores = score(
        model, task, f"all-but-one:{ablation}", split="selection", seed=seed, limit=limit, batch_size=batch_size, progress=progress or False
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
        rows.append(LayerRow(name, tuple(map(str, kept_heads)), chosen_rise, rise, pruned.value, change, 1.0))
    q = benjamini_hochberg([row.rise.p for row in rows])
    return [replace(row, q=float(value)) for row, value in zip(rows, q, strict=True)]


def _table(rows: Sequence[LayerRow], metric: str) -> Table:
    columns = (
        Column("layer"),
        Column("head left"),
        Column("rise when chosen", "loss", "+.4g"),
        *interval_columns("rise on report", "+.3g", "loss"),
        Column("q", format=".2g"),
        *([Column(metric, format=".4g"), Column("change", metric, "+.3g")] if metric else []),
    )
    cells = [
        (
            row.block,
            ", ".join(row.kept),
            row.chosen_rise,
            row.rise.difference,
            row.rise.low,
            row.rise.high,
            row.q,
            *([row.metric, None if row.metric_change is None else row.metric_change.difference] if metric else []),
        )
        for row in rows
    ]
    return Table("layers", columns, tuple(cells))


def _verdict(rows: Sequence[LayerRow]) -> str:
    *layers, everywhere = rows
    unharmed = sum(row.q > SIGNIFICANT or row.rise.difference <= 0 for row in layers)
    change = format_interval(everywhere.rise.difference, everywhere.rise.low, everywhere.rise.high)
    return (
        f"{unharmed} of {len(layers)} layers can be reduced to one head without a significant rise of the loss (q ≤ {SIGNIFICANT}); "
        f"one head in every layer changes the loss by {change}."
    )
