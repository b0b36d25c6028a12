"""The statements of `stores/sql` as psycopg takes them, and any text as PostgreSQL keeps it.

They are written with `?` and `:name` for values and as SQLite spells lists and bytes. PostgreSQL's
texts cannot hold a NUL, so it is written as two other characters, and read back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from psycopg import Connection
from psycopg.abc import Buffer
from psycopg.types.array import ListDumper
from psycopg.types.string import StrDumperUnknown, TextBinaryLoader, TextLoader

from hybridagi_steps.stores.sql.tables import Answer, Many, Values

_LIST = re.compile(r"IN\s+\(SELECT value FROM json_each\((\?|:\w+)\)\)")
_ROWS = re.compile(r"SELECT value FROM json_each\((\?|:\w+)\)")
_BYTES = re.compile(r"CAST\(([a-z.]+) AS BLOB\)")
_PLUS = re.compile(r"(?<=[ (=])\+(?=[a-z])")
_NAMED = re.compile(r"(?<!:):([a-z_]+)")

_ESCAPE = "\x1a"
_NUL_WRITTEN, _ESCAPE_WRITTEN = f"{_ESCAPE}0", f"{_ESCAPE}1"


@cache
def spelled(sql: str) -> bytes:
    """Return a statement as psycopg takes it.

    Args:
        sql: With `?` or `:name` for values, `IN (SELECT value FROM json_each(?))` for lists.
    """
    sql = _LIST.sub(r"= ANY(\1)", sql)
    sql = _ROWS.sub(r"SELECT unnest(CAST(\1 AS BIGINT[]))", sql)
    sql = _BYTES.sub(r"\1", sql)
    sql = _PLUS.sub("", sql)
    return _NAMED.sub(r"%(\1)s", sql).replace("?", "%s").encode()


class SpellingConnection:
    """A connection that takes the statements of `stores/sql`."""

    def __init__(self, raw: Connection[Any]) -> None:
        self.raw = raw

    def execute(self, sql: str, values: Values = (), /) -> Answer:
        """Run one statement."""
        return self.raw.execute(spelled(sql), values or None, binary=True)

    def executemany(self, sql: str, values: Iterable[Any], /) -> int:
        """Run one statement once for each of `values`; return how many rows that changed."""
        with self.raw.cursor() as cursor:
            cursor.executemany(spelled(sql), list(values))
            return max(cursor.rowcount, 0)

    def copy(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Write new rows of a table by COPY: one statement, whose plan is made once."""
        statement = f"COPY {table} ({', '.join(columns)}) FROM STDIN"
        with self.raw.cursor() as cursor, cursor.copy(statement.encode()) as copy:
            for row in rows:
                copy.write_row(row)


def teach(connection: Connection[Any]) -> None:
    """Let a connection write and read any text, and take lists as arrays."""
    connection.adapters.register_dumper(str, _TextDumper)
    connection.adapters.register_dumper(Many, ListDumper)
    connection.adapters.register_loader("text", _TextLoader)
    connection.adapters.register_loader("text", _TextBinaryLoader)


class _TextDumper(StrDumperUnknown):
    def dump(self, obj: str) -> Buffer | None:
        if _ESCAPE in obj or "\x00" in obj:
            obj = obj.replace(_ESCAPE, _ESCAPE_WRITTEN).replace("\x00", _NUL_WRITTEN)
        return super().dump(obj)


def _as_given(text: str | bytes) -> str | bytes:
    """Return a stored text as it was before it was written."""
    if isinstance(text, str) and _ESCAPE in text:
        return text.replace(_NUL_WRITTEN, "\x00").replace(_ESCAPE_WRITTEN, _ESCAPE)
    return text


class _TextLoader(TextLoader):
    def load(self, data: Buffer) -> str | bytes:
        return _as_given(super().load(data))


class _TextBinaryLoader(TextBinaryLoader):
    def load(self, data: Buffer) -> str | bytes:
        return _as_given(super().load(data))
