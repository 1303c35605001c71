"""Progress of public calls: a bar on a terminal or in a notebook, nothing elsewhere, or a function of the caller."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from toys import shared, task

import headcount as hc
from headcount.core import progress as progress_module
from headcount.core.errors import OptionError
from headcount.core.progress import hide_inner_progress, show_progress, show_progress_by_stage

CALLS: dict[str, Callable[..., Any]] = {
    "score": lambda progress, _out: hc.score(shared("encoder"), task("encoder", 8), progress=progress),
    "roles": lambda progress, _out: hc.roles(hc.load("demo/encoder"), task("encoder", 8), only=["sink"], progress=progress),
    "prune": lambda progress, _out: hc.prune(shared("encoder"), task("encoder", 8), "random", 4, repair=False, progress=progress),
    "evaluate": lambda progress, _out: hc.evaluate(shared("encoder"), task("encoder", 8), progress=progress),
    "study": lambda progress, _out: hc.study("layers", shared("encoder"), task("encoder", 8), progress=progress),
    "analyze": lambda progress, out: hc.analyze(shared("encoder"), task("encoder", 8), out=out, progress=progress),
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    stream = Terminal()
    monkeypatch.setattr(progress_module, "sys", SimpleNamespace(stderr=stream, modules=sys.modules))
    monkeypatch.setenv("TERM", "xterm")
    return stream


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("progress", [None, 1, "yes"])
def test_other_values_are_refused_before_any_work(name: str, progress: Any, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"option progress of .* must be true or false or function; got"):
        CALLS[name](progress, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["score", "evaluate", "study"])
def test_a_function_gets_done_and_total(name: str, tmp_path: Path, terminal: Terminal) -> None:
    calls: list[tuple[int, int | None]] = []
    CALLS[name](lambda done, total: calls.append((done, total)), tmp_path)
    done, total = calls[-1]
    assert done == total and all(0 < number <= (most or number) for number, most in calls)
    assert terminal.getvalue() == "", "the function replaces the bar"


@pytest.mark.parametrize("name", ["score", "prune", "evaluate", "study"])
def test_nothing_is_shown_where_there_is_no_terminal(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    CALLS[name](True, tmp_path)
    assert capfd.readouterr() == ("", "")


def test_a_terminal_shows_a_bar_and_false_is_silent(terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    CALLS["evaluate"](False, tmp_path)
    CALLS["prune"](False, tmp_path)
    assert terminal.getvalue() == "", "also the calls within are silent"
    CALLS["evaluate"](True, tmp_path)
    assert "evaluating" in terminal.getvalue()
    terminal.truncate(0)
    monkeypatch.setenv("RANK", "1")
    CALLS["evaluate"](True, tmp_path)
    assert "evaluating" not in terminal.getvalue(), "the first process of a launcher shows the progress of all"


def test_only_the_outermost_call_shows_a_bar(terminal: Terminal) -> None:
    with show_progress(True, "outer") as outer, show_progress(True, "inner") as inner:
        assert outer is not None and inner is None
    with hide_inner_progress(), show_progress(True, "inner") as inner:
        assert inner is None
    with show_progress_by_stage(True) as begin:
        for work in ("first", "second"):
            advance = begin(work, f"units of {work}")
            assert advance is not None
            advance(1, 2)
    assert all(work in terminal.getvalue() for work in ("outer", "first", "units of second")) and "inner" not in terminal.getvalue()


def test_a_notebook_shows_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    handle = SimpleNamespace(update=shown.append)
    display = SimpleNamespace(HTML=str, display=lambda text, display_id: (shown.append(text), handle)[1])
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object()), display=display))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    with show_progress(True, "a < b", "heads & tails") as advance:
        assert advance is not None
        advance(3, 4)
    assert shown[1] == "a &lt; b <progress value='3' max='4'></progress> 3 of 4 heads &amp; tails" and shown[-1] == ""
