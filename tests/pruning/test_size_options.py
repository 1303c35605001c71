"""Options that decide how many heads stay (λ of l0, stop of rank): the size is what they leave, and no number may be asked for beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from toys import build, configured, own_labels, saved_classifier, saved_table, shared, task, unbiased_encoder

import headcount as hc
from headcount.app.main import main
from headcount.core.errors import OptionError, PlanError
from headcount.data.evaluate import evaluate
from headcount.pruning.methods import l0
from headcount.pruning.prune import prune
from headcount.pruning.recipe import Recipe
from headcount.pruning.spec import PruneSpec
from headcount.workflows import prune as pruning
from headcount.workflows.prune import build_grid

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(scope="module")
def model_and_data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("sizes")
    return saved_classifier(folder / "model"), saved_table(folder / "data.csv", 200)


def test_the_size_is_what_the_penalty_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = build("encoder"), task("encoder", 96)
    gatings: list[l0.HardConcrete] = []
    init = l0.HardConcrete.__init__
    monkeypatch.setattr(l0.HardConcrete, "__init__", lambda self, *args: (gatings.append(self), init(self, *args))[1])
    sizes = []
    for penalty in (1e-4, 0.3):
        options = {"penalty": penalty, "rate": 0.4, "start": 1.0}
        pruned = prune(model, data, configured("l0", **options), recipe=Recipe(train_batch=8, steps=40))
        opened = l0.evaluation_gates(gatings[-1].log_a.detach()) > 0
        assert [head not in pruned.plan.removed for head in hc.HeadMap.of(model)] == opened.tolist()
        sizes.append(len(hc.HeadMap.of(pruned.model)))
        assert sizes[-1] == int(opened.sum()) == pruned.history[-1]["open"] and pruned.steps == {"choose": 40}
    assert 0 < sizes[1] < sizes[0]
    with pytest.raises(PlanError, match="closed the gates of all 12 heads; name a smaller"):
        prune(model, data, configured("l0", penalty=50.0, rate=1.0, start=0.0), recipe=Recipe(train_batch=8, steps=40))


REFUSED: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "l0 keep": ("l0(penalty=0.01)", 4, {}),
    "l0 fraction": ("l0(penalty=0.01)", "50%", {}),
    "l0 limit": ("l0(penalty=0.01)", hc.Budget(parameters=10_000), {}),
    "rank keep": ("gradient(stop=0.9)", 4, {}),
    "rank limit": ("rank(stop=0.9)", hc.Budget(latency=1.0), {}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_two_sizes_are_refused_before_any_work(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method, keep, more = REFUSED[name]
    model, data = shared("encoder"), task("encoder", 32)
    monkeypatch.setattr("headcount.data.checks.check_finite_weights", lambda *_: pytest.fail("work began"))
    with pytest.raises(PlanError, match=r"decides itself how many heads stay.*leave one of them out"):
        prune(model, data, method, keep, recipe=Recipe(train_batch=8), **more)
    with pytest.raises(PlanError, match="decides itself"):
        PruneSpec.of(method, keep)


def test_penalties_that_cannot_be_kept_are_refused() -> None:
    model, data = shared("encoder"), task("encoder", 32)
    for method, budget, messages in (("l0:lagrange", hc.Budget(), "learns λ"), ("l0", hc.Budget(floor=1), "floor of 1 cannot be promised")):
        with pytest.raises((OptionError, PlanError), match=messages):
            prune(model, data, configured(method, penalty=0.1), budget, recipe=Recipe(train_batch=8))


def test_stop_alone_decides_how_many_stay() -> None:
    model = unbiased_encoder(48)
    data = own_labels(model, 48)
    pruned = prune(model, data, configured("rank", stop=0.999, step=0.25), repair=False)
    complete = evaluate(model, data, split="selection")
    with hc.mask(model, pruned.plan.removed):
        evaluation = evaluate(model, data, split="selection")
    assert evaluation.value is not None and complete.value is not None and evaluation.value >= 0.999 * complete.value
    free = prune(model, data, configured("rank", stop=1e-9, step=0.25), hc.Budget(floor=2), repair=False)
    assert len(hc.HeadMap.of(free.model)) == 4, "nothing stops it but the floor"


def test_a_comparison_holds_a_penalty_once() -> None:
    specs = build_grid(["l0(penalty=0.02)", "rank(stop=0.9)", "l0"], [4, 8], 2, PruneSpec.of("random", 1))
    named = [(str(spec.method), spec.budget, spec.seed) for spec in specs if spec.method.sizing_option_text]
    assert named == [("l0(penalty=0.02)", None, 0), ("l0(penalty=0.02)", None, 1), ("gradient(stop=0.9)", None, 0)]
    assert sorted(spec.limits.heads(12) for spec in specs if str(spec.method) == "l0") == [4, 4, 8, 8]


def test_the_command_line_prunes_by_a_penalty_alone(
    model_and_data: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, data = model_and_data
    words = ["prune", str(model), "--train", str(data), "--method", "l0", "--option", "penalty=0.001", "--no-bench", "--train-batch", "16"]
    assert main([*words, "--keep", "4", "--out", str(tmp_path / "a"), "-q"]) == 2
    assert "penalty=0.001 decides how many heads stay" in capsys.readouterr().err and not (tmp_path / "a").exists()
    assert main([*words[:3], str(data), "--no-bench", "--out", str(tmp_path / "b"), "-q"]) == 2
    assert "exactly one of --keep" in capsys.readouterr().err
    assert main([*words, "--steps", "3", "--out", str(tmp_path / "c"), "--json"]) == 0
    captured = capsys.readouterr()
    content = json.loads(captured.out)
    (row,) = content["rows"]
    assert row["keep"] == 12 - len(content["plan"]) and row["method"] == "l0(penalty=0.001), only 3 steps" and row["steps"] == 3
    assert "1 model trains for 3 optimiser steps: about" in captured.err
    assert main([*words, "--steps", "3", "--epochs", "1", "--out", str(tmp_path / "d"), "-q"]) == 2
    assert "--steps or by --epochs" in capsys.readouterr().err


def test_a_comparison_shows_the_penalty_at_the_size_it_leaves(
    model_and_data: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, data = model_and_data
    words = ["compare", str(model), "--train", str(data), "--methods", "l0(penalty=0.001)", "--keep", "4,8", "--seeds", "1", "--steps", "2"]
    assert main([*words, "--train-batch", "16", "--no-repair", "--out", str(tmp_path), "--json", "-q"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["keep"] for row in rows if row["method"].startswith("random")] == [4, 8]
    (by_penalty,) = [row for row in rows if row["method"].startswith("l0")]
    assert by_penalty["keep"] == 12 - by_penalty["removed"]


def test_the_control_trains_at_its_own_rate(
    model_and_data: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = model_and_data
    recipes: list[Recipe] = []
    real = pruning.train_from_scratch
    monkeypatch.setattr(pruning, "train_from_scratch", lambda *args, **how: (recipes.append(args[3]), real(*args, **how))[1])
    words = [
        "prune",
        str(model),
        "--train",
        str(data),
        "--keep",
        "6",
        "--method",
        "random",
        "--rate",
        "1e-5",
        "--no-bench",
        "--train-batch",
        "16",
    ]
    for number, (more, rate) in enumerate((([], 5e-4), (["--scratch-rate", "0.002"], 0.002))):
        assert main([*words, "--scratch", "2steps", *more, "--out", str(tmp_path / str(number)), "--json", "-q"]) == 0
        (row,) = json.loads(capsys.readouterr().out)["rows"]
        assert (
            recipes[-1].rate == rate
            and recipes[-1].steps == 2
            and row["method"] == f"random, from scratch 2steps at {rate:g}, only 2 steps"
        )


@pytest.mark.parametrize(("flag", "value"), [("--latency", "0"), ("--latency", "-1"), ("--epochs", "0")])
def test_bounds_that_exclude_their_limit_hold_on_the_command_line(flag: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prune", "demo/encoder", "--method", "random", flag, value]) == 2
    assert f"'{flag}': {value} is no number above 0" in capsys.readouterr().err
