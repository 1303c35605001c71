from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

from headcount.core.options import option
from headcount.core.study_result import Column, StudyResult, Table
from headcount.core.training_log import FEW_STEPS, FIGURES, LoggedTraining, draw_column, draw_gates, scale_for_figure
from headcount.studies import _measure
from headcount.studies._base import Effort, Study, StudyContext, StudyInfo


@dataclass(frozen=True)
class TrainingLog(Study):
    """How do gates settle? The gate of every head, the temperature and the loss during the training of gates.

    Li et al. 2021: as τ falls, the gates of exactly K heads go to 1 and all others to 0. The log has about twenty entries, each with the gates of
    that very step; those of methods that draw them hold its noise.
    """

    _: KW_ONLY
    method: str = option("dsp", "A pruner that trains gates: dsp or l0, with its options")
    keep: int | float | str = option("25%", "How many heads stay; a method that decides itself, such as l0(penalty=0.05), leaves it aside")
    steps: int | None = option(None, "Optimiser steps; by default those of one epoch, and at least 300", minimum=1)
    rate: float = option(5e-5, "The learning rate of weights", minimum=0)
    train_batch: int = option(32, "Examples per training step", minimum=1)
    info = StudyInfo(paper="Li et al. 2021, section 3", needs=frozenset({"model", "task", "run"}))

    def effort(self, context: StudyContext) -> Effort:
        """Returns the steps of the training, and the evaluations of both models."""
        return _measure.training_log.estimate_effort(self, context)

    @property
    def trains_new_head(self) -> bool:
        """Whether the method trains weights."""
        return _measure.pruning_curve.all_train_weights((self.method,))

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns the log of the training, and the gate of every head at each of its entries."""
        training = _measure.training_log.train_and_read_log(self, context)
        heads = tuple(map(str, context.loaded.heads))
        columns = [column for column in FIGURES if any(column in step.numbers for step in training.steps)]
        log = _table_of_training_steps(training, columns)
        numbers = [draw_column([training], column, name=FIGURES[column], table=log.name) for column in columns]
        gate_columns = Column("step"), Column("head"), Column("gate", format=".4f")
        gates = tuple((step.step, head, gate) for step in training.steps for head, gate in zip(heads, step.gates, strict=True))
        return StudyResult(
            study=str(self),
            tables=(log, Table("gates", gate_columns, gates, "The gate of every head at every entry of the log", is_printed=False)),
            sentence=_summary_sentence(training, len(heads)),
            figures=(draw_gates(training, heads), *(figure for figure in numbers if figure is not None)),
            measurements={"model": context.model_name, "method": self.method, "rows": log.records()},
        )


def _table_of_training_steps(training: LoggedTraining, quantity_names: Sequence[str]) -> Table:
    columns = (Column("step"), Column("sum of gates", format=".4g"), *(Column(FIGURES[name], format=".4g") for name in quantity_names))
    cells = []
    for step in training.steps:
        values = (None if name not in step.numbers else scale_for_figure(name, step.numbers[name]) for name in quantity_names)
        cells.append((step.step, sum(step.gates), *values))
    return Table("log", columns, tuple(cells), f"The log of the training: {training.label}, {training.n_kept} heads stay")


def _summary_sentence(training: LoggedTraining, n_heads: int) -> str:
    first, last = training.steps[0], training.steps[-1]
    n_first, n_last = (sum(0.05 < gate < 0.95 for gate in step.gates) for step in (first, last))
    n_open = sum(gate >= 0.95 for gate in last.gates)
    n_steps = training.n_steps["choose"]
    few = f" The schedule has {n_steps} steps; fewer than {FEW_STEPS} are too few to judge a method by." if n_steps < FEW_STEPS else ""
    settled = f"{n_first} of {n_heads} gates are between 0.05 and 0.95 at step {first.step} and {n_last} at step {last.step}"
    return f"{settled}, where {n_open} are open.{few}"
