"""The trainings of a run as tables and figures: loss, penalty, temperature, open heads, learning rates, and the gate of every head. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log10
from typing import TYPE_CHECKING

from headcount.core.figure import Axis, Figure, HeatMap, Line, LineFigure
from headcount.runs.artifacts import Artifact
from headcount.runs.results import PRUNED, PrunedRecord
from headcount.runs.store import Run

if TYPE_CHECKING:
    import pandas

COLUMNS = {
    "loss": "loss",
    "penalty": "penalty",
    "lambda": "lambda",
    "tau": "tau",
    "open expected": "expected_open_heads",
    "open": "open_heads",
    "learning_rate": "learning_rate",
    "gate rate": "gate_learning_rate",
    "grad_norm": "gradient_norm",
    "epoch": "epoch",
}
"""The numbers of a log entry, and their columns in the table `training`."""
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


def read_training(artifact: Artifact, n_heads: int) -> LoggedTraining:
    """Returns the log of the training of a pruned model; it has no steps where nothing trained."""
    record = PrunedRecord.of(artifact)
    steps = []
    for entry in record.history:
        if "step" in entry and "loss" in entry:
            numbers = {column: float(entry[name]) for name, column in COLUMNS.items() if name in entry}
            stage = entry.get("stage", "choose")
            steps.append(LoggedStep(stage, int(entry["step"]), numbers, tuple(map(float, entry.get("gates", ())))))
    method, seed = record.spec["method"]["name"], record.spec["seed"]
    return LoggedTraining(method, record.label, n_heads - len(record.removed), seed, record.steps, tuple(steps))


def read_trainings(run: Run) -> list[LoggedTraining]:
    """Returns the log of every pruned model of a run that was trained."""
    artifacts = run.results(PRUNED).values()
    n_heads = len(run.heads().names) if artifacts else 0
    trainings = [read_training(artifact, n_heads) for artifact in artifacts]
    return [training for training in trainings if training.steps]


def training_table(run: Run) -> pandas.DataFrame | None:
    """Returns a row for every logged step of every training; None where nothing trained."""
    import pandas

    rows = []
    for training in read_trainings(run):
        for step in training.steps:
            length = {"stage": step.stage, "step": step.step, "steps": training.n_steps.get(step.stage)}
            gates = {"sum_of_gates": sum(step.gates)} if step.gates else {}
            rows.append({**_name_training(training), **length, **step.numbers, **gates})
    columns = ["method", "label", "keep", "seed", "stage", "step", "steps", *COLUMNS.values(), "sum_of_gates"]
    return pandas.DataFrame(rows, columns=columns) if rows else None


def gate_table(run: Run) -> pandas.DataFrame | None:
    """Returns a row for every head at every logged step of every training of gates; None where no gates trained.

    Models that the run compares with its own are left out if they have another number of heads.
    """
    import pandas

    trainings = read_trainings(run)
    heads = run.heads().names if trainings else ()
    rows = [
        {**_name_training(training), "step": step.step, "head": head, "gate": gate}
        for training in trainings
        for step in training.steps
        if step.gates and len(step.gates) == len(heads)
        for head, gate in zip(heads, step.gates, strict=True)
    ]
    return pandas.DataFrame(rows) if rows else None


def _name_training(training: LoggedTraining) -> dict[str, str | int]:
    return {"method": training.method, "label": training.label, "keep": training.n_kept, "seed": training.seed}


def training_figures(run: Run) -> list[Figure]:
    """Returns the gates of every method and size over steps, and the numbers of all of them; of several seeds the first is drawn."""
    first: dict[tuple[str, int], LoggedTraining] = {}
    for training in read_trainings(run):
        key = training.label, training.n_kept
        if key not in first or training.seed < first[key].seed:
            first[key] = training
    heads = run.heads().names if first else ()
    maps = [
        draw_gates(training, heads, name=f"training gates {training.label} {training.n_kept}")
        for training in first.values()
        if any(len(step.gates) == len(heads) for step in training.steps)
    ]
    lines = [draw_number(list(first.values()), column, name=f"training {column}") for column in FIGURES]
    return [*maps, *(figure for figure in lines if figure is not None)]


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
        value=Axis("gate"),
    )


def draw_number(trainings: Sequence[LoggedTraining], column: str, *, name: str, table: str = "training") -> LineFigure | None:
    """Returns a number over the steps of the stage that chooses heads, a line for each training, as figure data; None where none has it."""
    lines = []
    for training in trainings:
        steps = [step for step in training.steps if step.stage == "choose" and column in step.numbers]
        if steps:
            values = tuple(scale_number(column, step.numbers[column]) for step in steps)
            lines.append(Line(f"{training.label}, {training.n_kept} heads", tuple(float(step.step) for step in steps), values))
    if not lines:
        return None
    label = FIGURES[column]
    title = f"{label} during training"
    return LineFigure(name=name, title=title, x=Axis("optimiser step"), y=Axis(label), table=table, n=None, lines=tuple(lines))


def scale_number(column: str, value: float) -> float:
    """Returns a number of a column as figures and studies show it: the logarithm of the temperature, every other number as it is."""
    return log10(value) if column == "tau" else value
