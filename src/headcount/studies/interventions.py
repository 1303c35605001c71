from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from headcount.core.figure import Axis, Line, LineFigure, Reference
from headcount.core.options import option
from headcount.core.study_result import Column, StudyResult, Table, interval_columns
from headcount.studies import _measure
from headcount.studies._base import SIGNIFICANT, Effort, Study, StudyContext, StudyInfo
from headcount.studies._rows import dense_sentence, describe_better_and_worse, difference_with_interval, seed_cells, seed_columns

if TYPE_CHECKING:
    from headcount.core.evaluation import Evaluation
    from headcount.studies._measure.interventions import InterventionRow

KNOWN = ("zero", "mean", "uniform")


@dataclass(frozen=True)
class Interventions(Study):
    """What does removing a head mean? The same heads replaced by nothing, by their mean output and by uniform attention, at several sizes.

    Budhraja et al. 2020 meant the first, and their released code did the third. Heads are gated, not cut: for zero and mean a cut gives the same
    numbers, and uniform attention cannot be cut. Nothing is trained. All interventions gate the same heads, and differences are paired over the
    examples of the report split; the intervals of those from the dense model hold for all sizes of an intervention together.
    """

    _: KW_ONLY
    method: str = option("random", "A pruner that chooses heads without training, or an importance to rank by")
    interventions: tuple[str, ...] = option(KNOWN, "What stands in for removed heads: zero, mean, uniform")
    keep: tuple[int | float | str, ...] = option((), "How many heads stay: numbers or shares; by default 90%, 80%, …, 10%")
    seeds: int = option(3, "Draws of the heads, of a method with chance in it", minimum=1)
    info = StudyInfo(paper="Budhraja et al. 2020 and its released code", needs=frozenset({"model", "task"}))

    def __post_init__(self) -> None:
        super().__post_init__()
        from headcount.core.errors import unknown_name_error

        for name in self.interventions:
            if name not in KNOWN:
                raise unknown_name_error("intervention", name, KNOWN)

    def effort(self, context: StudyContext) -> Effort:
        """Returns the evaluations under all interventions."""
        return _measure.interventions.estimate_effort(self, context)

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns a row for every intervention and number of heads."""
        dense, rows = _measure.interventions.measure_interventions_by_size(self, context)
        metric = dense.metric or "loss"
        return StudyResult(
            study=str(self),
            tables=(_intervention_table(rows, metric),),
            sentence=_summary_sentence(rows, higher_is_better=dense.value is not None and dense.higher_is_better),
            notes=(f"{dense_sentence(dense)} Heads are gated, chosen by {self.method}.",),
            figures=(_change_by_substitute_figure(rows, dense, metric),),
            measurements={
                "model": context.model_name,
                "task": context.task.name,
                "dense": {"metric": metric, "value": dense.score},
                "rows": [row.to_dict() for row in rows],
            },
        )


def _intervention_table(rows: Sequence[InterventionRow], metric: str) -> Table:
    columns = (
        Column("intervention"),
        Column("heads"),
        Column("removed", format=".0%"),
        *seed_columns(metric),
        *interval_columns("against the dense model", "+.3g", metric),
        *interval_columns("against zero", "+.3g", metric),
        Column("p", format=".2g"),
        Column("q", format=".2g"),
    )
    cells = [
        (
            row.intervention,
            row.n_kept,
            row.share_removed,
            *seed_cells(row.scores),
            *difference_with_interval(row.change),
            *difference_with_interval(row.against_zero),
            row.p,
            row.q,
        )
        for row in rows
    ]
    title = (
        f"{metric} by what stands in for removed heads; intervals against the dense model hold for all sizes of an intervention together, those "
        "against zero for their row alone; p and q are against zero"
    )
    return Table("interventions", columns, tuple(cells), title)


def _change_by_substitute_figure(rows: Sequence[InterventionRow], dense: Evaluation, metric: str) -> LineFigure:
    lines = []
    for intervention in dict.fromkeys(row.intervention for row in rows):
        points = sorted((row for row in rows if row.intervention == intervention), key=lambda row: row.share_removed)
        y, low, high = (tuple(getattr(row.change, end) for row in points) for end in ("difference", "low", "high"))
        lines.append(Line(intervention, tuple(row.share_removed for row in points), y, low, high, start=(0.0, 0.0)))
    return LineFigure(
        name="interventions",
        title=f"Change of {metric} from the dense model by what stands in for removed heads, 95 % for all sizes together",
        x=Axis("heads removed", is_share=True),
        y=Axis(f"change of {metric}"),
        table="interventions",
        n=dense.n_examples,
        lines=tuple(lines),
        references=(Reference("dense model", 0.0),),
    )


def _summary_sentence(rows: Sequence[InterventionRow], *, higher_is_better: bool) -> str:
    parts = []
    for intervention in dict.fromkeys(row.intervention for row in rows if row.q is not None):
        own = [row for row in rows if row.intervention == intervention]
        tests = [(row.against_zero.difference if row.against_zero else None, row.q) for row in own]
        parts.append(f"{intervention} {describe_better_and_worse(tests, higher_is_better=higher_is_better)}")
    return f"Against zero: {'; '.join(parts)} (q ≤ {SIGNIFICANT})." if parts else "One intervention alone was measured."
