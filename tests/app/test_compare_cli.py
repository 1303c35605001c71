"""`headcount compare` as a user meets it: its tables at 80 columns, its JSON, and what is refused before any work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas
import pytest
from command_line import refused, result, run

import headcount as hc
from headcount.app.console import session
from headcount.app.main import main
from headcount.models.tiny.build import tiny_model

ENTAILMENT = ("compare", "demo/entailment", "--task", "demo/entailment", "--limit", 40)
GRID = ("--methods", "gradient,magnitude", "--keep", "25%,50%", "--seeds", 3, "--no-repair")
MEASURED = ("--bench", "--batches", "1,2", "--length", 8, "--keep-models")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compare") / "run"
    assert main([str(word) for word in (*ENTAILMENT, *GRID, *MEASURED, "--out", out, "-q")]) == 0
    return out


@pytest.fixture
def found(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return result(capsys, *ENTAILMENT, *GRID, *MEASURED, "--out", folder)


def test_json_and_csv_have_the_same_rows(found: dict[str, Any], folder: Path) -> None:
    for name in ("methods", "differences", "role_changes"):
        table = pandas.read_csv(folder / f"{name}.csv")
        pandas.testing.assert_frame_equal(table, pandas.DataFrame(found[name]), check_dtype=False)
    timed = pandas.read_csv(folder / "latency.csv").drop(columns="of")
    order = ["keep", "batch", "method"]
    remaining, right = (frame.sort_values(order).reset_index(drop=True) for frame in (timed, pandas.DataFrame(found["latency"])))
    pandas.testing.assert_frame_equal(remaining, right)
    methods = {"gradient without repair", "magnitude without repair", "random without repair"}
    assert {row["method"] for row in found["methods"]} == methods and len(found["methods"]) == 3 * 2
    assert [row["seeds"] for row in found["methods"] if row["method"].startswith("random")] == [3, 3]
    pairs = {frozenset((row["method"], row["other"])) for row in found["differences"]}
    assert len(pairs) == 3 and len(found["differences"]) == 3 * 2, "every two methods at every size"
    for row in found["rows"]:
        assert sum(row["survivors"]["by_kind"].values()) == sum(row["survivors"]["by_block"].values()) == row["keep"]
        assert len(row["survivors"]["kept"]) == row["keep"] and len(row["survivors"]["removed"]) == row["removed"]
    assert len(found["models"]) == len(found["rows"]) and all(Path(path, "config.json").is_file() for path in found["models"].values())


def test_tables_fit_80_columns(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "WIDE", 80)
    code, out, _ = run(capsys, *ENTAILMENT, *GRID, *MEASURED, "--out", folder)
    tables = [line for line in out.splitlines() if "  " in line or "─" in line]
    assert code == 0 and max(map(len, tables)) <= 80
    headings = ("survivors of", "over seeds", "against random", "latency of", "roles after")
    assert all(any(line.startswith(heading) for line in out.splitlines()) for heading in headings)
    assert "no standard deviation and no interval over seeds is given for fewer than 3 seeds" in out
    assert "differences.csv also has 2 between other methods" in out
    plans = pandas.read_csv(folder / "curves.csv")
    (layers,) = plans[(plans["label"] == "gradient without repair") & (plans["keep"] == 8)]["survivors_by_layer"]
    assert "/".join(part.partition("=")[2] for part in layers.split(";")) in out


def test_prune_and_analyze_show_survivors_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("prune", "demo/entailment", "--task", "demo/entailment", "--limit", 40, "--method", "random", "--keep", 8, "--no-bench")
    code, out, err = run(capsys, *words, "--no-repair", "--out", tmp_path / "run")
    assert code == 0, err
    (row,) = result(capsys, *words, "--no-repair", "--out", tmp_path / "run")["rows"]
    assert "/".join(map(str, row["survivors"]["by_block"].values())) in out and sum(row["survivors"]["by_block"].values()) == 8
    from headcount.app.console.steps import _format_survivors

    several = {"by_kind": {"encoder-self": 3, "cross": 2}, "by_block": {"enc.L0": 1, "enc.L1": 2, "cross.L0": 2}}
    assert _format_survivors(several) == "3 encoder-self, 2 cross, by layer enc 1/2 cross 2"


def test_wrong_requests_are_refused_before_any_work(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = (*ENTAILMENT, "--out", out)
    for code, wrong, message in (
        (2, ("--bench", "--batches", "0"), "--batches are numbers from 1 on"),
        (2, ("--bench", "--batches", "1,two"), "--batches are numbers from 1 on"),
        (2, ("--batches", "4"), "--batches goes with --bench"),
        (2, ("--seeds", "0"), "--seeds"),
        (2, ("--methods", "gradeint"), "Did you mean 'gradient'"),
        (2, ("--text", "text.txt"), "--text goes with --keep-models"),
        (2, ("--keep-models", "--definition", "voita"), "no definition 'voita'"),
        (2, ("--keep-models", "--text", "text.txt", "--embedded", "english"), "name one text"),
    ):
        assert message in refused(capsys, code, *words, *wrong)
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"schema_version": 1, "removed": ["L0H0"]}))
    hc.Plan.removing(["L0H0"]).write(plan, hc.HeadMap.of(tiny_model("bert")))
    assert "the plan is for a model" in refused(capsys, 1, *words, "--plan", plan)
    assert not list(out.rglob("*.artifact"))
