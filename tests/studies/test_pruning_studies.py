"""The studies of pruning: what they find where the truth is planted, that reruns take everything from the run, and that bad arguments are told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from command_line import refused, result, run
from toys import build, files, saved_classifier, shared, task

import headcount as hc
from headcount.app.cli.study import Request
from headcount.app.console.inputs import ModelAndTaskOptions
from headcount.app.jobs.study import ConsoleSources
from headcount.core.heads import Head
from headcount.data.share_above_chance import score_of_best_constant_answer, share_above_chance_left
from headcount.runs.artifacts import Artifact, ArtifactKey
from headcount.runs.store import Run
from headcount.studies._base import StudyContext
from headcount.studies._gated import evaluate_without, list_kept_counts, measure_paired_change
from headcount.studies._measure import compensation, dynamics, layers
from headcount.studies._tuning import load_as_classifier, relative_weight_changes, weights_by_head
from headcount.workflows.grid import average_evaluations


def silent(model: torch.nn.Module, chosen: Callable[[Head], bool]) -> None:
    """Takes the output of some heads away, so that they cannot matter."""
    from toys import zero

    for head in hc.HeadMap.of(model):
        if chosen(head):
            zero(model, head)


# What is left of a score.


def test_a_drop_is_paired_and_relative_to_the_own_score() -> None:
    live, toy = shared("encoder"), task("encoder", 40)
    complete = evaluate_without(None, "", live, toy, ())
    same = measure_paired_change(complete, complete, toy)
    assert same.loss.difference == 0 and same.score.p == 1
    removed_heads = evaluate_without(None, "", live, toy, hc.HeadMap.of(live))
    lost = measure_paired_change(complete, removed_heads, toy)
    assert lost.loss.difference == pytest.approx(removed_heads.loss - complete.loss)
    assert share_above_chance_left(complete, removed_heads, toy, score_of_best_constant_answer(live, toy)).remaining is None, (
        "made-up labels cannot be known"
    )
    mean = average_evaluations([complete, removed_heads], toy)
    assert mean.loss == pytest.approx((complete.loss + removed_heads.loss) / 2)
    plain = hc.Task("plain", toy.calibration, toy.selection, toy.report, toy.collate)
    bare = measure_paired_change(
        evaluate_without(None, "", live, plain, ()), evaluate_without(None, "", live, plain, hc.HeadMap.of(live)), plain
    )
    assert bare.metric is None and bare.score is bare.loss and score_of_best_constant_answer(live, plain) is None


def test_levels_are_whole_units() -> None:
    heads = hc.HeadMap.of(shared("decoder"))
    size = len(heads.units()[0])
    assert size > 1 and all(keep % size == 0 for keep in list_kept_counts((), heads, [share / 10 for share in range(1, 10)]))
    assert list_kept_counts(("50%", 2), heads, ()) == list_kept_counts((0.5, "2"), heads, ()) == [len(heads) // 2, 2]


# Layers.


def test_layers_that_matter_are_found() -> None:
    live: Any = hc.load(saved(num_hidden_layers=4)).double().eval()
    silent(live, lambda head: head.layer < 3)
    complete, rows, pairs = layers.evaluate_layer_removals(live, task("encoder", 40), hc.HeadMap.of(live))
    rise = {row.group.name: row.drop.loss.difference for row in rows}
    assert rise["bottom (L0)"] == rise["middle (L1+L2)"] == rise["L0+L1"] == rise["L0+L2"] == 0
    assert abs(rise["top (L3)"]) > 1e-3 and rise["top (L3)"] == rise["L3"] == pytest.approx(rise["L2+L3"]) == pytest.approx(rise["L1+L3"])
    assert {row.group.name: row.q for row in rows}["bottom (L0)"] == 1
    assert complete.n_examples == 40
    excess = next(row for row in pairs if row.quantity == "excess")
    assert excess.consecutive == pytest.approx(0, abs=1e-9) and excess.spread == pytest.approx(0, abs=1e-9)


_places: list[Path] = []


@pytest.fixture(autouse=True)
def _place(tmp_path: Path) -> None:
    _places[:] = [tmp_path]


def saved(**options: Any) -> Path:
    return saved_classifier(_places[0] / "made", names={0: "a", 1: "b", 2: "c"}, **options)


def test_groups_of_every_stack() -> None:
    actual = layers.group_layers(hc.HeadMap.of(hc.load("demo/translator")))
    thirds = [group for group in actual if group.kind == "third"]
    assert {group.stack for group in thirds} == {"enc", "dec", "cross"} and len(thirds) == 9
    assert [group.layers for group in actual if (group.kind, group.stack) == ("spread", "cross")] == [(0, 2), (1, 3)]
    assert not [group for group in layers.group_layers(hc.HeadMap.of(shared("encoder"))) if group.kind != "layer"], (
        "two layers have no thirds"
    )


def test_layers_on_the_command_line(capsys: pytest.CaptureFixture[str], model: Path, data: Path, tmp_path: Path) -> None:
    words = ("study", "layers", model, "--train", data, "--limit", 16, "--out", tmp_path / "run")
    first = result(capsys, *words)
    before = files(tmp_path / "run")
    assert first == result(capsys, *words) and files(tmp_path / "run") == before
    table = pandas.read_csv(tmp_path / "run" / "study-layers.csv")
    assert list(table["name"]) == ["L0", "L1"] and list(table["loss difference"]) == [row["loss difference"] for row in first["rows"]]
    mean = result(capsys, *words, "--how", "mean")
    assert mean["rows"][0]["loss"] != first["rows"][0]["loss"]
    code, out, err = run(capsys, *words)
    assert code == 0 and "layers without heads" in out, err


# Curves of several tasks.


def test_of_no_score_no_share_is_left(capsys: pytest.CaptureFixture[str], data: Path, tmp_path: Path) -> None:
    """A model that gives one answer had 100 % of its accuracy at every size; a score of 0 was divided by."""
    model = saved_classifier(tmp_path / "model")
    live: Any = hc.load(model)
    live.classifier.bias.data[1] += 100
    live.save_pretrained(model)
    grid = ("--methods", "gradient", "--keep", "50%", "--seeds", 1, "--limit", 12)
    words = ("study", "pruning-curve", model, "--train", data, *grid, "--other-tasks", "classification(metric=matthews)")
    study_result = result(capsys, *words, "--out", tmp_path / "run")
    assert len({row["task"] for row in study_result["rows"]}) == 2 and any(row["dense"] == 0 for row in study_result["rows"])
    assert all(row["share"]["remaining"] is None and "better than chance" in row["share"]["reason"] for row in study_result["rows"])
    table = pandas.read_csv(tmp_path / "run" / "study-pruning-curve.csv")
    assert table[[name for name in table if name.startswith("share left")]].isna().all(axis=None)
    code, out, err = run(capsys, *words, "--out", tmp_path / "run")
    assert code == 0 and out.count("No share of the dense model's score is defined for classification") == 2, err


# Dynamics.


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("training")
    for number, step in enumerate((20, 100, 3)):
        saved_classifier(folder / f"checkpoint-{step}", seed=number)
        (folder / f"checkpoint-{step}" / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return folder


def test_dynamics_orders_checkpoints(capsys: pytest.CaptureFixture[str], checkpoints: Path, data: Path, tmp_path: Path) -> None:
    words = ("--train", data, "--limit", 12, "--keep", "50%,1", "--out", tmp_path / "run")
    study_result = result(capsys, "study", "dynamics", checkpoints, *words)
    assert [checkpoint["step"] for checkpoint in study_result["checkpoints"]] == [3, 20, 100]
    assert [(row["step"], row["keep"]) for row in study_result["rows"]] == [(step, keep) for step in (3, 20, 100) for keep in (6, 1)]
    for row in study_result["rows"]:
        complete = next(checkpoint for checkpoint in study_result["checkpoints"] if checkpoint["step"] == row["step"])
        assert (
            row["remaining"] is None
            and complete["removable"] is None
            and complete["certified"] is None
            and "better than chance" in complete["reason"]
        ), "nothing was learnt"
        assert row["removed"] == pytest.approx(1 - row["keep"] / 12)
    before = files(tmp_path / "run")
    named = [checkpoints / f"checkpoint-{step}" for step in (100, 3, 20)]
    assert result(capsys, "study", "dynamics", *named, *words)["rows"] == study_result["rows"] and files(tmp_path / "run") == before
    code, out, err = run(capsys, "study", "dynamics", checkpoints, *words)
    assert (
        code == 0
        and "checkpoint-3 " in out
        and "heads that go for 10% (certified)" in out
        and "observed to go for 10% (without a bound)" in out
    ), err
    assert "checkpoint-3: no share is defined: accuracy" in out and "%)" not in out


def test_checkpoints_of_one_name_are_told_apart(capsys: pytest.CaptureFixture[str], data: Path, tmp_path: Path) -> None:
    named = [saved_classifier(tmp_path / f"ep{number}" / "model", seed=number) for number in (1, 2)]
    words = ("study", "dynamics", *named, "--train", data, "--limit", 12, "--keep", "50%", "--by", "magnitude", "--out", tmp_path / "run")
    study_result = result(capsys, *words)
    assert [row["checkpoint"] for row in study_result["rows"]] == ["ep1/model", "ep2/model"]
    assert {"ep1/model: dense", "ep2/model: dense"} <= {
        artifact.key.name for artifact in Run.open(tmp_path / "run").results("evaluation").values()
    }
    code, out, err = run(capsys, *words)
    lines = [line for line in out.splitlines() if "/model " in line]
    assert code == 0 and len(lines) == 2, err
    assert all(f"{checkpoint['value']:.4g}" in line for checkpoint, line in zip(study_result["checkpoints"], lines, strict=True))


def test_names_of_checkpoints() -> None:
    assert dynamics.shorten_to_distinct_paths(["a/x", "b/y"]) == ["x", "y"]
    assert dynamics.shorten_to_distinct_paths(["a/x", "b/x/", "./c/y"]) == ["a/x", "b/x", "c/y"]
    assert dynamics.shorten_to_distinct_paths(["1/a/x", "2/a/x"]) == ["1/a/x", "2/a/x"]
    with pytest.raises(hc.HeadcountError, match="a/x is named twice"):
        dynamics.shorten_to_distinct_paths(["a/x", "b/x", "./a/x"])


def test_steps_of_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "epoch-7").mkdir()
    assert dynamics.training_step_of_checkpoint(tmp_path / "epoch-7") == 7 and dynamics.training_step_of_checkpoint(tmp_path) is None
    (tmp_path / "epoch-7" / "trainer_state.json").write_text("{}")
    with pytest.raises(hc.HeadcountError, match="does not tell the step"):
        dynamics.training_step_of_checkpoint(tmp_path / "epoch-7")


# Compensation.


def test_slices_make_up_the_projections() -> None:
    for kind in ("encoder", "decoder", "t5"):
        live = shared(kind)
        heads, actual = hc.HeadMap.of(live), weights_by_head(live, hc.HeadMap.of(live))
        block = heads.blocks[0]
        weight = live.get_submodule(block.q.path).weight
        assert torch.equal(torch.cat([actual[head]["q"] for head in block.heads]), weight.detach().double())
        weight = live.get_submodule(block.o.path).weight
        assert torch.equal(torch.cat([actual[head]["o"] for head in block.heads], 1), weight.detach().double())
    one, two = block_of("decoder").groups()[0][:2]
    grouped = weights_by_head(shared("decoder"), hc.HeadMap.of(shared("decoder")))
    assert torch.equal(grouped[one]["k"], grouped[two]["k"]) and not torch.equal(grouped[one]["q"], grouped[two]["q"])


def block_of(kind: str) -> Any:
    return hc.HeadMap.of(shared(kind)).blocks[0]


def test_a_planted_change_is_measured() -> None:
    live = build("encoder")
    before = weights_by_head(live, hc.HeadMap.of(live))
    with torch.no_grad():
        live.get_submodule(block_of("encoder").v.path).weight.mul_(1.5)
    actual = relative_weight_changes(before, weights_by_head(live, hc.HeadMap.of(live)))
    for head, parts in actual.items():
        assert parts == pytest.approx({"q": 0, "k": 0, "v": 0.5 if head.layer == 0 else 0, "o": 0})


def test_uneven_compensation_is_found() -> None:
    heads = [f"L{layer}H{head}" for layer in range(4) for head in range(8)]
    noise = np.random.default_rng(0).normal(1, 0.01, (32, 5))
    moved = noise + np.array([0.5 * (number < 8) for number in range(32)])[:, None] * np.array([0, 0, 0, 1, 0])
    artifacts = [
        Artifact(ArtifactKey("tuned", name, {}), {"heads": heads, "loss": 1.0, "metric": "", "value": None}, {"changes": values})
        for name, values in (("a", moved), ("b", noise))
    ]
    changes = compensation.compare_changes_after_pruning_with_dense([compensation.TrainingPair(*artifacts, hc.Plan.removing([]))])
    assert {row.part: row.p < 0.01 for row in changes.evenness} == {"q": False, "k": False, "v": False, "o": True, "importance": False}
    of_layer = {row.layer: row for row in changes.rows if row.part == "o"}
    assert of_layer["L0"].difference == pytest.approx(0.5) and of_layer["L1"].difference == 0 and of_layer["all"].heads == 32
    first = changes.heads[0]
    assert len(changes.heads) == 32 and float(first["o pruned"]) - float(first["o dense"]) == pytest.approx(0.5)


def test_without_training_nothing_compensates(capsys: pytest.CaptureFixture[str], model: Path, data: Path, tmp_path: Path) -> None:
    words = (
        "study",
        "compensation",
        model,
        "--train",
        data,
        "--method",
        "magnitude",
        "--keep",
        4,
        "--train-batch",
        8,
        "--seeds",
        2,
        "--steps",
        6,
        "--limit",
        12,
    )
    still = result(capsys, *words, "--rate", 0, "--out", tmp_path / "still")
    assert all(row["pruned"] == row["dense"] == 0 for row in still["rows"] if row["part"] != "importance")
    assert all(abs(row["difference"]) < 1e-9 and row["q"] in (1, None) for row in still["rows"]), "importance did not move either"
    study_result = result(capsys, *words, "--rate", 0.001, "--out", tmp_path / "run")
    assert all(row["pruned"] > 0 and row["dense"] > 0 for row in study_result["rows"] if row["part"] == "q")
    before = files(tmp_path / "run")
    assert result(capsys, *words, "--rate", 0.001, "--out", tmp_path / "run") == study_result and files(tmp_path / "run") == before


# Languages.


def test_languages_on_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = (
        "study",
        "languages",
        "demo/entailment",
        "--tasks",
        "demo/entailment,demo/entailment-tavi",
        "--against",
        "demo/entailment-english",
    )
    words = (*words, "--task-option", "size=24", "--keep", "25%", "--method", "magnitude", "--out", tmp_path / "run")
    study_result = result(capsys, *words)
    pairs = {(row["model"], row["language"]) for row in study_result["rows"]}
    assert pairs == {
        ("demo/entailment", "demo/entailment"),
        ("demo/entailment", "demo/entailment-tavi"),
        ("demo/entailment-english", "demo/entailment"),
    }
    names = ["bottom (L0)", "middle (L1+L2)", "top (L3)", "L0", "L1", "L2", "L3", "24 of 32 heads by magnitude without repair"]
    assert [row["without"] for row in study_result["against"]] == names and len(study_result["between languages"]) == 8
    by = {(row["model"], row["language"], row["without"]): row for row in study_result["rows"]}
    assert all(row["chance"] == pytest.approx(row["chance"]) and row["lost"] is not None for row in by.values()), (
        "24 of the embedded are enough"
    )
    for row in study_result["against"]:
        pair = [by[name, "demo/entailment", row["without"]]["lost"] for name in ("demo/entailment", "demo/entailment-english")]
        assert row["difference"] == pytest.approx(pair[0] - pair[1])
    before = files(tmp_path / "run")
    assert result(capsys, *words) == study_result and files(tmp_path / "run") == before
    code, out, err = run(capsys, *words)
    assert code == 0 and "Share of its own score" in out, err


def test_training_methods_of_languages_follow_the_recipe(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("study", "languages", "demo/entailment", "--tasks", "demo/entailment,demo/entailment-tavi", "--task-option", "size=16")
    result(capsys, *words, "--keep", "50%", "--method", "magnitude", "--rate", 0.01, "--train-batch", 8, "--out", tmp_path / "run")
    recipes = [artifact.content["spec"]["recipe"] for artifact in Run.open(tmp_path / "run").results("pruned").values()]
    assert [(recipe["rate"], recipe["train_batch"], recipe["epochs"]) for recipe in recipes] == [(0.01, 8, None)]


def test_a_model_with_a_new_head_is_loaded_as_asked(tmp_path: Path) -> None:
    folder = saved_classifier(tmp_path / "bert", auto="AutoModel")
    torch.save(hc.load(folder).state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    context = context_of(ModelAndTaskOptions(str(folder), dtype="float64", allow_pickle=True))
    model: Any = load_as_classifier(context, str(folder), ("a", "b", "c")).model
    assert {weight.dtype for weight in model.parameters()} == {torch.float64} and model.config.id2label[2] == "c"
    with pytest.raises(hc.HeadcountError, match="is a pickle"):
        load_as_classifier(context_of(ModelAndTaskOptions(str(folder), dtype="float64")), str(folder), ("a", "b", "c"))


def context_of(data: ModelAndTaskOptions) -> StudyContext:
    """The context of a command line with these options."""
    session: Any = SimpleNamespace(verbose=False, begin_work=lambda _: None, write_note=lambda _: None, write_note_once=lambda _: None)
    return StudyContext(ConsoleSources(session, data, Request(common=data)), model=data.model)


def test_zero_shot_transfer_trains_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("study", "languages", "demo/encoder", "--tasks", "demo/entailment,demo/entailment-tavi", "--fine-tune", 1)
    words = (*words, "--task-option", "size=16", "--train-batch", 8, "--keep", "50%", "--method", "magnitude", "--out", tmp_path / "run")
    study_result = result(capsys, *words)
    before = files(tmp_path / "run")
    assert result(capsys, *words) == study_result and files(tmp_path / "run") == before
    assert {row["language"] for row in study_result["rows"]} == {"demo/entailment", "demo/entailment-tavi"}
    assert len([path for path in before if "tuned" in Path(path).parts]) == 1


# Bad arguments.


def test_bad_arguments_are_told_in_a_line(
    capsys: pytest.CaptureFixture[str], model: Path, data: Path, checkpoints: Path, tmp_path: Path
) -> None:
    assert run(capsys, "score", model, "--by", "random", "--out", tmp_path / "scores")[0] == 0
    (tmp_path / "empty").mkdir()
    train = ("--train", data, "--out", tmp_path / "run")
    entail = ("role-pruning", "demo/entailment", "--task", "demo/entailment", "--task-option", "size=16", "--out", tmp_path / "run")
    spoken = ("languages", "demo/entailment", "--out", tmp_path / "run", "--tasks")
    both = "demo/entailment,demo/entailment-tavi"
    for code, words, message in (
        (1, ("survivors", tmp_path / "scores"), "holds no comparison; make one with: headcount compare"),
        (1, ("survivors", tmp_path / "empty"), "holds no run"),
        (2, (*entail, "--role", "ofset"), "Did you mean 'offset'"),
        (2, (*entail, "--role", "offset:-99"), "no distance of offset '-99'"),
        (1, (*entail, "--role", "syntax"), "no head has the role syntax"),
        (2, entail, "name the roles whose heads are pruned"),
        (2, (*entail, "--groups", "near"), "groups must be NAME=VALUE"),
        (2, (*entail, "--role", "local", "--keep", "40"), "a number of heads from 1 to 32"),
        (2, (*entail, "--role", "local", "--keep", "many"), "keep must be a number of heads from 1 to 32, or a share"),
        (1, ("dynamics", tmp_path / "empty", *train), "holds 0 checkpoints"),
        (1, ("dynamics", model, *train), "is one model; name a folder of checkpoints"),
        (1, ("dynamics", tmp_path / "nowhere", *train), "is no folder"),
        (1, ("dynamics", model, "demo/entailment", *train), "has other heads than"),
        (2, ("dynamics", checkpoints, *train, "--keep", "13"), "a number of heads from 1 to 12"),
        (2, ("dynamics", checkpoints, *train, "--by", "gradeint"), "Did you mean 'gradient'"),
        (2, ("compensation", model, *train), "--keep"),
        (2, ("compensation", model, *train, "--keep", "0"), "a number of heads from 1 to 12"),
        (2, ("compensation", model, *train, "--keep", "1"), "keep 2 or more"),
        (2, ("compensation", model, *train, "--keep", "4", "--method", "gradeint"), "gradeint"),
        (2, ("layers", model, "--train", data, "--how", "zeros"), "Did you mean 'zero'"),
        (1, ("layers", "demo/encoder", "--task", "demo/entailment"), "needs a model with another head"),
        (1, (*spoken, "demo/entailment,demo/text-tavi", "--task-option", "size=16"), "needs a model with another head"),
        (2, (*spoken, both, "--task", "demo/entailment-tavi"), "leave task out"),
        (2, (*spoken, both, "--shared", "demo/entailment"), "goes with against"),
        (2, (*spoken, both, "--against", "demo/entailment-english", "--shared", "demo/text"), "shared must name some of tasks"),
        (2, (*spoken, both, "--keep", "33"), "a number of heads from 1 to 32"),
    ):
        assert message in refused(capsys, code, "study", *words), words
    assert not (tmp_path / "run").exists()


def test_help_of_every_study(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "ls", "studies")
    assert code == 0
    for name in ("survivors", "role-pruning", "dynamics", "compensation", "layers", "languages"):
        assert name in out and run(capsys, "study", name, "--help")[0] == 0
