"""Runs several forward passes in step: each runs until it pauses, and when all have paused at the same point, a function is called in between.

What a block should become can then be worked out from all of the data before any of it goes further, in one pass over the data instead of one per
block. Every pass has a thread of its own, of which only one runs at a time, in a fixed order, so that nothing depends on timing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Any

from headcount.core.errors import UnsupportedModel

PausePoint = Any
"""The point of a pass at which it pauses, hashable."""


class _Abandoned(BaseException):
    """Ends a pass whose result is not needed any more."""


class _Pass:
    """A job in a thread of its own, and the point at which it paused."""

    def __init__(self, job: Callable[[], None], lockstep: Lockstep) -> None:
        self.paused_at: PausePoint = None
        self.is_finished = False
        self.is_abandoned = False
        self.error: BaseException | None = None
        self.turn = threading.Semaphore(0)
        self._job, self._lockstep = job, lockstep
        self.thread = threading.Thread(
            target=copy_context().run, args=(self._run_job,), daemon=True
        )  # it works for the caller, as its owner

    def _run_job(self) -> None:
        self.turn.acquire()
        try:
            if not self.is_abandoned:
                self._lockstep.current.running = self
                self._job()
        except _Abandoned:
            pass
        except BaseException as error:
            self.error = error
        self.is_finished = True
        self._lockstep.stopped.release()


class Lockstep:
    """Runs jobs in step; `between(point)` is called whenever all have paused at `point`."""

    def __init__(self, between: Callable[[PausePoint], None]) -> None:
        self._between = between
        self.stopped = threading.Semaphore(0)
        self.current = threading.local()

    def pause(self, point: PausePoint) -> None:
        """Called inside a job: waits until all others have paused at the same point."""
        running: _Pass = self.current.running
        running.paused_at = point
        self.stopped.release()
        running.turn.acquire()
        if running.is_abandoned:
            raise _Abandoned

    def run(self, jobs: Sequence[Callable[[], None]]) -> None:
        """Runs all jobs to their ends; an error in one of them ends the others and is raised here."""
        passes = [_Pass(job, self) for job in jobs]
        try:
            for running in passes:
                running.thread.start()
            while not all(running.is_finished for running in passes):
                for running in passes:
                    running.turn.release()
                    self.stopped.acquire()
                    if running.error is not None:
                        raise running.error
                self._call_between_at_common_pause(passes)
        finally:
            self._abandon_unfinished(passes)

    def _call_between_at_common_pause(self, passes: list[_Pass]) -> None:
        """Calls `between` with the point at which all passes paused, unless all are finished."""
        points = {"the end" if running.is_finished else running.paused_at for running in passes}
        if len(points) > 1:
            raise UnsupportedModel(
                f"some batches run through {', '.join(map(str, sorted(points, key=str)))} at the same point of the pass: the blocks that run depend "
                "on the data, so that they cannot be fitted one after another"
            )
        if not passes[0].is_finished:
            self._between(points.pop())

    def _abandon_unfinished(self, passes: list[_Pass]) -> None:
        """Ends the passes that are not finished, and waits for all threads."""
        started = [running for running in passes if running.thread.ident is not None]
        for running in started:
            if not running.is_finished:
                running.is_abandoned = True
                running.turn.release()
        for running in started:
            running.thread.join()
        for running in passes:
            running.error = None  # an error holds its frames, and these the pass
