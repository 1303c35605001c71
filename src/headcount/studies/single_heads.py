from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from statistics import median
from typing import TYPE_CHECKING, Literal

from headcount.core.figure import Axis, Counts, HeatMap, Histogram
from headcount.core.options import option
from headcount.core.study_result import Cell, Column, StudyResult, Table, interval_columns
from headcount.studies import _measure
from headcount.studies._base import SIGNIFICANT, Effort, Study, StudyAblation, StudyContext, StudyInfo
from headcount.studies._parts import Part, choose_part
from headcount.studies._rows import dense_sentence, describe_undecided, is_significant

if TYPE_CHECKING:
    from headcount.core.evaluation import Evaluation
    from headcount.studies._measure.single_heads import HeadRow

BINS = 20


@dataclass(frozen=True)
class SingleHeads(Study):
    """What does one head cost? The score of the model without each head alone, with its paired difference from the dense model.

    Michel et al. 2019 (Fig. 1, Tables 1 and 2): most heads can go alone without a significant change. Heads are gated on the report split, all of
    which is read; the difference is by Tango's score method where every example is right or wrong, else by a paired bootstrap, that of the loss by t.
    q corrects over all heads (Benjamini–Hochberg).
    """

    _: KW_ONLY
    how: StudyAblation = option("zero", "What stands in for the removed head: nothing, its mean output, or uniform attention")
    show: Literal["all", "histogram", "heads"] = option("all", "What the result holds: the histogram of scores, every head, or both")
    info = StudyInfo(paper="Michel et al. 2019, section 3.2", needs=frozenset({"model", "task"}))

    def effort(self, context: StudyContext) -> Effort:
        """Returns one evaluation for every head, and that of the dense model."""
        n_report = len(context.task.report)
        return Effort(passes=(len(context.loaded.heads) + 1) * min(n_report, context.limit or n_report))

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns a row for every head, their histogram, and a map of the changes."""
        dense, rows = _measure.single_heads.measure_removal_of_each_head(context, self.name, self.how)
        metric, task = dense.metric or "loss", context.task
        notes = [dense_sentence(dense)]
        if task.metric is not None and task.metric.generates:
            notes.append(f"{metric} is that of generated text: {len(rows) + 1} times {dense.n_examples} texts were generated.")
        heads = _change_by_head_table(rows, metric, is_printed=self.show != "histogram")
        parts = {
            "histogram": Part((heads,), (_score_histogram(rows, dense, metric),), _score_range_sentence(rows, dense, metric)),
            "heads": Part(
                (_table_of_layers_with_head_index_columns(rows, metric), heads),
                tuple(_change_heat_maps(rows, dense, metric)),
                _summary_sentence(rows, dense, metric),
            ),
        }
        part = choose_part(parts, self.show)
        return StudyResult(
            study=str(self),
            tables=part.tables,
            sentence=part.sentence,
            notes=tuple(notes),
            figures=part.figures,
            measurements={
                "model": context.model_name,
                "task": task.name,
                "how": self.how,
                "dense": {"loss": dense.loss, "metric": dense.metric, "value": dense.value, "n_examples": dense.n_examples},
                "rows": [row.to_dict() for row in rows],
            },
        )


def _change_by_head_table(rows: Sequence[HeadRow], metric: str, *, is_printed: bool) -> Table:
    columns = (
        Column("head"),
        Column("kind"),
        Column("layer"),
        Column(metric, format=".4g"),
        *interval_columns("change", "+.3g", metric),
        Column("p", format=".2g"),
        Column("q", format=".2g"),
        Column("test"),
        *interval_columns("rise of the loss", "+.3g"),
    )
    cells = tuple(
        (
            row.head,
            row.kind,
            row.layer,
            row.score,
            row.change.difference,
            row.change.low,
            row.change.high,
            row.change.p,
            row.q,
            row.change.by,
            *row.rise.interval,
        )
        for row in rows
    )
    return Table("heads", columns, cells, f"Change of {metric} without each head alone; q corrects over all heads", is_printed)


def _rows_by_block(rows: Sequence[HeadRow]) -> dict[str, dict[int, HeadRow]]:
    blocks: dict[str, dict[int, HeadRow]] = {}
    for row in rows:
        blocks.setdefault(row.block, {})[row.index] = row
    return blocks


def _table_of_layers_with_head_index_columns(rows: Sequence[HeadRow], metric: str) -> Table:
    indices = sorted({row.index for row in rows})
    columns = (Column("layer"), *(Column(f"H{index}", format="+.2g") for index in indices), Column(f"q ≤ {SIGNIFICANT}"))
    cells: list[tuple[Cell, ...]] = []
    for block, heads in _rows_by_block(rows).items():
        significant = [f"H{index}" for index, row in heads.items() if is_significant(row.q)]
        changes = [heads[index].change.difference if index in heads else None for index in indices]
        cells.append((block, *changes, " ".join(significant)))
    return Table(
        "layers",
        columns,
        tuple(cells),
        f"Change of {metric} without each head alone, by layer and head; the last column names the significant ones",
    )


def _score_histogram(rows: Sequence[HeadRow], dense: Evaluation, metric: str) -> Histogram:
    scores = [row.score for row in rows]
    low, high = min([*scores, dense.score]), max([*scores, dense.score])
    width = (high - low) / BINS or max(abs(high), 1.0) * 1e-3
    edges = [low + width * number for number in range(BINS + 1)]
    counts = {kind: [0.0] * BINS for kind in dict.fromkeys(row.kind for row in rows)}
    for row in rows:
        counts[row.kind][min(BINS - 1, int((row.score - low) / width))] += 1
    return Histogram(
        name="histogram",
        title=f"{metric} without one head (dense model: {dense.score:.4g})",
        x=Axis(f"{metric} without one head"),
        y=Axis("heads", is_count=True),
        table="heads",
        n=dense.n_examples,
        edges=tuple(edges),
        groups=tuple(Counts(kind, tuple(numbers)) for kind, numbers in counts.items()),
    )


def _change_heat_maps(rows: Sequence[HeadRow], dense: Evaluation, metric: str) -> list[HeatMap]:
    kinds = list(dict.fromkeys(row.kind for row in rows))
    maps = []
    for kind in kinds:
        blocks = _rows_by_block([row for row in rows if row.kind == kind])
        indices = sorted({index for heads in blocks.values() for index in heads})
        values = tuple(tuple(heads[i].change.difference if i in heads else None for i in indices) for heads in blocks.values())
        marks = tuple(tuple(i in heads and is_significant(heads[i].q) for i in indices) for heads in blocks.values())
        maps.append(
            HeatMap(
                name="map" if len(kinds) == 1 else f"map of {kind}",
                title=f"Change of {metric} without one head" + ("" if len(kinds) == 1 else f", {kind}"),
                x=Axis("head"),
                y=Axis("layer"),
                table="heads",
                n=dense.n_examples,
                rows=tuple(blocks),
                columns=tuple(map(str, indices)),
                values=values,
                value=Axis(f"change of {metric}"),
                marks=marks,
                mark_label=f"q ≤ {SIGNIFICANT}",
                is_diverging=True,
            )
        )
    return maps


def _score_range_sentence(rows: Sequence[HeadRow], dense: Evaluation, metric: str) -> str:
    scores = [row.score for row in rows]
    n_lower = sum(score < dense.score for score in scores)
    return (
        f"Without one head {metric} is between {min(scores):.4g} and {max(scores):.4g}, the median {median(scores):.4g} (dense model: "
        f"{dense.score:.4g}); {n_lower} of {len(rows)} heads lower it."
    )


def _summary_sentence(rows: Sequence[HeadRow], dense: Evaluation, metric: str) -> str:
    significant = [row for row in rows if is_significant(row.q)]
    higher_is_better = dense.value is not None and dense.higher_is_better
    better = sum((row.change.difference > 0) == higher_is_better for row in significant)
    changes = [row.change.difference for row in rows]
    return (
        f"Without one head {metric} changes by {min(changes):+.3g} to {max(changes):+.3g}; {len(significant)} of {len(rows)} heads change it "
        f"(q ≤ {SIGNIFICANT}), {better} of these for the better{describe_undecided(len(significant), len(rows))}."
    )
