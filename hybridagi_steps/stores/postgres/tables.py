"""What the parts of the PostgreSQL store share: the database and the namespace."""

from __future__ import annotations

from hybridagi_steps.stores.postgres.database import PostgresDatabase
from hybridagi_steps.stores.postgres.schema import DURABLY
from hybridagi_steps.stores.sql.tables import Tables


class PostgresTables(Tables):
    """A database seen from one namespace."""

    def __init__(self, database: PostgresDatabase, namespace: str) -> None:
        self._database = database
        self._namespace = database.turn = _namespace_id(database, namespace)

    @property
    def _db(self) -> PostgresDatabase:
        return self._database


def _namespace_id(database: PostgresDatabase, name: str) -> int:
    find = "SELECT id FROM namespace WHERE name = ?"
    with database.reading() as connection:
        found = connection.execute(find, (name,)).fetchone()
    if found:
        return int(found[0])
    if not database.writable:
        return 0  # no namespace has this number: the store is empty
    with database.writing() as connection:
        connection.execute(DURABLY)
        connection.execute(
            "INSERT INTO namespace (name) VALUES (?) ON CONFLICT DO NOTHING", (name,)
        )
        return int(connection.execute(find, (name,)).fetchone()[0])
