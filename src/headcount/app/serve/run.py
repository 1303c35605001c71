"""Starts the server and ends with it."""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headcount.core.errors import ArtifactError, MissingExtra
from headcount.runs.store import Run

LOCAL = ("127.0.0.1", "localhost", "::1")
PATIENCE = 1
"""Seconds that requests under way have to end after Ctrl-C."""
INTERRUPTED = 130
"""The exit code after Ctrl-C."""


def serve(
    runs: Sequence[Path], *, host: str = "127.0.0.1", port: int = 0, token: str | None = None, said: Callable[[str], None] | None = None
) -> None:
    """Serves runs until it is interrupted; `said` is told the address, which carries the token of this launch. Port 0 takes a free one."""
    try:
        import uvicorn

        from headcount.app.serve.server import Site, application
    except ImportError as error:
        raise MissingExtra("headcount serve needs starlette and uvicorn: pip install 'headcount[serve]'") from error
    from headcount.app.serve.actions import LiveRun

    opened = [LiveRun(Run.open(folder)) for folder in runs]
    token = token or secrets.token_urlsafe(24)
    names = () if host in LOCAL else (host.lower(), socket.gethostname().lower())
    site = Site(opened, token)
    config = uvicorn.Config(
        application(site, names=names),
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=PATIENCE,
        ws="none",
    )
    taken = _bound(host, port)
    shown = f"[{host}]" if ":" in host else host
    if said is not None:
        said(f"http://{shown}:{taken.getsockname()[1]}/?token={token}")
    try:
        _server(uvicorn, config).run(sockets=[taken])
    except (KeyboardInterrupt, SystemExit) as stop:
        if not site.is_busy:
            raise
        if said is not None:
            said("stopped while an action was under way; nothing of it is kept but what was finished")
        # A thread cannot be stopped, and what it writes can: an artifact is there whole or not at all.
        os._exit(INTERRUPTED if isinstance(stop, KeyboardInterrupt) else int(stop.code or 0))
    finally:
        taken.close()


def _server(uvicorn: Any, config: Any) -> Any:
    """A server that ends without complaints about the requests that its end cuts off."""

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: Any = None) -> None:
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
            await super().shutdown(sockets)

    return Server(config)


def _bound(host: str, port: int) -> socket.socket:
    """A socket that listens already: whoever reads the address may come at once, and waits until the server is up."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        raise ArtifactError(f"nothing can be served at {host}:{port}: {error}. Name another --port or --host") from error
