"""A crash, a full disk or a broken one at every file operation: what was finished stays, and the same command ends in the same bytes."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import grid
import pytest

from headcount.app.main import main

FAULTS = {"disk full": errno.ENOSPC, "input/output error": errno.EIO, "permission denied": errno.EACCES}


@pytest.fixture
def expected(shm: Path) -> Iterator[str]:
    with grid.small_chunks(shm / "computed"):
        yield grid.warm_up(shm / "expected")


def some(operations: list[str], number: int) -> list[int]:
    """The places of operations that differ most: the first of each kind and target, and others spread evenly."""
    step = max(1, len(operations) // number)
    return list(range(1, len(operations) + 1, step))


def crash_at(folder: Path, position: int, expected: str) -> None:
    """Crashes at one operation, runs the command again, and compares."""
    shutil.rmtree(folder, ignore_errors=True)
    died = grid.start(lambda: grid.lead(folder), grid.at(position, grid.crash)).wait()
    assert died.code == -9, (position, died.code)
    missing = grid.needed(folder)
    (folder.parent / "computed").unlink(missing_ok=True)
    outcome = grid.finish(folder)
    again = [name for _, name in grid.computed(folder.parent / "computed")]
    assert sorted(again) == sorted(missing), f"operation {position}: computed {again}, missing were {missing}"
    assert grid.digest(folder) == expected, f"operation {position}: other bytes"
    assert grid.is_clean(folder) and not outcome.result["warnings"], (position, outcome.result)


def test_a_crash_at_some_operations(shm: Path, expected: str) -> None:
    operations = grid.count_operations(lambda: grid.lead(shm / "counted"))
    for position in some(operations, 10):
        crash_at(shm / "run", position, expected)


@pytest.mark.faults
def test_a_crash_at_every_operation(shm: Path, expected: str, figure: Callable[..., None]) -> None:
    operations = grid.count_operations(lambda: grid.lead(shm / "counted"))
    for index in range(1, len(operations) + 1):
        crash_at(shm / "run", index, expected)
    figure("crashes", points=len(operations), artifacts=12)


def test_a_crash_while_a_run_grows_and_while_it_is_taken_up(shm: Path, expected: str) -> None:
    """The folder holds results of another seed, and two crashes come one after the other."""
    grid.lead(shm / "base", seed=4)
    shutil.copytree(shm / "base", shm / "whole")
    grid.finish(shm / "whole")
    for position in (3, 30, 61, 64, 70, 85, 110):
        folder = shm / f"run{position}"
        shutil.copytree(shm / "base", folder)
        for second in (position, position // 2 + 1):
            grid.start(lambda: grid.lead(folder), grid.at(second, grid.crash)).wait()  # noqa: B023
        grid.finish(folder)
        assert grid.digest(folder) == grid.digest(shm / "whole") and grid.is_clean(folder), position


def test_a_crash_of_a_pass_for_methods_that_were_added_loses_no_block(shm: Path, expected: str) -> None:
    """Two of three methods are missing; one of them is committed before the crash: the blocks of both go on to be used."""
    from toys import shared

    from headcount.runs.store import Run
    from headcount.workflows.score import score_into

    def add(*methods: str) -> None:
        with Run.lead(shm / "run") as run:
            score_into(run, shared("encoder"), grid.data(), methods)

    grid.lead(shm / "run")
    operations = grid.count_operations(lambda: (shutil.copytree(shm / "run", shm / "copy"), add("gradient", "fisher", "entropy")))
    shutil.rmtree(shm / "run")
    shutil.move(shm / "copy", shm / "run")
    position = next(
        i for i, text in enumerate(operations, 1) if text.startswith("create .entropy.") and "+" not in text and ".fisher" not in text
    )
    grid.start(lambda: add("gradient", "fisher", "entropy"), grid.at(position, grid.crash)).wait()
    assert "fisher" in grid.finished(shm / "run")["scores"] and "entropy" not in grid.finished(shm / "run")["scores"]
    (shm / "computed").unlink()
    grid.finish(shm / "run", lambda: add("gradient", "fisher", "entropy"))
    assert not grid.computed(shm / "computed")
    assert grid.is_clean(shm / "run")


# Disks that fail.


def fail_at(base: Path, folder: Path, position: int, number: int, expected: str) -> bool:
    """Lets operations fail from one on, as a full disk does, or one alone; runs again without; whether the error was told."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(base, folder)
    before = {path.relative_to(base): path.read_bytes() for path in (base / "artifacts").rglob("*.artifact")}

    def fail(_operation: str, path: Path) -> None:
        raise OSError(number, os.strerror(number), str(path))

    failed = grid.start(lambda: grid.lead(folder), grid.at(position, fail, on=number == errno.ENOSPC)).wait()
    messages = failed.code == 1
    if messages:
        assert "ArtifactError" in failed.result["kinds"], (position, failed.result)
        assert str(folder) in failed.result["error"], failed.result
        if number == errno.ENOSPC and "removed" not in failed.result["error"] and "worked in" not in failed.result["error"]:
            assert "the disk is full" in failed.result["error"] and "are free" in failed.result["error"], failed.result
    else:
        assert failed.code == 0, (position, failed.result)
    assert all((folder / name).read_bytes() == content for name, content in before.items()), position
    grid.finished(folder)
    grid.finish(folder)
    assert grid.digest(folder) == expected and grid.is_clean(folder), (position, failed.result)
    return messages


def prepare(shm: Path) -> tuple[Path, str, list[str]]:
    """A finished run of one seed, and what the command of another seed makes of it."""
    grid.lead(shm / "base", seed=4)
    shutil.copytree(shm / "base", shm / "whole")
    operations = grid.count_operations(lambda: grid.lead(shm / "whole"))
    return shm / "base", grid.digest(shm / "whole"), operations


@pytest.mark.parametrize("fault", FAULTS)
def test_a_disk_that_fails_at_some_operations(shm: Path, expected: str, fault: str) -> None:
    base, complete, operations = prepare(shm)
    for position in some(operations, 6):
        fail_at(base, shm / "run", position, FAULTS[fault], complete)


@pytest.mark.faults
@pytest.mark.parametrize("fault", FAULTS)
def test_a_disk_that_fails_at_every_operation(shm: Path, expected: str, fault: str, figure: Callable[..., None]) -> None:
    base, complete, operations = prepare(shm)
    fail_ats = [fail_at(base, shm / "run", index, FAULTS[fault], complete) for index in range(1, len(operations) + 1)]
    assert sum(not was for was in fail_ats) <= 1, "all but the removal of owner.json are told"
    figure(f"disk {errno.errorcode[FAULTS[fault]]}", points=len(operations))


def test_the_command_line_ends_with_1_and_one_line(shm: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from toys import saved_classifier, saved_table

    model, table = saved_classifier(shm / "model"), saved_table(shm / "data.csv")
    line = ["score", str(model), "--train", str(table), "--by", "gradient,confidence", "--out", str(shm / "run")]

    def fail(_operation: str, path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    for position in (1, 4, 12, 25, 40):
        done = grid.start(lambda: main(line), grid.at(position, fail, on=True)).wait()
        messages = capfd.readouterr().err.splitlines()
        errors = [text for text in messages if text.startswith("error: ")]
        assert done.result["value"] == 1 and len(errors) == 1, (position, done.result, messages)
        assert str(shm / "run") in errors[0] and "unexpected" not in errors[0] and "Traceback" not in "".join(messages)
    assert grid.start(lambda: main(line)).wait().result["value"] == 0
