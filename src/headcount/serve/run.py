"""Starts the server and ends with it."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from headcount.errors import ArtefactError, MissingExtra
from headcount.runs.store import Run

LOCAL = ("127.0.0.1", "localhost", "::1")
PATIENCE = 1
"""Seconds that requests under way have to end after Ctrl-C."""


def serve(
    runs: Sequence[Path], *, host: str = "127.0.0.1", port: int = 0, token: str | None = None, said: Callable[[str], None] | None = None
) -> None:
    """Serves runs until it is interrupted; `said` is told the address, which carries the token of this launch. Port 0 takes a free one."""
    try:
        import uvicorn

        from headcount.serve.app import application
    except ImportError as error:
        raise MissingExtra("headcount serve needs starlette and uvicorn: pip install 'headcount[serve]'") from error
    from headcount.serve.live import LiveRun

    opened = [LiveRun(Run.open(folder)) for folder in runs]
    token = token or secrets.token_urlsafe(24)
    names = () if host in LOCAL else (host.lower(), socket.gethostname().lower())
    app = application(opened, token, names=names)
    config = uvicorn.Config(
        app, host=host, port=port, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=PATIENCE, ws="none"
    )
    taken = _bound(host, port)
    shown = f"[{host}]" if ":" in host else host
    if said is not None:
        said(f"http://{shown}:{taken.getsockname()[1]}/?token={token}")
    try:
        uvicorn.Server(config).run(sockets=[taken])
    finally:
        taken.close()


def _bound(host: str, port: int) -> socket.socket:
    """A socket that listens already: whoever reads the address may come at once, and waits until the server is up."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        raise ArtefactError(f"nothing can be served at {host}:{port}: {error}. Name another --port or --host") from error
