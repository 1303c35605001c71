"""The help of every command fits a terminal of 80 columns without shortening a flag."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import run

from headcount.app import cli
from headcount.core.registry import STUDIES

COMMANDS = [path.stem.replace("_", "-") for path in sorted(Path(cli.__file__).parent.glob("[a-z]*.py"))]


@pytest.mark.parametrize("words", [(), *((name,) for name in COMMANDS), *(("study", name) for name in STUDIES.names())], ids=" ".join)
def test_help_fits_80_columns(words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run(capsys, *words, "--help")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert not re.findall(r"--[a-z-]+…", out), "a flag is shortened"
    assert not re.findall(r"\[default:\s*\S*…", out), "a default is shortened"


def test_the_list_of_commands_says_what_each_help_says(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    _, out, _ = run(capsys, "--help")
    listed = [line.strip("│ ") for line in out.splitlines()]
    for name in COMMANDS:
        _, own, _ = run(capsys, name, "--help")
        summary = own.splitlines()[3].strip()
        assert any(line.startswith(name) and line.endswith(summary) for line in listed), (name, summary)


def test_the_list_of_commands_imports_no_command() -> None:
    script = (
        "import sys\nfrom headcount.app.cli._app import run\nassert run(['--help']) == 0 and run(['prun']) == 2\n"
        "wrong = [m for m in sys.modules if m.startswith('headcount.app.cli.') and not m.endswith('._app') or m == 'pydantic']\n"
        "assert not wrong, wrong"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
