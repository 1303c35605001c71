from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from typing import TYPE_CHECKING

from headcount.core.figure import Axis, BarFigure, Bars
from headcount.core.options import option
from headcount.core.study_result import Column, StudyResult, Table, format_interval, interval_columns
from headcount.studies import _measure
from headcount.studies._base import Study, StudyContext, StudyInfo

if TYPE_CHECKING:
    from headcount.core.stats.means import MeanDifference
    from headcount.studies._measure.by_type import TypeRow


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
        ranking, rows = _measure.by_type.measure_attention_types(context, self.by)
        task, by = context.task, ranking.method
        metric = task.metric.name if task.metric else ""
        dense = f" {metric} of the dense model {rows[0].metric:.4g}." if metric else ""
        measurements = {"model": context.model_name, "task": task.name, "by": by, "normalise": ranking.normalise}
        return StudyResult(
            study=str(self),
            tables=(_table_of_attention_types(rows, by, metric),),
            sentence=_summary_sentence(rows),
            notes=(
                f"Changes of the loss on the report split when heads are removed.{dense}",
                f"Means and shares are those of raw scores; the lower half is that of {ranking.label}.",
            ),
            figures=(_loss_rise_by_type_figure(rows),),
            measurements={**measurements, "types": [asdict(row) for row in rows]},
        )


def _table_of_attention_types(rows: Sequence[TypeRow], importance: str, metric_name: str) -> Table:
    half, none = "without the lower half", "without any"
    columns = [
        Column("attention"),
        Column("heads"),
        *interval_columns(f"mean {importance} (raw)", ".4g"),
        Column("share", format=".0%"),
        *interval_columns(half, "+.4g", "loss"),
        *([Column(f"{metric_name} {half}", format=".4g")] if metric_name else []),
        *interval_columns(none, "+.4g", "loss"),
        *([Column(f"{metric_name} {none}", format=".4g")] if metric_name else []),
    ]
    cells = []
    for row in rows:
        changes = []
        for change, value in ((row.without_half, row.metric_without_half), (row.without_all, row.metric_without_all)):
            changes += [*_interval_or_none(change), *([value] if metric_name else [])]
        cells.append((row.kind, row.n_heads, row.mean, row.low, row.high, row.share, *changes))
    return Table("types", tuple(columns), tuple(cells))


def _interval_or_none(change: MeanDifference | None) -> tuple[float | None, float | None, float | None]:
    return (None, None, None) if change is None else change.interval


def _loss_rise_by_type_figure(rows: Sequence[TypeRow]) -> BarFigure:
    changes = {
        "without the lower half": [_interval_or_none(row.without_half) for row in rows],
        "without any": [row.without_all.interval for row in rows],
    }
    return BarFigure(
        name="types",
        title="Rise of the loss without heads of one type of attention",
        x=Axis("type of attention"),
        y=Axis("rise of the loss", "nats"),
        table="types",
        n=rows[0].n_examples,
        categories=tuple(row.kind for row in rows),
        bars=tuple(Bars(label, *zip(*intervals, strict=True)) for label, intervals in changes.items()),
    )


def _summary_sentence(rows: Sequence[TypeRow]) -> str:
    ordered = sorted(rows, key=lambda row: -row.without_all.difference)
    changes = [
        f"{format_interval(row.without_all.difference, row.without_all.low, row.without_all.high)} without {row.kind} attention"
        for row in ordered
    ]
    return f"The loss changes by {', '.join(changes)}."
