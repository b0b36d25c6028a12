"""Reads rows off the pages of a damaged file, where SQLite no longer finds or opens them.

No tree is followed: each page that holds rows is read by itself, and what a row belongs to is told
by the kinds of its values; whether it is whole, its checksum says to who reads it. Definitions and
indexes are not needed. Committed frames of the write-ahead log count in the place of their pages.
What was deleted is not found: the library has SQLite overwrite it (`secure_delete`).
Reference: https://sqlite.org/fileformat2.html
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from hybridagi_steps.errors import StorageError
from hybridagi_steps.stores.sqlite.in_memory import UNLINKED_FILE, InMemoryDatabase
from hybridagi_steps.stores.sqlite.lost_commits import committed_frames
from hybridagi_steps.stores.waiting import DEFAULT_TIMEOUT_SECONDS

_INNER, _OF_KEYS, _OF_ROWS = 2, 10, 13
"""Kinds of pages: those of tables without row numbers hold rows at the inner nodes, too."""
_USUAL_PAGE_BYTES = 4096
_BYTES = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)
"""Of a value, by its kind: NULL, whole numbers, a float, and the constants 0 and 1."""
_SHAPES = {
    _OF_ROWS: {
        "namespace": re.compile("_tn[t_][n_]n{3,}"),
        "agent_step": re.compile("_nt(nn|__)t[n_]?"),
        "message": re.compile("_nnnttt([n_][n_])?"),
        "branch": re.compile("_nt[n_]nnntt[n_]?"),
    },
    _OF_KEYS: {
        "run": re.compile("nt[nf_][t_][n_]"),
        "session": re.compile("ntntt(tn|__)[n_]n[t_]"),
    },
}
"""How the rows of a table begin: `_` NULL, `n` a number, `f` one with a fraction, `t` a text."""
_NUMBERED = "SELECT namespace FROM agent_step UNION SELECT namespace FROM message"
_NAME = "INSERT OR IGNORE INTO namespace (id, name) VALUES (?, ?)"


class _Pages(NamedTuple):
    """A file, page by page."""

    file: BinaryIO
    size: int
    usable: int
    pages: int
    newer: dict[int, bytes]
    """Pages in the log."""

    def page(self, number: int) -> bytes:
        if number in self.newer:
            return self.newer[number]
        self.file.seek((number - 1) * self.size)
        return self.file.read(self.size)

    def overflowing(self, number: int, missing: int) -> bytes:
        """Return what of a row stands on a chain of pages; less where the chain breaks."""
        found = b""
        while missing > len(found) and 0 < number <= self.pages:
            page = self.page(number)
            number = int.from_bytes(page[:4])
            found += page[4 : self.usable]
        return found[:missing]


def rows_of_pages(path: Path, namespace: str, damaged: Callable[[str], None]) -> InMemoryDatabase:
    """Return a database of its own with what the pages of a file hold, checked by nobody yet.

    Nobody should write the file meanwhile. `namespace` is what the only one is called whose name is
    lost; `damaged` is told of names that are lost.
    """
    database = InMemoryDatabase("normal", DEFAULT_TIMEOUT_SECONDS, UNLINKED_FILE)
    with database.writing() as connection:
        statements: dict[tuple[str, int], str] = {}
        for table, values in _rows(_pages(path)):
            shape = table, len(values)
            if shape not in statements:
                listed = connection.execute(f"PRAGMA table_info({table})").fetchall()
                names = ", ".join(name for _, name, *_ in listed[: len(values)])
                marks = ", ".join("?" * len(values))
                statements[shape] = f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({marks})"  # noqa: S608 - names are ours
            connection.execute(statements[shape], values)
        numbers = {number for (number,) in connection.execute(_NUMBERED)}
        named = {number for (number,) in connection.execute("SELECT id FROM namespace")}
        unnamed = sorted(numbers - named)
        names = [namespace] if len(unnamed) == 1 else [f"namespace-{one}" for one in unnamed]
        if names[1:]:
            damaged(f"the names of namespaces are lost; ask for them as {', '.join(names)}")
        connection.executemany(_NAME, zip(unnamed, names, strict=True))
    if not numbers:
        database.close()
        raise StorageError(f"no page of {path} holds a step or a message; restore a backup.")
    return database


def _pages(path: Path) -> _Pages:
    # Never closed: that would drop the locks which SQLite has on the same file in this process.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    file = os.fdopen(descriptor, "rb", closefd=False)
    header, length = file.read(100), path.stat().st_size
    size = int.from_bytes(header[16:18])
    size = 65_536 if size == 1 else size
    if not header.startswith(b"SQLite format 3\0") or size < 512 or size & (size - 1):
        header, size = bytes(100), _USUAL_PAGE_BYTES
    log = path.with_name(f"{path.name}-wal")
    newer = dict(committed_frames(log, size)) if log.exists() else {}
    count = max(-(-length // size), *newer, 0)
    return _Pages(file, size, size - header[20], count, newer)


def _rows(pages: _Pages) -> Iterator[tuple[str, list[Any]]]:
    """Yield the table and the values of each row that a page holds."""
    for number in range(2, pages.pages + 1):
        page = pages.page(number)
        kind = page[0] if page else 0
        if kind not in (_INNER, _OF_KEYS, _OF_ROWS):
            continue
        first = 12 if kind == _INNER else 8
        for at in range(first, first + 2 * int.from_bytes(page[3:5]), 2):
            try:
                row, payload = _cell(pages, page, kind, int.from_bytes(page[at : at + 2]))
                shape, values = _record(payload)
            except IndexError:  # no row stands there
                continue
            for table, begins in _SHAPES[_OF_ROWS if kind == _OF_ROWS else _OF_KEYS].items():
                if begins.fullmatch(shape):
                    yield table, values if row is None else [row, *values[1:]]


def _cell(pages: _Pages, page: bytes, kind: int, at: int) -> tuple[int | None, bytes]:
    """Return the number of the row in a cell, if it has one, and what the row holds."""
    row = None
    size, at = _varint(page, at + 4 if kind == _INNER else at)
    if kind == _OF_ROWS:
        row, at = _varint(page, at)
    usable = pages.usable
    most = usable - 35 if kind == _OF_ROWS else (usable - 12) * 64 // 255 - 23
    if size <= most:
        return row, page[at : at + size]
    least = (usable - 12) * 32 // 255 - 23
    here = least + (size - least) % (usable - 4)
    here = here if here <= most else least
    number = int.from_bytes(page[at + here : at + here + 4])
    if size > pages.pages * usable:
        raise IndexError(size)
    return row, page[at : at + here] + pages.overflowing(number, size - here)


def _record(payload: bytes) -> tuple[str, list[Any]]:
    """Return the kinds of a row's values, a letter each, and the values; texts may be cut."""
    end, at = _varint(payload, 0)
    place, shape, values = end, "", list[Any]()
    while at < end:
        kind, at = _varint(payload, at)
        size = _BYTES[kind] if kind < 12 else (kind - 12) // 2
        text, place = payload[place : place + size], place + size
        if kind >= 12:
            shape += "t" if kind % 2 else "b"
            values.append(_text(text) if kind % 2 else text)
        elif kind == 7:
            shape += "f"
            values.append(struct.unpack(">d", text.ljust(8, b"\0"))[0])
        else:
            shape += "n" if kind else "_"
            values.append(
                kind - 8 if kind >= 8 else int.from_bytes(text, signed=True) if kind else None
            )
    return shape, values


def _text(stored: bytes) -> str | bytes:
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return stored  # damaged, which its checksum tells


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of one to nine bytes, and where what follows it begins."""
    value = 0
    for place in range(at, at + 8):
        value = value << 7 | data[place] & 0x7F
        if data[place] < 0x80:
            return value, place + 1
    return value << 8 | data[at + 8], at + 9
