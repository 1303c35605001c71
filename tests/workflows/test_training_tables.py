"""training.csv and gates.csv: what methods that train did at every logged step, without a study."""

from __future__ import annotations

import math
from pathlib import Path

import pandas
import pytest
from command_line import result, run

from headcount.core.figure import HeatMap, LineFigure
from headcount.core.heads import Head
from headcount.core.options import expand_alternatives
from headcount.pruning.base import Pruner
from headcount.pruning.methods.dsp import DSP
from headcount.pruning.recipe import Recipe
from headcount.pruning.spec import PruneSpec
from headcount.runs.results import PRUNED, PrunedRecord
from headcount.runs.store import Run
from headcount.runs.training_log import training_figures

MODEL, STEPS, KEEP = "demo/entailment", 40, 8
PENALTY, WARMUP, SETTLE = 0.5, 0.1, 0.4
METHODS = f"dsp(limit=32),l0(penalty={PENALTY};rate=0.5),l0:lagrange,gates(limit=32)"
WORDS = ("--task", MODEL, "--limit", 48, "--steps", STEPS, "--train-batch", 8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from headcount.app.main import main

    out = tmp_path_factory.mktemp("training") / "run"
    words = ("compare", MODEL, *WORDS, "--methods", METHODS, "--keep", KEEP, "--seeds", 1, "--out", out, "--quiet")
    assert main([str(word) for word in words]) == 0
    return out


@pytest.fixture(scope="module")
def table(folder: Path) -> pandas.DataFrame:
    return pandas.read_csv(folder / "training.csv")


def rows_of(table: pandas.DataFrame, label: str) -> pandas.DataFrame:
    rows = table[table["label"].str.startswith(label)]
    assert len(rows) == 20 and list(rows["step"]) == list(range(2, STEPS + 1, 2)) and set(rows["steps"]) == {STEPS}
    return rows


def test_the_temperature_is_that_of_the_schedule_and_exactly_k_heads_are_open(table: pandas.DataFrame) -> None:
    rows = rows_of(table, "dsp")
    expected = [DSP().temperature(step - 1, STEPS) for step in rows["step"]]
    assert list(rows["tau"]) == pytest.approx(expected, rel=1e-12) and min(expected) == pytest.approx(1e-8)
    assert set(rows["open_heads"]) == set(rows["expected_open_heads"]) == {KEEP} and set(rows["keep"]) == {KEEP}
    assert list(rows["sum_of_gates"]) == pytest.approx([KEEP] * 20, abs=1e-3)
    moved = rows["step"] <= STEPS / 2
    assert set(rows["gate_learning_rate"][moved]) == {0.1} and rows["gate_learning_rate"][~moved].isna().all(), "the plan is fixed by then"
    assert rows[["penalty", "lambda"]].isna().all(axis=None)


def test_rates_are_those_of_the_recipe(table: pandas.DataFrame) -> None:
    recipe = Recipe()
    n_warm = round(recipe.warmup * STEPS)
    for step, rate in zip(rows_of(table, "dsp")["step"], rows_of(table, "dsp")["learning_rate"], strict=True):
        share = (step - 1) / n_warm if step - 1 < n_warm else (STEPS - step + 1) / (STEPS - n_warm)
        assert rate == pytest.approx(recipe.rate * share)


def test_a_penalty_warms_up_and_is_lambda_times_the_heads_that_are_expected_to_be_open(table: pandas.DataFrame) -> None:
    rows = rows_of(table, "l0(")
    for _, row in rows.iterrows():
        if row["step"] - 1 < (1 - SETTLE) * STEPS:
            assert row["lambda"] == pytest.approx(PENALTY * min(1.0, (row["step"] - 1) / (WARMUP * (1 - SETTLE) * STEPS)))
            assert 0 < row["penalty"] <= row["lambda"] * 32 and row["gate_learning_rate"] == 0.5
        else:
            assert math.isnan(row["lambda"]) and math.isnan(row["penalty"])
    last = rows.iloc[-1]
    assert last["open_heads"] == last["keep"] < 32 and last["expected_open_heads"] < rows.iloc[0]["expected_open_heads"]
    multipliers = rows_of(table, "l0:lagrange")["lambda"].dropna()
    assert multipliers.iloc[0] != multipliers.iloc[-1]


def test_gates_that_are_left_open_fall_to_k(table: pandas.DataFrame) -> None:
    counts = list(rows_of(table, "gates")["open_heads"])
    assert counts == sorted(counts, reverse=True) and counts[0] > counts[-1] == KEEP


def test_the_gates_of_every_head_are_those_of_the_plan_in_the_end(folder: Path) -> None:
    gates = pandas.read_csv(folder / "gates.csv")
    assert list(gates.columns) == ["method", "label", "keep", "seed", "step", "head", "gate"] and len(gates) == 4 * 20 * 32
    open_run = Run.open(folder)
    for artifact in open_run.results(PRUNED).values():
        record = PrunedRecord.from_artifact(artifact)
        last = gates[(gates["label"] == record.label) & (gates["step"] == STEPS)]
        if record.label.startswith(("dsp", "l0")):
            assert set(last["head"][last["gate"] == 0]) == set(record.removed) and set(last["gate"]) == {0.0, 1.0}
            assert all(str(Head.parse(head)) == head for head in last["head"])


def test_figures_hold_the_numbers_of_the_tables(folder: Path, table: pandas.DataFrame) -> None:
    figures = {figure.name: figure for figure in training_figures(Run.open(folder))}
    tau = figures["training tau"]
    assert isinstance(tau, LineFigure) and [line.label for line in tau.lines] == [f"dsp(limit=32), {KEEP} heads"]
    assert list(tau.lines[0].y) == pytest.approx([math.log10(value) for value in rows_of(table, "dsp")["tau"]])
    penalty, counts = figures["training lambda"], figures["training expected_open_heads"]
    assert isinstance(penalty, LineFigure) and len(penalty.lines) == 2 and isinstance(counts, LineFigure) and len(counts.lines) == 4
    gates = figures[f"training gates dsp(limit=32) {KEEP}"]
    assert isinstance(gates, HeatMap) and len(gates.rows) == 32 and gates.columns == tuple(map(str, range(2, STEPS + 1, 2)))
    assert sum(row[-1] or 0 for row in gates.values) == KEEP


def test_too_few_steps_are_said_before_training_in_the_table_and_in_the_report(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("prune", MODEL, *WORDS, "--method", f"l0(penalty={PENALTY};rate=0.5)", "--no-bench", "--out", folder.parent / "prune")
    code, out, err = run(capsys, *words)
    assert code == 0 and f"a schedule has {STEPS}, and fewer than 200 are too few to judge a method by" in err, err
    assert f"only {STEPS} steps" in out and set(pandas.read_csv(folder.parent / "prune" / "training.csv")["method"]) == {"l0"}
    _, out, _ = run(capsys, "report", folder.parent / "prune", "--figures", folder.parent / "figures")
    assert (
        "Trained for fewer than 200 optimiser steps, too few to judge a method by" in (folder.parent / "prune" / "report.html").read_text()
    )
    names = {path.stem for path in (folder.parent / "figures").glob("training-*.pdf")}
    assert names >= {"training-lambda", "training-expected-open-heads", "training-loss"} and "training-lambda.svg" in out


def test_stages_are_counted_one_by_one() -> None:
    spec = PruneSpec.of("dsp", 4, recover="150steps", recipe=Recipe(steps=150))
    assert spec.n_steps_by_stage(512) == [150, 150] and spec.n_steps(512) == 300


def test_alternatives_of_options_are_a_grid() -> None:
    assert expand_alternatives("dsp:fast(tau=1|10;rate=0.1|0.5;cool=0.3)") == [
        f"dsp:fast(tau={tau};rate={rate};cool=0.3)" for tau in (1, 10) for rate in (0.1, 0.5)
    ]
    assert expand_alternatives("role(roles=a|b)") == ["role(roles=a)", "role(roles=b)"] and expand_alternatives("dsp") == ["dsp"]
    assert Pruner.parse_grid(["dsp(tau=1|2)", "dsp(tau=2)", DSP()]) == [DSP(), DSP(tau=2.0)]


def test_a_grid_on_the_command_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("compare", MODEL, "--task", MODEL, "--limit", 16, "--methods", "rank(by=magnitude|random)", "--keep", KEEP)
    rows = result(capsys, *words, "--seeds", 1, "--no-repair", "--out", folder.parent / "grid")["rows"]
    assert [row["method"].split(" ")[0] for row in rows] == ["magnitude", "rank(by=random)", "random"]
