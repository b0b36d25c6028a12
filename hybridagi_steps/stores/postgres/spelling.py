"""The statements of `stores/sql` as psycopg takes them, and any text as PostgreSQL keeps it.

They are written with `?` and `:name` for values and as SQLite spells lists and bytes. PostgreSQL's
texts cannot hold a NUL, so it is written as two other characters, and read back.
"""

from __future__ import annotations

import math
import os
import re
import select
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, cached_property
from typing import Any

import orjson
from psycopg import Connection, Cursor, Error
from psycopg.abc import Buffer, DumperKey
from psycopg.adapt import Dumper, PyFormat
from psycopg.pq import TransactionStatus
from psycopg.types.array import ListDumper
from psycopg.types.string import StrDumperUnknown, TextBinaryLoader, TextLoader

from hybridagi_steps.stores.postgres.schema import SCHEMA
from hybridagi_steps.stores.sql.tables import Answer, Many, Values

_LIST = re.compile(r"IN\s+\(SELECT value FROM json_each\((\?|:\w+)\)\)")
_ROWS = re.compile(r"SELECT value FROM json_each\((\?|:\w+)\)")
_BYTES = re.compile(r"CAST\(([a-z.]+) AS BLOB\)")
_PLUS = re.compile(r"(?<=[ (=])\+(?=[a-z])")
_NAMED = re.compile(r"(?<!:):([a-z_]+)")

_CONNECT_SECONDS = 10
_HOW_VALUES_ARE_READ = {
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "standard_conforming_strings": "on",
    "backslash_quote": "safe_encoding",
    "transform_null_equals": "off",
    "xmloption": "content",
    "quote_all_identifiers": "off",
    "array_nulls": "on",
}
READING = ", ".join(
    f"set_config('{name}', '{value}', lent)" for name, value in _HOW_VALUES_ARE_READ.items()
)
"""Sets, in a SELECT that says `lent`, what a server or role may have set otherwise, and what values
that are written or read stand on. The encoding of texts is said on connecting."""
_TEXT_ARRAY, _BIGINT_ARRAY = 1009, 1016
_ESCAPE = "\x1a"
_NUL_WRITTEN, _ESCAPE_WRITTEN = f"{_ESCAPE}0", f"{_ESCAPE}1"
_NEXT, _NOTHING = f"{_ESCAPE}2", f"{_ESCAPE}3"
"""Between texts that are read as one, and in place of one that is not there: no text has them."""


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


class Raw(Connection[Any]):
    """A connection of the driver."""

    @cached_property
    def kept(self) -> Cursor[Any]:
        """A cursor that knows how to write values from the statements before.

        Another would look that up again, for as long as it takes to send the statement. It has one
        answer at a time.
        """
        return self.cursor()


def connect_options(given: Mapping[str, Any], timeout_seconds: float) -> dict[str, Any]:
    """Return what an address leaves open."""
    options: dict[str, Any] = {"client_encoding": "UTF8", "fallback_application_name": SCHEMA}
    if "connect_timeout" not in given and "PGCONNECT_TIMEOUT" not in os.environ:
        options["connect_timeout"] = min(_CONNECT_SECONDS, math.ceil(timeout_seconds) + 1)
    return options


class Texts(list[str]):
    """Texts for an array, written in a tenth of the time that the driver takes for any list."""


class SpellingConnection:
    """A connection that takes the statements of `stores/sql`."""

    def __init__(self, raw: Raw) -> None:
        self.raw = raw

    def execute(self, sql: str, values: Values = (), /) -> Answer:
        """Run one statement."""
        return self.raw.execute(spelled(sql), values or None, binary=True)

    def executemany(self, sql: str, values: Iterable[Any], /) -> int:
        """Run one statement once for each of `values`; return how many rows that changed."""
        rows = list(values)
        if not rows:
            return 0
        if len(rows) == 1:  # without a pipeline: two thirds of the time
            return max(self.raw.execute(spelled(sql), rows[0]).rowcount, 0)
        with self.raw.cursor() as cursor:
            cursor.executemany(spelled(sql), rows)
            return max(cursor.rowcount, 0)

    def copy(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Write new rows of a table in one statement; COPY is refused under row-level security."""
        names = ", ".join(columns)
        statement = f"""INSERT INTO {table} ({names}) SELECT {names}
            FROM json_populate_recordset(CAST(NULL AS {table}), %s)"""  # noqa: S608 - names are ours
        self.raw.execute(statement.encode(), [json_rows(columns, rows)])


def joined_texts(name: str) -> str:
    """Return SQL of all texts of a column as one, in the order of `row`; `split_texts` reads it."""
    joined = f"array_to_string(array_agg({name} ORDER BY row), chr(26) || '2', chr(26) || '3')"
    return f"CAST({joined} AS VARCHAR)"  # as it is stored: no loader of texts here has read it


def split_texts(joined: str) -> list[str | None]:
    """Return the texts of a column: the driver takes ten times as long for an array of them."""
    texts = [None if text == _NOTHING else text for text in joined.split(_NEXT)]
    if _NUL_WRITTEN in joined or _ESCAPE_WRITTEN in joined:
        return [None if text is None else _as_given(text) for text in texts]
    return texts


def teach(connection: Connection[Any]) -> None:
    """Let a connection write and read any text, and take lists as arrays."""
    connection.adapters.register_dumper(str, _TextDumper)
    connection.adapters.register_dumper(Many, _ManyDumper)
    connection.adapters.register_dumper(Texts, _TextsDumper)
    connection.adapters.register_loader("text", _TextLoader)
    connection.adapters.register_loader("text", _TextBinaryLoader)


def is_quiet(raw: Connection[Any]) -> bool:
    """Tell whether nothing has come on an idle connection: what comes there is its end."""
    if raw.closed:
        return False
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(raw.fileno(), select.POLLIN)
        return not poll.poll(0)
    return not select.select([raw.fileno()], [], [], 0)[0]


def came_to_rest(raw: Connection[Any]) -> bool:
    """Leave no transaction open; tell whether the connection can be used again."""
    status = raw.pgconn.transaction_status
    try:
        if status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
            raw.execute(b"ROLLBACK")
    except Error:
        return False
    return not raw.closed and raw.pgconn.transaction_status == TransactionStatus.IDLE


def json_rows(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return rows as the JSON that `json_populate_recordset` takes, texts as they are stored."""
    held = [dict(zip(columns, row, strict=True)) for row in rows]
    written = orjson.dumps(held)
    if b"\\u0000" in written or b"\\u001a" in written:
        written = orjson.dumps(_written_values(held))
    return written.decode()


def _written_values(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _written_values(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list):
        return [_written_values(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    return _written(value) if isinstance(value, str) else value


def _written(text: str) -> str:
    """Return a text as it is stored."""
    if _ESCAPE in text or "\x00" in text:
        return text.replace(_ESCAPE, _ESCAPE_WRITTEN).replace("\x00", _NUL_WRITTEN)
    return text


class _TextDumper(StrDumperUnknown):
    def dump(self, obj: str) -> Buffer | None:
        return _written(obj).encode()  # the driver's own looks up in which code


class _TextsDumper(Dumper):
    oid = _TEXT_ARRAY

    def dump(self, obj: Texts) -> Buffer:
        texts = [_written(each).replace("\\", "\\\\").replace('"', '\\"') for each in obj]
        return ('{"' + '","'.join(texts) + '"}').encode() if texts else b"{}"


class _NumbersDumper(Dumper):
    oid = _BIGINT_ARRAY

    def dump(self, obj: Many) -> Buffer:
        return f"{{{','.join(map(str, obj))}}}".encode()


class _ManyDumper(ListDumper):
    """Writes lists of texts and of numbers by ourselves, each as one type; others as the driver."""

    def get_key(self, obj: list[Any], format: PyFormat) -> DumperKey:  # noqa: A002 - the driver's
        own = _PLAIN.get(frozenset(map(type, obj)))
        # No key of the driver's: it has the same for a list with nulls.
        return (self.cls, own) if own else super().get_key(obj, format)

    def upgrade(self, obj: list[Any], format: PyFormat) -> Any:  # noqa: A002 - the driver's
        own = _PLAIN.get(frozenset(map(type, obj)))
        return own(self.cls, self._tx) if own else super().upgrade(obj, format)


_PLAIN: dict[frozenset[type], type[Dumper]] = {
    frozenset({str}): _TextsDumper,
    frozenset({int}): _NumbersDumper,
}


def _as_given(text: str) -> str:
    """Return a stored text as it was before it was written."""
    if _ESCAPE in text:
        return text.replace(_NUL_WRITTEN, "\x00").replace(_ESCAPE_WRITTEN, _ESCAPE)
    return text


class _TextLoader(TextLoader):
    def load(self, data: Buffer) -> str | bytes:
        text = super().load(data)
        return _as_given(text) if isinstance(text, str) else text


class _TextBinaryLoader(TextBinaryLoader):
    def load(self, data: Buffer) -> str | bytes:
        text = super().load(data)
        return _as_given(text) if isinstance(text, str) else text
