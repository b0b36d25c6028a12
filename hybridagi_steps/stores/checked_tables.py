"""Which rows carry a checksum, of what, and who compares them all: `verify`; `vacuum` adds them.

What a reader gets is compared on reading, too (see `stores/checksums.py`); indexes, watermarks and
the keys of steps are compared here only.

Words and embeddings are derived from steps, so damage to one must keep nobody from searching: it is
passed over, and its step found by the other half alone. Each is named once in a process, by its
step, and `mend` of the store forgets it, so that it is pending again. What came with a step, a
given vector, cannot be made again and stays.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple
from zlib import crc32

from hybridagi_steps.errors import DamagedFileError
from hybridagi_steps.records.store_values import MESSAGE_ROWS, TextRow, VectorRow
from hybridagi_steps.stores.checksums import (
    ChecksumError,
    as_bytes,
    checked_vector,
    damaged,
    message_checksums,
    place_seed,
    row_checksum,
    session_checksum,
    unpacked_words,
    vector_checksum,
    words_checksum,
)
from hybridagi_steps.stores.sql.tables import Connection, Database, many

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


DerivedTable = Literal["step_text", "embedding"]
DERIVED_TABLES: tuple[DerivedTable, DerivedTable] = ("step_text", "embedding")
WORDS, EMBEDDINGS = (
    next(one for one in CHECKED_TABLES if one.table == table) for table in DERIVED_TABLES
)

_STEP_IDS = """SELECT row, id FROM agent_step
    WHERE +namespace = ? AND row IN (SELECT value FROM json_each(?))"""
_MESSAGE_IDS = f"""SELECT row + {MESSAGE_ROWS}, id FROM message
    WHERE +namespace = ? AND row IN (SELECT value FROM json_each(?))"""  # noqa: S608 - no value in it
_EMBEDDINGS = """SELECT row, text_hash, given, vector, checksum FROM embedding
    WHERE row IN (SELECT value FROM json_each(?))"""
_REFUSED = """SELECT row FROM embedding
    WHERE namespace = ? AND vector IS NULL AND given = 0 AND text_hash <> 0"""
_LOST = {
    "step_text": "the words of {} are not as they were written: it is found by meaning alone",
    "embedding": "the embedding of {} is not as it was written: it is found by words alone",
}
_MADE_AGAIN = (
    "`flush` of this process makes it again, `reembed` with the same embedder does so of any"
)
_GIVEN = "it came with the step and cannot be made again: `update` that step with its vector"

log = logging.getLogger("hybridagi_steps")


class DamagedRow(NamedTuple):
    """A row that is not what was written."""

    table: DerivedTable
    row: int
    given: bool = False
    """Whether it came with its step."""


_known: dict[str, dict[tuple[DerivedTable, int], DamagedRow]] = {}
"""What this process came upon, by the name of the database."""


def stored_text(
    checksum: int | None,
    row: int,
    parent_row: int | None,
    stored: Any,
    text_hash: int,
    purpose_hash: int,
    scoped: int,
) -> TextRow:
    """Return the words in a row, if they are those that were written."""
    try:
        if checksum is None:  # of an earlier schema
            kinds = [*map(type, (row, parent_row or row, text_hash, purpose_hash))]
            if kinds != [int, int, int, int]:
                raise ChecksumError
        elif checksum != words_checksum(row, parent_row, stored, text_hash, purpose_hash):
            raise ChecksumError
        words = unpacked_words(stored)
    except ValueError as error:
        raise damaged(f"the words of row {row}", error) from error
    if type(words) is not str:
        raise damaged(f"the words of row {row}")
    return TextRow(row, parent_row, words, text_hash, purpose_hash, bool(scoped))


def stored_vector(
    row: int, text_hash: int, given: int, blob: bytes | None, checksum: int | None, scoped: int
) -> VectorRow:
    """Return the embedding in a row, if it is the one that was written."""
    vector = checked_vector(row, text_hash, given, blob, checksum)
    return VectorRow(row, text_hash, vector, bool(scoped))


def sound_texts(
    rows: Iterable[Sequence[Any]], note: Callable[[DamagedRow], object]
) -> list[TextRow]:
    """Return rows of words, a damaged one without any: it says what no other row says."""
    found: list[TextRow] = []
    for values in rows:
        try:
            found.append(stored_text(*values))
        except DamagedFileError:
            if type(row := values[1]) is int:
                note(DamagedRow("step_text", row))
                found.append(TextRow(row, None, "", -1 - row, 0, bool(values[-1])))
    return found


def sound_vectors(
    rows: Iterable[Sequence[Any]], note: Callable[[DamagedRow], object]
) -> Iterator[VectorRow]:
    """Yield embeddings, a damaged one as one that cannot be used."""
    for values in rows:
        try:
            yield stored_vector(*values)
        except DamagedFileError:
            if type(row := values[0]) is int:
                note(DamagedRow("embedding", row, is_given(*values[:5])))
                yield VectorRow(row, 0, None, bool(values[-1]))


def is_given(row: int, text_hash: Any, given: Any, blob: Any, checksum: int | None) -> bool:
    """Whether a damaged row came with its step; that mark itself may be what is damaged."""
    return given != 0 or vector_checksum(row, text_hash, 1, blob) == checksum


def note_damage(database: Database, namespace: int, found: Iterable[DamagedRow]) -> None:
    """Log what was come upon for the first time, by its step; not inside a transaction."""
    known = _known.setdefault(database.name, {})
    fresh = [each for each in found if known.setdefault(each[:2], each) is each]
    if not fresh:
        return
    with database.reading() as connection:
        names = named_rows(connection, namespace, [each.row for each in fresh])
    for each in fresh:
        lost = _LOST[each.table].format(names.get(each.row, f"row {each.row}, which has no step"))
        log.warning("%s: %s; %s", database.name, lost, _GIVEN if each.given else _MADE_AGAIN)


def pass_over(database: Database, namespace: int, found: Sequence[DamagedRow]) -> None:
    """Log what was passed over, and have it made again; raise for what cannot be.

    Not inside a transaction that this thread writes in.
    """
    note_damage(database, namespace, found)
    if given := [each.row for each in found if each.given]:
        with database.reading() as connection:
            names = named_rows(connection, namespace, given)
        name = names.get(given[0], f"row {given[0]}")
        raise damaged(f"{database.name}: the embedding of {name}", _GIVEN)


def noted_damage(database: Database) -> list[DamagedRow]:
    """Return what this process came upon and has not mended since."""
    return [*_known.get(database.name, {}).values()]


def forget_damage(database: Database, mended: Iterable[DamagedRow]) -> None:
    """Take note that these are made again, or gone."""
    known = _known.get(database.name, {})
    for each in mended:
        known.pop(each[:2], None)


def named_rows(connection: Connection, namespace: int, rows: Sequence[int]) -> dict[int, str]:
    """Return what steps and messages are in rows, for people."""
    steps = connection.execute(_STEP_IDS, (namespace, many(r for r in rows if r < MESSAGE_ROWS)))
    names = {row: f"step {name} in row {row}" for row, name in steps}
    messages = many(row - MESSAGE_ROWS for row in rows if row >= MESSAGE_ROWS)
    if messages:
        said = connection.execute(_MESSAGE_IDS, (namespace, messages))
        names |= {row: f"message {name} in row {row}" for row, name in said}
    return names


def damaged_rows(connection: Connection, namespace: int, checked: CheckedTable) -> list[DamagedRow]:
    """Compare all words, or embeddings, of a namespace; return the damaged ones."""
    rows = [row for row in changed_rows(connection, namespace, checked) if type(row) is int]
    if checked is WORDS:
        return [DamagedRow("step_text", row) for row in rows]
    ours = made_by_embedder(connection, rows)
    return [DamagedRow("embedding", row, row not in ours) for row in rows]


def changed_anywhere(
    here: int, checked: CheckedTable, derived: list[DamagedRow], connection: Connection
) -> list[Any]:
    """Return the rows of all namespaces that changed; `derived` gets those that one can mend."""
    found: list[Any] = []
    for (namespace,) in connection.execute("SELECT id FROM namespace").fetchall():
        if checked not in (WORDS, EMBEDDINGS):
            found += changed_rows(connection, namespace, checked)
            continue
        rows = damaged_rows(connection, namespace, checked)
        names = named_rows(connection, namespace, [one.row for one in rows])
        found += [names.get(one.row, one.row) for one in rows]
        derived += rows if namespace == here else ()
    return found


def refused_rows(connection: Connection, namespace: int) -> list[DamagedRow]:
    """Return the rows whose embedder gave nothing that can be used: they may be tried again."""
    return [DamagedRow("embedding", row) for (row,) in connection.execute(_REFUSED, (namespace,))]


def made_by_embedder(connection: Connection, rows: Sequence[int]) -> set[int]:
    """Return those rows that have an embedding which did not come with the step."""
    found = connection.execute(_EMBEDDINGS, (many(rows),))
    return {values[0] for values in found if not is_given(*values)}
