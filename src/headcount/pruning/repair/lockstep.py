"""Runs several forward passes in step: each goes on until it pauses, and when all have paused at the same place, something is done between.

What a block should become can then be worked out from all of the data before any of it goes further, in one pass over the data instead of one per
block. Every pass has a thread of its own, of which only one runs at a time, in a fixed order, so that nothing depends on timing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from contextvars import copy_context

from headcount.core.errors import UnsupportedModel

Key = Hashable


class _Abandoned(BaseException):
    """Ends a pass whose result is not needed any more."""


class _Pass:
    """One thread and the place where it paused."""

    def __init__(self, job: Callable[[], None], back: threading.Semaphore) -> None:
        self.key: Key = None
        self.done = False
        self.abandoned = False
        self.error: BaseException | None = None
        self.go = threading.Semaphore(0)
        self._job, self._back = job, back
        self.thread = threading.Thread(target=copy_context().run, args=(self._run,), daemon=True)  # it works for the caller, as its owner

    def _run(self) -> None:
        self.go.acquire()
        try:
            if not self.abandoned:
                self._job()
        except _Abandoned:
            pass
        except BaseException as error:
            self.error = error
        self.done = True
        self._back.release()


class Lockstep:
    """Runs jobs in step; `between(key)` is called whenever all have paused at `key`."""

    def __init__(self, between: Callable[[Key], None]) -> None:
        self._between = between
        self._back = threading.Semaphore(0)
        self._here = threading.local()

    def pause(self, key: Key) -> None:
        """Called inside a job: waits until all others are at the same place."""
        mine: _Pass = self._here.mine
        mine.key = key
        self._back.release()
        mine.go.acquire()
        if mine.abandoned:
            raise _Abandoned

    def run(self, jobs: Sequence[Callable[[], None]]) -> None:
        """Runs all jobs to their ends; an error in one of them ends the others and is raised here."""
        passes = [_Pass(self._with_place(job, number), self._back) for number, job in enumerate(jobs)]
        self._passes = passes
        try:
            for one in passes:
                one.thread.start()
            while passes:
                for one in passes:
                    one.go.release()
                    self._back.acquire()
                    if one.error is not None:
                        raise one.error
                passes = self._together(passes)
        finally:
            self._end(self._passes)

    def _with_place(self, job: Callable[[], None], number: int) -> Callable[[], None]:
        def run() -> None:
            self._here.mine = self._passes[number]
            job()

        return run

    def _together(self, passes: list[_Pass]) -> list[_Pass]:
        keys = {"the end" if one.done else one.key for one in passes}
        if len(keys) > 1:
            raise UnsupportedModel(
                f"some batches run through {', '.join(map(str, sorted(keys, key=str)))} at the same point of the pass: the blocks that run depend on "
                "the data, so that they cannot be fitted one after another"
            )
        if all(one.done for one in passes):
            return []
        self._between(keys.pop())
        return passes

    def _end(self, passes: list[_Pass]) -> None:
        started = [one for one in passes if one.thread.ident is not None]
        for one in started:
            if not one.done:
                one.abandoned = True
                one.go.release()
        for one in started:
            one.thread.join()
        for one in passes:
            one.error = None  # an error holds its frames, and these the pass
