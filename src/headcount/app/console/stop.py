"""How a command ends that is stopped from outside."""

from __future__ import annotations

INTERRUPTED, TERMINATED = 130, 143


class Terminated(SystemExit):
    """SIGTERM came."""


class StopSignal:
    """The exit code of the signal that stopped the command, 0 while none came.

    Libraries that are being imported may catch the exception of a signal and fail in another way, so that it came is kept.
    """

    code = 0
