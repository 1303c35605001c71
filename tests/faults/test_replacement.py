"""A model folder that is replaced while the process is killed at every file operation: the old model or the new one is there, whole."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import grid
import pytest
import torch
from torch import nn

import headcount as hc
from headcount.core import files, folders
from headcount.models.tiny.build import tiny_model

CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "os.truncate", "shutil.copyfile", "shutil.rmtree")
"""Audit events of operations that change a disk, beside opening a file to write."""


@pytest.fixture(scope="module")
def models() -> tuple[nn.Module, nn.Module]:
    """A cut model, and another with other weights."""
    small = hc.cut(tiny_model("bert", dtype=torch.float32), hc.Plan.removing(["L0H1", "L1H2"]))
    smaller = hc.cut(tiny_model("bert", dtype=torch.float32, seed=1), hc.Plan.removing(["L0H3", "L1H0", "L1H4"]))
    return small, smaller


def watch(folder: Path, act: Callable[[str, Path], None]) -> None:
    """Calls `act` before every operation of this process that changes something in a folder; for a process that ends soon."""
    inside = str(folder)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        path = str(arguments[0]) if arguments else ""
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if path.startswith(inside) and (event in CHANGES or writes):
            act("audit", Path(path))

    sys.addaudithook(hook)


def replace_model(model: nn.Module, target: Path, number: int | None) -> int:
    """Saves a model over another; dies before the operation of that number. How many operations there were."""
    counted = 0

    def count(operation: str, path: Path) -> None:
        nonlocal counted
        counted += 1
        if counted == number:
            grid.crash("", path)

    files.before_disk_change = count
    watch(target.parent, count)
    hc.save(model, target, overwrite=True)
    return counted


def weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def kill_at_every_operation(shm: Path, models: tuple[nn.Module, nn.Module], step: int) -> tuple[int, int, int]:
    """(kills, folders that held the old model, folders that held the new one); anything else fails."""
    old, new = models
    before, after = weights_of(old), weights_of(new)
    hc.save(old, shm / "saved" / "model")
    shutil.copytree(shm / "saved", shm / "counted")
    total = grid.finish(shm, lambda: replace_model(new, shm / "counted" / "model", None)).result["value"]
    assert total > 15, total
    counts = [0, 0, 0]
    # At the end, where names change, every second one if not every one.
    for number in [*range(1, total - 25, step), *range(max(1, total - 25), total + 1, min(step, 2))]:
        path = shm / f"run{number}"
        shutil.copytree(shm / "saved", path)
        assert grid.start(lambda: replace_model(new, path / "model", number)).wait().code == -9, number  # noqa: B023
        weights = weights_of(hc.load(path / "model"))
        is_old, is_new = equal(weights, before), equal(weights, after)
        assert is_old or is_new, f"killed at operation {number} of {total}: neither the old model nor the new one"
        hc.save(new, path / "model", overwrite=True)
        assert equal(weights_of(hc.load(path / "model")), after), number
        counts = [counts[0] + 1, counts[1] + is_old, counts[2] + is_new]
        shutil.rmtree(path)
    return counts[0], counts[1], counts[2]


@pytest.mark.parametrize("way", ["exchanged", "in steps"])
def test_a_folder_that_is_replaced_is_never_lost(
    shm: Path, models: tuple[nn.Module, nn.Module], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "in steps":  # as on a file system whose names cannot be exchanged
        monkeypatch.setattr(folders, "_swap_names", lambda *_: False)
    kills, was_old, was_new = kill_at_every_operation(shm, models, step=9)
    assert was_old and was_new and was_old + was_new == kills


@pytest.mark.faults
def test_a_folder_that_is_replaced_is_never_lost_at_any_operation(
    shm: Path, models: tuple[nn.Module, nn.Module], monkeypatch: pytest.MonkeyPatch, figure: Callable[..., None]
) -> None:
    for name in ("exchanged", "stepwise"):
        (shm / name).mkdir()
    kills = kill_at_every_operation(shm / "exchanged", models, step=1)[0]
    monkeypatch.setattr(folders, "_swap_names", lambda *_: False)
    kills += kill_at_every_operation(shm / "stepwise", models, step=1)[0]
    figure("campaign replacement", tried=kills, lost=0, wrong=0, raw=0)


def test_a_reader_between_the_renames_finishes_them(
    shm: Path, models: tuple[nn.Module, nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "_swap_names", lambda *_: False)
    old, new = models
    target = hc.save(old, shm / "model")
    read: list[bool] = []

    def look(operation: str, path: Path) -> None:
        if operation == "rename" and path == target.resolve() and not target.exists():
            read.append(equal(weights_of(hc.load(target)), weights_of(new)))

    monkeypatch.setattr(files, "before_disk_change", look)
    hc.save(new, target, overwrite=True)
    assert read == [True]
    assert equal(weights_of(hc.load(target)), weights_of(new))
    assert [path.name for path in shm.iterdir()] == ["model"]


def test_a_folder_that_its_user_removed_does_not_come_back(shm: Path) -> None:
    complete, _ = folders._temporary_paths_of_new_and_old((shm / "model").resolve())
    complete.mkdir()
    folders.finish_replacement(shm / "model")
    assert not (shm / "model").exists()
