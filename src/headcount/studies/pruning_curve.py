from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headcount.core.figure import Axis, Line, LineFigure, Reference
from headcount.core.study_result import Column, StudyResult, Table, interval_columns
from headcount.studies._base import SIGNIFICANT, Effort, StudyContext, StudyInfo
from headcount.studies._pruned_models import PrunedModels

if TYPE_CHECKING:
    from headcount.core.evaluation import Evaluation
    from headcount.studies._measure.pruning_curve import CurveRow, PairRow


@dataclass(frozen=True)
class PruningCurve(PrunedModels):
    """How much does the model lose as heads go? Every method at every number of heads, over seeds, in pairs with random heads and with each other.

    Michel et al. 2019 (Fig. 3) and Li et al. 2021 (Fig. 2, 3). Seeds are averaged example by example; a difference is paired over the examples of
    the report split, by Tango's score method where every example is right or wrong, else by a bootstrap. The interval of a mean over seeds is
    Student's t, from three seeds on.
    """

    info = StudyInfo(paper="Michel et al. 2019, Fig. 3; Li et al. 2021, Fig. 2 and 3", needs=frozenset({"model", "task", "run"}))

    def effort(self, context: StudyContext) -> Effort:
        """Returns the evaluations and trainings of all models."""
        from headcount.studies._measure.pruning_curve import estimate_effort

        return estimate_effort(self, context)

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns a row for every method and number of heads, and one for every pair of methods at each number."""
        from headcount.studies._measure.pruning_curve import measure_curves

        measured = measure_curves(self, context)
        dense, rows = measured.dense, measured.rows
        metric = dense.metric or "loss"
        return StudyResult(
            study=str(self),
            tables=(_table(rows, metric), *([_pair_table(measured.pairs, metric)] if measured.pairs else [])),
            sentence=_verdict(rows),
            notes=(f"Dense model: {metric} {dense.score:.4g} on {dense.n_examples} examples.",),
            figures=(_figure(rows, dense, metric),),
            measurements={
                "model": context.model_name,
                "task": context.task.name,
                "dense": {"loss": dense.loss, "metric": dense.metric, "value": dense.value},
                "rows": [row.to_dict() for row in rows],
                "pairs": [pair.to_dict() for pair in measured.pairs],
            },
        )


def _table(rows: Sequence[CurveRow], metric: str) -> Table:
    kinds = list(rows[0].kept_by_kind) if len(rows[0].kept_by_kind) > 1 else []
    columns = (
        Column("method"),
        Column("heads"),
        *(Column(f"{kind} heads", format=".3g") for kind in kinds),
        Column("removed", format=".0%"),
        Column("seeds"),
        Column("steps"),
        *interval_columns(metric, ".4g"),
        *interval_columns("mean over seeds", ".4g"),
        Column("sd", format=".2g"),
        *interval_columns("against the dense model", "+.3g", metric),
        Column("p", format=".2g"),
        *interval_columns("against random", "+.3g", metric),
        Column("q", format=".2g"),
    )
    cells = [
        (
            row.method,
            row.n_kept,
            *(row.kept_by_kind[kind] for kind in kinds),
            row.share_removed,
            row.n_seeds,
            row.steps,
            row.mean,
            *row.band,
            row.mean,
            *row.interval,
            row.deviation,
            row.change.difference,
            row.change.low,
            row.change.high,
            row.change.p,
            *((row.against_random.difference, row.against_random.low, row.against_random.high) if row.against_random else (None,) * 3),
            row.q,
        )
        for row in rows
    ]
    title = (
        f"{metric} by the number of heads that stay, with the paired interval over examples; q corrects the differences from random heads"
    )
    return Table("curve", columns, tuple(cells), title)


def _pair_table(pairs: Sequence[PairRow], metric: str) -> Table:
    columns = (
        Column("heads"),
        Column("method"),
        Column("other method"),
        *interval_columns("difference", "+.3g", metric),
        Column("p", format=".2g"),
        Column("q", format=".2g"),
    )
    cells = tuple(
        (pair.n_kept, pair.method, pair.other, pair.change.difference, pair.change.low, pair.change.high, pair.change.p, pair.q)
        for pair in pairs
    )
    return Table("pairs", columns, cells, f"Difference of {metric} between methods at the same number of heads, on the same examples")


def _figure(rows: Sequence[CurveRow], dense: Evaluation, metric: str) -> LineFigure:
    lines = []
    for method in dict.fromkeys(row.method for row in rows):
        points = sorted((row for row in rows if row.method == method), key=lambda row: row.share_removed)
        low, high = zip(*(row.band for row in points), strict=True)
        x, y = tuple(row.share_removed for row in points), tuple(row.mean for row in points)
        lines.append(Line(method, x, y, low, high, is_control=method.startswith("random")))
    return LineFigure(
        name="curve",
        title=f"{metric} by the share of heads removed",
        x=Axis("heads removed", is_share=True),
        y=Axis(metric),
        table="curve",
        n=dense.n_examples,
        lines=tuple(lines),
        references=(Reference("dense model", dense.score),),
    )


def _verdict(rows: Sequence[CurveRow]) -> str:
    tested = [row for row in rows if row.q is not None]
    if not tested:
        return "Random heads alone were removed, so that no method is compared with them."
    parts = []
    for method in dict.fromkeys(row.method for row in tested):
        own = [row for row in tested if row.method == method]
        n_different = sum(row.q is not None and row.q <= SIGNIFICANT for row in own)
        parts.append(f"{method} differs from random heads at {n_different} of {len(own)} sizes")
    return f"{', '.join(parts)} (q ≤ {SIGNIFICANT})."
