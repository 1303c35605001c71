"""The command line: one file per verb, no logic."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from headcount.terminal.stop import INTERRUPTED, TERMINATED, Terminated


@contextmanager
def _terminable() -> Iterator[None]:
    """Turns SIGTERM into an exception inside, so that half-written folders are cleaned up as after any other failure."""

    def terminate(_signal: int, _frame: FrameType | None) -> None:
        raise Terminated(TERMINATED)

    try:
        before = signal.signal(signal.SIGTERM, terminate)
    except ValueError:  # not the main thread, which alone receives signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted, 143 terminated."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        with _terminable():
            from headcount.cli._app import run

            code = run(arguments)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except Exception:  # what a library made of the signal
        if not Terminated.came:
            raise
        code = TERMINATED
    code = TERMINATED if Terminated.came else code
    Terminated.came = False
    if code in (INTERRUPTED, TERMINATED):
        _stop(code, is_process=argv is None)
    return code


def _stop(code: int, *, is_process: bool) -> None:
    """Says that the command was stopped. Its process ends here and now: no further signal, nor what libraries do at their end, comes between."""
    if is_process:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
    print("interrupted" if code == INTERRUPTED else "terminated", file=sys.stderr, flush=True)
    if is_process:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(code)
