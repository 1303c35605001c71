"""The trainings of a run as tables and figures: loss, penalty, temperature, open heads, learning rates, and the gate of every head. No torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headcount.core.figure import Figure
from headcount.core.training_log import FIGURES, LoggedStep, LoggedTraining, draw_column, draw_gates
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


def read_training(artifact: Artifact, n_heads: int) -> LoggedTraining:
    """Returns the log of the training of a pruned model; it has no steps where nothing trained."""
    record = PrunedRecord.from_artifact(artifact)
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
            rows.append({**_identifying_columns(training), **length, **step.numbers, **gates})
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
        {**_identifying_columns(training), "step": step.step, "head": head, "gate": gate}
        for training in trainings
        for step in training.steps
        if step.gates and len(step.gates) == len(heads)
        for head, gate in zip(heads, step.gates, strict=True)
    ]
    return pandas.DataFrame(rows) if rows else None


def _identifying_columns(training: LoggedTraining) -> dict[str, str | int]:
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
    lines = [draw_column(list(first.values()), column, name=f"training {column}") for column in FIGURES]
    return [*maps, *(figure for figure in lines if figure is not None)]
