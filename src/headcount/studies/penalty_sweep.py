from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from headcount.core.errors import OptionError
from headcount.core.figure import Axis, Line, LineFigure, Reference
from headcount.core.options import format_value, option
from headcount.core.study_result import Column, StudyResult, Table, interval_columns
from headcount.studies._base import Effort, Study, StudyContext, StudyInfo

if TYPE_CHECKING:
    from headcount.studies._measure.penalty_sweep import PenaltyRow


@dataclass(frozen=True)
class PenaltySweep(Study):
    """How many heads does a penalty leave? The heads that stay and the score as λ of the L0 gates grows, beside methods that keep an exact number.

    Voita et al. 2019 (Fig. 7) and Li et al. 2021: λ decides the number of heads only indirectly, whereas differentiable subset pruning keeps the
    number that it is asked for. Every λ trains from the model; differences from the dense model are paired over the examples of the report split.
    """

    _: KW_ONLY
    penalties: tuple[float, ...] = option((0.001, 0.003, 0.01, 0.03, 0.1), "Values of λ, each above 0")
    exact: str | None = option(None, "A pruner that keeps an exact number, such as dsp, at the sizes of `keep`")
    keep: tuple[int | float | str, ...] = option(("50%", "25%"), "How many heads the exact pruner is asked for")
    kinds: tuple[str, ...] = option((), "Kinds of attention that lose heads; by default all")
    settings: str = option("", "Further options of l0, such as frozen=decoder")
    seeds: int = option(1, "Trainings of every request", minimum=1)
    steps: int | None = option(None, "Optimiser steps; by default those of one epoch, and at least 300", minimum=1)
    rate: float = option(5e-5, "The learning rate of weights", minimum=0)
    train_batch: int = option(32, "Examples per training step", minimum=1)
    info = StudyInfo(paper="Voita et al. 2019, Fig. 7; Li et al. 2021", needs=frozenset({"model", "task", "run"}))

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.penalties or min(self.penalties) <= 0:
            raise OptionError(f"penalties must be numbers above 0; got {format_value(self.penalties)}")

    def effort(self, context: StudyContext) -> Effort:
        """Returns the steps of every training, and the evaluations."""
        from headcount.studies._measure.penalty_sweep import build_requests

        specs, n_train, n_report = build_requests(self, context), len(context.task.calibration), len(context.task.report)
        return Effort((len(specs) + 1) * min(n_report, context.limit or n_report), sum(spec.n_steps(n_train) for spec in specs))

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns a row for every λ, and one for every size of the exact pruner."""
        from headcount.studies._measure.penalty_sweep import sweep_penalties

        dense, rows = sweep_penalties(self, context)
        metric = dense.metric or "loss"
        return StudyResult(
            study=str(self),
            tables=(_table(rows, metric),),
            sentence=_verdict(rows),
            notes=(f"Dense model: {metric} {dense.score:.4g} on {dense.n_examples} examples.",),
            figures=(_head_figure(rows), _score_figure(rows, metric, dense.score, dense.n_examples)),
            measurements={"model": context.model_name, "task": context.task.name, "rows": [row.to_dict() for row in rows]},
        )


def _table(rows: Sequence[PenaltyRow], metric: str) -> Table:
    kinds = list(rows[0].by_kind)
    columns = (
        Column("method"),
        Column("λ", format=".3g"),
        Column("asked for"),
        Column("heads", format=".4g"),
        *((Column(kind, "heads", ".3g") for kind in kinds) if len(kinds) > 1 else ()),
        Column("fewest"),
        Column("most"),
        Column("seeds"),
        Column("steps"),
        *interval_columns(metric, ".4g"),
        Column("p", format=".2g"),
    )
    cells = []
    for row in rows:
        by_kind = [row.by_kind[kind] for kind in kinds] if len(kinds) > 1 else []
        counts = (min(row.heads), max(row.heads), len(row.heads), row.steps)
        cells.append((row.method, row.penalty, row.asked, row.mean_heads, *by_kind, *counts, row.score, *row.band, row.p))
    return Table("penalties", columns, tuple(cells), f"Heads that stay by λ, and {metric} with its paired interval over examples")


def _head_figure(rows: Sequence[PenaltyRow]) -> LineFigure:
    swept = [row for row in rows if row.penalty is not None]
    exact = [row for row in rows if row.penalty is None]
    positions = tuple(float(number) for number in range(len(swept)))
    heads = tuple(row.mean_heads for row in swept)
    return LineFigure(
        name="heads",
        title="Heads that stay by λ; dashed: exact numbers that were asked for and kept",
        x=Axis("λ", ticks=tuple((float(number), format_value(row.penalty)) for number, row in enumerate(swept))),
        y=Axis("heads that stay"),
        table="penalties",
        n=len(swept[0].heads),
        n_unit="seeds" if len(swept[0].heads) > 1 else "seed",
        lines=(Line("L0 gates", positions, heads),),
        references=tuple(Reference(f"{row.method}, asked for {row.asked}", row.mean_heads) for row in exact),
    )


def _score_figure(rows: Sequence[PenaltyRow], metric: str, dense: float, n: int) -> LineFigure:
    lines = []
    for is_exact in (False, True):
        points = sorted((row for row in rows if (row.penalty is None) == is_exact), key=lambda row: row.mean_heads)
        if points:
            low, high = zip(*(row.band for row in points), strict=True)
            label = points[0].method if is_exact else "L0 gates by λ"
            lines.append(Line(label, tuple(row.mean_heads for row in points), tuple(row.score for row in points), low, high))
    return LineFigure(
        name="score",
        title=f"{metric} by the heads that stay",
        x=Axis("heads that stay"),
        y=Axis(metric),
        table="penalties",
        n=n,
        lines=tuple(lines),
        references=(Reference("dense model", dense),),
    )


def _verdict(rows: Sequence[PenaltyRow]) -> str:
    swept = [row for row in rows if row.penalty is not None]
    exact = [row for row in rows if row.penalty is None]
    parts = ", ".join(f"{row.mean_heads:.4g} at λ = {format_value(row.penalty)}" for row in swept)
    n_hit = sum(set(row.heads) == {row.asked} for row in exact)
    ending = f"; {exact[0].method} keeps the number asked for at {n_hit} of {len(exact)} sizes" if exact else ""
    return f"Heads that stay: {parts}{ending}."
