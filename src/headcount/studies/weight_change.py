from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from typing import TYPE_CHECKING

from headcount.core.figure import Axis, Line, LineFigure
from headcount.core.options import option
from headcount.core.study_result import Column, StudyResult, Table, interval_columns
from headcount.studies import _measure
from headcount.studies._base import SIGNIFICANT, Effort, Study, StudyContext, StudyInfo
from headcount.studies._checks import check_same_heads_as_other_model
from headcount.studies._rows import describe_undecided

if TYPE_CHECKING:
    from headcount.studies._measure.weight_change import DepthTrend, LayerPartChange


@dataclass(frozen=True)
class WeightChange(Study):
    """Which layers does fine-tuning change? The relative change of the weights of every head, by layer, from a model to its fine-tuned self.

    Budhraja et al. 2021 on multilingual BERT. ‖ΔW_h‖/‖W_h‖ of the slices of a head in Q, K, V and O; the interval of a layer is by t over its
    heads, and the rank correlation with the layer is tested by permuting the heads of a stack.
    """

    tuned: str = option(help="The model after fine-tuning: a folder, a hub id, or demo/NAME")
    info = StudyInfo(paper="Budhraja et al. 2021", needs=frozenset({"model"}))

    def effort(self, context: StudyContext) -> Effort:
        """Returns the time to read the other model, and that of the permutations."""
        return _measure.weight_change.estimate_effort(context)

    def check_inputs(self, context: StudyContext) -> None:
        """Raises ArtifactError unless the fine-tuned model has the same heads."""
        check_same_heads_as_other_model(context, self.tuned)

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns the change of every part by layer, and its trend with depth."""
        layers, trends = _measure.weight_change.measure_weight_changes(context, self.name, self.tuned)
        return StudyResult(
            study=str(self),
            tables=(_change_by_part_and_layer_table(layers), _depth_trend_table(trends)),
            sentence=_summary_sentence(layers, trends),
            figures=(_weight_change_by_layer_figure(layers),),
            measurements={
                "before": context.model_name,
                "after": self.tuned,
                "rows": [asdict(row) for row in layers],
                "trends": [asdict(row) for row in trends],
            },
        )


def _change_by_part_and_layer_table(rows: Sequence[LayerPartChange]) -> Table:
    columns = (Column("part"), Column("layer"), Column("heads"), *interval_columns("relative change", ".4g"))
    return Table("layers", columns, tuple(astuple(row) for row in rows), "Mean of ‖ΔW‖/‖W‖ over the heads of a layer, with its t interval")


def _depth_trend_table(rows: Sequence[DepthTrend]) -> Table:
    columns = (Column("part"), Column("stack"), Column("heads"), Column("rank correlation", format="+.2f"), Column("p", format=".2g"))
    return Table(
        "trends", columns, tuple(astuple(row) for row in rows), "Rank correlation of a head's change with its layer; p by permutation"
    )


def _weight_change_by_layer_figure(rows: Sequence[LayerPartChange]) -> LineFigure:
    layers = list(dict.fromkeys(row.layer for row in rows))
    lines = []
    for part in dict.fromkeys(row.part for row in rows):
        own = [row for row in rows if row.part == part]
        mean, low, high = (tuple(getattr(row, end) for row in own) for end in ("mean", "low", "high"))
        lines.append(Line(part, tuple(map(float, range(len(layers)))), mean, low, high))
    return LineFigure(
        name="layers",
        title="Relative change of the weights of heads by layer",
        x=Axis("layer", ticks=tuple((float(number), layer) for number, layer in enumerate(layers))),
        y=Axis("‖ΔW‖/‖W‖, mean over heads"),
        table="layers",
        n=sum(row.n_heads for row in rows if row.part == rows[0].part),
        n_unit="heads",
        lines=tuple(lines),
    )


def _summary_sentence(rows: Sequence[LayerPartChange], trends: Sequence[DepthTrend]) -> str:
    largest = max(rows, key=lambda row: row.mean)
    rising = [
        f"{trend.part}{f' of {trend.stack}' if trend.stack else ''} ({trend.correlation:+.2f})"
        for trend in trends
        if trend.p <= SIGNIFICANT
    ]
    trend = (
        f"the change goes with depth for {', '.join(rising)}"
        if rising
        else f"that it goes with depth is shown for none of {len(trends)} parts"
    )
    return (
        f"The largest change is {largest.mean:.3g}, {largest.part} of {largest.layer}; {trend} (p ≤ {SIGNIFICANT})"
        f"{describe_undecided(len(rising), len(trends))}."
    )
