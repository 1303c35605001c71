from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from headcount.core.figure import Axis, Line, LineFigure, Reference
from headcount.core.options import option
from headcount.core.study_result import Column, StudyResult, Table, interval_columns
from headcount.runs.report.plain import format_speed
from headcount.studies import _measure
from headcount.studies._base import Effort, Study, StudyContext, StudyInfo
from headcount.workflows.analysis_spec import MIN_ROUNDS

if TYPE_CHECKING:
    from headcount.studies._measure.speed import SpeedRow


@dataclass(frozen=True)
class Speed(Study):
    """How much faster is the smaller model? The latency of the dense and of the cut model by batch size, and how many parameters the cut saves.

    Michel et al. 2019 (Table 4: half of the heads of BERT removed) and Li et al. 2021. Heads are removed from the weights. In every round all models
    run once; the speed-up is the exponential of the mean over rounds of ln (dense / cut), with its t interval.
    """

    _: KW_ONLY
    method: str = option("gradient", "The pruner or importance that chooses the heads")
    keep: tuple[int | float | str, ...] = option(("50%",), "How many heads stay: numbers or shares")
    batches: tuple[int, ...] = option((1, 4, 16, 64), "Batch sizes")
    length: int = option(128, "Length of the texts in tokens, at most that of the model", minimum=1)
    rounds: int = option(25, "Rounds in which every model runs once", minimum=MIN_ROUNDS)
    info = StudyInfo(paper="Michel et al. 2019, Table 4; Li et al. 2021", needs=frozenset({"model", "task", "run"}), measures_time=True)

    def effort(self, context: StudyContext) -> Effort:
        """Returns the timed passes of all models, and their evaluations."""
        n_report, n_models = len(context.task.report), len(self.keep) + 1
        return Effort(passes=n_models * (sum(self.batches) * (self.rounds + 1) + min(n_report, context.limit or n_report)))

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns a row for every size and batch size."""
        rows = _measure.speed.measure_speed(self, context)
        by_batch = _speedup_by_batch_size_figure(rows)
        by_size = [_speedup_by_share_removed_figure(rows)] if len({row.n_kept for row in rows}) > 1 else []
        return StudyResult(
            study=str(self),
            tables=(_table_of_speed_by_size_and_batch(rows),),
            sentence=_summary_sentence(rows),
            notes=(
                f"Measured on {rows[0].device} with {rows[0].length} tokens in {rows[0].n_rounds} rounds; other machines give other times.",
            ),
            figures=(by_batch, *by_size),
            measurements={"model": context.model_name, "method": self.method, "rows": [row.to_dict() for row in rows]},
        )


def _table_of_speed_by_size_and_batch(rows: Sequence[SpeedRow]) -> Table:
    columns = (
        Column("heads"),
        Column("removed", format=".0%"),
        Column("parameters"),
        Column("size", "of the dense model", ".1%"),
        Column("batch"),
        Column("dense", "ms", ".3g"),
        Column("cut", "ms", ".3g"),
        *interval_columns("speed-up", ".3f"),
        Column("p", format=".2g"),
        Column("rounds"),
    )
    cells = tuple(
        (
            row.n_kept,
            row.share_removed,
            row.parameters,
            row.size,
            row.batch,
            1000 * row.dense_seconds,
            1000 * row.cut_seconds,
            row.speedup,
            row.low,
            row.high,
            row.p,
            row.n_rounds,
        )
        for row in rows
    )
    return Table("speed", columns, cells, "Median latency of one pass, and speed-up: t interval of the log-ratios of the rounds")


def _speedup_by_batch_size_figure(rows: Sequence[SpeedRow]) -> LineFigure:
    lines = []
    for n_kept in dict.fromkeys(row.n_kept for row in rows):
        points = sorted((row for row in rows if row.n_kept == n_kept), key=lambda row: row.batch)
        positions = tuple(float(number) for number in range(len(points)))
        lines.append(_speedup_line(f"{n_kept} heads stay", positions, points))
    batches = sorted({row.batch for row in rows})
    return LineFigure(
        name="batches",
        title="Speed-up of the cut model by batch size",
        x=Axis("batch size", ticks=tuple((float(number), str(batch)) for number, batch in enumerate(batches))),
        y=Axis("speed-up", "dense time / cut time"),
        table="speed",
        n=rows[0].n_rounds,
        n_unit="rounds",
        lines=tuple(lines),
        references=(Reference("dense model", 1.0),),
    )


def _speedup_by_share_removed_figure(rows: Sequence[SpeedRow]) -> LineFigure:
    lines = []
    for batch in dict.fromkeys(row.batch for row in rows):
        points = sorted((row for row in rows if row.batch == batch), key=lambda row: row.share_removed)
        lines.append(_speedup_line(f"batch {batch}", tuple(row.share_removed for row in points), points))
    return LineFigure(
        name="sizes",
        title="Speed-up of the cut model by the share of heads removed",
        x=Axis("heads removed", is_share=True),
        y=Axis("speed-up", "dense time / cut time"),
        table="speed",
        n=rows[0].n_rounds,
        n_unit="rounds",
        lines=tuple(lines),
        references=(Reference("dense model", 1.0),),
    )


def _speedup_line(label: str, x: tuple[float, ...], points: Sequence[SpeedRow]) -> Line:
    low, high = tuple(row.low for row in points), tuple(row.high for row in points)
    return Line(label, x, tuple(row.speedup for row in points), low, high)


def _summary_sentence(rows: Sequence[SpeedRow]) -> str:
    smallest = max(rows, key=lambda row: (row.share_removed, row.batch))
    speed = format_speed(smallest.speedup, smallest.low, smallest.high)
    return (
        f"With {smallest.share_removed:.0%} of the heads removed the model runs {speed} at batch size {smallest.batch} and has "
        f"{smallest.size:.1%} of the parameters."
    )
