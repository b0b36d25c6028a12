"""Addresses of memories: what of a server's may be shown, and where a file's index is cached.

A server's address holds a password, so messages, reprs and counts show another text: user, host,
port, database and a few harmless options. Nothing here connects, and no driver is needed.
"""

from __future__ import annotations

import os
import re
from hashlib import blake2b
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote

from hybridagi_steps.errors import UnsupportedAddressError

_PARTS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)", re.DOTALL)
IN_MEMORY = ":memory:"
"""The address of a memory that lives as long as its object."""
_SHOWN = frozenset("host hostaddr port dbname user service sslmode".split())  # noqa: SIM905 - names read better so


def is_server(address: str) -> bool:
    """Tell whether an address is `scheme://…`, so no file."""
    return _PARTS.fullmatch(address) is not None


def shown_address(address: str) -> str:
    """Return an address without its password; a file's is returned as it is."""
    if (parts := _split(address)) is None:
        return address
    scheme, user, place, options = parts
    if "@" in place:
        return f"{scheme}://…"
    shown = [
        f"{name}={quote(value, safe='/:,')}" for name, value in parse_qsl(options) if name in _SHOWN
    ]
    named = user.partition(":")[0]
    return "".join(
        (f"{scheme}://", f"{named}@" if named else "", place, "?" if shown else "", "&".join(shown))
    )


def lasting_address(address: str) -> str:
    """Return an address that means the same wherever this process goes, by whatever link."""
    kept = address == IN_MEMORY or is_server(address)
    return address if kept else os.path.realpath(address)


def cache_path(address: str, namespace: str) -> Path | None:
    """Return where the index of a store is cached: beside its file, one for each namespace.

    A store that is no file of this machine says itself where, if it is `CachedApart`.
    """
    if address == IN_MEMORY or is_server(address):
        return None
    digest = blake2b(namespace.encode(), digest_size=4).hexdigest()
    return Path(f"{address}.{digest}.index")


def secrets_of(address: str) -> list[str]:
    """Return what in an address must be shown nowhere, as written and as meant."""
    if (parts := _split(address)) is None:
        return []
    _, user, _, options = parts
    written = [user.partition(":")[2]]
    written += [value for name, value in parse_qsl(options) if "pass" in name.lower()]
    return sorted({text for one in written for text in (one, unquote(one)) if text})


def checked_server(address: str) -> str:
    """Return an address of a server with its scheme in small letters."""
    parts = _split(address)
    if parts is None:
        raise UnsupportedAddressError("the address of a server is scheme://user@host:port/name.")
    scheme, _, place, _ = parts
    if "@" in place:
        raise UnsupportedAddressError(
            f"a {scheme}:// address has an @, / or ? in its user or password; "
            "write these percent-encoded: %40, %2F, %3F."
        )
    return f"{scheme}{address[len(scheme) :]}"


def _split(address: str) -> tuple[str, str, str, str] | None:
    """Return scheme, user with password, host with path, and options; None for a file.

    As libpq does it: an @ before the first / ends the user. An @ that is left in the place after
    that shows that something was not encoded.
    """
    if (found := _PARTS.fullmatch(address)) is None:
        return None
    rest = found["rest"]
    host_begins = re.match(r"[^@/]*@", rest)
    user = host_begins[0][:-1] if host_begins else ""
    place, _, options = rest[len(user) + 1 if host_begins else 0 :].partition("?")
    return found["scheme"].lower(), user, place, options
