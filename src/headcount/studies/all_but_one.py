from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from typing import TYPE_CHECKING, Literal

from headcount.core.figure import Axis, BarFigure, Bars
from headcount.core.options import option
from headcount.core.study_result import Cell, Column, StudyResult, Table, format_interval, interval_columns
from headcount.studies import _measure
from headcount.studies._base import SIGNIFICANT, Effort, Study, StudyAblation, StudyContext, StudyInfo
from headcount.studies._parts import Part, choose_part
from headcount.studies._rows import describe_undecided, difference_with_interval, is_significant

if TYPE_CHECKING:
    from headcount.studies._measure.all_but_one import LayerRow


@dataclass(frozen=True)
class AllButOne(Study):
    """Can a layer live on one head? The best single head of every layer, chosen on one split and reported on another; and one head everywhere.

    Michel et al. 2019 (section 3.3): most layers lose little when reduced to their best head, the last encoder-decoder layer a lot. Choosing and
    reporting on the same examples would flatter: the head is chosen on the selection split by its loss, and the report split stands beside it. The
    change of the metric is by Tango's score method where every example is right or wrong, else by a paired bootstrap, that of the loss by t.
    """

    _: KW_ONLY
    how: StudyAblation = option("zero", "What stands in for the other heads: nothing, their mean output, or uniform attention")
    show: Literal["all", "layers", "splits", "everywhere"] = option(
        "all", "What the result says: layers one by one, both splits side by side, or one head everywhere"
    )
    info = StudyInfo(paper="Michel et al. 2019, section 3.3", needs=frozenset({"model", "task"}))

    def effort(self, context: StudyContext) -> Effort:
        """Returns a pass over the selection split for every head, and an evaluation of every block on both splits."""
        n_selection, n_report = (min(len(split), context.limit or len(split)) for split in (context.task.selection, context.task.report))
        n_blocks, n_heads = len(context.loaded.heads.blocks), len(context.loaded.heads)
        return Effort(passes=n_heads * n_selection + (n_blocks + 2) * (n_selection + n_report))

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns a row for every block reduced to its best head, and a last one for the best head everywhere at once."""
        task = context.task
        rows = _measure.all_but_one.measure_layers_reduced_to_best_head(context, self.how)
        metric = task.metric.name if task.metric else ""
        layers, figures = _table_of_reduced_layers(rows, metric), (_chosen_and_reported_change_figure(rows, metric),) if metric else ()
        parts = {
            "layers": Part(
                (layers, _table_of_layers_with_kind_columns(rows, metric)),
                (_loss_rise_by_layer_figure(rows), *figures),
                _harmed_layers_sentence(rows, metric),
            ),
            "splits": Part((layers,), figures or (_loss_rise_by_layer_figure(rows),), _split_difference_sentence(rows, metric)),
            "everywhere": Part((layers,), figures or (_loss_rise_by_layer_figure(rows),), _all_layers_at_once_sentence(rows, metric)),
        }
        part = choose_part(parts, self.show)
        return StudyResult(
            study=str(self),
            tables=part.tables,
            sentence=part.sentence,
            figures=part.figures,
            measurements={"model": context.model_name, "task": task.name, "how": self.how, "layers": [asdict(row) for row in rows]},
        )


def _table_of_reduced_layers(rows: Sequence[LayerRow], metric: str) -> Table:
    chosen, reported = interval_columns("change when chosen", "+.3g", metric), interval_columns("change on report", "+.3g", metric)
    metric_columns = (Column(metric, format=".4g"), *chosen, *reported, Column("q of the change", format=".2g")) if metric else ()
    columns = (
        Column("layer"),
        Column("head left"),
        Column("rise when chosen", "loss", "+.4g"),
        *interval_columns("rise on report", "+.3g", "loss"),
        Column("q", format=".2g"),
        *metric_columns,
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
            *(
                [row.metric, *difference_with_interval(row.chosen_change), *difference_with_interval(row.metric_change), row.metric_q]
                if metric
                else []
            ),
        )
        for row in rows
    ]
    return Table(
        "layers", columns, tuple(cells), "Each layer reduced to the head that is best on the selection split, and all layers at once"
    )


def _table_of_layers_with_kind_columns(rows: Sequence[LayerRow], metric: str) -> Table:
    """Returns the change on the report split by layer and kind of attention."""
    blocks = {(row.layer, row.kind): row for row in rows if row.layer is not None}
    kinds = list(dict.fromkeys(kind for _, kind in blocks))
    columns = [Column("layer")]
    for kind in kinds:
        columns += [*interval_columns(kind, "+.3g", metric or "loss"), Column(f"q {kind}", format=".2g")]
    cells = []
    for layer in sorted({layer for layer, _ in blocks if layer is not None}):
        numbers: list[Cell] = []
        for kind in kinds:
            row = blocks.get((layer, kind))
            if row is None:
                numbers += [None] * 4
                continue
            numbers += [*_change_on_report_split(row), row.metric_q if metric else row.q]
        cells.append((layer, *numbers))
    title = f"Change of {metric or 'the loss'} on the report split when one layer is reduced to its best head, by kind of attention"
    return Table("kinds", tuple(columns), tuple(cells), title)


def _change_on_report_split(row: LayerRow) -> tuple[float, float | None, float | None]:
    """Returns the change of the metric on the report split, or of the loss where there is none."""
    change = row.rise if row.metric_change is None else row.metric_change
    return change.difference, change.low, change.high


def _loss_rise_by_layer_figure(rows: Sequence[LayerRow]) -> BarFigure:
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


def _chosen_and_reported_change_figure(rows: Sequence[LayerRow], metric: str) -> BarFigure:
    chosen, reported = (
        zip(*(difference_with_interval(change) for change in changes), strict=True)
        for changes in ([row.chosen_change for row in rows], [row.metric_change for row in rows])
    )
    return BarFigure(
        name="metric",
        title=f"Change of {metric} when layers are reduced to their best head",
        x=Axis("layer"),
        y=Axis(f"change of {metric}"),
        table="layers",
        n=rows[0].n_examples,
        categories=tuple(row.block for row in rows),
        bars=(Bars("where it was chosen", *chosen), Bars("on the report split", *reported)),
        is_horizontal=True,
    )


def _harmed_layers_sentence(rows: Sequence[LayerRow], metric: str) -> str:
    layers = rows[:-1]
    changed = [row.rise.difference for row in layers if is_significant(row.q)]
    n_harmed = sum(rise > 0 for rise in changed)
    falls = f" and falls for {len(changed) - n_harmed}" if n_harmed < len(changed) else ""
    worst = max(layers, key=lambda row: row.chosen_rise)
    change = f"{metric or 'the loss'} changes by {format_interval(*_change_on_report_split(worst))}"
    return (
        f"The loss rises for {n_harmed} of {len(layers)} layers{falls} when one head is left (q ≤ {SIGNIFICANT})"
        f"{describe_undecided(len(changed), len(layers))}. On the selection split it rises most in {worst.block}, where on the report split {change}."
    )


def _split_difference_sentence(rows: Sequence[LayerRow], metric: str) -> str:
    """Returns how much better a layer looks on the split that its head was chosen on."""
    layers = rows[:-1]

    def report_rise_minus_chosen_rise(row: LayerRow) -> float:
        return row.rise.difference - row.chosen_rise

    widest = max(layers, key=lambda row: abs(report_rise_minus_chosen_rise(row)))
    n_better = sum(report_rise_minus_chosen_rise(row) > 0 for row in layers)
    changes = ""
    if metric and widest.chosen_change is not None:
        change = widest.chosen_change
        chosen = format_interval(change.difference, change.low, change.high)
        changes = f", where {metric} changes by {chosen} and {format_interval(*_change_on_report_split(widest))}"
    return (
        f"In {n_better} of {len(layers)} layers the loss rises more on the report split than on the split that chose the head; the splits "
        f"differ most in {widest.block}: {widest.chosen_rise:+.3g} where it was chosen, {widest.rise.difference:+.3g} on the report split{changes}."
    )


def _all_layers_at_once_sentence(rows: Sequence[LayerRow], metric: str) -> str:
    everywhere = rows[-1]
    rise = format_interval(everywhere.rise.difference, everywhere.rise.low, everywhere.rise.high)
    change = f" and {metric} by {format_interval(*_change_on_report_split(everywhere))}" if metric else ""
    return f"One head in every layer at once changes the loss by {rise}{change} on the report split."
