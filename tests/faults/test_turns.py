"""Evaluations of one model in several threads: each pass has the model's modes and attributes to itself."""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
import pytest
from torch import nn
from toys import build, task

import headcount as hc
from headcount.core.errors import ModelInUse
from headcount.data.evaluate import evaluate
from headcount.models.ownership import taking_turns
from headcount.models.state import _restore_dict, preserve
from headcount.surgery.cost import cost

PATIENCE = 0.5
"""Seconds that a thread waits for another one that may not be allowed to come."""


def with_dropout(kind: str = "encoder") -> tuple[Any, hc.Task]:
    """A model in training mode whose dropout would show in every loss."""
    model: Any = build(kind).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.5
    return model, task(kind, 6)


def in_threads(*works: Any) -> list[Any]:
    results: list[Any] = [None] * len(works)

    def run(number: int) -> None:
        try:
            results[number] = works[number]()
        except BaseException as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return results


def test_one_evaluation_does_not_end_the_eval_mode_of_another() -> None:
    """The second records the modes after the first did and before the first changed them, and is done earlier."""
    model, data = with_dropout()
    expected = evaluate(model, data).losses
    second_came, first_changed, second_done = threading.Event(), threading.Event(), threading.Event()
    eval_mode, calls = model.eval, iter(range(1000))

    def change_mode() -> nn.Module:
        call = next(calls)
        if call == 0:
            second_came.wait(PATIENCE)
        elif call == 1:
            second_came.set()
            first_changed.wait(PATIENCE)
        eval_mode()
        if call == 0:
            first_changed.set()
            second_done.wait(PATIENCE)
        return model

    def second() -> Any:
        in_thread = evaluate(model, data).losses
        second_done.set()
        return in_thread

    model.eval = change_mode
    for in_thread in in_threads(lambda: evaluate(model, data).losses, second):
        assert isinstance(in_thread, np.ndarray), in_thread
        np.testing.assert_allclose(in_thread, expected, rtol=1e-6)
    assert all(module.training for module in model.modules())


def test_evaluations_at_once_give_what_each_gives_alone() -> None:
    model, data = with_dropout("decoder")
    expected = evaluate(model, data).losses
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        results = in_threads(*[lambda: [evaluate(model, data, batch_size=1).losses for _ in range(4)]] * 3)
    finally:
        sys.setswitchinterval(interval)
    for result in results:
        assert isinstance(result, list), result
        for losses in result:
            np.testing.assert_allclose(losses, expected, rtol=1e-4)
    assert all(module.training for module in model.modules())


def test_a_whole_model_and_a_part_of_it_take_turns() -> None:
    model, _ = with_dropout()
    entered = threading.Event()

    def enter() -> None:
        with taking_turns(model.base_model):
            entered.set()

    worker = threading.Thread(target=enter)
    with taking_turns(model), taking_turns(model):
        worker.start()
        assert not entered.wait(0.1)
    worker.join(60)
    assert entered.is_set()


def test_modules_have_their_attributes_while_modes_go_back() -> None:
    """Other threads may read a model whose modes are restored."""

    cleared: list[int] = []

    class Watched(dict):
        def clear(self) -> None:
            super().clear()
            cleared.append(1)

    current = Watched(training=False, weight=None)
    _restore_dict(current, {"training": True, "weight": None})
    assert current == {"training": True, "weight": None} and not cleared
    _restore_dict(current, {"weight": None, "training": True})
    assert list(current) == ["weight", "training"]


@pytest.mark.parametrize("name", ["cut", "cost", "save"])
def test_what_changes_or_writes_a_model_waits_for_no_evaluation_but_is_refused(name: str, tmp_path: Any) -> None:
    model, data = with_dropout()
    head = hc.HeadMap.of(model).heads[0]
    works = {
        "cut": lambda: hc.cut(model, hc.Plan.removing([head]), in_place=True),
        "cost": lambda: cost(model),
        "save": lambda: hc.save(model, tmp_path / "model"),
    }
    inside, go_on = threading.Event(), threading.Event()

    def wait(*_: Any) -> None:
        inside.set()
        go_on.wait(30)

    def refused() -> None:
        assert inside.wait(30)
        try:
            with pytest.raises(ModelInUse, match="in use for an evaluation"):
                works[name]()
        finally:
            go_on.set()

    losses, refusal = in_threads(lambda: evaluate(model, data, progress=wait).losses, refused)
    assert refusal is None and isinstance(losses, np.ndarray)
    works[name]()


def test_contexts_of_two_threads_close_in_any_order() -> None:
    model, _ = with_dropout()
    first, second = preserve(model), preserve(model)
    first.__enter__()
    model.eval()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not model.training
    second.__exit__(None, None, None)
    assert all(module.training for module in model.modules())
