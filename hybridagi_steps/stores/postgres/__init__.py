"""Steps in PostgreSQL. `PostgresStepStore` is the whole of it; see store.py for the design.

Needs the extra `postgres`.
"""

from __future__ import annotations

from hybridagi_steps.errors import MissingExtraError

try:
    import psycopg  # noqa: F401  # pyright: ignore[reportUnusedImport] - asked for first
except ImportError as error:
    raise MissingExtraError("A memory in PostgreSQL", "postgres") from error

from hybridagi_steps.stores.postgres.store import PostgresStepStore

__all__ = ["PostgresStepStore"]
