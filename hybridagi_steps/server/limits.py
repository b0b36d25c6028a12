"""Bodies have a size and arrive in time, or are not taken; what is sent out is harmless in a page.

Bodies here are small, so each is read whole before a route sees it: an oversized or stalled one is
answered as such, whatever the route would have made of half of it.
"""

from __future__ import annotations

import asyncio

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hybridagi_steps.server.problems import problem_response

SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self'; base-uri 'none'; frame-ancestors 'none'; form-action 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""On every answer. No header of CORS: no other site has any business here."""


class SecurityHeaders:
    """ASGI middleware that puts the headers above on every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the headers."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(SECURITY_HEADERS)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await self._app(scope, receive, send if scope["type"] != "http" else with_headers)


class BodyLimit:
    """ASGI middleware: 413 for a body that is too large, 408 for one that does not arrive."""

    def __init__(self, app: ASGIApp, most_bytes: int, seconds: float) -> None:
        self._app, self._most_bytes, self._seconds = app, most_bytes, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body and let the request through, or answer it."""
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        body: bytes | None = None
        try:
            if announced.isdigit() and int(announced) <= self._most_bytes:
                async with asyncio.timeout(self._seconds):
                    body = await self._read(receive)
        except ClientDisconnect:
            return
        except TimeoutError:
            late = problem_response(408, f"the body did not arrive within {self._seconds:g} s.")
            await late(scope, receive, send)
            return
        if body is None:
            large = problem_response(413, f"a body has at most {self._most_bytes:,} bytes.")
            await large(scope, receive, send)
            return
        await self._app(scope, _replayed(body, receive), send)

    async def _read(self, receive: Receive) -> bytes | None:
        """Return the body; None when it is too large.

        Raises:
            ClientDisconnect: The client left before it had sent all of it.
        """
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            part: bytes = message.get("body", b"")
            size += len(part)
            if size > self._most_bytes:
                return None
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body once, then what comes next."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
