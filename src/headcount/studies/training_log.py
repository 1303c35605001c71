from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from headcount.core.figure import Axis, HeatMap, Line, LineFigure
from headcount.core.options import option
from headcount.core.study_result import Column, StudyResult, Table
from headcount.studies._base import Effort, Study, StudyContext, StudyInfo

if TYPE_CHECKING:
    from headcount.studies._measure.training_log import LoggedStep


@dataclass(frozen=True)
class TrainingLog(Study):
    """How do gates settle? The gate of every head, the temperature and the loss during the training of gates.

    Li et al. 2021: as τ falls, the gates of exactly K heads go to 1 and all others to 0. The log has about twenty entries, each with the gates of
    that very step; those of methods that draw them hold its noise.
    """

    _: KW_ONLY
    method: str = option("dsp", "A pruner that trains gates: dsp or l0, with its options")
    keep: int | float | str = option("25%", "How many heads stay")
    steps: int | None = option(None, "Optimiser steps; by default those of one epoch, and at least 300", minimum=1)
    rate: float = option(5e-5, "The learning rate of weights", minimum=0)
    train_batch: int = option(32, "Examples per training step", minimum=1)
    info = StudyInfo(paper="Li et al. 2021, section 3", needs=frozenset({"model", "task", "run"}))

    def effort(self, context: StudyContext) -> Effort:
        """Returns the steps of the training, and the evaluations of both models."""
        from headcount.studies._measure.training_log import build_request

        n_report = len(context.task.report)
        steps = build_request(self, context).n_steps(len(context.task.calibration))
        return Effort(passes=2 * min(n_report, context.limit or n_report), steps=steps)

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns the log of the training, and the gate of every head at each of its entries."""
        from headcount.studies._measure.training_log import read_log

        log = read_log(self, context)
        heads = tuple(map(str, context.loaded.heads))
        numbers = list(dict.fromkeys(name for entry in log for name in entry.numbers))
        return StudyResult(
            study=str(self),
            tables=(_table(log, numbers), _gate_table(log, heads)),
            sentence=_verdict(log, len(heads)),
            figures=(_gate_figure(log, heads), *(_number_figure(log, name) for name in numbers)),
            measurements={"model": context.model_name, "method": self.method, "rows": _table(log, numbers).records()},
        )


def _table(log: Sequence[LoggedStep], numbers: Sequence[str]) -> Table:
    columns = (Column("step"), Column("sum of gates", format=".4g"), *(Column(name, format=".4g") for name in numbers))
    cells = tuple((entry.step, sum(entry.gates), *(entry.numbers.get(name) for name in numbers)) for entry in log)
    return Table("log", columns, cells, "The log of the training")


def _gate_table(log: Sequence[LoggedStep], heads: Sequence[str]) -> Table:
    columns = (Column("step"), Column("head"), Column("gate", format=".4f"))
    cells = tuple((entry.step, head, gate) for entry in log for head, gate in zip(heads, entry.gates, strict=True))
    return Table("gates", columns, cells, "The gate of every head at every entry of the log", is_printed=False)


def _gate_figure(log: Sequence[LoggedStep], heads: tuple[str, ...]) -> HeatMap:
    return HeatMap(
        name="gates",
        title="The gate of every head during training",
        x=Axis("optimiser step"),
        y=Axis("head"),
        table="gates",
        n=len(heads),
        n_unit="heads",
        rows=heads,
        columns=tuple(str(entry.step) for entry in log),
        values=tuple(tuple(entry.gates[number] for entry in log) for number in range(len(heads))),
        value=Axis("gate"),
    )


def _number_figure(log: Sequence[LoggedStep], name: str) -> LineFigure:
    entries = [entry for entry in log if name in entry.numbers]
    return LineFigure(
        name=name,
        title=f"{name} during training",
        x=Axis("optimiser step"),
        y=Axis(name),
        table="log",
        n=None,
        lines=(Line(name, tuple(float(entry.step) for entry in entries), tuple(entry.numbers[name] for entry in entries)),),
    )


def _verdict(log: Sequence[LoggedStep], n_heads: int) -> str:
    first, last = (sum(0.05 < gate < 0.95 for gate in entry.gates) for entry in (log[0], log[-1]))
    n_open = sum(gate >= 0.95 for gate in log[-1].gates)
    return f"{first} of {n_heads} gates are between 0.05 and 0.95 at step {log[0].step} and {last} at step {log[-1].step}, where {n_open} are open."
