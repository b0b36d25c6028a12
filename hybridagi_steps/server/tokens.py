"""Who asks: tokens and their files, the scopes, user and namespaces that each is bound to.

A token that is not `as-any-user` is one user's: with it everybody else's sessions, runs and steps
are as if they were not there. Only digests of tokens are kept; all of them are compared each time,
in constant time, so that an answer's delay tells nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import shlex
from collections.abc import Iterable, Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from hybridagi_steps.errors import InvalidSettingError, NotAllowedError
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.records.store_values import SEVERAL_USERS

log = logging.getLogger("hybridagi_steps.server")

CALLER = "hybridagi_steps.caller"
"""What a request's scope has its Caller under."""
SHORTEST_TOKEN = 16
"""Characters; what is shorter can be guessed."""
_DIGEST = "sha256:"
"""What a token begins with that stands in a file as its digest."""


class TokenScope(StrEnum):
    """What a token allows."""

    READ = "read"
    APPEND = "append"
    DELETE = "delete"
    AS_ANY_USER = "as-any-user"
    ADMIN = "admin"


class Caller(NamedTuple):
    """Who asks, as the token says."""

    scopes: frozenset[TokenScope]
    user_id: str | None = None
    """Whom the token is bound to."""
    namespaces: frozenset[str] = frozenset()
    """Memories that it may be used for; empty: any."""

    @property
    def only_user(self) -> str | None:
        """The one user that it may act as; None: any."""
        return None if self.may(TokenScope.AS_ANY_USER) else self.user_id

    def may(self, scope: TokenScope) -> bool:
        """Whether the token has a scope."""
        return bool({scope, TokenScope.ADMIN} & self.scopes)

    def acts_as(self, user_id: str | None) -> str | None:
        """Return the user to act as, `user_id` if that may be; None is everybody."""
        if self.only_user is None:
            return user_id
        if user_id not in (None, self.only_user):
            raise NotAllowedError("this token is another user's; leave out `user_id`.")
        return self.only_user

    def may_know(self, where: StepFilter) -> StepFilter:
        """Return a filter on what the caller may know."""
        if self.only_user is None:
            return where
        for user_id in where.users:
            self.acts_as(user_id)
        return where.model_copy(update={"user_id": self.only_user})


class Tokens:
    """The tokens that a server knows.

    Args:
        known: What each token allows; a token may stand as `sha256:` and its digest in hex. Scopes
            alone are nobody's, and so need `as-any-user` or `admin`.
    """

    def __init__(self, known: Mapping[str, Caller | Iterable[TokenScope]]) -> None:
        if not known:
            raise InvalidSettingError("a server needs a token; without one nobody could use it.")
        self._known = [(_digest_of(token), _caller(of)) for token, of in known.items()]

    def caller(self, token: bytes) -> Caller | None:
        """Return whose a token is; None when nobody knows it."""
        wanted, found = hashlib.sha256(token).digest(), None
        for digest, caller in self._known:
            if hmac.compare_digest(digest, wanted):
                found = caller
        return found


class TokenFile(Tokens):
    """The tokens of a file as it is now, and those that are known always.

    It is read again when a token is asked for and it has changed. While it is missing or a line of
    it says something else, none of its tokens is known.
    """

    def __init__(self, path: Path, always: Mapping[str, Caller]) -> None:
        super().__init__(always)
        self._path, self._always = path, always
        self._seen: tuple[int, ...] | None = ()

    def caller(self, token: bytes) -> Caller | None:
        """Return whose a token is; None when nobody knows it."""
        if (state := self._state()) != self._seen:
            self._seen, read = state, dict[str, Caller]()
            try:
                read = read_tokens(self._path.read_text("utf-8"))
            except (OSError, UnicodeDecodeError, InvalidSettingError) as error:
                log.error("no token of %s is known until it is mended: %s", self._path, error)
            super().__init__({**read, **self._always})
        return super().caller(token)

    def _state(self) -> tuple[int, ...] | None:
        """Return what is another when the file is; None where there is none."""
        with suppress(OSError):
            found = self._path.stat()
            return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size
        return None


def read_tokens(text: str) -> dict[str, Caller]:
    """Read a file of tokens, one a line: `sha256:HEX read,append user=ann namespace=default`.

    A token may stand there as it is, too. Any number of namespaces may be named, or none.
    """
    found: dict[str, Caller] = {}
    lines: dict[bytes, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        try:
            if words := shlex.split(line, comments=True):
                token, named, *more = words
                found[token] = _read_caller(named, more)
                if (first := lines.setdefault(_digest_of(token), number)) != number:
                    raise InvalidSettingError(
                        f"it has the token of line {first}; take one of the two out."
                    )
        except InvalidSettingError as error:
            raise InvalidSettingError(f"line {number} of the tokens: {error}") from error
        except ValueError as error:
            raise InvalidSettingError(
                f"line {number} of the tokens is not `TOKEN scope,scope user=ID namespace=NAME`, "
                f"with scopes of {', '.join(TokenScope)}; `hybridagi-steps token add` writes it."
            ) from error
    return found


def check_word(what: str, value: str) -> None:
    """Refuse what a line of tokens cannot hold, or nobody could see in it."""
    if not value or not value.isprintable() or any(map(str.isspace, value)):
        raise InvalidSettingError(
            f"{what} is not empty, and has no white space or control characters: not {value!r:.80}."
        )


def new_token(caller: Caller) -> tuple[str, str]:
    """Return a new token, and the line that lets a server know it."""
    token = secrets.token_urlsafe(32)
    words = [_DIGEST + hashlib.sha256(token.encode()).hexdigest(), ",".join(sorted(caller.scopes))]
    words += [f"user={caller.user_id}"] if caller.user_id is not None else []
    words += [f"namespace={name}" for name in sorted(caller.namespaces)]
    return token, shlex.join(words)


def _read_caller(scopes: str, more: Iterable[str]) -> Caller:
    users: list[str] = []
    namespaces: list[str] = []
    for word in more:
        name, _, value = word.partition("=")
        if not value or name not in ("user", "namespace"):
            raise ValueError(word)
        (users if name == "user" else namespaces).append(value)
    [user_id] = users or [None]
    named = frozenset(map(TokenScope, scopes.split(",")))
    return _caller(Caller(named, user_id, frozenset(namespaces)))


def _caller(given: Caller | Iterable[TokenScope]) -> Caller:
    caller = given if isinstance(given, Caller) else Caller(frozenset(given))
    if caller.user_id is None and not caller.may(TokenScope.AS_ANY_USER):
        raise InvalidSettingError(
            "a token is a user's (user=ID), or has the scope as-any-user: with that it finds and "
            "writes everybody's steps."
        )
    if caller.user_id == SEVERAL_USERS:
        raise InvalidSettingError(f"{SEVERAL_USERS!r} is no user.")
    return caller


def _digest_of(token: str) -> bytes:
    if token.startswith(_DIGEST):
        digest = bytes.fromhex(token.removeprefix(_DIGEST))
        if len(digest) != hashlib.sha256().digest_size:
            raise ValueError(token)
        return digest
    if len(token) < SHORTEST_TOKEN or not token.isascii():
        raise InvalidSettingError(
            f"a token has at least {SHORTEST_TOKEN} ASCII characters; make one with "
            "`hybridagi-steps token add`."
        )
    return hashlib.sha256(token.encode()).digest()
