"""What the parts of a store in an SQL database share: the connection, the namespace, and hooks.

The hooks are what databases do not do alike. `Tables` calls them, a back-end implements them; each
runs inside the transaction of the connection it is given.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib.resources import files
from typing import Any, Protocol
from zlib import crc32

import orjson

from hybridagi_steps.protocols import NEWEST
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.store_values import BranchPosition
from hybridagi_steps.stores.body import decode_body
from hybridagi_steps.stores.checksums import ChecksumError, as_bytes, damaged
from hybridagi_steps.stores.waiting import Patience

_NAMESPACE = "SELECT id FROM namespace WHERE name = ?"
NAMESPACES = "SELECT name FROM namespace ORDER BY id"
_NEW_NAMESPACE = "INSERT INTO namespace (name) VALUES (?) ON CONFLICT DO NOTHING"
ANYWHERE, DERIVED = "", "\x00derived"
"""What a writer alone may change while others write beside it, if it is no session: rows that are
only its own; what is made of steps and kept beside them. No session has such a name."""

_META = "SELECT value FROM meta WHERE key = ?"
_KEEP_META = "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
_FORGET_META = "DELETE FROM meta WHERE key = ?"
SOME = "IN (SELECT value FROM json_each(?))"
"""What a column is compared with to be one of several values."""
OF_USER = "min(CASE WHEN v.user_id = ? THEN 1 ELSE 0 END) = 1"
"""Of steps `v` that are grouped: all are this user's."""
_ROWS = "(SELECT row FROM step_view WHERE namespace = ? ORDER BY row {} LIMIT 1)"
_FIRST_AND_LAST = f"SELECT {_ROWS.format('ASC')}, {_ROWS.format('DESC')}"
_ROW_OF_USER = """SELECT row FROM step_view WHERE namespace = ? AND user_id = ?
    ORDER BY row DESC LIMIT 1 OFFSET ?"""
FEWEST_ROWS, ROWS_OF_EACH, PART_OF_ROWS = 256, 16, 16
"""How many of the newest rows are looked at for a page: so many of each run or session on it, and
at most a part of all, so that what lies further back is hardly dearer to find."""

Values = Sequence[Any] | Mapping[str, Any]
"""The values of one statement, for `?` or for `:name`."""


class Answer(Protocol):
    """The rows that a statement returned."""

    @property
    def rowcount(self) -> int:
        """How many rows it changed."""
        ...

    def fetchone(self) -> Any:
        """Return the next row, None when there is none."""
        ...

    def fetchall(self) -> list[Any]:
        """Return all rows that are left."""
        ...

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """A connection inside a transaction."""

    def execute(self, sql: str, values: Values = ..., /) -> Answer:
        """Run one statement."""
        ...

    def executemany(self, sql: str, values: Iterable[Any], /) -> Any:
        """Run one statement once for each of `values`."""
        ...


class Database(Protocol):
    """Where connections come from."""

    @property
    def patience(self) -> Patience:
        """How long a thread waits for other writers."""
        ...

    @property
    def name(self) -> str:
        """What messages call this database; holds no password."""
        ...

    @property
    def writable(self) -> bool:
        """Whether it can be written here at all."""
        ...

    def writing(
        self, *, synced: bool | None = None, beside: str | None = None
    ) -> AbstractContextManager[Connection]:
        """Give a writer in a transaction that is committed whole, or rolled back.

        Args:
            synced: Whether the commit waits for the disk, if not as this was opened. What can be
                made again need not; the next commit that does takes it along.
            beside: What it alone may change: a session, `ANYWHERE` or `DERIVED`. Where a database
                has room for it, others then write beside it that named something else. None: it
                may change all, and has the namespace for itself.
        """
        ...

    def reading(self) -> AbstractContextManager[Connection]:
        """Give a reader that sees one consistent state."""
        ...

    def asking(self) -> AbstractContextManager[Connection]:
        """Give a reader for one statement, which is a consistent state by itself."""
        ...

    def known(self, sql: str, values: tuple[Any, ...]) -> Any:
        """Return the one row of a query that is asked often; it may be kept until a commit."""
        ...

    def close(self) -> None:
        """Release every connection."""
        ...


class Tables(ABC):
    """A database seen from one namespace."""

    _namespace: int

    @property
    @abstractmethod
    def _db(self) -> Database:
        """Where connections come from."""

    @property
    def _restarts(self) -> int:
        """How often the database came back and may have forgotten what readers know of it."""
        return 0

    def _unhurried(self) -> AbstractContextManager[Connection]:
        """Give a reader whose work may take hours, for all the database's limits."""
        return self._db.reading()

    def _settled(self, connection: Connection) -> tuple[int, int]:  # noqa: ARG002 - a hook
        """Return up to which row of a step, and of a message, none appears any more.

        It holds for statements that begin later, and see what was committed before them.
        """
        return NEWEST, NEWEST

    def _catch_up(self) -> None:  # noqa: B027 - a hook
        """Do what makes reading faster; a reader's chore, never a failure and never a wait."""

    def _keep_up(self, connection: Connection) -> None:  # noqa: B027 - a hook
        """Make sure that every step has its keys where they belong."""

    def _mark_late(self, connection: Connection) -> None:  # noqa: B027 - a hook
        """Mark the steps that descend from revoked ones and were stored since."""

    @abstractmethod
    def _insert_all(
        self,
        connection: Connection,
        ids: Sequence[str],
        steps: Sequence[AgentStep],
        pins: Mapping[str, BranchPosition],
    ) -> list[int]:
        """Insert steps, pinned or at the end of their session; return their rows.

        Each is encoded when its turn comes: bodies of a whole batch are never held at once.
        """

    @abstractmethod
    def _insert_message(self, connection: Connection, branch_id: int, row: Any) -> None:
        """Insert one message; DuplicateStepError when its id is taken."""

    def _decoded(self, row: int, body: bytes | str, checksum: int | None) -> AgentStep:
        """Return the step in a body that the database gave us, if it is the one we gave it."""
        try:
            text = as_bytes(body)
            if checksum is not None and checksum != crc32(text, self._namespace):
                raise ChecksumError
            return decode_body(text)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise damaged(f"{self._db.name}: the step in row {row}", error) from error

    def _listed(self, steps: Mapping[int, AgentStep], rows: Sequence[int]) -> list[AgentStep]:
        """Return the steps of rows that were listed under the same transaction."""
        distinct = {*rows}
        if len(distinct) != len(rows) or not distinct <= steps.keys():
            wrong = min((distinct - steps.keys()) or {row for row in rows if rows.count(row) > 1})
            raise damaged(
                f"{self._db.name}: the step in row {wrong}", "listed and not there, or twice"
            )
        return [steps[row] for row in rows]

    def _earlier_rows(
        self, connection: Connection, wanted: int, part: int | None = None, user: str | None = None
    ) -> Iterator[int]:
        """Yield rows, ever earlier, after which so many runs or sessions may be found.

        It ends where more than a part of all rows would be read, if not otherwise said one in 16;
        of a user, whose rows an index has, where all of them would.
        """
        rows = max(FEWEST_ROWS, ROWS_OF_EACH * wanted)
        if user is not None:
            while found := self._column(connection, _ROW_OF_USER, self._namespace, user, rows):
                yield found[0]
                rows *= 4
            return
        first, last = connection.execute(_FIRST_AND_LAST, (self._namespace,) * 2).fetchone()
        while rows * (part or PART_OF_ROWS) <= (last or 0) - (first or 0):
            yield last - rows
            rows *= 4

    def _noted(self, connection: Connection, key: str) -> str | None:
        """Return what `meta` has under a key."""
        found = self._column(connection, _META, key)
        return found[0] if found else None

    def _note(self, connection: Connection, key: str, value: str | None) -> None:
        """Note a value in `meta`; None: no longer."""
        if value is None:
            connection.execute(_FORGET_META, (key,))
        else:
            connection.execute(_KEEP_META, (key, value))

    def _column(self, connection: Connection, sql: str, *values: Any) -> list[Any]:
        return [value for (value,) in connection.execute(sql, values)]


class Many(list[Any]):
    """Values for `IN (SELECT value FROM json_each(?))`: one parameter, any number.

    SQLite takes them as a JSON list; a database with arrays takes them as they are.
    """

    def __conform__(self, protocol: object) -> str:
        """Return what sqlite3 binds."""
        return orjson.dumps(list(self)).decode()


def many(values: Iterable[Any]) -> Many:
    """Return values as one parameter."""
    return Many(values)


def namespace_id(database: Database, name: str, *before: str) -> int:
    """Return the number of a namespace; a new one is created, `before` it some statements run."""
    with database.reading() as connection:
        found = connection.execute(_NAMESPACE, (name,)).fetchone()
    if found:
        return int(found[0])
    if not database.writable:
        return 0  # no namespace has this number: the store is empty
    with database.writing() as connection:
        for statement in before:
            connection.execute(statement)
        connection.execute(_NEW_NAMESPACE, (name,))
        found = connection.execute(_NAMESPACE, (name,)).fetchone()
    if found is None:
        raise damaged(f"the namespace {name!r}", "it is not found after it was written")
    return int(found[0])


def numbered_scripts(package: str) -> list[tuple[int, str]]:
    """Return (version, SQL) of the numbered scripts in a package, oldest first."""
    scripts = [entry for entry in files(package).iterdir() if entry.name.endswith(".sql")]
    return sorted((int(entry.name[:4]), entry.read_text("utf-8")) for entry in scripts)


def is_storable(text: str) -> bool:
    """Tell whether a name can be in a database at all; lone surrogates cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# A DISTINCT here would make SQLite walk the whole namespace.
_RUNS_OF = """SELECT run_id FROM step_view
    WHERE namespace = ? AND row IN (SELECT value FROM json_each(?)) AND run_id IS NOT NULL"""
_FORGET_RUNS = """DELETE FROM run
    WHERE namespace = ? AND run_id IN (SELECT value FROM json_each(?))
    AND NOT EXISTS (SELECT 1 FROM step_view k
                    WHERE k.namespace = run.namespace AND k.run_id = run.run_id)"""
_FORGET_MARKS = (
    """DELETE FROM revoked WHERE namespace = ? AND NOT EXISTS (SELECT 1 FROM agent_step s
       WHERE s.namespace = revoked.namespace AND s.id = revoked.step_id)
       AND NOT EXISTS (SELECT 1 FROM message m
       WHERE m.namespace = revoked.namespace AND m.id = revoked.step_id)""",
    """DELETE FROM revocation WHERE namespace = ? AND undone_at IS NULL
       AND id NOT IN (SELECT m.revocation FROM revoked m
                      WHERE m.namespace = revocation.namespace)""",
)
_EMPTIED = """revoked revocation tombstone step_text embedding stale_text run prompt prompt_part
    prompt_use agent_step append_key message session branch"""
FORGET_NAMESPACE = (
    """DELETE FROM message_token WHERE message_row IN
       (SELECT row FROM message WHERE namespace = :namespace)""",
    *(f"DELETE FROM {table} WHERE namespace = :namespace" for table in _EMPTIED.split()),  # noqa: S608 - names are ours
    """UPDATE namespace SET epoch = epoch + 1, texts_through = 0, vectors_through = 0,
       message_texts_through = 0, message_vectors_through = 0, revoked_through = 0
       WHERE id = :namespace""",
)
"""Forgets everything of a namespace that every database keeps; followers start again."""


def runs_of(connection: Connection, namespace: int, rows: Sequence[int]) -> list[str]:
    """Return the runs that these rows belong to."""
    found = connection.execute(_RUNS_OF, (namespace, many(rows)))
    return sorted({run_id for (run_id,) in found})


def remove_empty_runs(connection: Connection, namespace: int, runs: Sequence[str]) -> None:
    """Remove those of `runs` that no step is left of."""
    if runs:
        connection.execute(_FORGET_RUNS, (namespace, many(runs)))


def remove_marks(connection: Connection, namespace: int) -> None:
    """Remove the marks of revoked steps that are gone, and revocations that hide none any more."""
    for statement in _FORGET_MARKS:
        connection.execute(statement, (namespace,))
