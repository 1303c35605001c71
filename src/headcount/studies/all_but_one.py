from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from typing import TYPE_CHECKING

from headcount.core.figure import Axis, BarFigure, Bars
from headcount.core.options import option
from headcount.core.study_result import Column, StudyResult, Table, format_interval, interval_columns
from headcount.studies._base import SIGNIFICANT, Ablation, Study, StudyContext, StudyInfo

if TYPE_CHECKING:
    from headcount.studies._measure.all_but_one import LayerRow


@dataclass(frozen=True)
class AllButOne(Study):
    """Can a layer live on one head? The best single head of every layer, chosen on one split and reported on another; and one head everywhere.

    Michel et al. 2019 (section 3.3): most layers lose little when reduced to their best head, the last encoder-decoder layer a lot. Choosing and
    reporting on the same examples would flatter; here the head is chosen on the selection split, and loss and metric are those of the report split.
    """

    _: KW_ONLY
    how: Ablation = option("zero", "What stands in for the other heads: nothing, their mean output, or uniform attention")
    info = StudyInfo(paper="Michel et al. 2019, section 3.3", needs=frozenset({"model", "task"}))

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns a row for every block reduced to its best head, and a last one for the best head everywhere at once."""
        from headcount.studies._measure.all_but_one import reduce_layers

        task = context.task
        rows = reduce_layers(context, self.how)
        metric = task.metric.name if task.metric else ""
        return StudyResult(
            study=str(self),
            tables=(_table(rows, metric),),
            sentence=_verdict(rows),
            figures=(_figure(rows),),
            measurements={"model": context.model_name, "task": task.name, "how": self.how, "layers": [asdict(row) for row in rows]},
        )


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
            ", ".join(row.heads),
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


def _figure(rows: Sequence[LayerRow]) -> BarFigure:
    layers = rows[:-1]  # the last row is that of all layers at once
    rises = [row.rise.interval for row in layers]
    return BarFigure(
        name="layers",
        title="Rise of the loss when one layer is reduced to its best head",
        x=Axis("layer"),
        y=Axis("rise of the loss", "nats"),
        table="layers",
        n=rows[0].n_examples,
        categories=tuple(row.block for row in layers),
        bars=(Bars("rise of the loss", *zip(*rises, strict=True)),),
        is_horizontal=True,
    )


def _verdict(rows: Sequence[LayerRow]) -> str:
    *layers, everywhere = rows
    unharmed = sum(row.q > SIGNIFICANT or row.rise.difference <= 0 for row in layers)
    change = format_interval(everywhere.rise.difference, everywhere.rise.low, everywhere.rise.high)
    return (
        f"{unharmed} of {len(layers)} layers can be reduced to one head without a significant rise of the loss (q ≤ {SIGNIFICANT}); "
        f"one head in every layer changes the loss by {change}."
    )
