"""Security: ASGI middlewares that turn requests away before anything of them is used.

From the outside in: headers on every answer, the Host and Origin, the bearer token and its scopes,
the size of the body. All are plain ASGI; nothing buffers a stream. The scope that a request needs
follows from its method, and for erasing from its path.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hybridagi_steps.server.problems import problem_response
from hybridagi_steps.server.tokens import CALLER, Tokens, TokenScope

PURGE = "/purge"
"""The path of the one POST that deletes."""
_NEEDED = {
    "GET": TokenScope.READ,
    "HEAD": TokenScope.READ,
    "OPTIONS": TokenScope.READ,
    "DELETE": TokenScope.DELETE,
}
"""The scope of each method; any other one needs `append`."""
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
_HOST = re.compile(r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[^\s:@/?#\[\]]*))(?::[0-9]*)?")
"""A name or a bracketed address, and a port; nobody's name and password."""


class SecurityHeaders:
    """ASGI middleware that puts `SECURITY_HEADERS` on every answer."""

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


class _HeaderCheck:
    """ASGI middleware that answers what its `refusal` refuses and lets the rest through."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it."""
        refusal = None if scope["type"] == "lifespan" else self.refusal(scope)
        await (refusal or self._app)(scope, receive, send)

    def refusal(self, scope: Scope) -> Response | None:
        """Return the answer to a request that may not go on."""
        raise NotImplementedError


class HostCheck(_HeaderCheck):
    """ASGI middleware: 400 for what is no Host, 421 for a foreign one, 403 for a foreign Origin.

    Host names that are `allowed` are this server; they have no ports.
    """

    def __init__(self, app: ASGIApp, allowed: Iterable[str]) -> None:
        super().__init__(app)
        self._allowed = frozenset(name.lower().strip("[]") for name in allowed)

    def refusal(self, scope: Scope) -> Response | None:
        """Refuse a page elsewhere that poses as this server's."""
        hosts, origins = _values(scope, b"host"), _values(scope, b"origin")
        named = _HOST.fullmatch(hosts[0].strip()) if len(hosts) == 1 else None
        if named is None:
            return problem_response(
                400, "the Host header is no host name with a port, such as 127.0.0.1:8377."
            )
        if (named["address"] or named["name"]).lower() not in self._allowed:
            return problem_response(
                421, "this server does not go by that Host; start it with --allow-host NAME."
            )
        if any(not _same(origin, hosts[0]) for origin in origins):
            return problem_response(403, "pages of other origins may not use this server.")
        return None


class TokenCheck(_HeaderCheck):
    """ASGI middleware: 401 without a token that is known, 403 without the scope.

    Open paths, and those that begin with an open folder, need no token to be read.
    """

    def __init__(
        self,
        app: ASGIApp,
        tokens: Tokens,
        namespace: str,
        open_paths: Iterable[str],
        open_folders: tuple[str, ...],
    ) -> None:
        super().__init__(app)
        self._tokens, self._namespace = tokens, namespace
        self._open_paths, self._open_folders = frozenset(open_paths), open_folders

    def refusal(self, scope: Scope) -> Response | None:
        """Refuse whoever lacks the token, or its scope."""
        path: str = scope["path"]
        method: str = scope.get("method", "")
        is_open = path in self._open_paths or path.startswith(self._open_folders)
        if is_open and method in ("GET", "HEAD"):
            return None
        caller = self._tokens.caller(_bearer(scope))
        if caller is None:
            return problem_response(
                401,
                "send the token that the server printed as `Authorization: Bearer TOKEN`.",
                headers={"WWW-Authenticate": "Bearer"},
            )
        deletes = TokenScope.DELETE if path == PURGE else None
        needed = deletes or _NEEDED.get(method, TokenScope.APPEND)
        if not caller.may(needed):
            return problem_response(403, f"this token lacks the scope {needed.value!r}.")
        if caller.namespaces and self._namespace not in caller.namespaces:
            return problem_response(403, "this token is for other namespaces than this server's.")
        scope[CALLER] = caller
        return None


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
        """Return the body; None when it is too large."""
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            body += message.get("body", b"")
            if len(body) > self._most_bytes:
                return None
            if not message.get("more_body", False):
                return bytes(body)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body once, then what comes next."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return messages.pop() if messages else await receive()

    return again


def _values(scope: Scope, wanted: bytes) -> list[str]:
    return [value.decode("latin-1") for name, value in scope["headers"] if name == wanted]


def _same(origin: str, host: str) -> bool:
    """Whether a page came from this very host and port; behind a proxy its scheme is https."""
    scheme, separator, rest = origin.strip().lower().partition("://")
    return bool(separator) and scheme in ("http", "https") and rest == host.strip().lower()


def _bearer(scope: Scope) -> bytes:
    for name, value in scope["headers"]:
        if name == b"authorization":
            kind, _, token = value.strip().partition(b" ")
            return token.strip() if kind.lower() == b"bearer" else b""
    return b""
