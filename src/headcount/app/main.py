"""The entry point of the command line: runs one command and handles signals."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from headcount.app.console.stop import INTERRUPTED, TERMINATED, StopSignal, Terminated

GRACE = 2.5
"""Seconds that a command has to end by itself after a signal."""


@contextmanager
def _exit_if_stopping_hangs(owns_process: bool) -> Iterator[None]:
    """Ends the process some time after a signal that it has not handled: a single call into a library can take minutes, and no exception reaches it.

    Finished work is on disk then, as after a SIGKILL: files are written completely or not at all.
    """
    if not owns_process or threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    watcher = threading.Thread(target=_exit_if_signal_is_not_handled, args=(reader,), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writer)
        watcher.join()
        os.close(reader)


def _exit_if_signal_is_not_handled(signal_pipe: int) -> None:
    """Waits for a signal, and then for the end of the command."""
    codes = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}
    while received := os.read(signal_pipe, 1):
        if received[0] not in codes:
            continue
        end = time.monotonic() + GRACE
        while (seconds := end - time.monotonic()) > 0:
            if select.select([signal_pipe], [], [], seconds)[0] and not os.read(signal_pipe, 64):
                return
        code = codes[signal.Signals(received[0])]
        word = "interrupted" if code == INTERRUPTED else "terminated"
        print(
            f"{word}: the running work did not stop, so the process was ended; finished work is kept, and the same command resumes",
            file=sys.stderr,
        )
        sys.stderr.flush()
        os._exit(code)


@contextmanager
def _handle_stop_signals() -> Iterator[None]:
    """Records the stop signal, and turns SIGTERM into an exception, so that incomplete folders are removed as after any failure."""

    def record_interrupt(number: int, frame: FrameType | None) -> None:
        StopSignal.code = INTERRUPTED
        signal.default_int_handler(number, frame)

    def raise_terminated(number: int, frame: FrameType | None) -> None:
        StopSignal.code = TERMINATED
        raise Terminated(TERMINATED)

    handlers: dict[signal.Signals, Callable[[int, FrameType | None], None]] = {signal.SIGTERM: raise_terminated}
    if (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ):  # a shell may run the command in the background, where Ctrl-C is ignored
        handlers[signal.SIGINT] = record_interrupt
    try:
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    except ValueError:  # not the main thread, which alone receives signals
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted, 143 terminated."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        with _handle_stop_signals(), _exit_if_stopping_hangs(argv is None):
            from headcount.app.cli._app import run

            code = run(arguments)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except Exception:  # an error that a library raised because of the signal
        if not StopSignal.code:
            raise
        code = StopSignal.code
    code = StopSignal.code or code
    StopSignal.code = 0
    if code in (INTERRUPTED, TERMINATED):
        _print_stop_and_exit(code, owns_process=argv is None)
    return code


def _print_stop_and_exit(exit_code: int, *, owns_process: bool) -> None:
    """Prints that the command was stopped and ends its process at once, without the exit handlers of libraries."""
    if owns_process:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
    print("interrupted" if exit_code == INTERRUPTED else "terminated", file=sys.stderr, flush=True)
    if owns_process:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(exit_code)
