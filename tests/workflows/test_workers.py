"""Sharing the work of a run by the command line: processes of this machine, and tasks of a local Ray; the tables are those of one process."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
from toys import saved_classifier, saved_table

from headcount.app.console.run_folder import _worker_command_arguments
from headcount.app.console.session import Session
from headcount.app.main import main
from headcount.runs.store import Run

BY = "gradient,ablation"


def command(model: Path, data: Path, out: Path, *more: str) -> list[str]:
    return ["score", str(model), "--train", str(data), "--by", BY, "--out", str(out), *more]


def table(out: Path) -> str:
    return hashlib.sha256((out / "scores.csv").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def model_and_data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A model, data of several blocks, and the run that one process made of them."""
    folder = tmp_path_factory.mktemp("workers")
    model, data = saved_classifier(folder / "model"), saved_table(folder / "data.csv", 600)
    assert main(command(model, data, folder / "one", "-q")) == 0
    return model, data, folder / "one"


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_workers_give_the_same_table(model_and_data: tuple[Path, Path, Path], tmp_path: Path, engine: str) -> None:
    if engine == "ray":
        pytest.importorskip("ray")
    model, data, one = model_and_data
    words = command(model, data, tmp_path / "run", "--workers", "2", "--engine", engine)
    outcome = subprocess.run([sys.executable, "-m", "headcount", *words], capture_output=True, text=True, timeout=240, check=False)
    assert outcome.returncode == 0, outcome.stderr[-2000:]
    assert "workers failed" not in outcome.stderr, outcome.stderr + (tmp_path / "run" / "workers.log").read_text()
    assert table(tmp_path / "run") == table(one)
    assert not list((tmp_path / "run").rglob("*.partial"))


def test_a_worker_joins_a_run_that_is_over_and_leaves(model_and_data: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    model, data, one = model_and_data
    before = {path: path.read_bytes() for path in one.rglob("*") if path.is_file() and path.name != "log.txt"}
    assert main(command(model, data, one, "--join", "-q")) == 0
    assert {path: path.read_bytes() for path in one.rglob("*") if path.is_file() and path.name != "log.txt"} == before


def test_what_cannot_be_shared_is_told(model_and_data: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, data, one = model_and_data
    with Run.lead(one, command="another command"):
        assert main(command(model, data, one, "-q")) == 1
    err = capsys.readouterr().err
    assert "in use" in err
    for code, words, message in (
        (2, ["score", str(model), "--train", str(data), "--workers", "2"], "name it with --out"),
        (1, command(model, data, tmp_path / "none", "--join"), "start the same command without --join first"),
        (2, command(model, data, tmp_path / "none", "--workers", "0"), "--workers"),
        (2, command(model, data, tmp_path / "none", "--engine", "spark"), "Known: local, ray"),
    ):
        assert main(words) == code
        assert message in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_a_worker_gets_the_same_command(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("score", "m", "--workers", "3", "--engine=ray", "-v", "--out", "r")
    session = Session(sys.stdout, words, json=False, quiet=False, verbose=False, pulse=None)  # pyright: ignore[reportArgumentType]
    assert _worker_command_arguments(session) == ["score", "m", "--out", "r", "--join", "--quiet"]
