"""Pruning as a user meets it: `prune`, `compare` and `bench`, budgets, runs that go on, and what is refused before any work."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toys import configured, saved_classifier, saved_table, shared, task

import headcount as hc
from headcount.app.console.words import prune_command
from headcount.app.main import main
from headcount.core.certificate import certify_task
from headcount.core.certificate_file import read_certificate
from headcount.core.errors import DataError, PlanError
from headcount.core.registry import PRUNERS
from headcount.data.evaluate import evaluate
from headcount.models.provenance import model_record, weight_hash
from headcount.models.tiny.build import tiny_model
from headcount.pruning.base import Pruner
from headcount.pruning.methods import fisher, rank, surgeon
from headcount.pruning.prune import prune, prune_by_spec
from headcount.pruning.recipe import Recipe
from headcount.pruning.repair.means import fold_means
from headcount.pruning.spec import PruneSpec
from headcount.runs.describe import describe_run
from headcount.runs.results import unpack_pruned_evaluation
from headcount.runs.store import Run
from headcount.surgery.cost import cost
from headcount.workflows import prune as pruning
from headcount.workflows.prune import Pruning, build_grid, prune_all


def result(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    assert main([*map(str, words), "--json", "-q"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def model_and_data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pruning")
    return saved_classifier(folder / "model"), saved_table(folder / "data.csv", 400)


@pytest.mark.usefixtures("small_bench")
def test_a_model_is_pruned_saved_and_loads_again(
    model_and_data: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, data = model_and_data
    words = ["prune", model, "--train", data, "--keep", "50%", "--method", "gradient", "--no-repair", "--out", tmp_path / "run"]
    json_output = result(capsys, *words, "--bench")
    small = hc.load(json_output["folder"])
    assert len(hc.HeadMap.of(small)) == 6 and len(json_output["plan"]) == 6
    assert {row["name"] for row in json_output["bench"]} == {"dense", "masked", "removed"}
    (row,) = json_output["rows"]
    card = (Path(json_output["folder"]) / "README.md").read_text(encoding="utf-8")
    assert (
        f"{row['value']:.4g} on " in card and f"(95 %, one-sided, n = {row['n_examples']})" in card and "Batch 8, length 32: dense " in card
    )
    assert (Path(json_output["folder"]) / "tokenizer.json").read_bytes() == (model / "tokenizer.json").read_bytes()
    assert (
        row["keep"] == 6
        and row["quality"]["bound"] >= row["quality"]["loss"]
        and row["verdict"] is None
        and row["parameters"] == sum(p.numel() for p in small.parameters())
    )
    plan = hc.Plan.read(next((tmp_path / "run" / "models").glob("*.plan.json")))
    assert [str(head) for head in plan.removed] == json_output["plan"]
    again = result(capsys, *words, "--bench")
    assert again["rows"] == json_output["rows"] and again["bench"] == json_output["bench"], "nothing is computed or measured twice"
    assert result(capsys, *words, "--no-bench")["bench"] == []
    assert result(capsys, "bench", tmp_path / "run", "--batches", "1", "--lengths", "8", "--rounds", "1")["timings"]


def test_a_margin_certifies_the_size_that_is_named_or_finds_the_smallest(
    model_and_data: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, data = model_and_data
    words = ["prune", model, "--train", data, "--method", "gradient", "--no-repair", "--no-bench", "--out", tmp_path / "run"]
    named = result(capsys, *words, "--keep", "50%", "--margin", "60pt")
    certificate = read_certificate(Path(named["folder"]) / "certificate.json")
    assert (certificate.verdict, certificate.margin, certificate.sizes) == ("certified", "60pt", ()) and named["rows"][0][
        "verdict"
    ] == "certified"
    assert certificate.small == weight_hash(hc.load(named["folder"])) and certificate.opening["against"] == str(model)
    assert main([*map(str, words), "--keep", "3"]) == 0
    assert "this takes about " in capsys.readouterr().err
    json_output = result(capsys, *words, "--margin", "60pt")
    assert [size["n_kept"] for size in json_output["sizes"]] == [11, 10, 8, 7, 6, 5, 4, 2, 1] and json_output["rows"][0]["keep"] == 1
    remaining = read_certificate(Path(json_output["folder"]) / "certificate.json")
    assert [size.n_kept for size in remaining.sizes] == [11, 10, 8, 7, 6, 5, 4, 2, 1]
    assert "Sizes were tested from large to small" in (Path(json_output["folder"]) / "README.md").read_text(encoding="utf-8")
    assert main([*map(str, words), "--margin", "0.01pt", "--json", "-q"]) == 1
    failed = json.loads(capsys.readouterr().out)
    assert failed["folder"] is None and [size["n_kept"] for size in failed["sizes"]] == [11]
    assert main([*map(str, words), "--margin", "0.01pt"]) == 1
    captured = capsys.readouterr()
    assert "No size certified against a margin of 0.01pt: with 11 heads at most " in captured.out
    assert "can be certified if one prediction in fifty changes and the model is no worse" in captured.err
    assert main([*map(str, words), "-q"]) == 2 and "--margin for the smallest certified model" in capsys.readouterr().err
    assert main([*map(str, words), "--margin", "1", "-q"]) == 2 and "has no unit" in capsys.readouterr().err


def test_attention_of_a_kind_is_pruned_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "compare",
        "demo/translator",
        "--task",
        "demo/translation",
        "--limit",
        "8",
        "--kinds",
        "cross",
        "--keep",
        "25%",
        "--seeds",
        "1",
    ]
    json_output = result(capsys, *words, "--methods", "random", "--no-repair", "--out", tmp_path)
    (row,) = json_output["rows"]
    assert row["keep"] == 8 and row["method"] == "random of cross without repair"
    assert row["survivors"]["by_kind"] == {"encoder-self": 32, "decoder-self": 32, "cross": 8}
    assert json_output["methods"][0]["keep"] == 8 and json_output["methods"][0]["survivors_cross"] == 8
    (artifact,) = Run.open(tmp_path).results("pruned").values()
    assert len(artifact.content["removed"]) == 24 and all(name.startswith("cross.") for name in artifact.content["removed"])
    assert main([*words, "--kinds", "crosss", "--out", str(tmp_path / "b"), "-q"]) == 2
    assert "Did you mean 'cross'" in capsys.readouterr().err


def test_the_control_has_the_plan_and_none_of_the_weights(
    model_and_data: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, data = model_and_data
    words = ["prune", model, "--train", data, "--keep", "6", "--method", "gradient", "--no-bench", "--out", tmp_path]
    plain, control = result(capsys, *words, "--no-repair"), result(capsys, *words, "--scratch", "1", "--train-batch", "16")
    assert control["plan"] == plain["plan"] and control["rows"][0]["method"].startswith("gradient, from scratch 1 at 0.0005, only ")
    before, after = (hc.load(made["folder"]).state_dict() for made in (plain, control))
    assert all(value.shape == after[name].shape for name, value in before.items())
    assert all(not torch.equal(value, after[name]) for name, value in before.items() if value.ndim == 2)
    for wrong, code, messages in (
        (["--scratch", "0"], 2, "epochs above 0"),
        (["--scratch", "1", "--recover", "1"], 1, "nothing to repair or to recover"),
    ):
        assert main([*map(str, words), *wrong, "-q"]) == code
        assert messages in capsys.readouterr().err


def test_protected_heads_stay_and_are_named(model_and_data: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, data = model_and_data
    words = ["--train", data, "--keep", "4", "--no-repair", "--protected", "L1H0,L0H2"]
    json_output = result(
        capsys, "prune", model, *words, "--method", "random", "--method-seed", "2", "--epochs", "2", "--no-bench", "--out", tmp_path / "a"
    )
    assert not {"L0H2", "L1H0"} & set(json_output["plan"]) and json_output["rows"][0]["method"] == "random sparing L0H2+L1H0 without repair"
    (artifact,) = Run.open(tmp_path / "a").results("pruned").values()
    assert (
        artifact.content["spec"]["recipe"]["epochs"] == 2 and json_output["rows"][0]["seed"] == 2 and json_output["rows"][0]["removed"] == 8
    )
    table = result(capsys, "compare", model, *words, "--methods", "random", "--seeds", "1", "--seed", "3", "--out", tmp_path / "b")["rows"]
    assert [(row["method"], row["seed"]) for row in table] == [("random sparing L0H2+L1H0 without repair", 3)]


def test_a_comparison_goes_on_and_random_is_always_there(
    model_and_data: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = model_and_data
    words = ["compare", model, "--train", data, "--methods", "gradient,magnitude", "--keep", "4,8", "--seeds", "2", "--no-repair"]
    json_output = result(capsys, *words, "--out", tmp_path / "one")
    assert {row["method"] for row in json_output["rows"]} == {f"{name} without repair" for name in ("gradient", "magnitude", "random")}
    assert len(json_output["rows"]) == 2 * (1 + 1 + 2) and {row["keep"] for row in json_output["chosen_by_size"]} == {4, 8}
    assert json_output["margin"] is None and json_output["chosen"] in json_output["chosen_by_size"]
    made, real = [], pruning.prune_by_spec

    def counted(*args: Any, **options: Any) -> Any:
        made.append(args)
        if len(made) == 4:
            raise KeyboardInterrupt
        return real(*args, **options)

    monkeypatch.setattr(pruning, "prune_by_spec", counted)
    assert main([*map(str, words), "--out", str(tmp_path / "two"), "-q"]) == 130
    capsys.readouterr()
    again = result(capsys, *words, "--out", tmp_path / "two")
    assert len(made) == 4 + 5, "three artifacts were finished, five are left"
    assert again["rows"] == json_output["rows"]
    assert (tmp_path / "one" / "curves.csv").read_bytes() == (tmp_path / "two" / "curves.csv").read_bytes()


def test_budgets_other_than_heads_are_kept() -> None:
    model, data = shared("decoder"), task("decoder", 64)
    complete = cost(model)
    fewer = prune(model, data, "rank", hc.Budget(parameters=int(complete.parameters * 0.95)), repair=False)
    assert sum(p.numel() for p in fewer.model.parameters()) <= complete.parameters * 0.95 and fewer.plan.removed
    cached = prune(model, data, "rank", hc.Budget(kv_bytes=complete.kv_bytes_per_token // 2), repair=False)
    assert 0 < cost(cached.model).kv_bytes_per_token <= complete.kv_bytes_per_token // 2
    with pytest.raises(PlanError, match="cannot be met"):
        prune(model, data, "rank", hc.Budget(parameters=10), repair=False)
    with pytest.raises(PlanError, match="no budget of kv_bytes"):
        prune(shared("encoder"), task("encoder", 64), "rank", hc.Budget(kv_bytes=10), repair=False)
    with pytest.raises(PlanError, match="trains for a number of heads"):
        prune(model, data, "dsp", hc.Budget(kv_bytes=10))


def test_a_budget_of_latency_gives_a_faster_model_or_says_that_it_cannot() -> None:
    model, data = shared("encoder"), task("encoder", 64)
    quick = hc.Budget(latency=10.0, bench_batch=1, bench_length=8)
    assert not prune(model, data, "magnitude" if "magnitude" in PRUNERS.names() else "rank", quick, repair=False).plan.removed
    with pytest.raises(PlanError, match="latency"):
        prune(model, data, "rank", hc.Budget(latency=1e-9, bench_batch=1, bench_length=8), repair=False)


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--keep", "0"], 2, "from 1 to 12"),
        (["--keep", "13"], 2, "from 1 to 12"),
        (["--keep", "many"], 2, "a number of heads from 1 to 12, or a share"),
        (["--keep", "150%"], 2, "a share up to 100%"),
        ([], 2, "exactly one of --keep"),
        (["--keep", "4", "--parameters", "5"], 2, "exactly one of --keep"),
        (["--keep", "4", "--method", "surgery"], 2, "Did you mean 'surgeon'"),
        (["--keep", "4", "--method", "dsp:loose"], 2, "variant of dsp"),
        (["--keep", "4", "--option", "bye=gradient"], 2, "option of"),
        (["--keep", "4", "--method", "rank", "--option", "step=much"], 2, "must be a float"),
        (["--keep", "4", "--method", "rank(by=gradeint)"], 2, "Did you mean 'gradient'"),
        (["--keep", "4", "--method", "rank(by"], 2, "parentheses"),
        (["--keep", "4", "--floor", "3"], 1, "floor"),
        (["--keep", "4", "--recover", "-1"], 2, "above 0"),
        (["--keep", "4", "--protected", "L9H9"], 1, "protected head L9H9"),
        (["--keep", "4", "--protected", "first"], 1, "first"),
        (["--keep", "4", "--ablation", "uniform"], 1, "ablation is zero or mean here, and uniform a gate"),
        (["--keep", "4", "--ablation", "median"], 1, "ablation is zero or mean, got 'median'"),
        (["--keep", "4", "--ablation", "mean", "--repair"], 1, "leave ablation or repair out"),
        (["--keep", "4", "--ablation", "mean", "--method", "dsp"], 1, "dsp trains for heads that give nothing"),
        (["--keep", "4", "--ablation", "mean", "--scratch", "1"], 1, "leave ablation out"),
    ],
)
def test_wrong_wishes_are_told_before_any_work(
    model_and_data: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, told: str
) -> None:
    model, data = model_and_data
    assert main(["prune", str(model), "--train", str(data), "--out", str(tmp_path / "run"), "-q", *words]) == code
    assert told in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_methods_are_read_with_their_options() -> None:
    assert Pruner.parse("gradient") == Pruner.parse("rank") == Pruner.parse("rank(limit=512)") == rank.Rank(by="gradient")
    assert Pruner.parse("ablation:mean") == rank.Rank(by="ablation:mean")
    assert Pruner.parse("rank(by=fisher; again=true)") == Pruner.parse("rank(by=fisher;again=yes)") == rank.Rank(by="fisher", again=True)
    specs = build_grid(["surgeon", "random"], [2, 4], 3, PruneSpec.of("random", 1))
    sizes = [(str(spec.method), spec.limits.heads(12), spec.seed) for spec in specs]
    assert sizes == [("surgeon", 2, 0), ("surgeon", 4, 0)] + [("random", keep, seed) for keep in (2, 4) for seed in range(3)]


def test_an_importance_stands_for_ranking_by_it_in_python_too() -> None:
    model, data = shared("encoder"), task("encoder", 32)
    named = [prune(model, data, name, 6, repair=False) for name in ("magnitude", "rank(by=magnitude)")]
    assert named[0].plan == named[1].plan == prune(model, data, configured("rank", by="magnitude"), 6, repair=False).plan


def test_changes_are_those_of_pairs(tmp_path: Path) -> None:
    model, data = shared("encoder"), task("encoder", 200)
    with Run.lead(tmp_path / "run") as run:
        run.stage_records(describe_run(model_record(model, "toy"), command="", seed=0), hc.HeadMap.of(model))
        work = Pruning(run, model, data)
        dense, artifacts, failed = prune_all(work, [PruneSpec.of("random", 6, repair=False)])
        table = work.compare_all_with_dense(dense, artifacts)
    assert not failed
    plan = hc.Plan.removing(artifacts[0].content["removed"])
    with hc.mask(model, plan.removed):
        masked = evaluate(model, data)
    np.testing.assert_allclose(artifacts[0].arrays["losses"], masked.losses, rtol=1e-6, atol=1e-6)
    (row,) = table
    small = unpack_pruned_evaluation(artifacts[0])
    assert data.metric is not None and row.certificate == certify_task(dense, small, data.metric.total)
    assert small.loss - dense.loss == pytest.approx(float(np.mean(masked.losses - dense.losses)), abs=1e-6)
    with hc.mask(model, plan.removed):
        selection = evaluate(model, data, split="selection")
    assert row.selection is not None and row.selection["value"] == selection.value and row.selection["data"] == selection.data
    np.testing.assert_allclose(artifacts[0].arrays["selection losses"], selection.losses, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(artifacts[0].arrays["selection parts"], selection.parts)


@pytest.mark.parametrize(("method", "redone"), [("surgeon", True), ("fisher", False), ("random", True), ("gates", True), ("dsp", False)])
def test_the_model_of_a_finished_artifact_is_the_one_it_was(
    method: str, redone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was chosen is carried out again without choosing where choosing changed no weights."""
    model, data = shared("encoder"), task("encoder", 64)
    spec = PruneSpec.of(method, 6, recipe=Recipe(epochs=1.0, train_batch=16))
    expected = prune(model, data, method, 6, recipe=spec.recipe)
    with Run.lead(tmp_path / "run") as run:
        run.stage_records(describe_run(model_record(model, "toy"), command="", seed=0), hc.HeadMap.of(model))
        work = Pruning(run, model, data)
        _, (artifact,), _ = prune_all(work, [spec])
        chosen: list[str] = []
        real = pruning.prune_by_spec
        monkeypatch.setattr(pruning, "prune_by_spec", lambda *args, **how: chosen.append(method) or real(*args, **how))
        same, small = work.load_or_make_model(spec)
    assert same.key == artifact.key and bool(chosen) is not redone
    for name, value in expected.model.state_dict().items():
        assert torch.equal(small.state_dict()[name], value), name


def test_limits_beside_kinds_groups_and_units() -> None:
    model, data = shared("marian"), task("marian", 16)
    complete = sum(parameter.numel() for parameter in model.parameters())
    pruned = prune(model, data, "rank", hc.Budget(parameters=int(complete * 0.98)), kinds=["cross"], repair=False)
    heads = hc.HeadMap.of(model)
    assert pruned.plan.removed and all(heads.block_of(head).kind == "cross" for head in pruned.plan.removed)
    odd = tiny_model("llama", auto="AutoModelForCausalLM", num_hidden_layers=3, num_key_value_heads=1)
    batch = {"input_ids": torch.arange(5, 17).view(2, 6), "labels": torch.arange(5, 17).view(2, 6)}
    total = sum(parameter.numel() for parameter in odd.parameters())
    small = prune(odd, batch, configured("rank", by="magnitude"), hc.Budget(parameters=int(total * 0.9)), repair=False)
    assert sum(parameter.numel() for parameter in small.model.parameters()) <= 0.9 * total
    with pytest.raises(PlanError, match="whole KV groups; unit='even' goes with keep"):
        prune(odd, batch, "rank", hc.Budget(parameters=int(total * 0.9), unit="even"), repair=False)


def test_prune_makes_the_model_that_compare_only_measured(
    model_and_data: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, data = model_and_data
    shared_words = ["--train", data, "--keep", "6", "--no-repair", "--out", tmp_path / "run"]
    result(capsys, "compare", model, "--methods", "random", "--seeds", "1", *shared_words)
    assert not (tmp_path / "run" / "models").exists()
    for _ in range(2):
        json_output = result(capsys, "prune", model, "--method", "random", "--no-bench", *shared_words)
        assert len(hc.HeadMap.of(hc.load(json_output["folder"]))) == 6
        shutil.rmtree(json_output["folder"])  # and again, when it is gone


def test_means_stand_in_for_removed_heads(model_and_data: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, data = model_and_data
    words = ["prune", model, "--train", data, "--keep", "6", "--method", "gradient", "--no-bench", "--out", tmp_path / "run"]
    zero, mean = (result(capsys, *words, "--no-repair"), result(capsys, *words, "--ablation", "mean"))
    assert zero["plan"] == mean["plan"] and zero["folder"] != mean["folder"]
    assert mean["rows"][0]["method"] == "gradient + mean" and mean["rows"][0]["loss"] != zero["rows"][0]["loss"]
    assert "gradient + mean" in (Path(mean["folder"]) / "README.md").read_text(encoding="utf-8")
    nothing, means = (hc.load(made["folder"]).state_dict() for made in (zero, mean))
    assert {name for name in nothing if not torch.equal(nothing[name], means[name])} and nothing.keys() == means.keys()
    assert all(torch.equal(nothing[name], means[name]) for name in nothing if not name.endswith("attention.output.dense.bias"))
    run = Run.open(tmp_path / "run")
    (artifact,) = [artifact for artifact in run.results("pruned").values() if artifact.content["spec"]["ablation"] == "mean"]
    assert (
        "--ablation mean" in prune_command(run.record(), "run", artifact)
        and PruneSpec.from_dict(artifact.content["spec"]).ablation == "mean"
    )
    complete, work = shared("encoder"), task("encoder", 64)
    tuned = prune(complete, work, "fisher", 6, ablation="mean")
    assert not tuned.repaired and tuned.plan == prune(complete, work, "fisher", 6, repair=False).plan
    expected = hc.cut(fold_means(complete, tuned.plan, work, hc.HeadMap.of(complete)), tuned.plan).state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in tuned.model.state_dict().items()), "means in place of tuned gates"


def test_training_needs_a_task() -> None:
    batches = [task("encoder", 8).collate(list(task("encoder", 8).calibration))]
    with pytest.raises(DataError, match="needs a Task"):
        prune(shared("encoder"), batches, "dsp", 4)


def test_what_is_found_about_the_dense_model_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes of one comparison share scores, gradients of gates and the surgeon's order, and get what they would get alone."""
    requests: list[str] = []
    for module, name in ((rank.Rank, "measure_scores"), (fisher, "_measure_gate_gradients"), (surgeon.SurgeonPruner, "order_units")):
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args, real=real, name=name, **options: (requests.append(name), real(*args, **options))[1])
    model, data, known = shared("encoder"), task("encoder", 32), {}
    for method, times in (
        ("gradient", {"measure_scores": 1}),
        ("fisher", {"_measure_gate_gradients": 1}),
        ("surgeon(rounds=1)", {"order_units": 1}),
    ):
        requests.clear()
        specs = [PruneSpec.of(method, keep, repair=False) for keep in (2, 4)]
        together = [prune_by_spec(model, data, spec, heads=hc.HeadMap.of(model), shared=known).plan for spec in specs]
        assert {name: requests.count(name) for name in requests} == times
        assert together == [prune(model, data, method, keep, repair=False).plan for keep in (2, 4)]
