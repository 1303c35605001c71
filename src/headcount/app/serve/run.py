"""Starts the server and returns when it ends."""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from headcount.app.serve.served_run import ServedRun
from headcount.app.serve.server import Site, application
from headcount.core.errors import ArtifactError, MissingExtra
from headcount.runs.store import Run

try:
    import uvicorn
except ImportError as error:
    raise MissingExtra("headcount serve needs starlette and uvicorn: pip install 'headcount[serve]'") from error

LOCAL = ("127.0.0.1", "localhost", "::1")
PATIENCE = 1
"""Seconds that running requests have to finish after Ctrl-C."""
INTERRUPTED = 130
"""The exit code after Ctrl-C."""


class QuietServer(uvicorn.Server):
    """A server that logs no errors about the requests that its end cuts off."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends the server."""
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        await super().shutdown(sockets)


def serve(
    runs: Sequence[Path], *, host: str = "127.0.0.1", port: int = 0, token: str | None = None, show: Callable[[str], None] | None = None
) -> None:
    """Serves runs until it is interrupted; `show` gets the address, which contains the token of this launch. Port 0 takes a free port."""
    token = token or secrets.token_urlsafe(24)
    names = () if host in LOCAL else (host.lower(), socket.gethostname().lower())
    site = Site([ServedRun(Run.open(folder)) for folder in runs], token)
    config = uvicorn.Config(
        application(site, further_host_names=names),
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=PATIENCE,
        ws="none",
    )
    listener = _open_listening_socket(host, port)
    address = f"[{host}]" if ":" in host else host
    if show is not None:
        show(f"http://{address}:{listener.getsockname()[1]}/?token={token}")
    try:
        QuietServer(config).run(sockets=[listener])
    except (KeyboardInterrupt, SystemExit) as stop:
        if not site.is_busy:
            raise
        if show is not None:
            show("stopped while an action was running; only its finished artifacts are kept")
        # A thread cannot be stopped, but the process can: artifacts are written completely or not at all.
        os._exit(INTERRUPTED if isinstance(stop, KeyboardInterrupt) else int(stop.code or 0))
    finally:
        listener.close()


def _open_listening_socket(host: str, port: int) -> socket.socket:
    """Returns a socket that listens already, so that a request sent before the server has started waits for it."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        raise ArtifactError(f"cannot listen at {host}:{port}: {error}. Name another --port or --host") from error
