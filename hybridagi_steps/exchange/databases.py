"""SQLite files of agent libraries as records: LangGraph's checkpointer, the Agents SDK's sessions.

A file is opened read only and told by its tables. Nothing is unpickled and no class is made from
what a file names: a checkpoint's msgpack is decoded by the package `msgpack` (extra `langgraph`),
and an object in it becomes the fields that it was made from.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from hybridagi_steps.errors import ExchangeError, MissingExtraError
from hybridagi_steps.exchange.records import Record, Skipped
from hybridagi_steps.records.json_reading import JsonObject, as_list

MAGIC = b"SQLite format 3\x00"
"""What an SQLite file begins with."""
_ITEMS = {"session_id", "message_data"}
_CHECKPOINTS = {"thread_id", "checkpoint_id", "checkpoint"}
_FIELDS_PLACE = 2
"""Where the arguments of an object stand in its extension: module, name, arguments, method."""
_CONSTRUCTIONS = range(6)
"""Codes of extensions that are objects; others are arrays of numbers."""


@contextmanager
def database_records(path: Path) -> Generator[Iterator[Record | Skipped]]:
    """Give the records of a file, which is open as long as they are read."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            yield _records(database, path)
    except sqlite3.Error as error:
        raise ExchangeError(
            f"{path} is not text but SQLite, which cannot read it: {error}."
        ) from error


def _records(database: sqlite3.Connection, path: Path) -> Iterator[Record | Skipped]:
    tables = _tables(database)
    for name, columns in tables.items():
        if columns >= _ITEMS:
            return _sessions(database, name, columns)
        if columns >= _CHECKPOINTS and "checkpoint_ns" in columns:
            return _checkpoints(database, name)
    named = ", ".join(sorted(tables)) or "none"
    raise ExchangeError(
        f"{path} is an SQLite file, but neither of LangGraph's checkpointer nor of the Agents "
        f"SDK's SQLiteSession (tables: {named:.200})."
    )


def _tables(database: sqlite3.Connection) -> dict[str, set[str]]:
    """Return the columns of each table."""
    rows = database.execute(
        "SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c "
        "WHERE m.type = 'table'"
    )
    tables: dict[str, set[str]] = {}
    for table, column in rows:
        tables.setdefault(table, set()).add(column)
    return tables


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _sessions(
    database: sqlite3.Connection, table: str, columns: set[str]
) -> Iterator[Record | Skipped]:
    time = "created_at" if "created_at" in columns else "NULL"
    query = (
        f"SELECT session_id, message_data, {time} FROM {_quoted(table)} ORDER BY session_id, rowid"  # noqa: S608 - a name of the file's own, quoted
    )
    session: JsonObject = {}
    line = 0
    for line, (session_id, text, created_at) in enumerate(database.execute(query), start=1):
        if session.get("agents_session") != session_id:
            if session:
                yield Record(line - 1, session)
            session = {"agents_session": session_id, "created_at": created_at, "items": []}
        try:
            item = json.loads(text)
        except (TypeError, ValueError) as error:
            yield Skipped(line, f"row {line} of {table}: not JSON: {error}")
            continue
        session["items"].append({"item": item, "created_at": created_at})
    if session:
        yield Record(line, session)


def _checkpoints(database: sqlite3.Connection, table: str) -> Iterator[Record | Skipped]:
    decode = _decoder()
    names = "thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint"
    query = f"SELECT {names} FROM {_quoted(table)} ORDER BY thread_id, checkpoint_ns, checkpoint_id"  # noqa: S608 - a name of the file's own, quoted
    for line, row in enumerate(database.execute(query), start=1):
        thread, place, own, parent, kind, blob = row
        try:
            checkpoint = decode(kind, blob)
        except ValueError as error:
            yield Skipped(line, f"checkpoint {own} of thread {thread!r:.80}: {error}")
            continue
        config = {"thread_id": thread, "checkpoint_ns": place}
        value: JsonObject = {
            "config": {"configurable": {**config, "checkpoint_id": own}},
            "checkpoint": checkpoint,
        }
        if parent:
            value["parent_config"] = {"configurable": {**config, "checkpoint_id": parent}}
        yield Record(line, value)


def _decoder() -> Any:
    """Return what decodes a checkpoint, given its type and its bytes."""
    try:
        msgpack: Any = import_module("msgpack")  # it ships no types
    except ImportError as error:
        raise MissingExtraError("reading LangGraph's SQLite files", "langgraph") from error

    def fields(code: int, data: bytes) -> Any:
        packed = msgpack.unpackb(data, ext_hook=fields, strict_map_key=False)
        arguments = as_list(packed)[_FIELDS_PLACE:]
        return arguments[0] if code in _CONSTRUCTIONS and arguments else None

    def decode(kind: str | None, blob: bytes) -> Any:
        if kind == "json":
            return json.loads(blob)
        if kind != "msgpack":
            raise ValueError(f"written as {kind!r:.40}, which is not read")
        try:
            checkpoint: Any = msgpack.unpackb(blob, ext_hook=fields, strict_map_key=False)
        except (msgpack.UnpackException, msgpack.ExtraData, TypeError) as error:
            raise ValueError(f"no sound msgpack: {error}") from error
        return checkpoint

    return decode
