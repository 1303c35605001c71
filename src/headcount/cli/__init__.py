"""The command line: one file per verb, no logic."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

INTERRUPTED, TERMINATED = 130, 143


class Terminated(SystemExit):
    """SIGTERM came. Libraries that are being imported may catch it and fail in another way, so that it came is kept."""

    came = False

    def __init__(self, code: int) -> None:
        super().__init__(code)
        Terminated.came = True


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
        print("interrupted" if code == INTERRUPTED else "terminated", file=sys.stderr)
    return code
