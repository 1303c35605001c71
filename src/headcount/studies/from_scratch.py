from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from headcount.core.figure import Axis, Line, LineFigure, Reference
from headcount.core.metric_range import dense_score_plus_change_interval
from headcount.core.options import option
from headcount.core.study_result import Column, StudyResult, Table, format_interval, interval_columns
from headcount.studies import _measure
from headcount.studies._base import Effort, Study, StudyContext, StudyInfo
from headcount.studies._rows import (
    choose_kinds_to_show,
    dense_scores_to_dict,
    dense_sentence,
    difference_with_interval,
    format_significance,
    kept_heads_columns,
)

if TYPE_CHECKING:
    from headcount.studies._measure.from_scratch import ControlPair, ScratchResult

DENSE = "dense model"
LEARNT = 0.25
"""Below this share of the dense model's score above chance a control counts as hardly trained."""


@dataclass(frozen=True)
class FromScratch(Study):
    """Does pruning need the trained model? The pruned model against the same heads trained from scratch, in pairs on the same examples.

    Voita et al. 2019 (Table 2): a model pruned from a trained one beats the same configuration trained from scratch. The control draws the weights
    of the smaller model anew and trains them by a recipe of its own (`scratch`, `scratch_rate`). With `gates` there is a second control: L0 gates
    that train together with weights drawn anew, for as many steps and at the same rate, and so choose heads of a model that was never trained.
    Differences are those of means over seeds; the intervals of those from the dense model hold for all sizes of a model together.
    """

    method: str = option("l0", "The pruner of the trained model")
    _: KW_ONLY
    keep: tuple[int | float | str, ...] = option(("50%", "25%"), "How many heads stay: numbers or shares")
    kinds: tuple[str, ...] = option((), "Kinds of attention that lose heads; by default all of them at once")
    seeds: int = option(3, "Seeds of every training", minimum=1)
    heads: bool = option(True, "Train the heads that stay from scratch")
    gates: bool = option(False, "Train L0 gates from scratch")
    recover: float | str | None = option(
        None, "How long the pruned model is fine-tuned: a number of epochs, or of steps (300steps), or auto"
    )
    scratch: float | str = option(10.0, "How long models train from scratch: a number of epochs, or of steps (300steps), or auto")
    scratch_rate: float = option(5e-4, "The learning rate from scratch", minimum=0)
    steps: int | None = option(None, "Optimiser steps of the pruner; by default those of one epoch, and at least 300", minimum=1)
    rate: float = option(5e-5, "The learning rate of trained weights", minimum=0)
    train_batch: int = option(32, "Examples per training step", minimum=1)
    info = StudyInfo(paper="Voita et al. 2019, Table 2", needs=frozenset({"model", "task", "run"}))

    def effort(self, context: StudyContext) -> Effort:
        """Returns the evaluations and trainings of all models."""
        return _measure.from_scratch.estimate_effort(self, context)

    @property
    def trains_new_head(self) -> bool:
        """Whether the method trains weights."""
        return _measure.pruning_curve.all_train_weights((self.method,))

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns the pruned models and their controls in one table, and every control in pairs with its pruned model."""
        measured = _measure.from_scratch.measure_pruned_and_control_models(self, context)
        metric = measured.dense.metric or "loss"
        return StudyResult(
            study=str(self),
            tables=(_model_table(measured, metric), _pruned_minus_control_table(measured.pairs, metric)),
            sentence=_summary_sentence(measured.pairs, metric),
            notes=(
                dense_sentence(measured.dense),
                f"From scratch: {self.scratch if isinstance(self.scratch, str) else f'{self.scratch:g} epochs'} at rate {self.scratch_rate:g}.",
                *_hardly_trained_notes(measured, metric),
            ),
            figures=(_score_by_kept_heads_figure(measured, metric),),
            measurements={
                "model": context.model_name,
                "task": context.task.name,
                "dense": dense_scores_to_dict(measured.dense),
                "rows": [row.to_dict() for row in measured.rows],
                "pairs": [pair.to_dict() for pair in measured.pairs],
            },
        )


def _hardly_trained_notes(measured: ScratchResult, metric: str) -> Iterator[str]:
    """Yields a sentence about every control that has hardly learnt the task."""
    dense, floor = measured.dense.score, measured.floor
    if floor is None or dense <= floor:
        return
    for row in measured.rows:
        share = (row.scores.mean - floor) / (dense - floor)
        if row.model != measured.models[0] and share < LEARNT:
            above = f" above {floor:.4g}, the best constant answer," if floor else ""
            yield (
                f"{row.model}, {row.n_kept} heads: {metric} {row.scores.mean:.4g} is {max(share, 0.0):.0%} of the dense model's{above} after "
                f"{row.scores.steps} steps: it has hardly learnt the task, so that the difference says nothing about its heads."
            )


def _model_table(measured: ScratchResult, metric: str) -> Table:
    kinds = choose_kinds_to_show([row.kept_by_kind for row in measured.rows])
    columns = (
        Column("model"),
        Column("heads"),
        *kept_heads_columns(kinds),
        Column("seeds"),
        Column("steps"),
        *interval_columns(metric, ".4g"),
        *interval_columns("mean over seeds", ".4g"),
        Column("sd", format=".2g"),
        *interval_columns("against the dense model", "+.3g", metric),
        Column("p", format=".2g"),
        Column("q", format=".2g"),
    )
    cells = []
    for row in measured.rows:
        counts, scores = [row.kept_by_kind[kind] for kind in kinds], row.scores
        over_examples = (scores.mean, *dense_score_plus_change_interval(measured.dense, row.change))
        over_seeds = (scores.mean, scores.low, scores.high, scores.deviation)
        identity = (row.model, row.n_kept, *counts, scores.n_seeds, scores.steps)
        cells.append((*identity, *over_examples, *over_seeds, *difference_with_interval(row.change), row.p, row.q))
    title = (
        f"{metric} of pruned models and of controls from scratch, with paired intervals over examples that hold for all sizes of a model together; "
        "p is of one size by itself"
    )
    return Table("models", columns, tuple(cells), title)


def _pruned_minus_control_table(pairs: Sequence[ControlPair], metric: str) -> Table:
    columns = (
        Column("heads"),
        Column("control"),
        *interval_columns("pruned minus control", "+.3g", metric),
        Column("test"),
        Column("p", format=".2g"),
        Column("q", format=".2g"),
    )
    cells = tuple((pair.n_kept, pair.control, *difference_with_interval(pair.change), pair.change.by, pair.p, pair.q) for pair in pairs)
    return Table("pairs", columns, cells, f"{metric} of the pruned model minus that of its control, on the same examples")


def _score_by_kept_heads_figure(measured: ScratchResult, metric: str) -> LineFigure:
    lines = []
    for name in measured.models:
        ordered = sorted((row for row in measured.rows if row.model == name), key=lambda row: row.n_kept)
        low, high = zip(*(dense_score_plus_change_interval(measured.dense, row.change) for row in ordered), strict=True)
        lines.append(Line(name, tuple(float(row.n_kept) for row in ordered), tuple(row.scores.mean for row in ordered), low, high))
    return LineFigure(
        name="controls",
        title=f"{metric} by the heads that stay, pruned and from scratch; 95 % for all sizes of a model together",
        x=Axis("heads that stay", is_count=True),
        y=Axis(metric),
        table="models",
        n=measured.dense.n_examples,
        lines=tuple(lines),
        references=(Reference(DENSE, measured.dense.score),),
    )


def _summary_sentence(pairs: Sequence[ControlPair], metric: str) -> str:
    texts = []
    for pair in pairs:
        difference = format_interval(pair.change.difference, pair.change.low, pair.change.high, "+.3g")
        texts.append(f"{difference} {metric} over {pair.control} with {pair.n_kept} heads ({format_significance('q', pair.q)})")
    return f"The pruned model has {'; '.join(texts)}." if texts else "No control was trained."
