"""The progress of long calls: a bar on a terminal or in a notebook, or a function of the caller."""

from __future__ import annotations

import html
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from typing import Protocol

Progress = Callable[[int, int | None], None]
"""Called with the number of finished pieces of work, and of all pieces where that is known."""


class BeginStage(Protocol):
    """Names the work that begins now; returns the function to call with its progress, None where nothing is shown."""

    def __call__(self, work: str, unit: str = "examples") -> Progress | None:
        """`unit` is what is counted."""
        ...


_IS_WATCHED = ContextVar("_IS_WATCHED", default=False)
"""Whether a caller shows the progress already, so that calls within it show none of their own."""


@contextmanager
def hide_inner_progress() -> Iterator[None]:
    """Keeps the calls within the context from showing bars, because their caller shows progress itself."""
    token = _IS_WATCHED.set(True)
    try:
        yield
    finally:
        _IS_WATCHED.reset(token)


@contextmanager
def show_progress_by_stage(progress: bool | Progress) -> Iterator[BeginStage]:
    """Yields a function `begin(work, unit)`, which names the work that begins now and returns the function to call with (done, total).

    With True that function draws a bar on a terminal or in a notebook; elsewhere, within a call that is watched already, and with False it is None.
    """
    open_bar = None if _IS_WATCHED.get() or progress is False else _choose_bar()
    with hide_inner_progress(), ExitStack() as bars:

        def begin(work: str, unit: str = "examples") -> Progress | None:
            if not isinstance(progress, bool):
                return progress
            bars.close()
            return None if open_bar is None else bars.enter_context(open_bar(work, unit))

        yield begin


@contextmanager
def show_progress(progress: bool | Progress, work: str, unit: str = "examples") -> Iterator[Progress | None]:
    """Yields the function to call with the progress of one piece of work; None where nothing is shown (see `show_progress_by_stage`)."""
    with show_progress_by_stage(progress) as begin:
        yield begin(work, unit)


def _choose_bar() -> Callable[[str, str], AbstractContextManager[Progress]] | None:
    """Returns the bar of a terminal or of a notebook; None elsewhere, and in all but the first process of a launcher."""
    if os.environ.get("RANK", "0") != "0":
        return None
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if getattr(shell, "kernel", None) is not None:
        return notebook_bar
    return terminal_bar if sys.stderr is not None and sys.stderr.isatty() else None


@contextmanager
def terminal_bar(work: str, unit: str) -> Iterator[Progress]:
    """Draws a bar with the remaining time on the terminal of stderr, and removes it at the end."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    parts = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[unit]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*parts, console=Console(file=sys.stderr), transient=True) as progress:
        task = progress.add_task(work, total=None, unit=unit)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextmanager
def notebook_bar(work: str, unit: str) -> Iterator[Progress]:
    """Draws a bar as the output of a notebook's cell, and removes it at the end."""
    from IPython.display import HTML, display  # pyright: ignore[reportMissingImports]

    def draw_bar(n_finished: int, total: int | None) -> HTML:
        value = f" value='{n_finished}' max='{total}'" if total else ""
        return HTML(f"{html.escape(work)} <progress{value}></progress> {n_finished} of {total or '?'} {html.escape(unit)}")

    output = display(draw_bar(0, None), display_id=True)
    try:
        yield lambda done, total: output.update(draw_bar(done, total))
    finally:
        output.update(HTML(""))
