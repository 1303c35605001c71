"""How long the work takes is told before it starts, in proportion to what it reads and trains."""

from __future__ import annotations

from typing import Any

import pytest
from toys import shared, task

import headcount as hc
from headcount.pruning.recipe import Recipe
from headcount.pruning.spec import PruneSpec
from headcount.pruning.training import estimate as training
from headcount.workflows import estimate
from headcount.workflows.analysis_spec import AnalysisSpec

N = 40


@pytest.fixture(autouse=True)
def speeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """An example takes a second, a training step on 32 examples a thousand."""
    monkeypatch.setattr(estimate, "measure_seconds_per_example", lambda *_: 1.0)
    monkeypatch.setattr(training, "estimate_step_seconds", lambda _, __, recipe: 1000.0 * recipe.train_batch / 32)


def seconds(method: str, *, keep: int = 6, limit: int | None = None, **options: Any) -> float:
    model: Any = shared("encoder")
    spec = PruneSpec.of(method, keep, **options)
    return estimate.estimate_pruning_seconds(model, task("encoder", N), hc.HeadMap.of(model), [spec], limit=limit)


def test_a_choice_a_repair_and_evaluations_are_counted() -> None:
    n_evaluated = 3 * N  # the dense model on the report split, the smaller one there and on the selection split
    assert seconds("random", repair=False) == n_evaluated
    assert seconds("random", repair=False, limit=10) == N + 20
    assert seconds("random") == n_evaluated + estimate.REPAIR_PASSES * N
    assert seconds("gradient", repair=False) == n_evaluated + 3 * N
    n_heads = len(hc.HeadMap.of(shared("encoder")))
    assert seconds("ablation", repair=False) == n_evaluated + n_heads / 2 * N
    assert seconds("ablation(again=true)", repair=False) == n_evaluated + 10 * n_heads / 2 * N
    assert seconds("surgeon(rounds=1;rivals=false)") < seconds("surgeon") - 20 * N


def test_training_is_counted_in_steps() -> None:
    assert seconds("random", recover="7steps") == 3 * N + 7000
    assert seconds("l0", recipe=Recipe(steps=5)) >= 5000


def test_every_request_trains_on_batches_of_its_own_size() -> None:
    model: Any = shared("encoder")
    small, large = (PruneSpec.of("l0", 6, recipe=Recipe(steps=5, train_batch=batch)) for batch in (32, 64))
    assert training.estimate_training_seconds(model, task("encoder", N), [small, large, large]) == 5 * (1000 + 2 * 2000)


def test_an_analysis_removes_single_heads_on_two_splits() -> None:
    model: Any = shared("encoder")
    heads = hc.HeadMap.of(model)
    estimate_analysis_seconds = [
        estimate.estimate_analysis_seconds(model, task("encoder", N), heads, AnalysisSpec(by=by, methods=("random",)), [])
        for by in (("gradient",), ("gradient", "ablation"))
    ]
    assert estimate_analysis_seconds == [3 * N, 3 * N + len(heads) * N]
