"""Ctrl-C and SIGTERM wherever a command is, and a second process in its folder."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grid
import pytest
from toys import saved_classifier, saved_table

from headcount.app.main import main
from headcount.core import files
from headcount.data import stream
from headcount.runs.store import Run

CODES = {"SIGINT": 130, "SIGTERM": 143, "twice SIGINT": 130}
MARGIN = 2.0
"""Seconds that a process may take from the signal to its end."""


class Command:
    """`headcount score` over a small table, by hand or with a signal on its way."""

    def __init__(self, shm: Path) -> None:
        self.shm = shm
        model, table = saved_classifier(shm / "model"), saved_table(shm / "data.csv", 48)
        self.words = ["score", str(model), "--train", str(table), "--by", "gradient,confidence,magnitude", "--batch-size", "6"]

    def line(self, out: Path) -> list[str]:
        return [*self.words, "--out", str(out)]

    def run(self, out: Path, place: int = 0, kind: str = "", err: Path | None = None) -> grid.Child:
        """In a fork; a signal comes at the given step, counting file operations and blocks."""

        def started() -> Any:
            if err is not None:
                os.dup2(os.open(err, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
                sys.stderr = os.fdopen(2, "w", buffering=1)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            if place:
                self._send_at(place, kind)
            sys.argv = ["headcount", *self.line(out)]
            return main()  # as a process of its own, which ends here when it is stopped

        return grid.start(started).wait()

    def _send_at(self, place: int, kind: str) -> None:
        step, measure = grid.at(place, lambda *_: self._send(kind)), stream._measure_within_memory

        def measured(*given: Any) -> Any:
            step("block", Path())
            return measure(*given)

        files.before_disk_change, stream._measure_within_memory = step, measured

    def _send(self, kind: str) -> None:
        (self.shm / "sent").write_text(str(time.monotonic()))
        number = signal.SIGTERM if kind == "SIGTERM" else signal.SIGINT
        if kind.startswith("twice"):
            signal.setitimer(signal.ITIMER_REAL, 0.002)
            signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
        os.kill(os.getpid(), number)

    def steps(self) -> int:
        """How many file operations and blocks there are."""
        observed_values: list[str] = []

        def counted() -> int:
            measure = stream._measure_within_memory
            files.before_disk_change = lambda *_: observed_values.append("")
            stream._measure_within_memory = lambda *given: (observed_values.append(""), measure(*given))[1]
            assert main([*self.line(self.shm / "counted"), "--quiet"]) == 0
            return len(observed_values)

        return grid.start(counted).wait().result["value"]


@pytest.fixture
def command(shm: Path) -> Iterator[Command]:
    with grid.small_chunks():
        yield Command(shm)


def stop_at(command: Command, out: Path, position: int, kind: str, expected: str) -> float:
    """Stops the command at a step, checks what it says, takes it up again; seconds from the signal to the end."""
    err = command.shm / "err"
    outcome = command.run(out, position, kind, err)
    difference = time.monotonic() - float((command.shm / "sent").read_text())
    messages = err.read_text()
    assert outcome.code == CODES[kind], (position, kind, outcome.code, outcome.result, messages)
    assert "Traceback" not in messages and "Error" not in messages, messages
    artifacts = len(list(out.glob("artifacts/*/*.artifact")))
    text = f"{artifacts} finished artifacts are kept in {out}" if artifacts else "nothing was finished yet"
    if kind != "twice SIGINT":
        assert re.search(rf"stopped; {re.escape(text)}\. To resume: headcount score .*--out '?{re.escape(str(out))}", messages), (
            position,
            messages,
        )
    assert difference < MARGIN, f"{difference:.1f} s from the signal to the end"
    assert not list(out.rglob(".*")) or kind == "twice SIGINT", "half-written files"
    assert command.run(out).result["value"] == 0
    assert grid.digest(out) == expected and not list(out.rglob(".*"))
    return difference


def stop_everywhere(command: Command, number: int, kinds: list[str]) -> list[float]:
    steps = command.steps()
    expected = grid.digest(command.shm / "counted")
    positions = [2 + turn * (steps - 4) // number for turn in range(number)]
    return [stop_at(command, command.shm / f"{kind} {place}", place, kind, expected) for kind in kinds for place in positions]


def test_signals_at_some_points(command: Command) -> None:
    stop_everywhere(command, 4, list(CODES))


@pytest.mark.faults
def test_signals_at_20_points(command: Command, figure: Callable[..., None]) -> None:
    seconds = stop_everywhere(command, 20, list(CODES))
    figure("signals", points=20, signals=len(seconds), longest=max(seconds))


def process(words: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "headcount", *words]
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )


@pytest.mark.parametrize("kind", CODES)
def test_a_real_process_is_stopped(shm: Path, kind: str) -> None:
    """From the shell's side, where the end of the interpreter counts too; the table is long enough that it is still at work."""
    model, table = saved_classifier(shm / "model"), saved_table(shm / "data.csv", 3000)
    out = shm / "run"
    words = ["score", str(model), "--train", str(table), "--by", "ablation", "--batch-size", "4", "--out", str(out)]
    with process(words) as running:
        end = time.monotonic() + 240
        while not list(out.glob("artifacts/chunk/*.artifact")) and running.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        assert running.poll() is None, running.communicate()
        running.send_signal(signal.SIGTERM if kind == "SIGTERM" else signal.SIGINT)
        if kind.startswith("twice"):
            time.sleep(0.1)  # the command is ending by then, which must not be disturbed
            if running.poll() is None:
                running.send_signal(signal.SIGINT)
        sent = time.monotonic()
        _, messages = running.communicate(timeout=120)
        difference = time.monotonic() - sent
    assert running.returncode == CODES[kind], messages
    assert "Traceback" not in messages and "Exception ignored" not in messages, messages
    if not kind.startswith("twice"):
        assert "finished artifacts are kept" in messages and "To resume: headcount score" in messages
    assert difference < 10, f"{difference:.1f} s, the end of the interpreter and a busy machine included"


def test_ctrl_c_while_everything_is_imported(shm: Path) -> None:
    """The command is in its folder before the slow imports; stopped there it says so, and leaves nothing."""
    model, table = saved_classifier(shm / "model"), saved_table(shm / "data.csv", 12)
    for wait, kind in ((0.0, signal.SIGINT), (0.7, signal.SIGTERM), (1.5, signal.SIGINT)):
        with process(["score", str(model), "--train", str(table), "--out", str(shm / "run")]) as running:
            end = time.monotonic() + 120
            while not (shm / "run" / "owner.json").exists() and running.poll() is None and time.monotonic() < end:
                time.sleep(0.005)
            time.sleep(wait)
            running.send_signal(kind)
            _, messages = running.communicate(timeout=120)
        assert running.returncode in (130, 143, 0), messages
        assert "Traceback" not in messages, messages
        if running.returncode:
            assert "stopped; nothing was finished yet. To resume: headcount score" in messages, messages
            assert not (shm / "run").exists() or not list((shm / "run").rglob(".*"))


# Two processes.


def test_a_second_process_is_refused_and_the_first_unharmed(shm: Path) -> None:
    with grid.small_chunks():
        expected = grid.warm_up(shm / "expected")
        reads, writes = os.pipe()

        def first() -> None:
            with Run.lead(shm / "run", command=grid.COMMAND) as run:
                os.close(writes)
                os.read(reads, 1)
                grid.work(run)

        holder = grid.start(first)
        while not (shm / "run" / "owner.json").exists():
            time.sleep(0.001)

        def second() -> float:
            start = time.monotonic()
            try:
                grid.lead(shm / "run")
            finally:
                (shm / "took").write_text(str(time.monotonic() - start))
            raise AssertionError

        before = sorted(path.name for path in (shm / "run").iterdir())
        for _ in range(10):
            refused = grid.start(second).wait()
            assert "Busy" in refused.result["kinds"], refused.result
            error = refused.result["error"]
            assert (
                f"process {holder.pid} on {socket.gethostname()} since 20" in error
                and grid.COMMAND in error
                and "help it as a worker" in error
            )
            assert float((shm / "took").read_text()) < 1
        assert sorted(path.name for path in (shm / "run").iterdir()) == before
        os.close(writes)
        assert holder.wait().code == 0, holder.result
        assert grid.digest(shm / "run") == expected and grid.is_clean(shm / "run")
        with Run.lead(shm / "run"), pytest.raises(files.ArtifactError, match="in use by this process"), Run.lead(shm / "run"):
            pass


def test_the_second_command_is_refused_before_torch_is_imported(shm: Path) -> None:
    """Within a second, from when the command has its arguments: the start of Python and of the command line come before."""
    code = (
        "import json, sys, time; from headcount.app.main import main; main(['ls', '--quiet']); start = time.monotonic()\n"
        "code = main(sys.argv[1:]); print(json.dumps([code, time.monotonic() - start, 'torch' in sys.modules]))"
    )
    with Run.lead(shm / "run", command="headcount score the first"):
        words = ["score", "demo/encoder", "--task", "demo/nli", "--out", str(shm / "run")]
        outcome = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True, timeout=120)
    status, seconds, torch = json.loads(outcome.stdout.splitlines()[-1])
    assert (status, torch) == (1, False) and seconds < 1, (seconds, outcome.stderr)
    assert f"in use by process {os.getpid()}" in outcome.stderr and "headcount score the first" in outcome.stderr


def test_of_many_that_start_at_once_one_leads(shm: Path) -> None:
    """Each makes the folder, takes it, and takes it away again when it wrote nothing: never do two have it."""

    def race() -> list[str]:
        texts = []
        for _ in range(60):
            try:
                with Run.lead(shm / "raced") as run:
                    mark = run.folder.parent / "inside"
                    os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
                    mark.unlink()
                    texts.append("led")
            except files.ArtifactError as error:
                texts.append(type(error).__name__)
        return texts

    children = [grid.start(race) for _ in range(6)]
    texts = [text for child in children for text in (child.wait().result.get("value") or [str(child.result)])]
    assert set(texts) <= {"led", "Busy", "ArtifactError"} and "led" in texts, set(texts)
