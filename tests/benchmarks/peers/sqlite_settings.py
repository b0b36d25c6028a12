"""Asks a SQLite connection how durable it is, instead of believing what was set."""

from __future__ import annotations

import sqlite3

_SYNCHRONOUS = ("OFF", "NORMAL", "FULL", "EXTRA")
_JOURNALS = {"wal": "WAL", "delete": "rollback journal"}


def read_back(connection: sqlite3.Connection) -> str:
    """Return journal mode and synchronous setting in words."""
    journal = str(connection.execute("PRAGMA journal_mode").fetchone()[0])
    level = int(connection.execute("PRAGMA synchronous").fetchone()[0])
    return f"{_JOURNALS.get(journal, journal)}, synchronous={_SYNCHRONOUS[level]}"
