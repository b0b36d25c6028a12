"""What who searches a PostgreSQL store asks after each write, in few round trips.

How far it has come, what changed since, which steps wait for their words and what stands around
them: each is one statement here, where SQLite, which is asked without a network, is asked several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter

from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.store_values import (
    MESSAGE_ROWS,
    Changes,
    Frontier,
    Position,
    Unsettled,
)
from hybridagi_steps.stores.postgres.positions import SETTLED
from hybridagi_steps.stores.postgres.steps import PostgresTables
from hybridagi_steps.stores.sql.derived import (
    FRONTIER,
    PENDING_TEXT_ROWS,
    DerivedTables,
    StepLink,
)
from hybridagi_steps.stores.sql.tables import Connection, many

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
_RESTART = 2**32
"""Added to an epoch for each restart of the server: more than `clear` will ever count."""


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
