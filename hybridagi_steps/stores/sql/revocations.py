"""Revocations in a database: marks on the ids of steps, and what descends from them since.

Messages that match are marked beside them, and those that show a step which is revoked; one that is
stored later and shows it is hidden with it.

A step descends from what its `metadata.recalled` names. The call of a program descends from the
steps directly inside, since its answer came out of them, and its end from the call.

All that descends from a revoked step is marked when it is revoked. What is stored later is told by
readers, from the few rows behind `namespace.revoked_through`, and marked by whoever saves words. As
long as nothing is revoked both is one look at an empty table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

import orjson

from hybridagi_steps.errors import UnknownRevocationError
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.records.message import new_id, utc_now
from hybridagi_steps.records.provenance import RECALLED, Revocation, recalled_by
from hybridagi_steps.stores.sql.message_units import MessageUnits
from hybridagi_steps.stores.sql.tables import Connection, is_storable, many

_IDS = """SELECT s.id FROM agent_step s
    WHERE +s.namespace = ? AND s.row IN (SELECT value FROM json_each(?)) ORDER BY s.row"""
_LINKED = """SELECT k.row, CASE WHEN k.step_type = 'ProgramEnd' THEN k.program_id END, {recalled}
    FROM {rows} WHERE k.namespace = ? AND k.row > ?
        AND (k.step_type = 'ProgramEnd' OR {recalled} IS NOT NULL)"""
_CALLS = """SELECT p.id FROM agent_step s
    JOIN step_view k ON k.namespace = s.namespace AND k.row = s.row
    JOIN agent_step p ON p.namespace = s.namespace AND p.id = k.program_id
    WHERE s.namespace = ? AND s.id IN (SELECT value FROM json_each(?))"""
_MARKED = """SELECT revocation, step_id FROM revoked
    WHERE namespace = ? AND step_id IN (SELECT value FROM json_each(?))"""
_IN_FORCE = "SELECT 1 FROM revoked WHERE namespace = ? LIMIT 1"
_LAST = """SELECT n.revoked_through, (SELECT max(row) FROM agent_step)
    FROM namespace n WHERE n.id = ?"""
_THROUGH = "UPDATE namespace SET revoked_through = ? WHERE id = ?"
_KEEP = """INSERT INTO revocation
    (namespace, id, filter, reason, created_at, matched, descended) VALUES (?, ?, ?, ?, ?, ?, ?)"""
_MARK = """INSERT INTO revoked (namespace, revocation, step_id) VALUES (?, ?, ?)
    ON CONFLICT DO NOTHING"""
_COUNT = "UPDATE revocation SET descended = descended + ? WHERE namespace = ? AND id = ?"
_MARKED_BY = "SELECT step_id FROM revoked WHERE namespace = ? AND revocation = ? ORDER BY step_id"
_SAID = """SELECT id FROM message
    WHERE namespace = ? AND id IN (SELECT value FROM json_each(?))"""
_STORED = """SELECT id FROM agent_step
    WHERE namespace = ? AND id IN (SELECT value FROM json_each(?))"""
_MESSAGES_HIDDEN = """SELECT r.revocation, count(*) FROM revoked r
    JOIN message m ON m.namespace = r.namespace AND m.id = r.step_id
    WHERE r.namespace = ? GROUP BY r.revocation"""
_UNMARK = "DELETE FROM revoked WHERE namespace = ? AND revocation = ?"
_UNDO = "UPDATE revocation SET undone_at = ? WHERE namespace = ? AND id = ? AND undone_at IS NULL"
_LISTED = """SELECT id, filter, reason, created_at, matched, descended, undone_at FROM revocation
    WHERE namespace = ? ORDER BY created_at, id"""
_HOLDS_MARKS = "SELECT DISTINCT revocation FROM revoked WHERE namespace = ?"
_FORGET = """DELETE FROM revocation
    WHERE namespace = ? AND id IN (SELECT value FROM json_each(?))"""

Kin = Callable[[Sequence[str]], Iterable[str]]
"""Returns the ids of steps that are linked to some."""


class RevocationTables(MessageUnits):
    """Implements `RevocationStore`; see protocols.py for the contract."""

    _recalled: str
    """SQL of what row `k` recalled, a JSON list, NULL when nothing."""
    _recalling = "step_view k"
    """The rows `k`, with what `_recalled` looks at: to look all steps up takes twice as long."""

    def revoke(self, where: StepFilter, reason: str | None, *, dry_run: bool = False) -> Revocation:
        """Hide the steps that match, and all that descends from them."""
        self._catch_up()
        with self._db.reading() if dry_run else self._db.writing() as connection:
            rows = many(self._matching(connection, where))
            seeds = self._column(connection, _IDS, self._namespace, rows)
            messages = self._message_ids(connection, where)
            links = self._links(connection, self._told(connection, after=0))
            found = descendants([*seeds, *messages], *links, self._message_links(connection))
            steps, said = self._apart(connection, found)
            told = Revocation(
                None if dry_run or not found else str(new_id()),
                where.model_dump(mode="json", exclude_none=True),
                reason,
                utc_now(),
                len(seeds),
                len(steps) - len(seeds),
                step_ids=steps,
                messages=len(said),
                message_ids=said,
            )
            if told.id is not None:
                self._mark_late(connection)
                self._keep(connection, told)
        return told

    def reinstate(self, revocation_id: str) -> Revocation:
        """Undo a revocation."""
        key = (self._namespace, revocation_id)
        with self._db.writing() as connection:
            known = self._listing(connection)
            if revocation_id not in known:
                raise UnknownRevocationError(revocation_id)
            self._mark_late(connection)
            marked = self._column(connection, _MARKED_BY, *key)
            connection.execute(_UNMARK, key)
            connection.execute(_UNDO, (utc_now().isoformat(), *key))
            others = {each for ids in self._marked(connection, marked).values() for each in ids}
            back = [each for each in marked if each not in others]
            steps, said = self._apart(connection, back)
            undone = self._listing(connection)[revocation_id]
            return replace(undone, step_ids=steps, message_ids=said)

    def revocations(self) -> list[Revocation]:
        """Return all revocations that are kept, oldest first."""
        with self._db.reading() as connection:
            return list(self._listing(connection, self._late(connection)).values())

    def forget_revocations(self, where: StepFilter) -> None:
        """Forget revocations that name a purged user or session, and hide no step any more."""
        with self._db.writing() as connection:
            hiding = set(self._column(connection, _HOLDS_MARKS, self._namespace))
            known = self._listing(connection).items()
            gone = [name for name, each in known if _names_owner(each.where, where)]
            idle = many([name for name in gone if name not in hiding])
            connection.execute(_FORGET, (self._namespace, idle))

    def _late_revoked(self, connection: Connection) -> list[str]:
        return [step_id for ids in self._late(connection).values() for step_id in ids]

    def _late(self, connection: Connection) -> dict[str, list[str]]:
        """Return, by revocation, the steps not marked yet that descend from what it hides."""
        if connection.execute(_IN_FORCE, (self._namespace,)).fetchone() is None:
            return {}
        through, last = connection.execute(_LAST, (self._namespace,)).fetchone()
        told = self._told(connection, after=through) if last is not None and last > through else []
        sources = {source for _, ids in told for source in ids if is_storable(source)}
        late: dict[str, list[str]] = {}
        for revocation, seeds in self._marked(connection, sorted(sources)).items():
            found = descendants(seeds, *self._links(connection, told))
            known = {*self._marked(connection, found).get(revocation, ())}
            late[revocation] = [step_id for step_id in found if step_id not in known]
        return late

    def _marked(self, connection: Connection, ids: Sequence[str]) -> dict[str, list[str]]:
        """Return those of some ids that each revocation hides."""
        marked: dict[str, list[str]] = {}
        for revocation, step_id in connection.execute(_MARKED, (self._namespace, many(ids))):
            marked.setdefault(revocation, []).append(step_id)
        return marked

    def _mark_late(self, connection: Connection) -> None:
        if connection.execute(_IN_FORCE, (self._namespace,)).fetchone() is None:
            return
        through, _ = self._settled(connection)
        for revocation, ids in self._late(connection).items():
            self._mark(connection, revocation, ids)
            connection.execute(_COUNT, (len(ids), self._namespace, revocation))
        self._advance(connection, through)

    def _keep(self, connection: Connection, told: Revocation) -> None:
        values = (
            told.id,
            orjson.dumps(told.where).decode(),
            told.reason,
            told.created_at.isoformat(),
        )
        counts = (told.matched, told.descended)
        connection.execute(_KEEP, (self._namespace, *values, *counts))
        self._mark(connection, str(told.id), [*told.step_ids, *told.message_ids])
        self._advance(connection, self._settled(connection)[0])

    def _advance(self, connection: Connection, settled: int) -> None:
        _, last = connection.execute(_LAST, (self._namespace,)).fetchone()
        connection.execute(_THROUGH, (min(last or 0, settled), self._namespace))

    def _mark(self, connection: Connection, revocation: str, ids: Sequence[str]) -> None:
        marks = [(self._namespace, revocation, step_id) for step_id in ids]
        connection.executemany(_MARK, marks)

    def _told(self, connection: Connection, after: int) -> list[tuple[int, list[str]]]:
        """Return the rows of steps above one that name others they came from, with those.

        The end of a program came from its call.
        """
        query = _LINKED.format(recalled=self._recalled, rows=self._recalling)
        found = connection.execute(query, (self._namespace, after))
        return [
            (row, [*recalled_ids(recalled), *([] if call_id is None else [call_id])])
            for row, call_id, recalled in found
        ]

    def _links(
        self, connection: Connection, told: Iterable[tuple[int, Sequence[str]]]
    ) -> tuple[Kin, Kin]:
        by_source: dict[str, list[int]] = {}
        for row, sources in told:
            for source in sources:
                by_source.setdefault(source, []).append(row)

        def recalling(ids: Sequence[str]) -> list[str]:
            rows = [row for step_id in ids for row in by_source.get(step_id, ())]
            return self._column(connection, _IDS, self._namespace, many(rows)) if rows else []

        def linked(ids: Sequence[str]) -> list[str]:
            return self._column(connection, _CALLS, self._namespace, many(ids))

        return recalling, linked

    def _message_links(self, connection: Connection) -> Kin:
        """Return the link from steps to the messages that show them."""

        def showing(ids: Sequence[str]) -> list[str]:
            return self._ids_of(connection, self._messages_showing(connection, ids))

        return showing

    def _apart(self, connection: Connection, ids: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return which of some ids are those of steps, and which of messages; one may be both."""
        asked = (self._namespace, many(ids))
        steps = {*self._column(connection, _STORED, *asked)}
        said = {*self._column(connection, _SAID, *asked)}
        return [each for each in ids if each in steps], [each for each in ids if each in said]

    def _listing(
        self, connection: Connection, late: Mapping[str, Sequence[str]] | None = None
    ) -> dict[str, Revocation]:
        said = dict(connection.execute(_MESSAGES_HIDDEN, (self._namespace,)).fetchall())
        found = connection.execute(_LISTED, (self._namespace,))
        return {
            name: Revocation(
                name,
                orjson.loads(where),
                reason,
                datetime.fromisoformat(made),
                matched,
                descended + len((late or {}).get(name, ())),
                None if undone is None else datetime.fromisoformat(undone),
                messages=said.get(name, 0),
            )
            for name, where, reason, made, matched, descended, undone in found
        }


def descendants(seeds: Iterable[str], *links: Kin) -> list[str]:
    """Return ids with those of all that descends from them, each once, nearest first."""
    found = dict.fromkeys(seeds)
    edge = list(found)
    while edge:
        near = dict.fromkeys(step_id for link in links for step_id in link(edge))
        edge = [step_id for step_id in near if step_id not in found]
        found.update(dict.fromkeys(edge))
    return list(found)


def recalled_ids(text: str | None) -> list[str]:
    """Return the ids in a step's `metadata.recalled`, as the database gives it."""
    if text is None or not text.startswith("["):
        return []
    return recalled_by({RECALLED: orjson.loads(text)})


def _names_owner(where: Mapping[str, object], gone: StepFilter) -> bool:
    """Tell whether a kept filter names the user or the session that is being purged."""
    users = where.get("user_id")
    named = any(user in users if isinstance(users, list) else user == users for user in gone.users)
    return named or (gone.session_id is not None and where.get("session_id") == gone.session_id)
