"""Training that is killed: whenever that is, it ends in the same plan and the same weights, to the bit."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import grid
import pytest
import torch
from toys import build, configured, saved_classifier, saved_table, task

import headcount as hc
from headcount.app.main import main
from headcount.pruning.prune import prune
from headcount.pruning.recipe import Recipe
from headcount.pruning.training import trainer
from headcount.pruning.training.trainer import list_finished_checkpoints

METHODS = ("l0", "dsp")
RECIPE = Recipe(train_batch=8, epochs=4, save_every=2)
DANGEROUS = (
    (torch, "save"),
    (trainer, "_seal_checkpoint"),
    (trainer, "_remove_checkpoint"),
    (trainer.shutil, "rmtree"),
    (Path, "rename"),
    (trainer, "write_json"),
)
"""Where a checkpoint is written, sealed, named, removed."""
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@cache
def model() -> Any:
    return build("encoder").float()


def digest_of(plan: hc.Plan, made: Any, history: Any) -> str:
    actual = hashlib.sha256(repr((plan.removed, history)).encode())
    for name, value in sorted(made.state_dict().items()):
        actual.update(name.encode() + value.detach().contiguous().numpy().tobytes())
    return actual.hexdigest()


def trained(folder: Path, method: str) -> str:
    """One training in a folder, to its end: one number for what came of it."""
    pruned = prune(model(), task("encoder", 32), configured(method, init="none"), 4, recipe=RECIPE, folder=folder, recover=1.0)
    assert len(pruned.history) == len({(entry.get("stage"), entry["step"]) for entry in pruned.history}), "nothing is told twice"
    return digest_of(pruned.plan, pruned.model, pruned.history)


@pytest.fixture
def warm(shm: Path) -> Iterator[Callable[[str], tuple[str, float]]]:
    """What an undisturbed training gives, and how long it takes."""

    def run(method: str) -> tuple[str, float]:
        trained(shm / "warm", method)
        shutil.rmtree(shm / "warm")
        start = time.monotonic()
        done = grid.start(lambda: trained(shm / "warm", method)).wait()
        assert done.code == 0, done.result
        assert not list((shm / "warm").rglob(".*")), "nothing half-written stays"
        return done.result["value"], time.monotonic() - start

    yield run


def goes_on(folder: Path, method: str, expected: str) -> None:
    for path in folder.rglob("checkpoint-*"):
        assert (
            trainer.PARTIAL in path.parts or f"{trainer.PARTIAL}-gone" in path.parts or trainer.describe_checkpoint_damage(path) is None
        ), "no half checkpoint"
    done = grid.start(lambda: trained(folder, method)).wait()
    assert done.code == 0, done.result
    assert done.result["value"] == expected
    assert not done.result["warnings"] or not any("damaged" in warning for warning in done.result["warnings"])


def kill_at_random(shm: Path, method: str, expected: str, seconds: float, number: int) -> int:
    random_ = random.Random(number)
    hit = 0
    for turn in range(number):
        child = grid.start(lambda folder=shm / f"{method}{turn}": trained(folder, method))
        time.sleep(random_.uniform(0.05, 0.95) * seconds)
        child.kill()
        hit += child.wait().code == -signal.SIGKILL
        goes_on(shm / f"{method}{turn}", method, expected)
        shutil.rmtree(shm / f"{method}{turn}")
    return hit


def counting(at: int | None, names: list[str]) -> None:
    """Ends this process at one of the dangerous calls; the call is half done where that is possible."""

    def wrap(owner: Any, name: str) -> None:
        inner = getattr(owner, name)

        def called(*args: Any, **options: Any) -> Any:
            names.append(name)
            if len(names) == at:
                if name == "save":
                    Path(args[1]).write_bytes(b"torn")
                os.kill(os.getpid(), signal.SIGKILL)
            return inner(*args, **options)

        setattr(owner, name, called)

    for owner, name in DANGEROUS:
        wrap(owner, name)


def points(shm: Path, method: str) -> int:
    def count() -> int:
        observed_values: list[str] = []
        counting(None, observed_values)
        trained(shm / "count", method)
        return len(observed_values)

    return grid.start(count).wait().result["value"]


def kill_in_checkpoints(shm: Path, method: str, expected: str, number: int) -> int:
    total = points(shm, method)
    positions = range(1, total + 1) if number >= total else sorted(random.Random(0).sample(range(1, total + 1), number))
    for position in positions:
        folder = shm / f"{method} at {position}"

        def doomed(position: int = position, folder: Path = folder) -> str:
            counting(position, [])
            return trained(folder, method)

        assert grid.start(doomed).wait().code == -signal.SIGKILL
        goes_on(folder, method, expected)
        shutil.rmtree(folder)
    return len(positions)


@pytest.mark.parametrize("method", METHODS)
def test_a_few_kills(shm: Path, warm: Callable[[str], tuple[str, float]], method: str) -> None:
    expected, seconds = warm(method)
    kill_at_random(shm, method, expected, seconds, 2)
    kill_in_checkpoints(shm, method, expected, 3)


def test_killed_again_and_again(shm: Path, warm: Callable[[str], tuple[str, float]]) -> None:
    """The same training dies at every attempt until it has come through; every attempt comes further."""
    expected, _ = warm("dsp")
    came = 0
    for _ in range(4):

        def doomed() -> str:
            observed_values: list[str] = []
            counting(40, observed_values)
            return trained(shm / "often", "dsp")

        if grid.start(doomed).wait().code == 0:
            break
        now = sum(
            int(path.name.rpartition("-")[2])
            for stage in ("choose", "recover")
            for path in list_finished_checkpoints(shm / "often" / stage)[-1:]
        )
        assert now > came
        came = now
    goes_on(shm / "often", "dsp", expected)


@pytest.mark.faults
@pytest.mark.parametrize("method", METHODS)
def test_20_kills_at_random_and_one_at_every_dangerous_call(
    shm: Path, warm: Callable[[str], tuple[str, float]], figure: Callable[..., None], method: str
) -> None:
    expected, seconds = warm(method)
    hit = kill_at_random(shm, method, expected, seconds, 20)
    figure(f"training {method}", kills=20, hit=hit, points=kill_in_checkpoints(shm, method, expected, 10_000))


# The command.


class Pruning:
    """`headcount prune` of a tiny classifier as a process of its own."""

    def __init__(self, shm: Path) -> None:
        self.shm = shm
        self.model, self.table = saved_classifier(shm / "model"), saved_table(shm / "data.csv", 90)

    def run(self, out: Path) -> grid.Child:
        words = ["prune", str(self.model), "--train", str(self.table), "--method", "dsp", "--keep", "4", "--out", str(out), "--quiet"]

        def started() -> int:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return main([*words, "--train-batch", "1", "--epochs", "1", "--recover", "1", "--no-bench"])

        return grid.start(started)


def digest(folder: Path) -> str:
    """The artifacts and the model of a run."""
    actual = hashlib.sha256()
    for path in sorted([*(folder / "artifacts").rglob("*.artifact"), *(folder / "models").rglob("*.safetensors")]):
        actual.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return actual.hexdigest()


def kill_command(shm: Path, number: int) -> int:
    command = Pruning(shm)
    command.run(shm / "warm").wait()
    start = time.monotonic()
    done = command.run(shm / "whole").wait()
    seconds = time.monotonic() - start
    assert done.result["value"] == 0, done.result
    assert list((shm / "whole" / "artifacts").rglob("*.artifact"))
    assert not list((shm / "whole").glob("work/*")), "checkpoints go when the artifact is there"
    expected, random_, hit = digest(shm / "whole"), random.Random(number), 0
    for turn in range(number):
        out = shm / f"run{turn}"
        child = command.run(out)
        stage, end = ("choose", "recover")[turn % 2], time.monotonic() + grid.LIMIT
        while not list(out.glob(f"work/*/{stage}/checkpoint-*")) and time.monotonic() < end and not list(out.glob("artifacts/pruned/*")):
            time.sleep(0.001)
        time.sleep(random_.uniform(0, 0.05) * seconds)
        child.kill()
        hit += child.wait().code == -signal.SIGKILL
        again = command.run(out).wait()
        assert again.result["value"] == 0, again.result
        assert digest(out) == expected
    return hit


def test_the_command_goes_on_to_the_identical_artifact(shm: Path) -> None:
    assert kill_command(shm, 2)


@pytest.mark.faults
def test_the_command_is_killed_20_times(shm: Path, figure: Callable[..., None]) -> None:
    figure("prune killed", kills=20, hit=kill_command(shm, 20))
