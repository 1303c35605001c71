"""Progress: what is being done, how much of it is finished and how long the rest will take."""

from __future__ import annotations

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
        self._thread = threading.Thread(target=self._report_until_stopped, daemon=True)
        self.paused = False
        self.begin("starting")

    def begin(self, work: str, unit: str = "examples") -> None:
        """Names the work that begins now, and what it is counted in."""
        self._work, self._unit, self._start, self._next = work, unit, time.monotonic(), time.monotonic() + FIRST
        self._counts: tuple[int, int | None] | None = None

    def set_progress(self, n_finished: int, total: int | None) -> None:
        """Sets how much of the work is finished."""
        self._counts = (n_finished, total)

    @contextmanager
    def reporting_in_thread(self) -> Iterator[None]:
        """Runs the thread while the context lasts."""
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()

    def _report_until_stopped(self) -> None:
        while not self._stop.wait(0.25):
            now = time.monotonic()
            if not self.paused and now >= self._next:
                self._next = now + LATER
                self._report(f"{self._work}: {self._format_status(now - self._start)}")

    def _format_status(self, seconds_so_far: float) -> str:
        if self._counts is None:
            return f"{seconds_so_far:.0f} s so far"
        n_finished, total = self._counts
        remaining = f", about {seconds_so_far / n_finished * (total - n_finished):.0f} s left" if total and n_finished else ""
        return f"{n_finished} of {total or '?'} {self._unit}{remaining}"
