"""Progress: what is being done, how much of it is finished and how long the rest will take."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

FIRST, LATER = 2.0, 10.0
"""Seconds before the first line about a piece of work, and between further lines."""


class Pulse:
    """Reports the current work now and then, by calling `report` from a thread of its own."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self.paused = False
        self.begin("starting")

    def begin(self, work: str, unit: str = "examples") -> None:
        """Names the work that begins now, and what it is counted in."""
        self._work, self._unit, self._start, self._next = work, unit, time.monotonic(), time.monotonic() + FIRST
        self._done: tuple[int, int | None] | None = None

    def advance(self, done: int, total: int | None) -> None:
        """Sets how much of the work is finished."""
        self._done = (done, total)

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Runs the thread while the context lasts."""
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()

    def _beat(self) -> None:
        while not self._stop.wait(0.25):
            now = time.monotonic()
            if not self.paused and now >= self._next:
                self._next = now + LATER
                self._report(f"{self._work}: {self._status(now - self._start)}")

    def _status(self, seconds: float) -> str:
        if self._done is None:
            return f"{seconds:.0f} s so far"
        done, total = self._done
        remaining = f", about {seconds / done * (total - done):.0f} s left" if total and done else ""
        return f"{done} of {total or '?'} {self._unit}{remaining}"


@contextmanager
def bar(work: str) -> Iterator[Callable[[int, int | None], None]]:
    """Shows a progress bar on a terminal with the remaining time."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    parts = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*parts, console=Console(file=sys.stderr), transient=True) as progress:
        task = progress.add_task(work, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
