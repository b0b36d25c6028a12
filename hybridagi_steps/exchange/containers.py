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
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from hybridagi_steps.errors import ExchangeError, MissingExtraError
from hybridagi_steps.exchange.databases import MAGIC, database_records
from hybridagi_steps.exchange.formats import format_of_first, otlp_protobuf, parquet, parse_as
from hybridagi_steps.exchange.reader import Source, opened, reading_errors
from hybridagi_steps.exchange.records import Entry, Record, Skipped
from hybridagi_steps.records.json_reading import as_object

_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_ZSTANDARD = 93
SUFFIXES = (".json", ".jsonl", ".ndjson", ".traj", ".af")
"""How the names of files end that are tried in a zip."""
_IN_FOLDERS = (*SUFFIXES, ".eval", ".parquet")


Progress = Callable[[int], tuple[int, int]]
"""Returns how much was read, and how much there is, by the line that was read last."""


class Member(NamedTuple):
    """One file to import."""

    name: str
    """Its name, if it is one of several."""
    format: str
    entries: Iterator[Entry]
    progress: Progress


class PassedOver(NamedTuple):
    """One file of several that no format recognises."""

    name: str
    reason: str = ""
    """Why it cannot be read; "" where it can, and is of another kind."""


Members = Iterator[Member | PassedOver]


@contextmanager
def opened_members(path: Path, format_name: str) -> Generator[Members]:
    """Open what is to be imported; the file itself is the only member of most.

    Raises:
        ExchangeError: Nothing in it can be read.
    """
    with reading_errors(path):
        is_folder = path.is_dir()
    if is_folder:
        yield _recognised(_in_folder(path, format_name), path)
        return
    with _opened_file(path, format_name, "") as members:
        yield members


@contextmanager
def _opened_file(path: Path, format_name: str, name: str) -> Generator[Members]:
    """Open a file, which is one of several where it has a `name`."""
    with reading_errors(path), path.open("rb") as file:
        head = file.read(otlp_protobuf.HEAD)
    if format_name in ("auto", "otlp") and otlp_protobuf.is_protobuf(head):
        yield iter([_member(otlp_protobuf.records(path), "otlp", name, _no_total)])
    elif head.startswith(_ZIP):
        yield _recognised(_in_zip(path, format_name, name), path)
    elif head.startswith(MAGIC):
        with database_records(path) as records:
            yield iter([_member(records, format_name, name, _no_total)])
    elif head.startswith(parquet.MAGIC) and format_name in ("auto", "parquet"):
        progress = partial(_of_rows, parquet.row_count(path))
        if parquet.holds_steps(path):
            yield iter([Member(name, "parquet", parquet.parse(path), progress)])
        else:
            yield iter([_member(parquet.rows(path), "auto", name, progress)])
    elif format_name == "parquet":
        raise ExchangeError(f"{path} is no Parquet file.")
    else:
        with opened(path) as source:
            progress = _progress(source, path.stat().st_size)
            yield iter([_member(source.records(), format_name, name, progress)])


def _member(
    records: Iterator[Record | Skipped], format_name: str, name: str, progress: Progress
) -> Member | PassedOver:
    """Return a file by its records; one of several must be in a format that is recognised."""
    if name and format_name == "auto":
        head, recognised = format_of_first(records)
        if recognised is None:
            broken = next((record for record in head if isinstance(record, Skipped)), None)
            return PassedOver(name, f"line {broken.line}: {broken.reason}" if broken else "")
        records, format_name = chain(head, records), recognised
    format_name, entries = parse_as(format_name, records)
    return Member(name, format_name, entries, progress)


def passed_over_notes(files: Sequence[PassedOver]) -> list[str]:
    """Return which files were passed over, in words."""
    if not files:
        return []
    names = ", ".join(
        f"{file.name:.80}{file.reason and f' ({file.reason:.160})'}"
        for file in sorted(files, key=lambda file: not file.reason)[:5]
    )
    more = f" and {len(files) - 5:,} more" if len(files) > 5 else ""
    return [f"files of no known format passed over: {names}{more}"]


def appearance(path: Path) -> list[str]:
    """Return what a file looks like that could not be imported, and where its way in stands."""
    try:
        with opened(path) as source:
            tried, recognised = format_of_first(source.records())
    except ExchangeError:
        return []  # it is no text
    values = [record.value for record in tried if isinstance(record, Record)]
    if recognised is None and not values:
        return []  # the reasons say that it is no JSON
    keys = ", ".join(f"{key:.40}" for key in sorted(as_object(values[0]))[:8]) if values else ""
    content = f"JSON objects with the keys {keys}" if keys else "JSON of no known format"
    description = f"a file of format {recognised}" if recognised else content
    return [f"this looks like {description}; `hybridagi-steps import --help` lists the formats"]


def _progress(source: Source, total: int) -> Progress:
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
    broken = (member for member in passed if isinstance(member, PassedOver) and member.reason)
    names = next((f"{member.name}: {member.reason}" for member in broken), "").rstrip(".")
    names = names or ", ".join(member.name for member in passed[:5]) or "no JSON or JSONL file"
    raise ExchangeError(f"cannot read {path}: nothing in it is of a known format: {names}.")


def _in_folder(path: Path, format_name: str) -> Members:
    """Yield the files of a folder; each is open until the next one is wanted."""
    for folder, folders, names in os.walk(path):
        folders.sort()
        for file in (Path(folder, name) for name in sorted(names)):
            if file.suffix not in _IN_FOLDERS or not file.is_file():
                continue
            name = str(file.relative_to(path))
            try:
                with _opened_file(file, format_name, name) as members:
                    yield from members
            except (ExchangeError, MissingExtraError) as error:
                yield PassedOver(name, str(error))


def _in_zip(path: Path, format_name: str, name: str) -> Members:
    with _unpacking(path), zipfile.ZipFile(path) as packed:
        for info in sorted(packed.infolist(), key=lambda info: info.filename):
            if info.is_dir() or not info.filename.endswith(SUFFIXES):
                continue
            inner = f"{name}/{info.filename}" if name else info.filename
            try:
                with _unpacked(path, packed, info) as source:
                    progress = _progress(source, info.file_size)
                    yield _member(source.records(), format_name, inner, progress)
            except ExchangeError as error:
                yield PassedOver(inner, str(error))


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
