"""The log of a training of gates, and its figures: the gate of every head, the temperature, λ and open heads over steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log10

from headcount.core.figure import Axis, HeatMap, Line, LineFigure

FEW_STEPS = 200
"""With fewer optimiser steps a method is not judged: its label says how many it took."""
FIGURES = {
    "loss": "loss",
    "lambda": "λ",
    "tau": "log10 tau",
    "expected_open_heads": "expected open heads",
    "open_heads": "open heads",
}
"""The columns that are drawn over steps, and what their axes are called; the temperature, which falls geometrically, is drawn as its logarithm."""


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """One entry of a log: the stage of the training, its optimiser step, numbers by column, and the gate of every head, where gates train."""

    stage: str
    step: int
    numbers: Mapping[str, float]
    gates: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class LoggedTraining:
    """The training of a pruned model: its method in short and with all that differs from defaults, its heads, its seed, and its log.

    `n_steps` has the optimiser steps of every stage.
    """

    method: str
    label: str
    n_kept: int
    seed: int
    n_steps: Mapping[str, int]
    steps: tuple[LoggedStep, ...]


def draw_gates(training: LoggedTraining, heads: Sequence[str], *, name: str = "gates") -> HeatMap:
    """Returns the gate of every head over the steps of a training, as figure data."""
    steps = [step for step in training.steps if len(step.gates) == len(heads)]
    return HeatMap(
        name=name,
        title=f"The gate of every head during training: {training.label}, {training.n_kept} heads stay, seed {training.seed}",
        x=Axis("optimiser step"),
        y=Axis("head"),
        table="gates",
        n=len(heads),
        n_unit="heads",
        rows=tuple(heads),
        columns=tuple(str(step.step) for step in steps),
        values=tuple(tuple(step.gates[number] for step in steps) for number in range(len(heads))),
        value=Axis("gate", limits=(0.0, 1.0)),
        note="Gates above 1 are drawn as 1." if any(gate > 1 for step in steps for gate in step.gates) else "",
    )


def draw_column(trainings: Sequence[LoggedTraining], column: str, *, name: str, table: str = "training") -> LineFigure | None:
    """Returns a number over the steps of the stage that chooses heads, a line for each training, as figure data; None where none has it."""
    lines = []
    for training in trainings:
        steps = [step for step in training.steps if step.stage == "choose" and column in step.numbers]
        if steps:
            values = tuple(scale_for_figure(column, step.numbers[column]) for step in steps)
            lines.append(Line(f"{training.label}, {training.n_kept} heads", tuple(float(step.step) for step in steps), values))
    if not lines:
        return None
    label = FIGURES[column]
    title = f"{label} during training"
    return LineFigure(
        name=name,
        title=title,
        x=Axis("optimiser step", is_count=True),
        y=Axis(label, is_count="heads" in label),
        table=table,
        n=None,
        lines=tuple(lines),
    )


def scale_for_figure(column: str, value: float) -> float:
    """Returns a number of a column as figures and studies show it: the logarithm of the temperature, every other number as it is."""
    return log10(value) if column == "tau" else value
