"""Which rows carry a checksum, of what, and who compares them all: `verify`; `vacuum` adds them.

What a reader gets is compared on reading, too (see `stores/checksums.py`); indexes, watermarks and
the keys of steps are compared here only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from zlib import crc32

from hybridagi_steps.stores.checksums import (
    as_bytes,
    message_checksums,
    place_seed,
    row_checksum,
    session_checksum,
    vector_checksum,
    words_checksum,
)
from hybridagi_steps.stores.sql.tables import Connection

_PAGE = 1_000


class CheckedTable(NamedTuple):
    """A column that holds the checksum of others."""

    what: str
    """What one row is, for people."""
    table: str
    column: str
    key: str
    """Names a row within its namespace."""
    of: str
    """The columns it is made of, as SQL."""
    computed: Callable[..., int]
    """Returns the checksum of these."""


def _step(body: Any, namespace: int) -> int:
    return crc32(as_bytes(body), namespace)


def _said(said: Any, branch_id: int, sequence: int) -> int:
    return message_checksums(as_bytes(said), b"", "", place_seed(branch_id, sequence))[0]


def _message(said: Any, body: Any, message_id: str, *place: int) -> int:
    texts = as_bytes(said), as_bytes(body)
    return message_checksums(*texts, message_id, place_seed(*place))[1]


_WORDS = "row, parent_row, tokens, text_hash, purpose_hash"
_VECTOR = "row, text_hash, given, vector"
_SCORE = "namespace, run_id, score, feedback"
_SESSION = "namespace, id, branch_id, created_at, updated_at, forked_from, forked_at, user_id"
_BRANCH = "namespace, parent_id, fork_sequence, reason, created_at"
_MESSAGE = "CAST(said AS BLOB), CAST(body AS BLOB), id, branch_id, sequence"
_SAID_AT = "CAST(said AS BLOB), branch_id, sequence"
CHECKED_TABLES = tuple(
    CheckedTable(*values)
    for values in (
        ("a step", "agent_step", "checksum", "row", "CAST(body AS BLOB), namespace", _step),
        ("what a message says", "message", "said_checksum", "row", _SAID_AT, _said),
        ("a message", "message", "checksum", "row", _MESSAGE, _message),
        ("the words of a step", "step_text", "checksum", "row", _WORDS, words_checksum),
        ("the embedding of a step", "embedding", "checksum", "row", _VECTOR, vector_checksum),
        ("the score of a run", "run", "checksum", "run_id", _SCORE, row_checksum),
        ("a session", "session", "checksum", "id", _SESSION, session_checksum),
        ("a branch", "branch", "checksum", "id", _BRANCH, row_checksum),
    )
)


def changed_rows(connection: Connection, namespace: int, checked: CheckedTable) -> list[Any]:
    """Return the keys of the rows of a namespace that are not as they were written."""
    found = _rows(connection, namespace, checked, f"{checked.column} IS NOT NULL")
    return [key for key, checksum, *of in found if _computed(checked, of) != checksum]


def add_checksums(connection: Connection, namespace: int) -> None:
    """Give the rows of a namespace that have no checksum the one of what they hold."""
    for checked in CHECKED_TABLES:
        update = f"""UPDATE {checked.table} SET {checked.column} = ?
            WHERE namespace = ? AND {checked.key} = ?"""  # noqa: S608 - names are ours
        for key, _, *of in list(_rows(connection, namespace, checked, f"{checked.column} IS NULL")):
            if (checksum := _computed(checked, of)) is not None:
                connection.execute(update, (checksum, namespace, key))


def _computed(checked: CheckedTable, of: list[Any]) -> int | None:
    try:
        return checked.computed(*of)
    except (ValueError, TypeError, AttributeError):
        return None  # not even of the type that was written


def _rows(
    connection: Connection, namespace: int, checked: CheckedTable, condition: str
) -> Iterator[tuple[Any, ...]]:
    """Yield (key, checksum, *what it is made of), a page at a time."""
    key, select = checked.key, f"SELECT {checked.key}, {checked.column}, {checked.of}"
    after: Any = "" if checked.table in ("run", "session") else 0
    while True:
        page = connection.execute(
            f"""{select} FROM {checked.table} WHERE namespace = ? AND {key} > ? AND {condition}
                ORDER BY {key} LIMIT ?""",
            (namespace, after, _PAGE),
        ).fetchall()
        yield from page
        if len(page) < _PAGE:
            return
        after = page[-1][0]
