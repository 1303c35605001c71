from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from headcount.core.options import option
from headcount.core.stats.significance import Difference, paired_t
from headcount.core.study_result import Column, StudyResult, Table, interval_columns
from headcount.studies._base import Study, StudyContext, StudyInfo
from headcount.studies._results import format_interval

if TYPE_CHECKING:
    from torch import nn

    from headcount.core.scores import Scores
    from headcount.data.task import Task


@dataclass(frozen=True)
class ByType(Study):
    """Which attention matters most, encoder, cross or decoder? Scores by type of attention, and what removing a whole type costs.

    Michel et al. 2019 (section 4.2) and Voita et al. 2019: encoder-decoder attention suffers first, encoder self-attention least. All heads of each
    type, and its lower half, are also gated away; the rise of the loss is tested in pairs over the same examples.
    """

    _: KW_ONLY
    by: str = option("gradient", "The importance that ranks the heads of each type")
    info = StudyInfo(paper="Michel et al. 2019, section 4.2; Voita et al. 2019", needs=frozenset({"model", "task"}))

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns a row for every type of attention in the model."""
        from headcount.importance.base import Importance
        from headcount.importance.score import score

        importance = Importance.parse(self.by)
        model, task, by = context.loaded.model, context.task, str(importance)
        with context.progress("scoring") as advance:
            raw = score(
                model,
                task,
                by,
                normalise="none",
                seed=context.seed,
                limit=context.limit,
                batch_size=context.batch_size,
                progress=advance,
            )
        ranking = raw.normalise_by(importance.info.normalise)
        rows = compare_types(model, task, raw, ranking, limit=context.limit, batch_size=context.batch_size)
        metric = task.metric.name if task.metric else ""
        dense = f" {metric} of the dense model {rows[0].metric:.4g}." if metric else ""
        measurements = {"model": context.model_name, "task": task.name, "by": by, "normalise": ranking.normalise}
        return StudyResult(
            study=str(self),
            tables=(_table(rows, by, metric),),
            sentence=_verdict(rows),
            notes=(
                f"Changes of the loss on the report split when heads are removed.{dense}",
                f"Means and shares are those of raw scores; the lower half is that of {ranking.label}.",
            ),
            measurements={**measurements, "types": [asdict(row) for row in rows]},
        )


@dataclass(frozen=True, slots=True)
class TypeRow:
    """One type of attention: its heads, their mean score with the interval over examples, and the rise of the loss without some of them.

    `share` of all scores is None unless all scores have one sign and some are not 0.
    """

    kind: str
    n_heads: int
    mean: float
    low: float
    high: float
    share: float | None
    without_half: Difference
    without_all: Difference
    metric: float | None
    metric_without_half: float | None
    metric_without_all: float | None


def compare_types(
    model: nn.Module,
    task: Task,
    scores: Scores,
    ranking: Scores | None = None,
    *,
    limit: int | None = None,
    batch_size: int | None = None,
) -> list[TypeRow]:
    """Returns a row for every type of attention in the model; scores come from calibration, losses from the report split.

    Means and shares are those of `scores`, which should not be normalised by layer: every layer would then have the same share. The lower half of a
    type is that of `ranking`, by default of the same scores.
    """
    from headcount.data.evaluate import evaluate
    from headcount.data.mask import mask
    from headcount.models.head_map import HeadMap

    heads = HeadMap.of(model)
    dense = evaluate(model, task, limit=limit, batch_size=batch_size)
    indices_by_kind: dict[str, list[int]] = {}
    for index, head in enumerate(heads):
        indices_by_kind.setdefault(heads.block_of(head).kind, []).append(index)
    values = np.asarray(scores.values)
    replicates = scores.replicates() if scores.samples is not None else values[None]
    total = float(values.sum()) if (values >= 0).all() or (values <= 0).all() else 0.0
    lowest_first = (ranking or scores).ranking()[::-1]
    rows = []
    for kind, indices in indices_by_kind.items():
        members = {scores.heads[index] for index in indices}
        order = [head for head in lowest_first if head in members]
        pruned = []
        for removed in (order[: len(order) // 2], order):
            with mask(model, removed):
                pruned.append(evaluate(model, task, limit=limit, batch_size=batch_size))
        low, high = np.quantile(replicates[:, indices].mean(1), [0.025, 0.975])
        rows.append(
            TypeRow(
                kind=kind,
                n_heads=len(indices),
                mean=float(values[indices].mean()),
                low=float(low),
                high=float(high),
                share=float(values[indices].sum() / total) if total else None,
                without_half=paired_t(pruned[0].losses - dense.losses),
                without_all=paired_t(pruned[1].losses - dense.losses),
                metric=dense.value,
                metric_without_half=pruned[0].value,
                metric_without_all=pruned[1].value,
            )
        )
    return rows


def _table(rows: Sequence[TypeRow], by: str, metric: str) -> Table:
    half, none = "without the lower half", "without any"
    columns = [
        Column("attention"),
        Column("heads"),
        *interval_columns(f"mean {by} (raw)", ".4g"),
        Column("share", format=".0%"),
        *interval_columns(half, "+.4g", "loss"),
        *([Column(f"{metric} {half}", format=".4g")] if metric else []),
        *interval_columns(none, "+.4g", "loss"),
        *([Column(f"{metric} {none}", format=".4g")] if metric else []),
    ]
    cells = []
    for row in rows:
        changes = []
        for change, value in ((row.without_half, row.metric_without_half), (row.without_all, row.metric_without_all)):
            changes += [change.difference, change.low, change.high, *([value] if metric else [])]
        cells.append((row.kind, row.n_heads, row.mean, row.low, row.high, row.share, *changes))
    return Table("types", tuple(columns), tuple(cells))


def _verdict(rows: Sequence[TypeRow]) -> str:
    ordered = sorted(rows, key=lambda row: -row.without_all.difference)
    changes = [
        f"{format_interval(row.without_all.difference, row.without_all.low, row.without_all.high)} without {row.kind} attention"
        for row in ordered
    ]
    return f"The loss changes by {', '.join(changes)}."
