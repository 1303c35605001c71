"""Plans made elsewhere in `evaluate`, `prune` and `compare`, and new heads of pre-trained models: results, and what is refused before any work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import refused, result

import headcount as hc
from headcount.core.errors import DataError, PlanError
from headcount.data.open_task import open_task, read_classes
from headcount.pruning.methods.plan import PlanPruner
from headcount.pruning.spec import PruneSpec
from headcount.runs.store import Run

ENTAILMENT = ("demo/entailment", "--task", "demo/entailment", "--limit", 40)
TRAINING = ("--recover", "3steps", "--train-batch", 8)
LABELS = ("entailment", "neutral", "contradiction")


def write_plan(path: Path, *heads: str, **fields: Any) -> Path:
    path.write_text(json.dumps({"schema_version": 1, "removed": list(heads), **fields}))
    return path


# Evaluation with and without a plan.


def test_both_values_and_their_paired_difference(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plan = write_plan(tmp_path / "plan.json", *(f"L{layer}H{head}" for layer in (0, 1) for head in range(8)))
    json_output = result(capsys, "evaluate", *ENTAILMENT, "--plan", plan, "--out", tmp_path / "run")
    model = hc.load("demo/entailment")
    task = open_task("demo/entailment", model, limit=40)
    dense, pruned = hc.evaluate(model, task), hc.evaluate(model, task, plan=hc.Plan.read(plan))
    assert (json_output["dense"]["value"], json_output["pruned"]["value"]) == pytest.approx((dense.value, pruned.value))
    change = json_output["changes"]["metric"]
    assert change["difference"] == pytest.approx(json_output["pruned"]["value"] - json_output["dense"]["value"])
    assert change["low"] <= change["difference"] <= change["high"] and change["by"] == "Tango" and len(json_output["plan"]) == 16
    assert len(Run.open(tmp_path / "run").results("evaluation")) == 2
    alone = result(capsys, "evaluate", *ENTAILMENT)
    assert alone["dense"] == json_output["dense"] and "pruned" not in alone
    assert result(capsys, "evaluate", *ENTAILMENT, "--heads", ",".join(json_output["plan"]))["pruned"] == json_output["pruned"]


@pytest.mark.parametrize("command", ["evaluate", "prune", "compare"])
def test_wrong_plans_are_refused_before_any_work(command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = (command, *ENTAILMENT, *(() if command == "evaluate" else ("--out", tmp_path / "run")))
    for plan, message in (
        (tmp_path / "missing.json", "is no file"),
        (write_plan(tmp_path / "unknown.json", "L9H0"), "this model has no head L9H0"),
        (write_plan(tmp_path / "twice.json", "L0H0", "L0H0"), "removed twice"),
        (write_plan(tmp_path / "empty.json"), "removes no head"),
        (write_plan(tmp_path / "other.json", "L0H0", model={"model_type": "gpt2", "blocks": {"L0": 12}}), "model of type 'gpt2'"),
    ):
        assert message in refused(capsys, 1, *words, "--plan", plan)
    assert not (tmp_path / "run" / "artifacts").exists() or not any((tmp_path / "run" / "artifacts").rglob("*.json"))


def test_a_plan_leaves_no_room_for_another_choice(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plan = write_plan(tmp_path / "plan.json", "L0H0")
    words = ("prune", *ENTAILMENT, "--plan", plan, "--out", tmp_path / "run")
    assert "leave --method, --option and the size out" in refused(capsys, 2, *words, "--keep", 8)
    assert "leave --method, --option and the size out" in refused(capsys, 2, *words, "--method", "gradient")
    for flag, value in (("--floor", "1"), ("--protected", "L3H0"), ("--kinds", "encoder-self"), ("--unit", "even")):
        message = refused(capsys, 1, *words, flag, value)
        assert f"so that {flag} {value} has nothing to decide; leave one of them out" in message
    assert "leave one out" in refused(capsys, 2, "evaluate", *ENTAILMENT, "--plan", plan, "--heads", "L0H1")
    assert "no split" in refused(capsys, 2, "evaluate", *ENTAILMENT, "--split", "test")


def test_prune_carries_a_plan_out(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plan = write_plan(tmp_path / "plan.json", "L1H2", "L0H3")
    json_output = result(capsys, "prune", *ENTAILMENT, "--plan", plan, "--no-bench", "--out", tmp_path / "run")
    assert json_output["plan"] == ["L0H3", "L1H2"] and len(hc.HeadMap.of(hc.load(json_output["folder"]))) == 30
    (artifact,) = Run.open(tmp_path / "run").results("pruned").values()
    spec = PruneSpec.from_dict(artifact.content["spec"])
    assert spec.method == PlanPruner(removed=("L0H3", "L1H2")) and spec.label.startswith("plan of 2 heads")
    assert spec == PruneSpec.of(plan=hc.Plan.read(plan)), "Python and the command line make one request"


def test_compare_adds_a_plan_its_complement_and_random_heads_of_their_sizes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plan = write_plan(tmp_path / "plan.json", *(f"L3H{head}" for head in range(8)))
    words = ("--methods", "random", "--keep", "50%", "--seeds", 1, "--no-repair", "--plan", plan, "--out", tmp_path / "run")
    rows = result(capsys, "compare", *ENTAILMENT, *words)["rows"]
    sizes = {(row["method"].partition(" (")[0].partition(" without")[0], row["keep"]) for row in rows}
    assert sizes == {("random", 16), ("random", 24), ("random", 8), ("plan of 8 heads", 24), ("complement of a plan of 8 heads", 8)}


def test_a_plan_pruner_names_heads_that_exist() -> None:
    model = hc.load("demo/entailment")
    with pytest.raises(PlanError, match="a plan needs the heads that go"):
        hc.prune(model, [], "plan", keep=8, repair=False)
    with pytest.raises(PlanError, match="no head L7H0"):
        hc.prune(model, [], "plan(removed=L7H0)", repair=False)
    with pytest.raises(PlanError, match="is protected"):
        hc.prune(model, [], "plan(removed=L0H0)", protected=["L0H0"], repair=False)
    assert len(hc.prune(model, [], "plan(removed=L0H0;complement=true)", repair=False).plan.removed) == 31


# New heads.


def test_classes_come_from_the_data(tmp_path: Path) -> None:
    assert read_classes("demo/entailment") == LABELS
    table = tmp_path / "data.csv"
    table.write_text("text,label\n" + "".join(f"word {number},{number % 3 + 1}0\n" for number in range(9)))
    assert read_classes("classification", train=table) == ("10", "20", "30")
    named = tmp_path / "named.csv"
    named.write_text("text,label\na,spam\nb,ham\nc,spam\n")
    assert read_classes("classification", train=named) == ("ham", "spam")
    for text, message in (("a,0.5\nb,1.5\n", "decimal numbers"), ("a,x\nb,x\n", "hold 1 different labels")):
        named.write_text(f"text,label\n{text}")
        with pytest.raises(DataError, match=message):
            read_classes("classification", train=named)
    with pytest.raises(DataError, match="has no classes of texts"):
        read_classes("demo/text")


def test_a_pretrained_model_is_pruned_then_trained(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("demo/encoder", "--task", "demo/entailment", "--limit", 40, "--new-head", *TRAINING)
    choice = ("--methods", "random", "--keep", "50%", "--seeds", 2, "--out", tmp_path / "run")
    json_output = result(capsys, "compare", *words, *choice)
    assert [(row["keep"], row["seed"]) for row in json_output["rows"]] == [(16, 0), (16, 1), (32, 0), (32, 1)]
    assert json_output["dense"]["loss"] == pytest.approx(1.1, abs=0.15), "an untrained head knows nothing of three classes"
    assert result(capsys, "compare", *words, *choice) == json_output, "the head is drawn by the seed, so that the run goes on"
    opened = Run.open(tmp_path / "run").record().config["opened"]
    assert opened["new_head"] is True
    small = result(capsys, "prune", *words, "--method", "random", "--keep", 8, "--no-bench", "--out", tmp_path / "one")
    labels: Any = hc.load(small["folder"]).config
    assert tuple(labels.id2label.values()) == LABELS and small["rows"][0]["steps"] == 3


def test_wrong_new_heads_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = ("--keep", "50%", "--out", tmp_path / "run")
    encoder = ("prune", "demo/encoder", "--new-head", "--method", "random", *out)
    assert "stays untrained by random" in refused(capsys, 2, *encoder, "--task", "demo/entailment")
    assert "name it with --task" in refused(capsys, 2, *encoder, *TRAINING)
    assert "has no classes of texts" in refused(capsys, 1, *encoder, *TRAINING, "--task", "demo/text")
    assert "leave one of them out" in refused(capsys, 2, *encoder, *TRAINING, "--task", "demo/entailment", "--auto", "AutoModel")
    trained = ("prune", "demo/entailment", "--task", "demo/entailment", "--new-head", "--method", "random", *TRAINING, *out)
    assert "has a head for classes already" in refused(capsys, 2, *trained)
    study = ("study", "strategies", "demo/entailment", "--task", "demo/entailment", "--new-head", "--out", tmp_path / "run")
    assert "has a head for classes already" in refused(capsys, 2, *study)
