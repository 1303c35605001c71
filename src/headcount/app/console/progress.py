"""Signs of life: what is being done, how far it is and how long it will take, whenever nothing else was said for a while."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

FIRST, LATER = 2.0, 10.0
"""Seconds of silence before the first line about a piece of work, and before each further one."""


class Pulse:
    """Says now and then what is going on, by `tell`, from a thread of its own."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self.paused = False
        self.begin("starting")

    def begin(self, what: str, unit: str = "examples") -> None:
        """Names the work that begins now, and what it is counted in."""
        self._what, self._unit, self._start, self._next = what, unit, time.monotonic(), time.monotonic() + FIRST
        self._done: tuple[int, int | None] | None = None

    def advance(self, done: int, total: int | None) -> None:
        """Says how far the work is."""
        self._done = (done, total)

    @contextmanager
    def beating(self) -> Iterator[None]:
        """The thread, while the context lasts."""
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
                self._tell(f"{self._what}: {self._told(now - self._start)}")

    def _told(self, seconds: float) -> str:
        if self._done is None:
            return f"{seconds:.0f} s so far"
        done, total = self._done
        left = f", about {seconds / done * (total - done):.0f} s left" if total and done else ""
        return f"{done} of {total or '?'} {self._unit}{left}"


@contextmanager
def bar(what: str) -> Iterator[Callable[[int, int | None], None]]:
    """A bar on a terminal, with what is left."""
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
    with Progress(*parts, console=Console(file=sys.stderr), transient=True) as shown:
        task = shown.add_task(what, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)
