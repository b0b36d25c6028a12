"""PostgreSQL's errors in this library's words: the one place that looks at its error codes.

A code that is not listed counts as its class, the first two characters. The driver's own words are
repeated without what must not be shown. Reference:
https://www.postgresql.org/docs/current/errcodes-appendix.html
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from hybridagi_steps.errors import (
    ConnectionLostError,
    DamagedFileError,
    DiskFullError,
    ForeignFileError,
    MissingGrantError,
    ReadOnlyStorageError,
    StorageBusyError,
    StorageError,
    UnsupportedAddressError,
)
from hybridagi_steps.stores.checksums import REMEDY

RIGHTS = "reader (to read), writer (to add, too) or server (to change and delete, too)"
_Meaning = tuple[type[StorageError], str]

_BUSY: _Meaning = (StorageBusyError, "is held by another writer; try again when it is done")
_LOST: _Meaning = (
    ConnectionLostError,
    "ended the connection; whether the last write was stored is not known. The next call connects "
    "again: to repeat a commit with its idempotency key, or a step with its id, stores it once",
)
_READ_ONLY: _Meaning = (ReadOnlyStorageError, "cannot be written by this user, or not there")
_NOT_GRANTED: _Meaning = (
    MissingGrantError,
    "refuses this role what it asked for; who owns the tables can grant it: hybridagi-steps grant "
    f"ROLE --namespace NAME --rights {RIGHTS}",
)
_NOT_WHOLE: _Meaning = (
    DamagedFileError,
    f"does not hold together; {REMEDY}",
)
_FOREIGN: _Meaning = (ForeignFileError, "has tables of another program in our schema")
_UNTRUSTED = (
    "cannot be reached under TLS; give sslrootcert=FILE, the certificate of who signed the "
    "server's, as host a name that the server's is made out to, as sslmode what the server offers"
)
_MEANINGS: dict[str, _Meaning] = {
    "08": _LOST,
    "08P01": (
        ConnectionLostError,
        f"{_LOST[1]}. A pooler must lend connections for a transaction or a session (pool_mode), "
        "and have enough of them",
    ),
    "25006": _READ_ONLY,
    "28": (StorageError, "refuses this user or password"),
    "3D000": (StorageError, "is no database of this server; create it first"),
    "3F000": _NOT_WHOLE,
    "40": _BUSY,
    "42501": _NOT_GRANTED,
    "42703": _NOT_WHOLE,
    "42P01": _NOT_WHOLE,
    "42710": _FOREIGN,
    "42723": _FOREIGN,
    "42P07": _FOREIGN,
    "53": (StorageBusyError, "has no connection or memory to spare; try again later"),
    "53100": (DiskFullError, "cannot grow, the disk is full; free some space"),
    "54": (StorageError, "cannot hold a name or a text of this length"),
    "55": _BUSY,
    "57": _LOST,
    "57014": (StorageBusyError, "took too long and was cancelled; try again"),
    "XX001": _NOT_WHOLE,
    "XX002": _NOT_WHOLE,
}
_SHORTEST_SECRET = 4
"""Taken out of what the driver says; shorter ones stand in any text, where they mean nothing."""
_UNKNOWN: _Meaning = (StorageError, "could not be read or written")


def translated(error: psycopg.Error, name: str, secrets: Sequence[str] = ()) -> StorageError:
    """Return the error to raise instead of the driver's own; raise it `from` the original."""
    code = error.sqlstate or ""
    kind, words = _MEANINGS.get(code) or _MEANINGS.get(code[:2]) or _without_code(error)
    return kind(f"{name} {words} ({_said(error, secrets)}).")


def unreachable(error: psycopg.Error, name: str, secrets: Sequence[str]) -> StorageError:
    """Return the error to raise when no connection can be had."""
    code = error.sqlstate or ""
    kind, words = _MEANINGS.get(code) or _MEANINGS.get(code[:2]) or _UNKNOWN
    said = _said(error, secrets)
    kind = StorageError if kind is ConnectionLostError else kind
    if kind is StorageError and ("certificate" in said or "SSL" in said):
        words = _UNTRUSTED
    elif kind is StorageError and code != "08P01":
        words = "cannot be reached; check the address, the user, and that the server runs"
    return kind(f"{name} {words} ({said}).")


def _without_code(error: psycopg.Error) -> _Meaning:
    """Say what an error means that the driver raised since the server said nothing any more."""
    silent = isinstance(error, psycopg.OperationalError) and not error.sqlstate
    return _LOST if silent else _UNKNOWN


def _said(error: psycopg.Error, secrets: Sequence[str]) -> str:
    """Return the driver's words in one line, without what must not be shown."""
    words = " ".join(str(error).split()) or type(error).__name__
    for secret in secrets:
        if len(secret) >= _SHORTEST_SECRET:
            words = words.replace(secret, "…")
    return words


def understood(conninfo: str, name: str) -> Mapping[str, Any]:
    """Return what an address says, if the driver understands it; messages call it `name`."""
    try:
        return conninfo_to_dict(conninfo)
    except psycopg.Error:
        # The driver's own words repeat parts of the address, maybe of the password.
        raise UnsupportedAddressError(
            f"{name} is no address that PostgreSQL's driver understands; give "
            "postgresql://user@host:port/database, special characters percent-encoded."
        ) from None
