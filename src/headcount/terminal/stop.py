"""How a command ends that is stopped from outside."""

from __future__ import annotations

INTERRUPTED, TERMINATED = 130, 143


class Terminated(SystemExit):
    """SIGTERM came. Libraries that are being imported may catch it and fail in another way, so that it came is kept."""

    came = False

    def __init__(self, code: int) -> None:
        super().__init__(code)
        Terminated.came = True
