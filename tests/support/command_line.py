"""Runs the command line in this process: its output, its JSON, and the one line of its error."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headcount.app.main import main


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def result(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    """The JSON on stdout of a command that succeeds; NaN and Infinity, which json would accept, are refused."""
    code, out, err = run(capsys, *words, "--json")
    assert code == 0, err
    return json.loads(out, parse_constant=pytest.fail)


def refused(capsys: pytest.CaptureFixture[str], code: int, *words: object) -> str:
    """The message of a command that fails: one line on stderr beside notes, no traceback, nothing on stdout."""
    actual, out, err = run(capsys, *words)
    assert (actual, out) == (code, ""), err
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and "Traceback" not in err and "unexpected" not in err, err
    remainder = err.split(errors[0], 1)[1].strip().splitlines()
    assert not remainder or (len(remainder) == 1 and remainder[0].startswith("See: ")), (
        f"the message goes on for several lines: {remainder}"
    )
    return errors[0]
