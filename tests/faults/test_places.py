"""Real full disks, and folders of every odd kind: a typed error that says what to do, or a run like any other."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grid
import pytest
from bad_kit import as_nobody

from headcount.core import files
from headcount.core.errors import ArtifactError
from headcount.runs import describe, store
from headcount.runs.store import Run

FILLING = """
import sys, warnings
sys.path[:0] = sys.argv[1:3]
import torch; torch.set_num_threads(1)
from pathlib import Path
import grid
from headcount.core.errors import ArtifactError
disk, fills = Path(sys.argv[3]), [int(text) for text in sys.argv[4].split(",")]
with grid.small_chunks():
    grid.lead(disk / "expected")
    expected, told = grid.digest(disk / "expected"), 0
    import shutil; shutil.rmtree(disk / "expected")
    for room in fills:
        free = shutil.disk_usage(disk).free
        (disk / "ballast").write_bytes(bytes(max(0, free - room)))
        try:
            grid.lead(disk / "run")
        except ArtifactError as error:
            told += 1
            print(f"{room}: {error}")
            assert str(disk / "run") in str(error) and "the disk is full" in str(error) and "are free" in str(error), error
            assert "bytes are needed" in str(error) or "mkdir" in repr(error.__cause__) or "artifacts" in str(error), error
        grid.finished(disk / "run")
        (disk / "ballast").unlink()
        grid.lead(disk / "run")
        assert grid.digest(disk / "run") == expected and grid.is_clean(disk / "run"), room
        shutil.rmtree(disk / "run")
print(f"told {told}")
"""


def fill(tmp_path: Path, rooms: list[int]) -> str:
    """Runs in a file system of 3 MB that is full but for so many bytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    (tmp_path / "fill.py").write_text(FILLING)
    here = Path(__file__).parent
    work = [sys.executable, str(tmp_path / "fill.py"), str(here), str(here.parent / "support"), str(disk), ",".join(map(str, rooms))]
    script = 'mount -t tmpfs -o size=3m none "$1" && shift && exec "$@"'
    command = ["unshare", "-rm", "sh", "-c", script, "sh", str(disk), *work]
    trial = subprocess.run(["unshare", "-rm", "sh", "-c", 'mount -t tmpfs none "$1"', "sh", str(disk)], capture_output=True, check=False)
    if trial.returncode:
        pytest.skip(f"this machine lets nobody mount a small file system: {trial.stderr.decode()[:200]}")
    outcome = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert outcome.returncode == 0, outcome.stdout[-2000:] + outcome.stderr[-3000:]
    return outcome.stdout


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    output = fill(tmp_path, [0, 30_000])
    assert "told 2" in output, output


@pytest.mark.faults
def test_a_disk_that_is_really_full_at_every_size(tmp_path: Path, figure: Callable[..., None]) -> None:
    rooms = [*range(0, 140_000, 4096)]
    output = fill(tmp_path, rooms)
    figure("full disk", rooms=len(rooms), told=int(output.rsplit("told ", 1)[1]))


# Odd folders.


@pytest.fixture
def expected(shm: Path) -> Iterator[str]:
    with grid.small_chunks():
        yield grid.warm_up(shm / "expected")


NAMES = {
    "255 bytes": "x" * 255,
    "255 bytes of other letters": "ж" * 127 + "x",
    "unicode": "läuft ✓ 走る \u202e",
    "blanks and quotes": "a b'c\"d; rm -rf $HOME",
    "a leading dash": "--out",
    "not UTF-8": os.fsdecode(b"raw\xff\xfe"),
    "a line break": "a\nb",
    "a dot in front": ".hidden",
}


@pytest.mark.parametrize("name", NAMES)
def test_any_name_will_do(shm: Path, expected: str, name: str) -> None:
    folder = shm / NAMES[name]
    died = grid.start(lambda: grid.lead(folder), grid.at(60, grid.crash)).wait()
    assert died.code == -9
    grid.finish(folder)
    assert grid.digest(folder) == expected
    (folder / "scores.csv").write_text("spoiled")
    grid.finish(folder)
    assert grid.digest(folder) == expected and len((folder / "log.txt").read_text().splitlines()) == 4


def test_a_command_that_is_not_utf_8_is_kept(shm: Path) -> None:
    from toys import shared

    import headcount as hc
    from headcount.models.provenance import model_record
    from headcount.runs.describe import describe_run

    command = os.fsdecode(b"headcount score \xff")
    with Run.lead(shm / "run", command=command) as run:
        run.stage_records(describe_run(model_record(shared("encoder"), command), command=command, seed=0), hc.HeadMap.of(shared("encoder")))
        run.register_results()
    assert Run.open(shm / "run").record().command == command


def test_a_linked_folder_is_the_folder(shm: Path, expected: str) -> None:
    (shm / "real").mkdir()
    (shm / "link").symlink_to(shm / "real")
    grid.finish(shm / "link")
    assert grid.digest(shm / "real") == expected
    with Run.lead(shm / "link"), pytest.raises(ArtifactError, match="in use by this process"), Run.lead(shm / "real"):
        pass
    with Run.lead(shm / "real"):
        other = grid.start(lambda: grid.lead(shm / "link")).wait()
    assert "Busy" in other.result["kinds"]


PLACES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "a loop of links": (lambda at: _link(at / "a", at / "b", _link(at / "b", at / "a", at / "a")), "could not be written|cannot"),
    "a link to nowhere": (lambda at: _link(at / "a", at / "nowhere", at / "a"), "could not be written"),
    "a file": (lambda at: _file(at / "a"), "is a file; name a folder"),
    "inside a file": (lambda at: _file(at / "a") / "run", "is a file, not a folder"),
    "256 bytes": (lambda at: at / ("x" * 256), "File name too long"),
    "a null byte": (lambda at: at / "a\0b", "null"),
    "not empty": (lambda at: _file(at / "thesis.txt").parent, "is not empty and holds no run"),
    "in /proc": (lambda _at: Path("/proc/run"), "cannot be made|could not be written"),
}


def _link(path: Path, target: Path, result: Path) -> Path:
    path.symlink_to(target)
    return result


def _file(path: Path) -> Path:
    path.write_text("")
    return path


@pytest.mark.parametrize("kind", PLACES)
def test_an_impossible_place_is_told(shm: Path, kind: str) -> None:
    made, message = PLACES[kind]
    position = made(shm)
    before = sorted(path.name for path in shm.iterdir())
    with pytest.raises(ArtifactError, match=message), Run.lead(position):
        pass
    with pytest.raises(ArtifactError, match="holds no run"):
        Run.open(position)
    with pytest.raises(ArtifactError, match="holds no run"), Run.join(position):
        pass
    assert before == sorted(path.name for path in shm.iterdir())


def without_rights(what: Callable[[], Any]) -> grid.Child:
    """Does something in a process for which permissions hold even if it is root's."""
    return grid.start(as_nobody(what)).wait()


def test_a_folder_that_cannot_be_written_is_told_and_read(shm: Path, expected: str) -> None:
    from headcount.runs.scores import all_scores

    shm.chmod(0o755)
    shutil.copytree(shm / "expected", shm / "run")
    for path in [*(shm / "run").rglob("*"), shm / "run"]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    refused = without_rights(lambda: grid.lead(shm / "run"))
    assert "ArtifactError" in refused.result["kinds"] and "ermission denied" in refused.result["error"], refused.result
    read = without_rights(lambda: sorted(all_scores(Run.open(shm / "run"))))
    assert read.result["value"] == sorted(grid.METHODS), read.result
    fresh = without_rights(lambda: grid.lead(shm / "run" / "new"))
    assert "is not writable for you" in fresh.result["error"], fresh.result
    shm.chmod(0o000)
    hidden = without_rights(lambda: grid.lead(shm / "run"))
    shm.chmod(0o755)
    assert "ArtifactError" in hidden.result["kinds"], hidden.result


def test_a_clock_that_jumps_changes_nothing(shm: Path, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for year in (2038, 1970, 2026):
        for module in (store, describe):
            monkeypatch.setattr(module, "timestamp", lambda year=year: datetime(year, 1, 19, 3, 14, 8, tzinfo=UTC).isoformat())
        grid.finish(shm / "run")
        assert grid.digest(shm / "run") == expected
    died = grid.start(lambda: grid.lead(shm / "other"), grid.at(50, grid.crash)).wait()
    assert died.code == -9
    for path in (shm / "other").rglob("*"):
        os.utime(path, (0, 0))
    grid.finish(shm / "other")
    assert grid.digest(shm / "other") == expected


def test_what_dead_processes_left_half_written_is_removed(shm: Path, expected: str) -> None:
    grid.finish(shm / "run")
    (shm / "run" / "artifacts" / ".x.artifact.1.partial").write_bytes(b"torn")
    (shm / "run" / ".model.abc.partial").mkdir()
    (shm / "run" / ".model.abc.partial" / "weights").write_bytes(b"torn")
    grid.finish(shm / "run")
    assert not list((shm / "run").rglob(".*"))
    assert files.PARTIAL == ".partial"
