"""Exit codes and exceptions of a command that is stopped by a signal."""

from __future__ import annotations

INTERRUPTED, TERMINATED = 130, 143


class Terminated(SystemExit):
    """Raised on SIGTERM."""


class StopSignal:
    """The exit code of the signal that stopped the command, 0 if none did.

    Kept here because a library that is being imported may catch the exception of a signal and raise another one.
    """

    code = 0
