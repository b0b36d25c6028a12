"""Sessions of OpenAI's Agents SDK, in: rows of the SQLite file that its `SQLiteSession` writes.

`databases` reads the file and gives one record a session: its items in order, each with its time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import JsonValue

from hybridagi_steps.exchange.chats import Chat, ChatMessage, parse_chats
from hybridagi_steps.exchange.records import Entry, Records
from hybridagi_steps.records.json_reading import as_list, as_object, as_text, time_of


def recognises(value: JsonValue) -> bool:
    """Whether a record is a session."""
    return isinstance(value, dict) and "agents_session" in value and "items" in value


def parse(records: Records) -> Iterator[Entry]:
    """Yield the steps of sessions, one per record."""
    return parse_chats(records, "openai_agents", _chats)


def _chats(value: Any) -> Iterator[Chat]:
    session = as_object(value)
    rows = [as_object(row) for row in as_list(session.get("items"))]
    items = [(as_object(row.get("item")), time_of(row)) for row in rows]
    yield Chat(
        [ChatMessage(item, item, made) for item, made in items],
        id=as_text(session.get("agents_session")),
        created_at=time_of(session),
    )
