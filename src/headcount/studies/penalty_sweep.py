from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from math import log10
from typing import TYPE_CHECKING, Literal

from headcount.core.figure import Axis, Line, LineFigure, Reference
from headcount.core.metric_range import dense_score_plus_change_interval
from headcount.core.options import option
from headcount.core.study_result import Column, StudyResult, Table, interval_columns
from headcount.studies import _measure
from headcount.studies._base import Effort, Study, StudyContext, StudyInfo
from headcount.studies._rows import choose_kinds_to_show, dense_scores_to_dict, difference_with_interval, kept_heads_columns

if TYPE_CHECKING:
    from headcount.studies._measure.penalty_sweep import PenaltyRow, Sweep


@dataclass(frozen=True)
class PenaltySweep(Study):
    """How many heads does a penalty leave? L0 gates with every λ and no number of heads: each training ends where λ ends.

    Voita et al. 2019 (section 6) choose λ, and the number of heads follows; Li et al. 2021 name the number itself. With `exact` a method that takes a
    number of heads is trained to the numbers that λ left, in pairs on the same examples. Counts are means over seeds, and intervals against the
    dense model hold for all λ together. λ weighs a sum over heads against a mean loss, so that its values do not transfer between models. A λ
    that closes all gates leaves no model: it is listed with 0 heads.
    """

    penalties: tuple[float, ...] = option((0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1), "The values of λ")
    _: KW_ONLY
    exact: str = option("", "A pruner that is trained to as many heads as each λ left, such as dsp; empty for none")
    kinds: tuple[str, ...] = option((), "Kinds of attention that lose heads; by default all of them")
    frozen: Literal["none", "decoder", "all"] = option("none", "Weights that are not trained")
    seeds: int = option(3, "Seeds of every training", minimum=1)
    steps: int | None = option(None, "Optimiser steps of a training; by default those of one epoch, and at least 300", minimum=1)
    rate: float = option(5e-5, "The learning rate of weights", minimum=0)
    gate_rate: float = option(0.1, "The learning rate of gates; with few steps, they close only at a larger one", minimum=0)
    train_batch: int = option(32, "Examples per training step", minimum=1)
    info = StudyInfo(paper="Voita et al. 2019, section 6; Li et al. 2021", needs=frozenset({"model", "task", "run"}))

    def effort(self, context: StudyContext) -> Effort:
        """Returns the training and the evaluation of every λ and seed."""
        return _measure.penalty_sweep.estimate_sweep(self, context)

    @property
    def trains_new_head(self) -> bool:
        """Whether weights train with the gates."""
        return self.frozen != "all"

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns the heads that stay and the metric for every λ."""
        sweep = _measure.penalty_sweep.sweep_penalties(self, context)
        metric = sweep.dense.metric or "loss"
        return StudyResult(
            study=str(self),
            tables=(_penalty_table(sweep, metric), *([_exact_against_penalty_table(sweep, metric)] if self.exact else [])),
            sentence=_summary_sentence(sweep, metric),
            notes=(
                f"Dense model: {metric} {sweep.dense.score:.4g} on {sweep.dense.n_examples} examples, {sweep.n_free} heads with a gate.",
                "Numbers of heads are means over seeds.",
            ),
            figures=tuple(_heads_left_and_score_figures(sweep, metric, self.exact)),
            measurements={
                "model": context.model_name,
                "task": context.task.name,
                "dense": dense_scores_to_dict(sweep.dense),
                "rows": [row.to_dict() for row in sweep.rows],
                "exact": [row.to_dict() for row in sweep.exact],
            },
        )


def _penalty_table(sweep: Sweep, metric: str) -> Table:
    kinds = choose_kinds_to_show([row.kept_by_kind for row in sweep.rows])
    columns = (
        Column("λ", format="g"),
        Column("seeds"),
        Column("steps"),
        Column("heads left", f"of {sweep.n_free}", ".4g"),
        Column("fewest", "of a seed"),
        Column("most", "of a seed"),
        *kept_heads_columns(kinds),
        *interval_columns(metric, ".4g"),
        *interval_columns("against the dense model", "+.3g", metric),
        Column("p", format=".2g"),
        Column("q", format=".2g"),
    )
    cells = []
    for row in sweep.rows:
        counts = [row.kept_by_kind.get(kind) for kind in kinds]
        seeds = (len(row.kept), row.steps, row.mean_kept, min(row.kept), max(row.kept))
        cells.append(
            (
                row.penalty,
                *seeds,
                *counts,
                row.score,
                *_score_interval_ends(row, sweep),
                *difference_with_interval(row.change),
                row.p,
                row.q,
            )
        )
    return Table(
        "penalties",
        columns,
        tuple(cells),
        f"Heads left by λ, and {metric} with paired intervals that hold for all λ together; p is of one λ by itself",
    )


def _exact_against_penalty_table(sweep: Sweep, metric: str) -> Table:
    columns = (
        Column("λ", format="g"),
        Column("heads"),
        Column("method"),
        *interval_columns(metric, ".4g"),
        *interval_columns(f"{metric} of λ", ".4g"),
        *interval_columns("difference", "+.3g", metric),
        Column("p", format=".2g"),
        Column("q", format=".2g"),
    )
    rows_of = {row.penalty: row for row in sweep.rows}
    cells = tuple(
        (
            *(row.penalty, row.n_kept, row.method),
            *(row.score, *dense_score_plus_change_interval(sweep.dense, row.against_dense)),
            *(row.score_of_penalty, *_score_interval_ends(rows_of[row.penalty], sweep)),
            *(*difference_with_interval(row.change), row.p, row.q),
        )
        for row in sweep.exact
    )
    title = (
        f"A method that takes a number of heads, at the mean number that λ left, minus λ; the intervals of {metric} hold for all rows of a column "
        "together, those of the difference for their row alone"
    )
    return Table("exact", columns, cells, title)


def _heads_left_and_score_figures(sweep: Sweep, metric: str, exact_method: str) -> list[LineFigure]:
    rows = sweep.rows
    n_seeds = len(rows[0].kept)
    seeds = "seeds" if n_seeds > 1 else "seed"
    penalties = tuple(log10(row.penalty) for row in rows)
    ticks = tuple((position, f"{row.penalty:g}") for position, row in zip(penalties, rows, strict=True))
    low, high = (tuple(float(end(row.kept)) for row in rows) if n_seeds > 1 else () for end in (min, max))
    heads_left = LineFigure(
        name="heads",
        title=f"Heads left by λ; the band is from the fewest to the most of {n_seeds} seeds" if n_seeds > 1 else "Heads left by λ",
        x=Axis("λ, logarithmic", ticks=ticks),
        y=Axis("heads left", is_count=True),
        table="penalties",
        n=n_seeds,
        n_unit=seeds,
        lines=(Line("L0 gates", penalties, tuple(row.mean_kept for row in rows), low, high),),
        references=(Reference("all heads", float(sweep.n_free)),),
    )
    ordered = sorted((row for row in rows if row.change is not None), key=lambda row: row.mean_kept)
    x = tuple(row.mean_kept for row in ordered)
    line = _line_with_intervals("L0 gates, by λ", x, [row.score for row in ordered], [_score_interval_ends(row, sweep) for row in ordered])
    scores = LineFigure(
        name="metric",
        title=f"{metric} by the heads that λ leaves; intervals hold for all λ together (95 %, paired with the dense model)",
        x=Axis("heads left", is_count=True),
        y=Axis(metric),
        table="penalties",
        n=sweep.dense.n_examples,
        lines=(line,),
        references=(Reference("dense model", sweep.dense.score),),
    )
    return [heads_left, scores, *([_exact_against_penalty_figure(sweep, metric, exact_method)] if sweep.exact else [])]


def _exact_against_penalty_figure(sweep: Sweep, metric: str, exact_method: str) -> LineFigure:
    rows = sorted(sweep.exact, key=lambda row: row.n_kept)
    rows_of = {row.penalty: row for row in sweep.rows}
    x = tuple(float(row.n_kept) for row in rows)
    ends = [dense_score_plus_change_interval(sweep.dense, row.against_dense) for row in rows]
    ends_of_penalty = [_score_interval_ends(rows_of[row.penalty], sweep) for row in rows]
    return LineFigure(
        name="exact",
        title=f"{metric} by the number of heads: {exact_method} with exactly K, and L0 gates with λ; 95 % for all sizes of a line together",
        x=Axis("heads left", is_count=True),
        y=Axis(metric),
        table="exact",
        n=sweep.dense.n_examples,
        lines=(
            _line_with_intervals(f"{exact_method}, exactly K", x, [row.score for row in rows], ends),
            _line_with_intervals("L0 gates, by λ", x, [row.score_of_penalty for row in rows], ends_of_penalty),
        ),
        references=(Reference("dense model", sweep.dense.score),),
    )


def _line_with_intervals(
    label: str, x: tuple[float, ...], y: Sequence[float | None], ends: Sequence[tuple[float | None, float | None]]
) -> Line:
    return Line(label, x, tuple(y), tuple(low for low, _ in ends), tuple(high for _, high in ends))


def _score_interval_ends(row: PenaltyRow, sweep: Sweep) -> tuple[float | None, float | None]:
    """Returns the score of the dense model plus the interval of the change; None where λ left no model."""
    return (None, None) if row.change is None else dense_score_plus_change_interval(sweep.dense, row.change)


def _summary_sentence(sweep: Sweep, metric: str) -> str:
    first, last = sweep.rows[0], sweep.rows[-1]
    score = "no model" if last.score is None else f"{metric} {last.score:.4g}"
    return (
        f"λ = {first.penalty:g} leaves {first.mean_kept:.4g} of {sweep.n_free} heads, λ = {last.penalty:g} leaves {last.mean_kept:.4g} "
        f"({score}; dense model {sweep.dense.score:.4g})."
    )
