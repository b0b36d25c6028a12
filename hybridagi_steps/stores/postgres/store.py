"""PostgresStepStore: steps in one PostgreSQL database, shared by machines.

The same tables and the same statements as SQLite's store, which stand in `stores/sql`; what
PostgreSQL does in its own way stands here. Rows carry their keys from the start, so there is no
tail to catch up with. Writers of one namespace take turns by an advisory lock that ends with their
transaction; those of two namespaces never wait for each other. database.py owns every connection.
"""

from __future__ import annotations

from collections.abc import Sequence

from hybridagi_steps.protocols import Frontier
from hybridagi_steps.stores import Durability
from hybridagi_steps.stores.postgres.admin import PostgresAdmin
from hybridagi_steps.stores.postgres.database import PostgresDatabase
from hybridagi_steps.stores.sql.derived import DerivedTables
from hybridagi_steps.stores.sql.tables import Connection
from hybridagi_steps.stores.sql.values import many
from hybridagi_steps.stores.waiting import DEFAULT_TIMEOUT_SECONDS

# For all rows in one round trip; SQLite would walk whole runs for such a question.
_IN_RUN = """SELECT k.row, near.row FROM step_view k CROSS JOIN LATERAL (
    SELECT o.row FROM step_view o WHERE o.namespace = k.namespace AND o.run_id = k.run_id
        AND (o.hop, o.row) {than} (k.hop, k.row) ORDER BY o.hop {order}, o.row {order} LIMIT 1) near
    WHERE k.namespace = ? AND k.run_id IS NOT NULL
        AND k.row IN (SELECT value FROM json_each(?))"""
_BEFORE_IN_RUN = _IN_RUN.format(than="<", order="DESC")
_AFTER_IN_RUN = _IN_RUN.format(than=">", order="ASC")
_RESTART = 2**32
"""Added to an epoch for each restart of the server: more than `clear` will ever count."""


class PostgresStepStore(PostgresAdmin, DerivedTables):
    """Steps in one database. Safe for any number of threads, processes, machines and forks."""

    def __init__(
        self,
        address: str,
        *,
        namespace: str = "default",
        durability: Durability = "full",
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> None:
        """Open the database; its schema `hybridagi_steps` is created where there is none.

        Args:
            address: `postgresql://user:password@host:port/database`, as libpq takes it.
            namespace: Whose steps this store sees.
            durability: `full`: an acknowledged step survives what the server's commits survive.
                `normal`: commits do not wait for the server's disk. An acknowledged step survives
                kill -9 of this process; when the server itself is killed, the last moments before
                that may be gone, whole steps and newest first.
            timeout_seconds: How long a call waits for other writers, or for a free connection.

        Raises:
            UnsupportedAddressError: The address is not one.
            StorageError: One of its kinds: unreachable, foreign, newer, read-only, busy, full.
        """
        database = PostgresDatabase(address, durability, timeout_seconds)
        try:
            super().__init__(database, namespace)
        except BaseException:
            database.close()
            raise

    def _before_in_run(self, connection: Connection, rows: Sequence[int]) -> dict[int, int]:
        return dict(connection.execute(_BEFORE_IN_RUN, (self._namespace, many(rows))).fetchall())

    def _after_in_run(self, connection: Connection, rows: Sequence[int]) -> dict[int, int]:
        return dict(connection.execute(_AFTER_IN_RUN, (self._namespace, many(rows))).fetchall())

    def _frontier(self, connection: Connection) -> Frontier:
        """Return how far the store has come, in another epoch after each restart of the server.

        With `normal`, a crash may have taken rows back that a follower has seen, and their numbers
        will be used again: it must start from nothing.
        """
        position, row = super()._frontier(connection)
        epoch = position.epoch + _RESTART * self._db.restarts
        return Frontier(position._replace(epoch=epoch), row)
