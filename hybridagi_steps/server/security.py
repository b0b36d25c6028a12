"""Who may do what: bearer tokens with scopes, checked before anything of a request is read.

Only digests of tokens are kept; all of them are compared each time, in constant time, so that an
answer's delay tells nothing. The scope that a request needs follows from its method alone.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from enum import StrEnum

from starlette.types import ASGIApp, Receive, Scope, Send

from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.server.problems import problem_response

SHORTEST_TOKEN = 16
"""Characters; what is shorter can be guessed."""


class TokenScope(StrEnum):
    """What a token allows."""

    READ = "read"
    APPEND = "append"
    DELETE = "delete"
    ADMIN = "admin"


_NEEDED = {
    "GET": TokenScope.READ,
    "HEAD": TokenScope.READ,
    "OPTIONS": TokenScope.READ,
    "DELETE": TokenScope.DELETE,
}
"""The scope of each method; any other one needs `append`."""


class Tokens:
    """The tokens that a server knows.

    Args:
        scopes: What each token allows; `admin` allows everything.

    Raises:
        InvalidSettingError: No token, or one that can be guessed.
    """

    def __init__(self, scopes: Mapping[str, Iterable[TokenScope]]) -> None:
        if not scopes:
            raise InvalidSettingError("a server needs a token; without one nobody could use it.")
        if any(len(token) < SHORTEST_TOKEN or not token.isascii() for token in scopes):
            raise InvalidSettingError(
                f"a token has at least {SHORTEST_TOKEN} ASCII characters; make one with "
                "`python -c 'import secrets; print(secrets.token_urlsafe())'`."
            )
        self._known = [(_digest(token.encode()), frozenset(of)) for token, of in scopes.items()]

    def scopes_of(self, token: bytes) -> frozenset[TokenScope] | None:
        """Return what a token allows; None when nobody knows it."""
        given, found = _digest(token), None
        for digest, scopes in self._known:
            if hmac.compare_digest(digest, given):
                found = scopes
        return found


def read_tokens(text: str) -> dict[str, list[TokenScope]]:
    """Read a file of tokens: on each line a token and its scopes, `TOKEN read,append`.

    Raises:
        InvalidSettingError: A line that says something else; tokens are never repeated in it.
    """
    found: dict[str, list[TokenScope]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        try:
            token, named = words
            found[token] = [TokenScope(name) for name in named.split(",")]
        except ValueError as error:
            raise InvalidSettingError(
                f"line {number} of the tokens is not `TOKEN scope,scope`, with scopes of "
                f"{', '.join(TokenScope)}."
            ) from error
    return found


class TokenCheck:
    """ASGI middleware: 401 without a token that is known, 403 without the scope.

    Args:
        app: What is protected.
        tokens: Who may come in.
        open_paths: Paths that need no token.
        open_folders: Beginnings of paths that need no token.
    """

    def __init__(
        self,
        app: ASGIApp,
        tokens: Tokens,
        open_paths: Iterable[str],
        open_folders: tuple[str, ...],
    ) -> None:
        self._app, self._tokens = app, tokens
        self._open_paths, self._open_folders = frozenset(open_paths), open_folders

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it."""
        if scope["type"] == "lifespan" or self._is_open(scope):
            await self._app(scope, receive, send)
            return
        scopes = self._tokens.scopes_of(_bearer(scope))
        if scopes is None:
            response = problem_response(
                401,
                "send the token that the server printed as `Authorization: Bearer TOKEN`.",
                headers={"WWW-Authenticate": "Bearer"},
            )
            await response(scope, receive, send)
            return
        needed = _NEEDED.get(scope.get("method", ""), TokenScope.APPEND)
        if needed not in scopes and TokenScope.ADMIN not in scopes:
            response = problem_response(403, f"this token lacks the scope {needed.value!r}.")
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_open(self, scope: Scope) -> bool:
        path: str = scope["path"]
        reads = scope.get("method") in ("GET", "HEAD")
        return reads and (path in self._open_paths or path.startswith(self._open_folders))


def _bearer(scope: Scope) -> bytes:
    for name, value in scope["headers"]:
        if name == b"authorization":
            kind, _, token = value.strip().partition(b" ")
            return token.strip() if kind.lower() == b"bearer" else b""
    return b""


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
