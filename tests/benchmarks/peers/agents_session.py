"""The OpenAI Agents SDK's `SQLiteSession`: a conversation's items, one session per run.

It opens its connections itself, in WAL with SQLite's synchronous FULL, and has no setting for it;
at durability `normal` its connections are given that pragma, which is kinder than it is. Its calls
are async and work in a thread, so all are awaited in one event loop that stays open.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUntypedBaseClass=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from agents import SQLiteSession

from hybridagi_steps.memory import Durability
from tests.benchmarks.peers import StepRecord
from tests.benchmarks.peers.sqlite_settings import read_back


class Session(SQLiteSession):
    """A session whose connections take a synchronous setting."""

    def __init__(self, run_id: str, path: Path, durability: Durability) -> None:
        self._durability = durability
        super().__init__(run_id, path)

    def _get_connection(self) -> sqlite3.Connection:
        fresh = not hasattr(self._local, "connection")
        connection: sqlite3.Connection = super()._get_connection()
        if fresh and self._durability == "normal":
            connection.execute("PRAGMA synchronous = NORMAL")
        return connection

    def settings(self) -> str:
        """Return what a connection of the session says."""
        return read_back(self._get_connection())


class SessionWriter:
    """Keeps one session object per run, as a program would; they are made outside the clock."""

    def __init__(self, folder: Path, durability: Durability) -> None:
        self._path = folder / "sessions.db"
        self._durability: Durability = durability
        self._loop = asyncio.Runner()
        self._sessions: dict[str, Session] = {}
        self.settings = self._session("settings").settings()

    def add_each(self, records: Sequence[StepRecord]) -> None:
        """Add items one by one; each is committed."""

        async def each() -> None:
            for record in records:
                await self._session(record.run_id).add_items([_item(record)])

        self._loop.run(each())

    def add_all(self, records: Sequence[StepRecord]) -> None:
        """Add the items of each run in one transaction."""

        async def all_of_them() -> None:
            for run_id, found in groupby(records, lambda record: record.run_id):
                await self._session(run_id).add_items([_item(record) for record in found])

        self._loop.run(all_of_them())

    def settle(self) -> None:
        """Nothing is advised."""

    def read_run(self, run_id: str) -> int:
        """Read the items of a session."""
        return len(self._loop.run(self._session(run_id).get_items()))

    def close(self) -> None:
        """Close all sessions and the event loop."""
        for session in self._sessions.values():
            session.close()
        self._loop.close()

    def _session(self, run_id: str) -> Session:
        if run_id not in self._sessions:
            self._sessions[run_id] = Session(run_id, self._path, self._durability)
        return self._sessions[run_id]


class DocumentedSessionWriter(SessionWriter):
    """Sessions as they come, whatever durability ours has."""

    def __init__(self, folder: Path, durability: Durability) -> None:
        super().__init__(folder, "full")


def _item(record: StepRecord) -> Any:
    """Return the step as an item; the session takes any JSON object and writes it as text."""
    return record.values
