"""The rooms core and runs, every `--help`, `ls` and `report` work without torch and transformers, so that they answer at once."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headcount.core.registry import KINDS, STUDIES

ROOT = Path(__file__).parents[2]
CODE = """
import importlib, json, sys
from contextlib import redirect_stdout
from io import StringIO

def heavy():
    return sorted({name.partition(".")[0] for name in sys.modules} & {"torch", "transformers"})

modules, commands = json.loads(sys.argv[1])
for name in modules:
    importlib.import_module(name)
    assert not heavy(), f"importing {name} imports {heavy()}"
for arguments in commands:
    from headcount.app.main import main

    output = StringIO()
    with redirect_stdout(output):
        code = main(arguments)
    assert code == 0, f"{arguments} ends with {code}"
    assert not heavy(), f"{arguments} imports {heavy()}"
"""


def run_without_torch(modules: list[str], commands: list[list[str]]) -> None:
    finished = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps([modules, commands])], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert finished.returncode == 0, finished.stderr[-2000:]


@pytest.mark.parametrize("room", ["core", "runs"])
def test_every_module_of_a_room_imports_without_torch(room: str) -> None:
    source = ROOT / "src"
    names = [".".join(path.relative_to(source).with_suffix("").parts) for path in (source / "headcount" / room).rglob("*.py")]
    run_without_torch(sorted(name.removesuffix(".__init__") for name in names), [])


def test_help_and_listings_import_no_torch() -> None:
    commands = [path.stem.replace("_", "-") for path in (ROOT / "src" / "headcount" / "app" / "cli").glob("[a-z]*.py")]
    listings = [["ls"], *(["ls", kind] for kind in ("archs", *KINDS))]
    studies = [["study", name, "--help"] for name in STUDIES.names()]
    assert len(commands) >= 15 and len(listings) >= 6
    run_without_torch([], [["--help"], *([command, "--help"] for command in sorted(commands)), *listings, *studies])


def test_report_imports_no_torch(tmp_path: Path) -> None:
    run = shutil.copytree(ROOT / "tests" / "frozen" / "run-v3", tmp_path / "run")
    run_without_torch([], [["report", str(run)]])
    assert (run / "report.html").stat().st_size > 100_000
