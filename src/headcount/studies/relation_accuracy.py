from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from typing import TYPE_CHECKING

from headcount.core.figure import Axis, BarFigure, Bars
from headcount.core.options import option
from headcount.core.study_result import Column, StudyResult, Table, interval_columns
from headcount.studies import _measure
from headcount.studies._base import SIGNIFICANT, Effort, Study, StudyContext, StudyInfo

if TYPE_CHECKING:
    from headcount.studies._measure.relation_accuracy import RelationRow


@dataclass(frozen=True)
class RelationAccuracy(Study):
    """Which head follows each dependency relation, and how much better than a fixed offset? Accuracy of the strongest key, in both directions.

    Voita et al. 2019: a head is syntactic if it is at least 10 points more accurate than the best offset. The best head and the best
    offset are chosen on one half of the sentences; both accuracies are those of the other half, with a test of their difference.
    """

    _: KW_ONLY
    sentences: int | None = option(None, "How many sentences are read at most, drawn by a hash of their tokens", minimum=2)
    info = StudyInfo(paper="Voita et al. 2019", needs=frozenset({"model", "text"}), optional=frozenset({"task"}))

    def effort(self, context: StudyContext) -> Effort:
        """Returns a pass over the text."""
        return Effort(passes=self.sentences or context.limit or 500)

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns the best head of every relation and direction against the best offset."""
        rows = _measure.relation_accuracy.measure_relations(context, self.name, self.sentences)
        syntactic = [row for row in rows if row.is_syntactic]
        n_above = sum(row.q is not None and row.q <= SIGNIFICANT and row.accuracy > row.baseline for row in rows)
        return StudyResult(
            study=str(self),
            tables=(_relation_table(rows),),
            sentence=(
                f"The best head is at least 10 points above the best offset for {len(syntactic)} of {len(rows)} relations and directions, "
                f"and above it with q ≤ {SIGNIFICANT} for {n_above}."
            ),
            notes=("Head and offset are chosen on one half of the sentences; accuracies and n are those of the other half.",),
            figures=(_accuracy_and_baseline_by_relation_figure(rows),),
            measurements={"model": context.model_name, "rows": [{**asdict(row), "head": str(row.head)} for row in rows]},
        )


def _relation_table(rows: Sequence[RelationRow]) -> Table:
    columns = (
        Column("relation"),
        Column("direction"),
        Column("best head"),
        *interval_columns("accuracy", ".1%"),
        Column("best offset", format="+d"),
        Column("its accuracy", format=".1%"),
        Column("difference", format="+.1%"),
        Column("of a random key", "accuracy", ".1%"),
        Column("tokens"),
        Column("sentences"),
        Column("p", format=".2g"),
        Column("q", format=".2g"),
        Column("10 points above"),
    )
    cells = [
        (
            row.relation,
            row.direction,
            str(row.head),
            row.accuracy,
            row.low,
            row.high,
            row.offset,
            row.baseline,
            row.accuracy - row.baseline,
            row.chance,
            row.n_tokens,
            row.n_sentences,
            row.p,
            row.q,
            row.is_syntactic,
        )
        for row in rows
    ]
    return Table("rows", columns, tuple(cells), "Accuracy of the best head of every relation, with its 95 % interval over sentences")


def _accuracy_and_baseline_by_relation_figure(rows: Sequence[RelationRow]) -> BarFigure:
    heads = zip(*((row.accuracy, row.low, row.high) for row in rows), strict=True)
    return BarFigure(
        name="relations",
        title="Accuracy of the best head and of the best offset on sentences that did not choose them; intervals of 95 %",
        x=Axis("relation: ↑ to the governor, ↓ to the dependent"),
        y=Axis("accuracy", is_share=True),
        table="rows",
        n=max(row.n_sentences for row in rows),
        n_unit="sentences",
        categories=tuple(f"{row.relation} {'↑' if row.direction.startswith('dependent') else '↓'}" for row in rows),
        bars=(Bars("best head", *heads), Bars("best offset", tuple(row.baseline for row in rows))),
        is_horizontal=True,
    )
