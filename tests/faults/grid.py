"""The work that faults are injected into: scores by three methods and an evaluation of a tiny model, 12 artifacts in all, in a fraction of a second.

A process of it is a fork of the test: torch is imported once, and a kill costs nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from toys import shared, task

import headcount as hc
import headcount.data.evaluate as evaluation
import headcount.importance.score as scoring
from headcount.core import files
from headcount.core.errors import NothingLeft
from headcount.data import stream
from headcount.data.task import Task
from headcount.importance.settings import ScoreSettings
from headcount.models.provenance import model_record
from headcount.runs.artifacts import Artifact
from headcount.runs.describe import describe_run
from headcount.runs.store import Run
from headcount.workflows.evaluate import evaluate_into
from headcount.workflows.score import score_into

METHODS = ("gradient", "confidence", "magnitude")
SIZE, EXAMPLES = 6, 24
PASSES = {"confidence+gradient": ("scores", METHODS), "whole": ("evaluation", ("whole",))}
COMMAND = "headcount score toy --out run"
TABLES = ("scores.csv", "scores.parquet", "outcomes.parquet")
LIMIT = 120.0
MEASURE = stream._measure_within_memory


@cache
def data(number: int = EXAMPLES) -> Task:
    return task("encoder", number)


def work(run: Run, seed: int = 3, number: int = EXAMPLES) -> None:
    """What the command of the run does."""
    model = shared("encoder")
    run.stage_records(describe_run(model_record(model, "toy"), command=COMMAND, seed=seed), hc.HeadMap.of(model))
    score_into(run, model, data(number), METHODS, ScoreSettings(seed=seed))
    evaluate_into(run, "whole", model, data(number))


def lead(folder: Path, seed: int = 3, number: int = EXAMPLES) -> None:
    with Run.lead(folder, command=COMMAND) as run:
        work(run, seed, number)


def join(folder: Path, seed: int = 3, number: int = EXAMPLES) -> None:
    with Run.join(folder) as run, suppress(NothingLeft):
        work(run, seed, number)


# Processes.


@dataclass
class Child:
    """A fork that does something; what came of it is read with `wait`."""

    pid: int
    told: int
    code: int | None = None
    result: dict[str, Any] = field(default_factory=dict)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> Child:
        """Waits; `code` is the exit code, negative for a signal, and `result` what was told before the end."""
        spoken_text = b""
        end = time.monotonic() + LIMIT
        while part := os.read(self.told, 1 << 16):
            spoken_text += part
        os.close(self.told)
        status = 0
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                break
            time.sleep(0.001)
        else:
            self.kill()
            raise AssertionError("the process did not end")
        self.code = os.waitstatus_to_exitcode(status)
        self.result = json.loads(spoken_text) if spoken_text else {}
        return self


def start(what: Callable[[], Any], hook: Callable[[str, Path], None] | None = None) -> Child:
    """Does something in a fork: exit code 0 and its value; or 1, the kind and the text of its error."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writes)
        return Child(pid, reads)
    code = 3
    try:
        os.close(reads)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if hook is not None:
            files.before_disk_change = hook
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            code, messages = _done(what)
        messages["warnings"] = [str(warning.message) for warning in caught]
        os.write(writes, json.dumps(messages).encode()[: 1 << 16])
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _done(what: Callable[[], Any]) -> tuple[int, dict[str, Any]]:
    try:
        return 0, {"value": what()}
    except BaseException as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        return 1, {"error": str(error), "kinds": kinds, "trace": traceback.format_exc()[-3000:]}


def finish(folder: Path, what: Callable[[], Any] | None = None) -> Child:
    """Runs the command to its end."""
    done = start(what or (lambda: lead(folder))).wait()
    assert done.code == 0, done.result
    return done


def count_operations(what: Callable[[], Any]) -> list[str]:
    """The operations that change the disk, in their order."""
    observed_values: list[str] = []

    def counted() -> list[str]:
        what()
        return observed_values

    done = start(counted, lambda operation, path: observed_values.append(f"{operation} {path.name}")).wait()
    assert done.code == 0, done.result
    return done.result["value"]


def at(number: int, do: Callable[[str, Path], None], *, on: bool = False) -> Callable[[str, Path], None]:
    """A hook that does something at one operation, or from there `on`."""
    seen = 0

    def hook(operation: str, path: Path) -> None:
        nonlocal seen
        seen += 1
        if seen == number or (on and seen > number):
            do(operation, path)

    return hook


def crash(operation: str, path: Path) -> None:
    """The end of a process at a file operation; what it was writing is torn."""
    if operation == "write":
        path.write_bytes(b'{"artifact": 3, "torn')
    os.kill(os.getpid(), signal.SIGKILL)


# What was computed, and what is there.


@contextmanager
def small_chunks(counted: Path | None = None, pause: float = 0.0) -> Iterator[None]:
    """Chunks of a few examples; every chunk that is computed is noted in a file, from whatever process."""
    before = scoring.CHUNK, evaluation.CHUNK, stream._measure_within_memory

    def noted(reading: stream.Reading, block: Any, measuring: Any) -> Any:
        name = getattr(reading.chunk_store, "name", "none")
        if counted is not None:
            _append(counted, f"{os.getpid()} {name} {block.first}")
        time.sleep(pause)
        return MEASURE(reading, block, measuring)

    scoring.CHUNK = SIZE
    evaluation.CHUNK = SIZE
    stream._measure_within_memory = noted
    try:
        yield
    finally:
        scoring.CHUNK, evaluation.CHUNK, stream._measure_within_memory = before


def _append(path: Path, text: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, text.encode() + b"\n")
    os.close(file)


def computed(path: Path) -> list[tuple[int, str]]:
    """(process, block) of every computation that began."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(pid), name) for pid, name in (line.split(" ", 1) for line in lines)]


def finished(folder: Path) -> dict[str, set[str]]:
    """The names of the whole artifacts of a folder, by kind; a damaged one is an error."""
    actual: dict[str, set[str]] = {"chunk": set(), "scores": set(), "evaluation": set()}
    for path in (folder / "artifacts").glob("*/*.artifact"):
        artifact = Artifact.unpack(path.read_bytes(), path)
        actual[artifact.key.kind].add(artifact.key.name)
    return actual


def needed(folder: Path, number: int = EXAMPLES) -> set[str]:
    """The blocks that are still to be computed."""
    there = finished(folder)
    open_ = {name for name, (kind, goal) in PASSES.items() if not set(goal) <= there[kind]}
    return {f"{name} {first}" for name in open_ for first in range(0, number, SIZE)} - there["chunk"]


def digest(folder: Path) -> str:
    """One number for everything that a run holds: its tables and its artifacts."""
    actual = hashlib.sha256()
    for path in [*(folder / name for name in TABLES), *sorted((folder / "artifacts").rglob("*"))]:
        if path.is_file():
            actual.update(str(path.relative_to(folder)).encode() + hashlib.sha256(path.read_bytes()).digest())
    return actual.hexdigest()


def is_clean(folder: Path) -> bool:
    """Whether nothing half-written and nothing set aside is there."""
    return not list(folder.rglob(".*")) and not (folder / "quarantine").exists() and not list((folder / "artifacts" / "chunk").glob("*"))


def warm_up(folder: Path) -> str:
    """Runs the work once in this process, so that forks find everything imported; the number to compare with."""
    lead(folder)
    assert is_clean(folder)
    return digest(folder)
