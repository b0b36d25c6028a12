"""Files inside of others: folders of session logs, zips as exports are downloaded, SQLite files.

What a folder or a zip holds is read file by file, in the order of their names; files that no
format recognises are counted and passed over, since an export holds more than conversations.
Nothing is unpacked to the disk.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from hybridagi_steps.errors import ExchangeError
from hybridagi_steps.exchange.databases import MAGIC, database_records
from hybridagi_steps.exchange.formats import format_of_first, otlp_protobuf, parquet, parse_as
from hybridagi_steps.exchange.reader import Source, opened, reading_errors
from hybridagi_steps.exchange.records import Entry, Record
from hybridagi_steps.records.json_reading import as_object

_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_ZSTANDARD = 93
SUFFIXES = (".json", ".jsonl", ".ndjson", ".traj")
"""How the names of files end that are looked at in a folder or a zip."""


class Member(NamedTuple):
    """One file to import."""

    name: str
    """Its name, if it is one of several."""
    format: str
    entries: Iterator[Entry]
    progress: Callable[[int], tuple[int, int]]
    """How much of it was read, and how much there is, by the line that was read last."""


class PassedOver(NamedTuple):
    """One file of several that no format recognises."""

    name: str
    reason: str = ""


Members = Iterator[Member | PassedOver]


@contextmanager
def opened_members(path: Path, format_name: str) -> Generator[Members]:
    """Open what is to be imported; the file itself is the only member of most.

    Raises:
        ExchangeError: Nothing in it can be read.
    """
    with reading_errors(path):
        head = b"" if path.is_dir() else _head(path)
    if format_name in ("auto", "otlp") and otlp_protobuf.is_protobuf(head):
        found, entries = parse_as("otlp", otlp_protobuf.records(path))
        yield iter([Member("", found, entries, _no_total)])
        return
    if path.is_dir() or head.startswith(_ZIP):
        files = _folder(path) if path.is_dir() else _zipped(path)
        yield _recognised(_members(files, format_name), path)
    elif head.startswith(MAGIC):
        with database_records(path) as records:
            found, entries = parse_as(format_name, records)
            yield iter([Member("", found, entries, _no_total)])
    elif head.startswith(parquet.MAGIC) and format_name in ("auto", "parquet"):
        rows = parquet.row_count(path)
        found, entries = "parquet", parquet.parse(path)
        if not parquet.holds_steps(path):
            found, entries = parse_as("auto", parquet.rows(path))
        yield iter([Member("", found, entries, partial(_of_rows, rows))])
    elif format_name == "parquet":
        raise ExchangeError(f"{path} is no Parquet file.")
    else:
        with opened(path) as source:
            found, entries = parse_as(format_name, source.records())
            yield iter([Member("", found, entries, _progress(source, path.stat().st_size))])


def passed_over_notes(files: Sequence[PassedOver]) -> list[str]:
    """Return which files were passed over, in words."""
    if not files:
        return []
    names = ", ".join(
        f"{file.name:.80}{file.reason and f' ({file.reason:.80})'}" for file in files[:5]
    )
    more = f" and {len(files) - 5:,} more" if len(files) > 5 else ""
    return [f"files of no known format passed over: {names}{more}"]


def appearance(path: Path) -> list[str]:
    """Return what a file looks like that could not be imported, and where its way in stands."""
    try:
        with opened(path) as source:
            seen, found = format_of_first(source.records())
    except ExchangeError:
        return []  # it is no text
    values = [record.value for record in seen if isinstance(record, Record)]
    if found is None and not values:
        return []  # the reasons say that it is no JSON
    keys = ", ".join(f"{key:.40}" for key in sorted(as_object(values[0]))[:8]) if values else ""
    holds = f"JSON objects with the keys {keys}" if keys else "JSON of no known format"
    looks = f"a file of format {found}" if found else holds
    return [f"this looks like {looks}; `hybridagi-steps import --help` lists the formats"]


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(otlp_protobuf.HEAD)


def _progress(source: Source, total: int) -> Callable[[int], tuple[int, int]]:
    return lambda _: (min(source.bytes_read, total), total)


def _of_rows(total: int, row: int) -> tuple[int, int]:
    return row, total


def _no_total(row: int) -> tuple[int, int]:
    return row, row


def _recognised(members: Members, path: Path) -> Members:
    """Return members, the first of which is looked for at once: there must be one."""
    passed: list[Member | PassedOver] = []
    for member in members:
        passed.append(member)
        if isinstance(member, Member):
            return chain(passed, members)
    reasons = (member.reason for member in passed if isinstance(member, PassedOver))
    names = next(filter(None, reasons), "")
    names = names or ", ".join(member.name for member in passed[:5]) or "no JSON or JSONL file"
    raise ExchangeError(f"cannot read {path}: nothing in it is of a known format: {names}.")


_File = tuple[str, int, AbstractContextManager[Source]]


def _members(files: Iterator[_File], format_name: str) -> Members:
    """Yield the files that some format recognises; each is open until the next one is asked for."""
    for name, size, file in files:
        try:
            with file as source:
                records = source.records()
                seen, found = format_of_first(records)
                if format_name != "auto":
                    found = format_name
                if found is None:
                    yield PassedOver(name)
                    continue
                _, entries = parse_as(found, chain(seen, records))
                yield Member(name, found, entries, _progress(source, size))
        except ExchangeError as error:
            yield PassedOver(name, str(error))


def _folder(path: Path) -> Iterator[_File]:
    for folder, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            file = Path(folder, name)
            if file.suffix in SUFFIXES and file.is_file():
                yield str(file.relative_to(path)), file.stat().st_size, opened(file)


def _zipped(path: Path) -> Iterator[_File]:
    with _unpacking(path), zipfile.ZipFile(path) as packed:
        for info in sorted(packed.infolist(), key=lambda info: info.filename):
            if not info.is_dir() and info.filename.endswith(SUFFIXES):
                yield info.filename, info.file_size, _unpacked(path, packed, info)


@contextmanager
def _unpacked(path: Path, packed: zipfile.ZipFile, info: zipfile.ZipInfo) -> Generator[Source]:
    if info.compress_type == _ZSTANDARD:
        try:
            import_module("zipfile_zstd")  # inspect_ai brings it; it teaches `zipfile` to read
        except ImportError as error:
            how = "pip install zipfile-zstd"
            raise ExchangeError(f"{path} is packed with Zstandard; {how} to read it.") from error
    with _unpacking(path), packed.open(info) as file:
        yield Source(cast("BinaryIO", file), info.filename)


@contextmanager
def _unpacking(path: Path) -> Generator[None]:
    """Name a zip that is damaged, locked, or packed in a way that is not read."""
    try:
        yield
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError, zlib.error) as error:
        raise ExchangeError(f"{path} cannot be unpacked: {error}.") from error
