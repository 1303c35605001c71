from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, astuple, dataclass
from typing import TYPE_CHECKING

from headcount.core.figure import Axis, BarFigure, Bars
from headcount.core.options import option
from headcount.core.study_result import Column, StudyResult, Table, format_interval, interval_columns
from headcount.studies import _measure
from headcount.studies._base import SIGNIFICANT, Study, StudyAblation, StudyContext, StudyInfo
from headcount.studies._rows import dense_scores_to_dict, dense_sentence, describe_undecided, is_significant

if TYPE_CHECKING:
    from headcount.studies._measure.layers import GroupRow, LayerPairRow


@dataclass(frozen=True)
class Layers(Study):
    """Which layers matter? What the model loses when layers lose their heads: thirds, single layers, consecutive against spread-out pairs.

    Budhraja et al. 2020: no preference for top or bottom in BERT, but sparing the middle and avoiding consecutive layers helps. Heads are gated away;
    every evaluation is paired with that of the dense model. The excess of a pair is its cost beyond that of its two layers one by one.
    """

    _: KW_ONLY
    how: StudyAblation = option("zero", "What stands in for the removed heads: nothing, their mean output, or uniform attention")
    info = StudyInfo(paper="Budhraja et al. 2020", needs=frozenset({"model", "task"}))

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns a row for every group of layers and, by stack, consecutive against spread-out pairs."""
        dense, rows, pairs = _measure.layers.measure_layer_removals(context, self.how)
        metric = dense.metric or "loss"
        return StudyResult(
            study=str(self),
            tables=(_layer_group_table(rows, metric), *([_layer_pair_table(pairs)] if pairs else [])),
            sentence=_summary_sentence(rows, metric),
            notes=(dense_sentence(dense),),
            figures=(
                _layer_group_figure(rows, metric, dense.n_examples),
                *([_layer_pair_figure(pairs, dense.n_examples)] if pairs else []),
            ),
            measurements={
                "model": context.model_name,
                "task": context.task.name,
                "how": self.how,
                "dense": dense_scores_to_dict(dense),
                "rows": [row.to_dict() for row in rows],
                "pairs": [asdict(pair) for pair in pairs],
            },
        )


def _layer_group_table(rows: Sequence[GroupRow], metric: str) -> Table:
    columns = (
        Column("group"),
        Column("layers without heads"),
        Column("heads"),
        Column(metric, format=".4g"),
        *interval_columns("change", "+.3g", metric),
        Column("q", format=".2g"),
        *interval_columns("change of the loss", "+.3g"),
    )
    cells = [
        (
            row.group.kind,
            row.group.name,
            len(row.group.heads),
            row.loss if row.value is None else row.value,
            *row.drop.score.interval,
            row.q,
            *row.drop.loss.interval,
        )
        for row in rows
    ]
    return Table("groups", columns, tuple(cells))


def _layer_pair_table(pairs: Sequence[LayerPairRow]) -> Table:
    columns = (
        Column("stack"),
        Column("of the loss"),
        Column("consecutive", format="+.4g"),
        Column("spread", format="+.4g"),
        *interval_columns("difference", "+.3g"),
        Column("p", format=".2g"),
    )
    title = "Rise of the loss without two layers, and its excess over that of the two one by one: consecutive against spread-out pairs"
    return Table("pairs", columns, tuple(astuple(pair) for pair in pairs), title)


def _layer_group_figure(rows: Sequence[GroupRow], metric: str, n_examples: int) -> BarFigure:
    groups = [row for row in rows if row.group.kind in ("third", "layer")]
    return BarFigure(
        name="groups",
        title=f"Change of {metric} when layers lose their heads",
        x=Axis("layers without heads"),
        y=Axis(f"change of {metric}"),
        table="groups",
        n=n_examples,
        categories=tuple(row.group.name for row in groups),
        bars=(Bars(f"change of {metric}", *zip(*(row.drop.score.interval for row in groups), strict=True)),),
        is_horizontal=True,
    )


def _layer_pair_figure(pairs: Sequence[LayerPairRow], n_examples: int) -> BarFigure:
    names = [f"{pair.quantity}, {pair.stack}" if pair.stack else pair.quantity for pair in pairs]
    return BarFigure(
        name="pairs",
        title="Rise of the loss without two layers, and its excess over that of the two one by one",
        x=Axis("quantity of the loss"),
        y=Axis("mean over pairs of layers", "nats"),
        table="pairs",
        n=n_examples,
        categories=tuple(names),
        bars=(
            Bars("consecutive pairs", tuple(pair.consecutive for pair in pairs)),
            Bars("spread-out pairs", tuple(pair.spread for pair in pairs)),
        ),
    )


def _summary_sentence(rows: Sequence[GroupRow], metric: str) -> str:
    n_significant = sum(is_significant(row.q) for row in rows)
    largest = max(rows, key=lambda row: abs(row.drop.score.difference))
    return (
        f"{n_significant} of {len(rows)} groups of layers change {metric} when they lose their heads (q ≤ {SIGNIFICANT})"
        f"{describe_undecided(n_significant, len(rows))}. The largest change is "
        f"{format_interval(*largest.drop.score.interval)} without {largest.group.name}."
    )
