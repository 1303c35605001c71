"""Memory that runs out: a smaller batch where that helps, else a typed error soon; never a raw one, and nothing done twice."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toys import build, task

import headcount as hc
from headcount.app.cli import _app
from headcount.core.errors import OutOfMemory
from headcount.data.evaluate import evaluate
from headcount.data.stream import Reading, stream
from headcount.pruning.base import Pruner

TEXT = "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
Measured = Mapping[str, torch.Tensor]


def measuring(fits: Callable[[int], bool], calls: list[list[int]]) -> Callable[[Any, list[int]], Measured]:
    """Gives the number of each example; memory runs out for batches that do not fit."""

    def measure(batch: Any, numbers: list[int]) -> Measured:
        calls.append(numbers)
        if not fits(len(batch["input_ids"])):
            raise RuntimeError(TEXT)
        return {"number": torch.tensor(numbers)}

    return measure


def test_what_no_batch_size_cures_is_told_at_once() -> None:
    calls: list[list[int]] = []
    with pytest.raises(OutOfMemory, match=r"on a single example \(one of 0 to 127\).*Shorten the examples"):
        list(stream(Reading(task("encoder", 200)), measuring(lambda _: False, calls)))
    assert [len(numbers) for numbers in calls] == [32, 1], "the batch, and its longest example alone"


def test_what_was_measured_before_memory_ran_out_is_not_measured_again() -> None:
    calls: list[list[int]] = []
    lengths = [len(example["input_ids"]) for example in task("encoder", 200).calibration]
    long = {number for number, length in enumerate(lengths) if length == max(lengths)}
    measured = measuring(lambda _: True, calls)

    def measure(batch: Any, numbers: list[int]) -> Measured:
        made = measured(batch, numbers)
        if len(numbers) > 8 and long.intersection(numbers):
            raise MemoryError
        return made

    reading = Reading(task("encoder", 200))
    actual = np.concatenate([block["number"] for block in stream(reading, measure)])
    assert actual.tolist() == list(range(200)) and reading.batch_size == 8
    short = [number for numbers in calls for number in numbers if number not in long]
    assert len(short) - len(set(short)) <= 48, "only the batches that did not fit ran twice"


CALLS: dict[str, Callable[[torch.nn.Module, hc.Task], Any]] = {
    "score": lambda model, data: hc.score(model, data, "gradient"),
    "ablation": lambda model, data: hc.score(model, data, "ablation"),
    "evaluate": evaluate,
    "repair": lambda model, data: hc.repair(model, hc.Plan.removing(["L0H0"]), data),
    "prune": lambda model, data: hc.prune(model, data, "surgeon", 6),
    "fisher": lambda model, data: hc.prune(model, data, "fisher", 6),
    "training": lambda model, data: hc.prune(model, data, "l0", 6),
}


@pytest.mark.parametrize("name", CALLS)
def test_every_method_says_that_memory_ran_out(name: str) -> None:
    model, data = build("encoder"), task("encoder", 40)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    calls = 0

    def starve(*_: Any) -> None:
        nonlocal calls
        calls += 1
        raise RuntimeError(TEXT)

    hook = model.classifier.register_forward_pre_hook(starve)
    with pytest.raises(OutOfMemory, match="memory ran out"):
        CALLS[name](model, data)
    hook.remove()
    assert 1 <= calls <= 4, "it was tried again and again"
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_the_command_line_tells_it_in_a_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def starved() -> Any:
        raise MemoryError("9 bytes")

    monkeypatch.setattr(_app, "build", starved)
    assert _app.run(["ls"]) == 1
    assert capsys.readouterr().err.startswith("error: memory ran out: 9 bytes. Give a smaller batch")


@pytest.mark.parametrize("text", ["could not create a primitive", "std::bad_alloc", "[Errno 12] Cannot allocate memory"])
def test_memory_that_runs_out_in_other_words(text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Under a limit of memory oneDNN's words came through raw from `score` and `evaluate`, and as a ProbeError from `cut`; loading blamed files."""
    model = build("encoder")
    folder = hc.save(model, tmp_path / "model")

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(text)

    monkeypatch.setattr(torch.nn.Linear, "forward", fail)
    for work in (lambda: hc.score(model, task("encoder", 8), "gradient"), lambda: hc.cut(model, hc.Plan.removing(["L0H1"]))):
        with pytest.raises(OutOfMemory, match=re.escape(text)):
            work()
    monkeypatch.undo()
    monkeypatch.setattr(type(model), "__init__", fail)
    with pytest.raises(OutOfMemory, match="during loading"):
        hc.load(folder)


def test_memory_that_runs_out_while_a_part_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """`hc.prune` imports transformers' Trainer, and with it pandas: with 8 MB left its libraries could not be mapped, which came through raw."""

    def fail(_: str) -> None:
        raise ImportError("interval.so: failed to map segment from shared object")

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(OutOfMemory, match=r"during the import of headcount\.prune.*failed to map segment"):
        _ = hc.prune


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
def test_memory_that_runs_out_before_the_work_begins(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pruner is imported when it is asked for; with 4 MB left that came through raw."""
    model, data = build("encoder"), task("encoder", 8)

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(Pruner, "parse", fail)
    with pytest.raises(OutOfMemory, match="memory ran out during prune"):
        hc.prune(model, data, "surgeon", 6)
