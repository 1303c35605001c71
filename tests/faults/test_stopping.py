"""Ctrl-C and SIGTERM inside long methods: the command ends within five seconds, whatever runs, and the same command goes on to the end."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grid
import pytest
import torch
from toys import saved_classifier, saved_table

from headcount.app.console import run_folder as running
from headcount.app.main import main

REPAIR = importlib.import_module("headcount.pruning.repair.repair")  # the package has a function of that name
importlib.import_module("headcount.workflows.analyze")  # so that forks need not import it
importlib.import_module("transformers.trainer")

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
MARGIN = 5.0
"""Seconds that a process may take from the signal to its end."""

TRAIN = ("--train", "{data}", "--train-batch", "8", "--epochs", "3", "--keep", "50%", "--seeds", "1", "--out", "{out}")
COMMANDS: dict[str, tuple[str, ...]] = {
    "surgeon and repair": ("prune", "{model}", "--train", "{data}", "--keep", "6", "--out", "{out}", "--no-bench"),
    "ablation": ("score", "{model}", "--train", "{data}", "--by", "ablation", "--batch-size", "4", "--out", "{out}"),
    "relevance": ("score", "{model}", "--train", "{data}", "--by", "lrp", "--batch-size", "4", "--out", "{out}"),
    "l0": ("compare", "{model}", "--methods", "l0", *TRAIN),
    "dsp": ("compare", "{model}", "--methods", "dsp", *TRAIN),
    "roles": ("roles", "{model}", "--embedded", "english", "--limit", "400", "--out", "{out}"),
    "layers": ("study", "layers", "{model}", "--train", "{data}", "--how", "uniform", "--out", "{out}"),
    "bench": ("bench", "{model}", "--batches", "1,8", "--lengths", "8,32", "--rounds", "20"),
    "export": ("export", "{model}", "--to", "portable", "--out", "{out}", "--overwrite"),
}


@pytest.fixture
def places(shm: Path) -> dict[str, str]:
    model, data = saved_classifier(shm / "model"), saved_table(shm / "data.csv", 200)
    return {"{model}": str(model), "{data}": str(data), "{out}": str(shm / "out")}


def start(words: list[str], err: Path, prepare: Callable[[], Any] = lambda: None) -> grid.Child:
    """A command in a fork, as a process of its own."""

    def started() -> Any:
        os.dup2(os.open(err, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        sys.stderr = os.fdopen(2, "w", buffering=1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        torch.set_num_threads(1)
        prepare()
        sys.argv = ["headcount", *words]
        return main()

    return grid.start(started)


def stop(child: grid.Child, number: signal.Signals) -> float:
    """Sends a signal; seconds until the process is gone."""
    sent = time.monotonic()
    os.kill(child.pid, number)
    child.wait()
    return time.monotonic() - sent


@pytest.mark.parametrize("number", CODES)
def test_a_call_that_no_exception_reaches_is_ended(places: dict[str, str], shm: Path, number: signal.Signals) -> None:
    """Linear algebra on a large matrix takes a minute in one call, and Python answers a signal only after it."""
    begun = shm / "begun"

    def endless(*_: Any, **__: Any) -> None:
        matrix = torch.rand(3500, 3500, dtype=torch.float64)
        begun.touch()
        torch.linalg.eigh(matrix @ matrix.T)

    words = [places.get(word, word) for word in COMMANDS["surgeon and repair"]]
    child = start(words, shm / "err", lambda: setattr(REPAIR, "fit_best_ridge", endless))
    end = time.monotonic() + 120
    while not begun.exists() and time.monotonic() < end:
        time.sleep(0.01)
    seconds = stop(child, number)
    text = (shm / "err").read_text()
    assert child.code == CODES[number] and seconds < MARGIN, (child.code, seconds, text)
    assert "finished work is kept, and the same command resumes" in text and "Traceback" not in text
    assert start(words, shm / "err").wait().result["value"] == 0, (shm / "err").read_text()


def stop_and_go_on(positions: dict[str, str], shm: Path, name: str, points: int) -> list[float]:
    """Stops a command at several moments, each time on what the last left, then lets it end; seconds from each signal to its end."""
    words = [positions.get(word, word) for word in COMMANDS[name]]
    before = time.monotonic()
    assert start([word.replace(positions["{out}"], str(shm / "whole")) for word in words], shm / "err").wait().result["value"] == 0
    length, seconds = time.monotonic() - before, []
    for point in range(points):
        number = list(CODES)[point % 2]
        child = start(words, shm / "err")
        time.sleep(length * (point + 1) / (points + 1))
        seconds.append(stop(child, number))
        text = (shm / "err").read_text()
        assert child.code in (CODES[number], 0), (name, point, child.code, child.result, text)  # it may have ended before
        assert "Traceback" not in text and "unexpected" not in text, text
    assert start(words, shm / "err").wait().result["value"] == 0, (shm / "err").read_text()
    if (shm / "out" / "artifacts").is_dir():
        assert {path.name for path in (shm / "out").rglob("*.artifact")} == {path.name for path in (shm / "whole").rglob("*.artifact")}
    return seconds


@pytest.mark.parametrize("name", ["surgeon and repair", "l0"])
def test_a_long_method_is_stopped(places: dict[str, str], shm: Path, name: str) -> None:
    assert max(stop_and_go_on(places, shm, name, 1)) < MARGIN


@pytest.mark.faults
@pytest.mark.parametrize("name", COMMANDS)
def test_long_methods_are_stopped_at_many_points(places: dict[str, str], shm: Path, figure: Callable[..., None], name: str) -> None:
    seconds = stop_and_go_on(places, shm, name, 8)
    assert max(seconds) < MARGIN, seconds
    figure(f"stopped {name}", signals=len(seconds), longest=max(seconds))


def test_workers_that_do_not_end_are_not_waited_for() -> None:
    """A command that is stopped ends its workers together, in a second and a half."""
    import subprocess

    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    workers = [subprocess.Popen([sys.executable, "-c", stubborn], stdout=subprocess.PIPE) for _ in range(3)]
    for worker in workers:
        assert worker.stdout is not None and worker.stdout.readline()
        worker.stdout.close()
    before = time.monotonic()
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        running._wait_for_workers_or_kill(None, workers)  # pyright: ignore[reportArgumentType]
    assert time.monotonic() - before < 4 and all(worker.returncode == -9 for worker in workers)
