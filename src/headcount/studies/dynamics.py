from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Literal

from headcount.core.errors import OptionError
from headcount.core.figure import Axis, Line, LineFigure, Reference
from headcount.core.options import option
from headcount.core.study_result import Column, StudyResult, Table, interval_columns
from headcount.studies import _measure
from headcount.studies._base import STEP_BATCH, Effort, Study, StudyContext, StudyInfo

if TYPE_CHECKING:
    from headcount.studies._measure.dynamics import CheckpointCurves, CheckpointSummary

N_SAVED = 7
"""How many checkpoints a training makes."""


@dataclass(frozen=True)
class Dynamics(Study):
    """When in training do heads become superfluous? The pruning curve of every checkpoint of a training, as shares of its score above chance.

    Michel et al. 2019 (section 6): in the first epochs every removed head costs; later some can be removed for nothing. Each checkpoint ranks its own
    heads on the calibration split and loses the lowest by gates, without repair by default; the share that remains has a paired bootstrap interval
    that holds for all sizes of a checkpoint together. How many heads can go while the share `hold` remains is certified as smaller models are: by a
    one-sided bound of 95 % for every size, tested from large to small up to the first that fails. Chance is the score of the best constant answer;
    a checkpoint that is not above it has no share to lose, and a note says so.
    MODEL is a folder of checkpoints, or the first of several; or `checkpoints` names a folder of them, and MODEL is the last. With `train_steps` the
    study makes them itself: the weights of MODEL are drawn anew and trained on the calibration split, and saved often at the start, rarely later.
    """

    checkpoints: tuple[str, ...] = option((), "Further checkpoints; none if the model names a folder of them")
    _: KW_ONLY
    by: str = option("gradient", "The importance that ranks the heads of each checkpoint")
    keep: tuple[int | float | str, ...] = option((), "How many heads stay: numbers or shares; by default 90%, 80%, …, 10%")
    repair: bool = option(False, "Refit output projections in closed form at every level")
    hold: float = option(0.9, "The share of the score that counts as kept in the summary", minimum=0, maximum=1)
    tokenizer: str | None = option(None, "The model whose tokenizer is used, if checkpoints have none")
    train_steps: int | None = option(None, "Train the model for so many optimiser steps to make the checkpoints", minimum=1)
    start: Literal["scratch", "model"] = option("scratch", "What the training starts from: weights drawn anew, or those of the model")
    rate: float = option(5e-4, "The learning rate of the training", above=0)
    train_batch: int = option(32, "Examples per training step", minimum=1)
    info = StudyInfo(paper="Michel et al. 2019, section 6", needs=frozenset({"model", "task", "run"}))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.train_steps is not None and self.checkpoints:
            raise OptionError("checkpoints are named or made by training; leave checkpoints or train_steps out")

    def effort(self, context: StudyContext) -> Effort:
        """Returns the evaluations and rankings of all checkpoints, and the steps of the training."""
        n_checkpoints = N_SAVED if self.train_steps is not None else 1 + len(self.checkpoints)
        n_report, n_train = len(context.task.report), len(context.task.calibration)
        evaluations = (1 + (len(self.keep) or 9)) * min(n_report, context.limit or n_report)
        return Effort(
            passes=n_checkpoints * (evaluations + 3 * min(n_train, 512)), steps=(self.train_steps or 0) * self.train_batch / STEP_BATCH
        )

    def check_inputs(self, context: StudyContext) -> None:
        """Raises ArtifactError where named checkpoints are fewer than two, or have different heads."""
        if self.train_steps is None:
            _measure.dynamics.list_study_checkpoints(self, context)

    @property
    def trains_new_head(self) -> bool:
        """Whether the study trains the checkpoints itself."""
        return self.train_steps is not None

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns the share of its own score above chance that every checkpoint keeps at every number of heads."""
        curves = _measure.dynamics.measure_checkpoints(self, context)
        return StudyResult(
            study=str(self),
            tables=(_table_of_checkpoints_with_removed_share_columns(curves, self.hold), _table_of_tested_sizes(curves, self.hold)),
            sentence=_summary_sentence(curves.checkpoints, self.hold),
            notes=(*_checkpoint_notes(curves.checkpoints), f"Heads are ranked by {curves.by}, scores {curves.normalisation_in_words}."),
            figures=(_remaining_score_figure(curves, self.hold),),
            measurements={
                "by": curves.by,
                "normalise": curves.normalise,
                "task": context.sources.task_name or None,
                "repair": self.repair,
                "checkpoints": [summary.to_dict() for summary in curves.checkpoints],
                "rows": [row.to_dict() for row in curves.rows],
            },
        )


def _table_of_checkpoints_with_removed_share_columns(curves: CheckpointCurves, share_to_hold: float) -> Table:
    shares = sorted({row.removed for row in curves.rows})
    row_of = {(row.checkpoint.label, row.removed): row for row in curves.rows}
    columns = [Column("checkpoint"), Column(curves.checkpoints[0].dense.metric or "loss", format=".4g")]
    for share in shares:
        columns += interval_columns(f"{share:.0%}", ".0%")
    lost = f"{1 - share_to_hold:.0%}"
    columns += [Column(f"heads that go for {lost}", "certified", ".0%"), Column(f"observed to go for {lost}", "without a bound", ".0%")]
    cells = []
    for summary in curves.checkpoints:
        label = summary.checkpoint.label
        remaining = [end for share in shares for end in row_of[label, share].share.remaining_low_high]
        cells.append((label, summary.dense.score, *remaining, summary.certified, summary.removable))
    title = (
        "Share of each checkpoint's own score above chance that remains, by the share of heads removed; intervals hold for all sizes of a checkpoint "
        "together"
    )
    return Table("checkpoints", tuple(columns), tuple(cells), title)


def _table_of_tested_sizes(curves: CheckpointCurves, share_to_hold: float) -> Table:
    columns = (
        Column("checkpoint"),
        Column("heads removed", format=".0%"),
        Column("remains", "observed", ".1%"),
        Column("at least", "95 %, one-sided", ".1%"),
        Column("verdict"),
    )
    cells = []
    for summary in curves.checkpoints:
        rows = [row for row in curves.rows if row.checkpoint == summary.checkpoint and row.bound.at_least is not None]
        for row in sorted(rows, key=lambda row: row.removed):
            verdict = "certified" if row.bound.is_certified else f"undecided{f': {row.bound.reason}' if row.bound.reason else ''}"
            shown = verdict if row.removed in summary.tested else "not tested"
            cells.append((summary.checkpoint.label, row.removed, row.share.remaining_low_high[0], row.bound.at_least, shown))
    title = (
        f"Whether {share_to_hold:.0%} of the score above chance remains: sizes tested from large to small up to the first that fails, for each "
        "checkpoint by itself; each bound holds for its row alone"
    )
    return Table("bounds", columns, tuple(cells), title)


def _remaining_score_figure(curves: CheckpointCurves, share_to_hold: float) -> LineFigure:
    lines = []
    for summary in curves.checkpoints:
        rows = sorted((row for row in curves.rows if row.checkpoint == summary.checkpoint), key=lambda row: row.removed)
        remaining, low, high = zip(*(row.share.remaining_low_high for row in rows), strict=True)
        x = tuple(row.removed for row in rows)
        if any(share is not None for share in remaining):  # a note says why a checkpoint has no share to lose
            lines.append(Line(summary.checkpoint.label, x, remaining, low, high, start=(0.0, 1.0)))
    return LineFigure(
        name="curves",
        title="Share of each checkpoint's own score above chance that remains, 95 % for all sizes of a checkpoint together",
        x=Axis("heads removed", is_share=True),
        y=Axis("score above chance that remains", is_share=True),
        table="checkpoints",
        n=curves.checkpoints[0].dense.n_examples,
        lines=tuple(lines),
        references=(Reference(f"{share_to_hold:.0%} of the score", share_to_hold),),
    )


def _checkpoint_notes(checkpoints: Sequence[CheckpointSummary]) -> list[str]:
    notes = [f"{summary.checkpoint.label}: no share is defined: {summary.reason}." for summary in checkpoints if summary.reason]
    first = checkpoints[0]
    if first.chance is not None:
        notes.append(f"Chance is the best constant answer to the same examples: {first.dense.metric or 'loss'} {first.chance:.4g}.")
    return notes


def _summary_sentence(checkpoints: Sequence[CheckpointSummary], share_to_hold: float) -> str:
    defined = [summary for summary in checkpoints if summary.certified is not None]
    if not defined:
        return "No checkpoint is surely better than chance, so that none has a score to lose."
    certified, observed = (
        ", ".join(f"{getattr(summary, name) or 0.0:.0%} at {summary.checkpoint.label}" for summary in defined)
        for name in ("certified", "removable")
    )
    return (
        f"Heads that can go while {share_to_hold:.0%} of the score above chance remains, certified for each checkpoint at 95 %: {certified}. "
        f"By what was observed, without a bound: {observed}."
    )
