"""Checks of every request: host name, origin, token and size.

A web page that the user visits can make the browser send requests to this machine, also under a host name of its own that resolves to it. So the host
must be an IP address or a name of this machine, requests from other pages are refused, and every request must carry the token of this launch, which
no other page can read.
"""

from __future__ import annotations

import ipaddress
import json
import secrets
from collections.abc import Iterable
from typing import Any
from urllib.parse import parse_qs

MAX_BODY = 64 * 1024
HEADER = "x-headcount-token"
SECURE_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
"""Headers of every answer."""


class RequestRefused(Exception):
    """A request that is not answered, with HTTP status and reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


def host_name(host_header: str) -> str:
    """Returns the name in a Host header, without its port."""
    name = host_header.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.rpartition(":")[0] if name.count(":") == 1 else name


def is_ip_address(host_name_or_address: str) -> bool:
    """Whether a host name is an IP address, which cannot be redirected to this machine."""
    try:
        ipaddress.ip_address(host_name_or_address)
    except ValueError:
        return False
    return True


class Guard:
    """An ASGI application that passes on allowed requests to another one; `names` are further names of this machine."""

    def __init__(self, app: Any, token: str, names: Iterable[str] = ()) -> None:
        self.app, self.token, self.names = app, token, frozenset({"localhost", *names})

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers a request, or refuses it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers: dict[str, str] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
        try:
            self._check_request(scope, headers)
            body = await self._read_body(receive, headers) if scope["method"] == "POST" else b""
        except RequestRefused as refused:
            await send_json(send, refused.status, {"error": refused.reason})
            return

        async def receive_body() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, receive_body, _add_secure_headers(send))

    def _check_request(self, scope: Any, headers: dict[str, str]) -> None:
        if sum(name.lower() == b"host" for name, _ in scope["headers"]) != 1:
            raise RequestRefused(400, "a request names one host")
        name = host_name(headers["host"])
        if name not in self.names and not is_ip_address(name):
            raise RequestRefused(403, "this server answers under localhost and addresses only")
        origin = headers.get("origin")
        if origin is not None and origin != f"{scope.get('scheme', 'http')}://{headers['host']}":
            raise RequestRefused(403, "requests from other pages are refused")
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise RequestRefused(403, "requests from other pages are refused")
        if scope["method"] not in ("GET", "HEAD", "POST"):
            raise RequestRefused(405, "only GET, HEAD and POST are answered")
        self._check_token_in_header_or_query(scope, headers)

    def _check_token_in_header_or_query(self, scope: Any, headers: dict[str, str]) -> None:
        if scope["path"].startswith("/api/"):
            token = headers.get(HEADER, "")
        else:
            token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if not secrets.compare_digest(token.encode(), self.token.encode()):
            raise RequestRefused(403, "open the address that headcount serve printed: it carries the token of this launch")

    async def _read_body(self, receive: Any, headers: dict[str, str]) -> bytes:
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise RequestRefused(415, "a request carries JSON (content-type: application/json)")
        if not headers.get("content-length", "0").isdecimal() or int(headers.get("content-length", "0")) > MAX_BODY:
            raise RequestRefused(413, f"a request has at most {MAX_BODY} bytes")
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                raise RequestRefused(400, "the request ended early")
            body, more = body + message.get("body", b""), message.get("more_body", False)
            if len(body) > MAX_BODY:
                raise RequestRefused(413, f"a request has at most {MAX_BODY} bytes")
        return body


def _add_secure_headers(send: Any) -> Any:
    async def send_with_headers(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", []), *SECURE_HEADERS]}
        await send(message)

    return send_with_headers


async def send_json(send: Any, status: int, content: Any) -> None:
    """Sends JSON."""
    body = json.dumps(content).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *SECURE_HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
