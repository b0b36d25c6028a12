"""How a process follows a PostgreSQL store: what it asks, and where the index of that is cached.

How far the store has come, what changed since, which steps wait for their words and what stands
around them: each is one statement here, where SQLite, which is asked without a network, is asked
several.

A server has no file to cache beside, so the index stands in a folder of this machine's user. The
name of the file stands for the store, the namespace and the incarnation of the database: one that
was restored or failed over may number other rows alike. Who writes such a file notes that in the
database first, so that a purge on another machine can name what it does not reach. What the file
holds, and whether it is whole, `search/index_cache.py` knows.
"""

from __future__ import annotations

import logging
import os
import platform
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from itertools import count
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from hybridagi_steps.errors import StorageError
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.filter_fields import StepKey
from hybridagi_steps.records.store_values import (
    MESSAGE_ROWS,
    Changes,
    Frontier,
    Metadata,
    Position,
    Rows,
    Unsettled,
)
from hybridagi_steps.stores.postgres.positions import SETTLED
from hybridagi_steps.stores.postgres.spelling import joined_texts, split_texts
from hybridagi_steps.stores.postgres.steps import KEY_COLUMNS, PostgresTables
from hybridagi_steps.stores.sql.derived import (
    FRONTIER,
    PENDING_TEXT_ROWS,
    DerivedTables,
    StepLink,
)
from hybridagi_steps.stores.sql.tables import Connection, many

FOLDER_VARIABLE = "HYBRIDAGI_STEPS_CACHE"
"""Names the folder; `no` for none at all."""
_NONE = "no"
_WRITABLE_BY_OTHERS = 0o022
_INCARNATION = """SELECT (SELECT value FROM meta WHERE key = 'store_id'),
    concat_ws('.', (SELECT system_identifier FROM pg_control_system()),
        left(pg_walfile_name(pg_current_wal_insert_lsn()), 8),
        (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database()),
        CAST(CAST('meta' AS regclass) AS oid))"""
_NOTE = "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO NOTHING"
_NOTED = "SELECT value FROM meta WHERE substr(key, 1, ?) = ? ORDER BY value"
_FORGET_NOTES = "DELETE FROM meta WHERE substr(key, 1, ?) = ?"
_KNOWN = FRONTIER.replace("?", ":namespace")
_FRONTIER = f"""WITH settled AS MATERIALIZED ({SETTLED})
    SELECT known.*, settled.row, settled.message,
        CASE WHEN settled.row < newest THEN (SELECT count(*) FROM agent_step a WHERE
            a.namespace = :namespace AND a.row BETWEEN settled.row + 1 AND newest) ELSE 0 END
        + CASE WHEN message < newest_message THEN (SELECT count(*) FROM message m WHERE
            m.namespace = :namespace AND m.row BETWEEN message + 1 AND newest_message) ELSE 0 END
    FROM ({_KNOWN}) known, settled"""  # noqa: S608 - no value in it
_FEW = 500
"""What is new, of each kind, to be read in one statement: there is one part of it in each row."""
_SINCE = f"""WITH known AS MATERIALIZED ({_KNOWN})
    SELECT known.*, new.* FROM known LEFT JOIN (
    (SELECT 1 AS kind, seq, row, parent_row, tokens, text_hash, purpose_hash, scoped, checksum,
        0 AS given, CAST(NULL AS BYTEA) AS vector
        FROM step_text WHERE namespace = :namespace AND seq > :text ORDER BY seq LIMIT {_FEW})
    UNION ALL (SELECT 2, seq, row, NULL, NULL, text_hash, NULL, scoped, checksum, given, vector
        FROM embedding WHERE namespace = :namespace AND seq > :vector ORDER BY seq LIMIT {_FEW})
    UNION ALL (SELECT 3, seq, row, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
        FROM tombstone WHERE namespace = :namespace AND seq > :tombstone ORDER BY seq LIMIT {_FEW})
    ) new ON TRUE"""  # noqa: S608 - no value in it
_TEXT_OF, _VECTOR_OF = itemgetter(1, 8, 2, 3, 4, 5, 6, 7), itemgetter(1, 2, 5, 9, 10, 8, 7)
# Lists, not joins: the planner takes them for short, and asks indexes.
_PENDING_STEPS = f"""WITH own AS MATERIALIZED (
    SELECT row, id, parent_id, body, checksum FROM agent_step
        WHERE namespace = :namespace AND row = ANY(ARRAY({PENDING_TEXT_ROWS})))
    SELECT row, id, body, checksum, TRUE FROM own
    UNION ALL SELECT row, id, body, checksum, FALSE FROM agent_step
        WHERE namespace = :namespace
        AND id = ANY(ARRAY(SELECT parent_id FROM own EXCEPT SELECT id FROM own))"""  # noqa: S608 - no value in it
_AROUND_SAVED = f"""SELECT s.row, s.parent_id, s.run_id, s.hop, s.user_id, s.scope,
    ARRAY(SELECT k.row FROM step_view k
        WHERE k.namespace = s.namespace AND k.parent_id = s.id AND k.row < s.row),
    (SELECT max(row) FROM step_text WHERE row < {MESSAGE_ROWS})
    FROM agent_step s WHERE s.namespace = ? AND s.row IN (SELECT value FROM json_each(?))"""  # noqa: S608 - no value in it
# For all rows in one round trip. Their places are handed over: asked for beside the rest they made
# the planner walk the namespace's whole index of runs.
_IN_RUN = """SELECT k.row, near.row
    FROM unnest(CAST(? AS BIGINT[]), CAST(? AS TEXT[]), CAST(? AS BIGINT[]), CAST(? AS TEXT[]),
        CAST(? AS TEXT[])) k (row, run_id, hop, user_id, scope)
    CROSS JOIN LATERAL (
        SELECT o.row FROM step_view o WHERE o.namespace = ? AND o.run_id = k.run_id
            AND (o.hop, o.row) {than} (k.hop, k.row)
            AND o.user_id IS NOT DISTINCT FROM k.user_id AND o.scope IS NOT DISTINCT FROM k.scope
        ORDER BY o.hop {order}, o.row {order} LIMIT 1) near"""
_BEFORE_IN_RUN = _IN_RUN.format(than="<", order="DESC")
_AFTER_IN_RUN = _IN_RUN.format(than=">", order="ASC")
_ROWS = "string_agg(int8send(row), '' ORDER BY row)"
_METADATA = f"""SELECT {_ROWS}, string_agg(int8send(cardinality(metadata)), '' ORDER BY row),
        string_agg(array_to_string(metadata, chr(10)), chr(10) ORDER BY row)
    FROM (SELECT row, metadata FROM agent_step WHERE namespace = ? AND row > ? AND row <= ?
        AND cardinality(metadata) > 0 ORDER BY row LIMIT ?) page"""  # noqa: S608 - ours
"""JSON on a line each."""
_PAGE = 10_000
"""Rows whose metadata one statement reads: a text of PostgreSQL holds a gigabyte."""
_WITHOUT_VALUE = {"true": True, "false": False, "null": None}
"""What `scalar_kind` says of values that are all alike."""
_RESTART = 2**32
"""Added to an epoch for each restart of the server: more than `clear` will ever count."""

log = logging.getLogger("hybridagi_steps")


class LocalCache(PostgresTables):
    """Implements `CachedApart`; see protocols.py for the contract."""

    _cache: Path | None = None

    def index_cache(self) -> Path | None:
        """Return the cache file of this user on this machine; None where there is to be none.

        Files of earlier incarnations of the database are erased: nobody reads them any more.
        """
        folder = cache_folder()
        if folder is None or not self._db.writable:
            return None
        try:
            store, incarnation = self._db.known(_INCARNATION, ())
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            held = folder.stat()
            if hasattr(os, "geteuid") and (
                held.st_uid != os.geteuid() or held.st_mode & _WRITABLE_BY_OTHERS
            ):
                log.warning("no index is cached in %s: others can write there", folder)
                return None
            begin = blake2b(f"{store}.{self._namespace}".encode(), digest_size=16).hexdigest()
            digest = blake2b(incarnation.encode(), digest_size=8).hexdigest()
            self._cache = folder / f"{begin}.{digest}.index"
            for other in {*_files(folder / begin)} - {*_files(self._cache)}:
                other.unlink(missing_ok=True)
        except (OSError, StorageError) as error:
            log.warning("the index of %s is not cached: %s", self._db.name, error)
            return None
        return self._cache

    def note_cache(self) -> None:
        """Note in the database that the file is about to be written."""
        place = f"{platform.node()}:{self._cache}"
        with self._db.writing(synced=True) as connection:
            connection.execute(_NOTE, (f"{self._noted_as}{place}", place))

    def caches_elsewhere(self) -> list[str]:
        """Erase what others noted on this machine; return what cannot be reached, and forget it."""
        key = (len(self._noted_as), self._noted_as)
        with self._db.writing() as connection:
            noted: list[str] = self._column(connection, _NOTED, *key)
            connection.execute(_FORGET_NOTES, key)
        return [place for place in noted if not _erased(place)]

    @property
    def _noted_as(self) -> str:
        return f"cache:{self._namespace}:"


def cache_folder() -> Path | None:
    """Return the folder for caches; None when the user wants, or has, none."""
    named = os.environ.get(FOLDER_VARIABLE, "")
    if named == _NONE:
        return None
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(named or f"{caches}/hybridagi_steps").expanduser().absolute()
    except RuntimeError:  # a user without a home
        return None


def _files(cache: Path) -> Iterator[Path]:
    """Yield a cache file and what lies beside it: columns of filters, what is half written."""
    for begin in ("", "."):
        yield from cache.parent.glob(f"{begin}{cache.stem}.*")


def _erased(place: str) -> bool:
    """Erase a noted file if it lies on this machine; tell whether nothing is left of it."""
    host, _, path = place.partition(":")
    if host == platform.node():
        with suppress(OSError):
            for file in _files(Path(path)):
                file.unlink(missing_ok=True)
            return True
    return False


class FollowedTables(PostgresTables, DerivedTables):
    """What PostgreSQL says in its own way of what is derived from steps."""

    @property
    def _restarts(self) -> int:
        return self._db.restarts

    def frontier(self) -> Frontier:
        """Return how far the store has come, and up to where all of it can be seen."""
        found = self._db.known(_FRONTIER, {"namespace": self._namespace})
        if found is None:
            return self._frontier_of(None)
        frontier, (row, message_row, beyond) = self._frontier_of(found[:7]), found[7:]
        if (row, message_row) == found[5:7]:
            return frontier
        return frontier._replace(unsettled=Unsettled(row, MESSAGE_ROWS + message_row, beyond))

    def _frontier_of(self, found: Sequence[int] | None) -> Frontier:
        """Return how far the store has come, in another epoch after each restart of the server.

        With `normal`, a crash may have taken rows back that a follower has seen, and their numbers
        will be used again: it must start from nothing.
        """
        frontier = super()._frontier_of(found)
        epoch = frontier.position.epoch + _RESTART * self._restarts
        return frontier._replace(position=frontier.position._replace(epoch=epoch))

    def changes(self, since: Position, *, limit: int = 100_000) -> Changes:
        """Return what happened after `since`, in one consistent view."""
        if since.text and limit >= _FEW:
            parts = {"text": since.text, "vector": since.vector, "tombstone": since.tombstone}
            found = self._db.few(_SINCE, {"namespace": self._namespace, **parts})
            newest = self._frontier_of(found[0][:7] if found else None).position
            new = sorted(row[7:] for row in found if row[7] is not None)
            texts, vectors, gone = ([row for row in new if row[0] == kind] for kind in (1, 2, 3))
            if since.epoch == newest.epoch and max(map(len, (texts, vectors, gone))) < _FEW:
                removed = [row for _, _, row, *_ in gone]
                return self._changes(
                    newest, map(_TEXT_OF, texts), map(_VECTOR_OF, vectors), removed
                )
        return super().changes(since, limit=limit)

    def step_keys(
        self, names: Sequence[StepKey], *, after: int, limit: int
    ) -> tuple[Rows, dict[StepKey, list[str | None]]]:
        """Return the next rows above `after` with their keys."""
        with self._db.asking() as connection:
            asked = (self._namespace, after, limit)
            rows, *columns = connection.execute(_keys_query(names), asked).fetchone()
        if rows is None:
            return np.array([], np.int64), {name: [] for name in names}
        return _numbers(rows), dict(zip(names, map(split_texts, columns), strict=True))

    def metadata_values(self, *, after: int, through: int) -> Metadata:
        """Return what is plain of the metadata of steps in a range of rows."""
        rows, sizes, lines, full = [_numbers(b"")], [_numbers(b"")], list[str](), True
        while full:
            with self._db.asking() as connection:
                asked = (self._namespace, after, through, _PAGE)
                found = connection.execute(_METADATA, asked).fetchone()
            if full := found[0] is not None:
                rows.append(_numbers(found[0]))
                sizes.append(_numbers(found[1]))
                lines += found[2].split("\n")
                full, after = len(rows[-1]) == _PAGE, int(rows[-1][-1])
        return _by_key(np.repeat(np.concatenate(rows), np.concatenate(sizes)), lines)

    def _pending_steps(
        self, connection: Connection, asked: dict[str, int]
    ) -> tuple[list[int], dict[int, AgentStep], Mapping[str, int] | None]:
        found = connection.execute(_PENDING_STEPS, asked).fetchall()
        rows = sorted(row for row, *_, own in found if own)
        steps = {row: self._sound(row, body, checksum) for row, _, body, checksum, _ in found}
        return rows, steps, {step_id: row for row, step_id, *_ in found}

    def _around_saved(
        self, connection: Connection, saved: Sequence[int]
    ) -> tuple[set[int], dict[int, StepLink], int | None]:
        found = connection.execute(_AROUND_SAVED, (self._namespace, many(saved))).fetchall()
        children = {row for *_, rows, _ in found for row in rows}
        links = {row: StepLink(*link) for row, *link, _, _ in found}
        return children, links, next((last for *_, last in found), None)

    def _neighbours(
        self, connection: Connection, links: Mapping[int, StepLink], *, before: bool
    ) -> dict[int, int]:
        asked = [
            (row, link.run_id, link.hop, *link.owner)
            for row, link in links.items()
            if link.run_id is not None
        ]
        if not asked:
            return {}
        places = (many(column) for column in zip(*asked, strict=True))
        query = _BEFORE_IN_RUN if before else _AFTER_IN_RUN
        return dict(connection.execute(query, (*places, self._namespace)).fetchall())


def _keys_query(names: Sequence[StepKey]) -> str:
    """Return SQL for the next rows of a namespace above one: each column as one text.

    It is read several times as fast as so many rows, or texts.
    """
    asked = ", ".join(["k.row AS row", *(f"{KEY_COLUMNS[name]} AS {name}" for name in names)])
    columns = ", ".join([_ROWS, *map(joined_texts, names)])
    return f"""SELECT {columns} FROM (SELECT {asked}
        FROM step_view k WHERE k.namespace = ? AND k.row > ? ORDER BY k.row LIMIT ?) page"""  # noqa: S608 - columns are ours


def _numbers(sent: bytes) -> Rows:
    """Return numbers as the server sends them: the driver would make an object of each."""
    return np.frombuffer(sent, ">i8").astype(np.int64)


def _by_key(rows: Rows, lines: Iterable[str]) -> Metadata:
    """Return of metadata what `metadata_texts` told, a line each.

    Most lines are said by many rows, so each is looked into once.
    """
    numbers = defaultdict[str, int](count().__next__)
    line = np.fromiter(map(numbers.__getitem__, lines), np.intp, len(rows))
    told = orjson.loads(f"[{','.join(numbers)}]")
    keys, values = defaultdict[str, int](count().__next__), defaultdict[str, list[Any]](list)
    key, place = np.empty(len(told), np.intp), np.empty(len(told), np.intp)
    for number, (name, kind, value) in enumerate(told):
        key[number], place[number] = keys[name], len(values[name])
        values[name].append(_WITHOUT_VALUE.get(kind, value))
    order = np.argsort(key[line], kind="stable")
    ends = np.cumsum(np.bincount(key[line], minlength=len(keys)))
    parts = np.split(order, ends[:-1]) if keys else []
    return {
        name: (rows[part], place[line[part]], values[name])
        for name, part in zip(keys, parts, strict=True)
    }
