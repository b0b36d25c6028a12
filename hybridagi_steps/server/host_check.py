"""Keeps pages of other sites out: whose Host or Origin is foreign is answered before all else.

A browser sends a page of any site to a server on this machine once a name of that site resolves
here (DNS rebinding), and lets any page post forms to it. Both show in these two headers, which no
page can set.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from hybridagi_steps.server.problems import problem_response

_HOST = re.compile(r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[^\s:@/?#\[\]]*))(?::[0-9]*)?")
"""A name or a bracketed address, and a port; nobody's name and password."""


class HostCheck:
    """ASGI middleware: 400 for what is no Host, 421 for a foreign one, 403 for a foreign Origin.

    Args:
        app: What is protected.
        allowed: Host names that are this server, without ports; an IPv6 address without brackets.
    """

    def __init__(self, app: ASGIApp, allowed: Iterable[str]) -> None:
        self._app = app
        self._allowed = frozenset(name.lower().strip("[]") for name in allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        hosts, origins = _values(scope, b"host"), _values(scope, b"origin")
        named = _HOST.fullmatch(hosts[0].strip()) if len(hosts) == 1 else None
        if named is None:
            await problem_response(
                400, "the Host header is no host name with a port, such as 127.0.0.1:8377."
            )(scope, receive, send)
        elif (named["address"] or named["name"]).lower() not in self._allowed:
            await problem_response(
                421, "this server does not go by that Host; start it with --allow-host NAME."
            )(scope, receive, send)
        elif any(not _same(origin, hosts[0]) for origin in origins):
            await problem_response(403, "pages of other origins may not use this server.")(
                scope, receive, send
            )
        else:
            await self._app(scope, receive, send)


def _values(scope: Scope, wanted: bytes) -> list[str]:
    return [value.decode("latin-1") for name, value in scope["headers"] if name == wanted]


def _same(origin: str, host: str) -> bool:
    """Whether a page came from this very host and port; behind a proxy its scheme is https."""
    scheme, separator, rest = origin.strip().lower().partition("://")
    return bool(separator) and scheme in ("http", "https") and rest == host.strip().lower()
