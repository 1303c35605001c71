"""The help of every command fits a terminal of 80 columns without shortening a flag."""

from __future__ import annotations

import re
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
