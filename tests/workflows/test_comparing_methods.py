"""A comparison of methods: survivors, means over seeds, paired tests, latency and roles agree with the models and plans behind them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import pandas
import pytest
from scipy import stats
from toys import shared

import headcount as hc
from headcount.core.errors import OptionError, PlanError, UnknownName
from headcount.core.stats.significance import benjamini_hochberg, paired_bootstrap
from headcount.core.survivors import SurvivingHeads
from headcount.data.open_task import open_task
from headcount.models.tiny.build import tiny_model
from headcount.runs.results import unpack_pruned_evaluation
from headcount.runs.store import Run
from headcount.workflows import compare as workflow
from headcount.workflows import latency, prune, remaining_roles
from headcount.workflows.compare import Comparison
from headcount.workflows.grid import MethodRow

MODEL, SIZES, BATCHES = "demo/entailment", (16, 8), (1, 2)
GRADIENT, RANDOM = "gradient without repair", "random without repair"


def compare(folder: Path, **options: Any) -> Comparison:
    words: dict[str, Any] = {"methods": ["gradient"], "keep": SIZES, "seeds": 3, "repair": False, "limit": 60, "progress": False}
    return hc.compare(MODEL, MODEL, out=folder, **{**words, **options})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compare") / "run"


@pytest.fixture(scope="module")
def comparison(folder: Path) -> Comparison:
    return compare(folder, bench=True, batches=BATCHES, length=8, keep_models=True)


def row_of(comparison: Comparison, method: str, keep: int) -> MethodRow:
    (row,) = (row for row in comparison.methods if (row.method, row.n_kept) == (method, keep))
    return row


def test_survivors_are_those_of_the_plans(comparison: Comparison, folder: Path) -> None:
    assert [(row.method, row.keep, row.seed) for row in comparison.models] == [
        *((GRADIENT, size, 0) for size in SIZES),
        *((RANDOM, size, seed) for size in SIZES for seed in range(3)),
    ]
    run = Run.open(folder)
    everything = [head for block in run.heads().blocks for head in block.heads]
    artifacts = {
        (artifact.content["label"], len(artifact.content["removed"]), artifact.content["spec"]["seed"]): artifact
        for artifact in run.results("pruned").values()
    }
    curves, plans = pandas.read_csv(folder / "curves.csv"), pandas.read_csv(folder / "plans.csv")
    assert len(curves) == len(plans) == len(comparison.models)
    for row in comparison.models:
        survivors = row.survivors
        assert list(survivors.removed) == artifacts[row.method, 32 - row.keep, row.seed].content["removed"]
        assert set(survivors.heads) | set(survivors.removed) == set(everything) and len(survivors.heads) == row.keep
        assert survivors.by_kind == {"encoder-self": row.keep} and sum(survivors.by_block.values()) == row.keep
        assert survivors.by_block == {f"L{layer}": sum(head.startswith(f"L{layer}H") for head in survivors.heads) for layer in range(4)}
        (curve,) = curves[(curves["label"] == row.method) & (curves["keep"] == row.keep) & (curves["seed"] == row.seed)].to_dict("records")
        assert curve["survivors_encoder_self"] == row.keep
        assert curve["survivors_by_layer"] == ";".join(f"{name}={number}" for name, number in survivors.by_block.items())
        (plan,) = plans[(plans["method"] == row.method) & (plans["keep"] == row.keep) & (plans["seed"] == row.seed)].to_dict("records")
        assert (plan["kept"].split(), plan["removed"].split()) == (list(survivors.heads), list(survivors.removed))
        assert row.to_dict()["survivors"]["kept"] == list(survivors.heads)


def test_survivors_of_several_kinds_of_attention() -> None:
    blocks = hc.HeadMap.of(tiny_model("bart")).blocks
    first = next(block for block in blocks if block.kind == "cross")
    survivors = SurvivingHeads.after_removal(blocks, [str(head) for head in first.heads])
    assert set(survivors.by_kind) == {"encoder-self", "decoder-self", "cross"} and survivors.by_block[first.name] == 0
    assert survivors.by_kind["cross"] == sum(block.n_heads for block in blocks if block.kind == "cross") - first.n_heads
    lines = survivors.format_layers()
    assert "cross 0/" in lines and lines.count("/") == len(blocks) - 3


def test_means_over_seeds_are_recomputed(comparison: Comparison, folder: Path) -> None:
    table = pandas.read_csv(folder / "methods.csv")
    for size in SIZES:
        values = [row.value for row in comparison.models if (row.method, row.keep) == (RANDOM, size) and row.value is not None]
        row = row_of(comparison, RANDOM, size)
        low, high = stats.t.interval(0.95, 2, loc=mean(values), scale=stdev(values) / np.sqrt(3))
        assert (row.n_seeds, row.mean, row.deviation) == (3, pytest.approx(mean(values)), pytest.approx(stdev(values)))
        assert row.interval == (pytest.approx(low), pytest.approx(high)) and row.against_random is None and row.q is None
        assert row.kept_by_kind == {"encoder-self": size}
        one = row_of(comparison, GRADIENT, size)
        assert (one.n_seeds, one.deviation, one.interval) == (1, None, (None, None)), "nothing is given over fewer than three seeds"
        (stored,) = table[(table["method"] == RANDOM) & (table["keep"] == size)].to_dict("records")
        assert [stored[name] for name in ("seeds", "mean", "sd", "low", "high")] == pytest.approx([3, row.mean, row.deviation, low, high])
        assert table[(table["method"] == GRADIENT) & (table["keep"] == size)]["sd"].isna().all()


def test_two_seeds_have_neither_deviation_nor_interval(folder: Path, comparison: Comparison, tmp_path: Path) -> None:
    copied = shutil.copytree(folder, tmp_path / "run")
    row = row_of(compare(copied, methods=["random"], keep=(8,), seeds=2), RANDOM, 8)
    assert (row.n_seeds, row.deviation, row.interval) == (2, None, (None, None))
    assert pandas.read_csv(copied / "differences.csv").empty, "random alone is compared with nothing"


def test_differences_are_paired_over_examples_with_seeds_averaged(comparison: Comparison, folder: Path) -> None:
    parts: dict[tuple[str, int], list[np.ndarray]] = {}
    for artifact in Run.open(folder).results("pruned").values():
        own = unpack_pruned_evaluation(artifact).parts
        assert own is not None
        parts.setdefault((artifact.content["label"], 32 - len(artifact.content["removed"])), []).append(own)
    total: Callable[..., Any] = lambda sums: sums[..., 0] / sums[..., 1]  # noqa: E731
    rows = [row_of(comparison, GRADIENT, size) for size in SIZES]
    for row, size in zip(rows, SIZES, strict=True):
        random, own = (np.mean(parts[method, size], axis=0) for method in (RANDOM, GRADIENT))
        change, expected = row.against_random, paired_bootstrap(random, own, total, seed=0)
        assert change is not None and change.by == "paired bootstrap"
        assert (change.difference, change.low, change.high, change.p) == pytest.approx(
            (expected.difference, expected.low, expected.high, expected.p)
        )
        assert change.difference == pytest.approx(row.mean - row_of(comparison, RANDOM, size).mean)
        assert (change.p <= 0.05) == (not change.low <= 0 <= change.high), "interval and p-value are of one test"
    assert [row.q for row in rows] == pytest.approx(benjamini_hochberg([row.p for row in rows]).tolist())
    assert [(row.method, row.other, row.n_kept, row.q) for row in comparison.differences] == [
        (GRADIENT, RANDOM, row.n_kept, row.q) for row in rows
    ]


def test_a_planted_difference_is_found_and_none_between_equal_plans(comparison: Comparison, folder: Path, tmp_path: Path) -> None:
    """A plan that the gradient chose, in the same run: it equals that model; its complement, which has as many heads, is much worse."""
    copied = shutil.copytree(folder, tmp_path / "run")
    (half,) = (row for row in comparison.models if (row.method, row.keep) == (GRADIENT, 16))
    with_plan = compare(copied, plan=hc.Plan.removing(half.survivors.removed))
    plan, complement = (next(row.method for row in with_plan.methods if row.method.startswith(name)) for name in ("plan", "complement"))
    pairs = {(row.method, row.other): row for row in with_plan.differences if row.n_kept == 16}
    assert set(pairs) == {*((name, RANDOM) for name in (GRADIENT, plan, complement)), *combinations((GRADIENT, plan, complement), 2)}
    same = pairs[GRADIENT, plan]
    assert (same.change.difference, same.p, same.q) == (0, 1, 1) and same.change.low <= 0 <= same.change.high and same.change.by == "Tango"
    planted = pairs[plan, complement]
    assert planted.change.difference > 0.3 and planted.q is not None and planted.q < 0.01
    assert planted.change.difference == pytest.approx(row_of(with_plan, plan, 16).mean - row_of(with_plan, complement, 16).mean)
    survivors = {row.method: row.survivors for row in with_plan.models if row.keep == 16 and row.seed == 0}
    assert survivors[complement].heads == survivors[plan].removed and survivors[complement].removed == survivors[plan].heads
    table = pandas.read_csv(copied / "differences.csv")
    assert len(table) == len(with_plan.differences) == 4 + 3
    pandas.testing.assert_frame_equal(table, pandas.DataFrame([row.flatten() for row in with_plan.differences]), check_dtype=False)


def test_latency_at_every_size_and_batch(comparison: Comparison, folder: Path) -> None:
    names = [(row.method, row.keep, row.batch) for row in comparison.latency]
    expected = [
        (method, 32 if method == "dense" else size, batch) for size in SIZES for batch in BATCHES for method in ("dense", GRADIENT, RANDOM)
    ]
    assert names == expected
    for row in comparison.latency:
        assert (row.length, row.rounds, row.device) == (8, 15, "cpu") and row.low <= row.seconds <= row.high
        assert row.speedup_low <= row.speedup <= row.speedup_high
    artifact = Run.open(folder).results("latency")["16 heads, batch 2, length 8"]
    ratios = np.log(artifact.arrays["dense"]) - np.log(artifact.arrays["0"])
    (row,) = (row for row in comparison.latency if (row.method, row.keep, row.batch) == (GRADIENT, 16, 2))
    assert row.speedup == pytest.approx(np.exp(ratios.mean())) and row.p == pytest.approx(stats.ttest_1samp(ratios, 0).pvalue)
    assert len(pandas.read_csv(folder / "latency.csv")) == len(comparison.latency)


def test_kept_models_and_their_roles(comparison: Comparison, folder: Path) -> None:
    assert len(comparison.saved) == len(comparison.models)
    for row, path in zip(comparison.models, comparison.saved.values(), strict=True):
        assert tuple(map(str, hc.HeadMap.of(hc.load(path)))) == row.survivors.heads
        assert tuple(map(str, hc.Plan.read(path.with_name(f"{path.name}.plan.json")).removed)) == row.survivors.removed
    assert len(Run.open(folder).models()) == len(comparison.saved), "run.json lists all of them"
    families = {row.family for row in comparison.role_changes}
    assert families <= {"local", "syntactic", "block", "delimiter"} and "block" in families, "texts of this task are pairs"
    assert {(row.method, row.n_kept, row.n_seeds) for row in comparison.role_changes} == {
        (row.method, row.n_kept, row.n_seeds) for row in comparison.methods
    }
    assert any(row.n_dense for row in comparison.role_changes)
    for row in comparison.role_changes:
        assert (
            row.removed + row.kept + row.lost == pytest.approx(row.n_dense) and row.n_in_pruned_model == row.kept + row.gained <= row.n_kept
        )
    assert len(pandas.read_csv(folder / "role_changes.csv")) == len(comparison.role_changes)
    assert not Run.open(folder).results("roles"), "roles that are measured here do not replace those that the run shows"


def test_the_same_call_computes_nothing_again(comparison: Comparison, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object, **_options: object) -> None:
        pytest.fail("finished work is computed again")

    for module, name in (
        (prune, "prune_by_spec"),
        (prune, "evaluate"),
        (prune, "save"),
        (latency, "measure_seconds_by_round"),
        (remaining_roles, "measure_roles"),
    ):
        monkeypatch.setattr(module, name, fail)
    again = compare(folder, bench=True, batches=BATCHES, length=8, keep_models=True)
    assert again.to_dict() == comparison.to_dict()


def test_models_of_a_finished_comparison_are_made_when_they_are_asked_for(tmp_path: Path) -> None:
    words: dict[str, Any] = {"methods": ["random"], "keep": (8,), "seeds": 1}
    before = compare(tmp_path / "run", **words)
    after = compare(tmp_path / "run", **words, keep_models=True)
    (path,) = after.saved.values()
    assert not before.saved and before.models == after.models and len(hc.HeadMap.of(hc.load(path))) == 8


def test_models_are_kept_where_roles_have_no_text(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workflow, "corpus_or_reason", lambda *_arguments, **_options: (None, "the task has no texts"))
    with pytest.warns(UserWarning, match="are not measured: the task has no texts; name a text"):
        remaining = compare(tmp_path / "run", methods=["random"], keep=(8,), seeds=1, keep_models=True)
    assert remaining.saved and not remaining.role_changes


def test_wrong_requests_are_refused_before_any_work(tmp_path: Path) -> None:
    other = hc.Plan.removing(["L9H0"])
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"seeds": 0}, OptionError, "option seeds of compare must be an int of at least 1; got 0"),
        ({"methods": ["gradeint"]}, UnknownName, "gradeint"),
        ({"methods": "gradient"}, OptionError, "option methods of compare must be a list"),
        (
            {"bench": True, "batches": (1, 0)},
            OptionError,
            r"batches of a measurement of latency must be a list of int of at least 1; got \(1, 0\)",
        ),
        ({"bench": True, "length": 0}, OptionError, "lengths of a measurement of latency must be a list of int of at least 1"),
        ({"definition": "voita"}, UnknownName, "voita"),
        ({"text": ["a text"]}, OptionError, "add keep_models=True"),
        ({"plan": other}, PlanError, "this model has no head L9H0"),
        ({"plan": hc.Plan.removing([])}, PlanError, "removes no head"),
        ({"keep": (33,)}, PlanError, "33"),
    ]
    for options, error, message in wrong:
        with pytest.raises(error, match=message):
            compare(tmp_path / "run", **options)
    plan = tmp_path / "other.json"
    hc.Plan.removing(["L0H0"]).write(plan, hc.HeadMap.of(shared("encoder")))
    with pytest.raises(PlanError, match="the plan is for a model"):
        compare(tmp_path / "run", plan=plan)
    assert not (tmp_path / "run").exists()


def test_a_live_model_and_a_task_made_in_python(tmp_path: Path) -> None:
    model = hc.load(MODEL)
    task = open_task(MODEL, model, limit=20)
    remaining = hc.compare(model, task, out=tmp_path / "run", methods=["random"], keep=(8,), seeds=1, repair=False, progress=False)
    assert remaining.dense.n_examples == 20 and [row.keep for row in remaining.models] == [8]
