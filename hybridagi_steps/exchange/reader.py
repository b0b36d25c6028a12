"""Opening what a person wants imported: encodings, and records by the line or by the list item.

Memory stays constant: one line, or one item of a list, at a time; one that is longer than its
limit is refused. UTF-8 (with or without a byte order mark) and UTF-16 with one are read; what is
neither text nor JSON is refused at once, before anything is stored. Formats are not known here.
"""

from __future__ import annotations

import codecs
import json
import os
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from pydantic import JsonValue

from hybridagi_steps.errors import ExchangeError
from hybridagi_steps.exchange.records import Record, Skipped
from hybridagi_steps.records.json_reading import BadRecordError, JsonObject

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Longest line read; steps end at 8 MiB, a conversation on one line may be longer."""
MAX_VALUE_CHARACTERS = 64 * 1024 * 1024
"""Longest value read whole; a longer file must hold a list of values or one value per line."""
MAX_MESSAGES = 100_000
"""Longest list of messages read as one conversation."""

_HEAD = 256 * 1024
_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_SPACE = " \t\r\n"
_SAID = {"content", "data", "call_id", "summary"}


class DoubleKeyError(BadRecordError):
    """An object has a key twice; what follows it can be read."""


class Source:
    """An opened file: its numbered lines, or the JSON values in it."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file, self._name = file, name
        self._encoding = "utf-8"
        self._head = file.read(_HEAD)
        self.bytes_read = len(self._head)
        self._check_head()

    def records(self) -> Iterator[Record | Skipped]:
        """Yield the JSON values of the file: its lines, the items of its list, or all of it.

        A list of messages is one value: the messages make sense together only.
        """
        if not self._is_document():
            for number, line in self._lines():
                if line is None:
                    yield Skipped(number, f"longer than {MAX_LINE_BYTES:,} bytes")
                elif line.strip():
                    try:
                        yield Record(number, json_record(line))
                    except BadRecordError as error:
                        yield Skipped(number, str(error))
            return
        count, line = 0, 1
        try:
            values = json_values(self._utf8_pieces())
            for line, value in values:
                if not count and is_message(value):
                    yield Record(1, _whole([value], values))
                    return
                count += 1
                if isinstance(value, BadRecordError):
                    yield Skipped(line, f"item {count}: {value}")
                    continue
                yield Record(line, value, f"item {count}: " if count > 1 else "")
            if not count:
                raise BadRecordError("an empty list")
        except BadRecordError as error:
            if not count:
                raise ExchangeError(f"{self._name}: {error}.") from error
            yield Skipped(line, f"after item {count}: {error}")

    def _lines(self) -> Iterator[tuple[int, bytes | None]]:
        """Yield numbered lines as UTF-8 without their ends; None for one that is too long."""
        number, held = 0, 0
        rest: list[bytes] | None = []
        for piece in self._utf8_pieces():
            first, *others = piece.split(b"\n")
            held += len(first)
            if held > MAX_LINE_BYTES:
                rest = None
            if rest is not None:
                rest.append(first)
            if not others:
                continue
            joined = None if rest is None else b"".join(rest)
            for line in (joined, *others[:-1]):
                number += 1
                yield number, line.rstrip(b"\r") if line is not None else None
            rest, held = [others[-1]], len(others[-1])
        if held:
            yield number + 1, None if rest is None else b"".join(rest)

    def _is_document(self) -> bool:
        """Whether the file is JSON over several lines, or one list, rather than a value a line."""
        head = self._text_head().lstrip()
        line, end, rest = head.partition(b"\n")
        first = line.strip()
        if not first.startswith((b"[", b"{")):
            return False
        if not end and len(self._head) >= _HEAD // 2:
            return first.startswith(b"[") and not self._name.endswith((".jsonl", ".ndjson"))
        if _is_json(first):
            return first.startswith(b"[") and not rest.strip()
        inside = rest.lstrip()[:1] in (b'"', b"]", b"}")
        return inside or first.startswith(b"[") or first.endswith((b"{", b"["))

    def _text_head(self) -> bytes:
        head = self._head
        if self._encoding == "utf-8":
            return head
        return codecs.getincrementaldecoder(self._encoding)("replace").decode(head).encode()

    def _check_head(self) -> None:
        if not self._head.strip() or self._head in _MARKS:
            raise ExchangeError(f"{self._name} is empty: there is nothing to import.")
        if self._head.startswith(codecs.BOM_UTF8):
            self._head = self._head[len(codecs.BOM_UTF8) :]
        elif self._head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            self._encoding = "utf-16"
        elif b"\x00" in self._head:
            raise ExchangeError(f"{self._name} is not text: give a JSON or JSONL file.")

    def _utf8_pieces(self) -> Iterator[bytes]:
        if self._encoding == "utf-8":
            yield from self._pieces()
            return
        decoder = codecs.getincrementaldecoder(self._encoding)()
        try:
            for piece in self._pieces():
                yield decoder.decode(piece).encode("utf-8", "surrogatepass")
            yield decoder.decode(b"", final=True).encode("utf-8", "surrogatepass")
        except UnicodeError as error:
            raise ExchangeError(f"{self._name} is not proper UTF-16: {error}.") from error

    def _pieces(self) -> Iterator[bytes]:
        yield self._head
        while piece := self._file.read(_HEAD):
            self.bytes_read += len(piece)
            yield piece


def file_path(path: str | os.PathLike[str]) -> Path:
    """Return what names a file as a path."""
    try:
        name = os.fspath(path)
        if "\0" not in name:
            return Path(name)
    except TypeError:
        pass  # bytes among them, which no text is looked for in
    raise ExchangeError(f"a path is a text or a pathlib.Path without NUL, not {path!r:.80}.")


@contextmanager
def opened(path: Path) -> Generator[Source]:
    """Open a file for import."""
    with reading_errors(path), path.open("rb") as file:
        yield Source(cast("BinaryIO", file), str(path))


@contextmanager
def reading_errors(path: Path) -> Generator[None]:
    """Name a file that cannot be opened."""
    try:
        if not stat.S_ISREG(mode := path.stat().st_mode) and not stat.S_ISDIR(mode):
            # It may never end, and cannot be read a second time.
            raise ExchangeError(f"{path} is a pipe or a device; write it to a file first.")
        yield
    except FileNotFoundError as error:
        raise ExchangeError(f"there is no file {path}.") from error
    except OSError as error:
        if isinstance(error, ExchangeError) or error.filename != str(path):
            raise
        raise ExchangeError(f"cannot read {path}: {error.strerror}.") from error


def is_message(value: JsonValue) -> bool:
    """Whether a value is one message of a list, in a provider's or an agent library's form.

    Items of OpenAI's Responses API are as good as messages.
    """
    match value:
        case {"step_type": _} | {"messages": _}:
            return False
        case {"role": _} | {"lc": _} | {"message_type": str()}:
            return True
        case {"kind": "request" | "response", "parts": [*_]}:
            return True
        case {"type": _, **others}:
            return not _SAID.isdisjoint(others)
        case _:
            return False


def _whole(items: list[Any], rest: Iterator[tuple[int, Any]]) -> list[Any]:
    """Return the items of a list that must be read whole."""
    for _, value in rest:
        if isinstance(value, BadRecordError):
            raise value
        items.append(value)
        if len(items) > MAX_MESSAGES:
            raise BadRecordError(f"one conversation of more than {MAX_MESSAGES:,} messages")
    return items


def unique_members(pairs: list[tuple[str, Any]]) -> JsonObject:
    """Return the members of a JSON object, for a decoder's `object_pairs_hook`."""
    members = dict(pairs)
    if len(members) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise DoubleKeyError(f"the key {twice!r:.80} stands twice in one object")
    return members


def json_record(line: bytes) -> Any:
    """Return the JSON value on a line.

    Python's own parser is used for its exactness: long integers and lone surrogates arrive as
    they were written, so that a step can repair them and say so.
    """
    try:
        return json.loads(line.decode("utf-8"), object_pairs_hook=unique_members)
    except BadRecordError:
        raise
    except UnicodeDecodeError as error:
        raise BadRecordError(f"not UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        where = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno}"
        raise BadRecordError(f"not JSON: {error.msg} at {where}") from error
    except RecursionError as error:
        raise BadRecordError("nested too deeply") from error
    except ValueError as error:
        raise BadRecordError(f"not JSON: {error}") from error


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def json_values(pieces: Iterator[bytes]) -> Iterator[tuple[int, Any]]:
    """Yield (line, value) for each value of a document given in pieces of UTF-8.

    An object that has a key twice comes as the error that says so: what follows it can be read.
    """
    buffer = _Buffer(pieces)
    in_list = buffer.peek() == "["
    if in_list:
        buffer.position += 1
    while True:
        character = buffer.peek("," if in_list else "")
        if not character:
            break
        if in_list and character == "]":
            buffer.position += 1
            if buffer.peek():
                raise BadRecordError(f"not JSON: more after the list, at line {buffer.line}")
            return
        yield buffer.line, buffer.value()
    if in_list:
        raise BadRecordError(f"not JSON: the list is cut off at line {buffer.line}")


class _Buffer:
    """A window on the text that slides and grows."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._json = json.JSONDecoder(object_pairs_hook=unique_members)
        self._lenient = json.JSONDecoder()
        self._bytes = 0
        self._text = ""
        self.position = 0
        self.line = 1

    def peek(self, passed_over: str = "") -> str:
        """Return the next character that is no space and not `passed_over`; "" at the end."""
        skipped = _SPACE + passed_over
        while True:
            while self.position < len(self._text):
                character = self._text[self.position]
                if character not in skipped:
                    return character
                self.line += character == "\n"
                self.position += 1
            if not self._grow(1):
                return ""

    def value(self) -> Any:
        """Return the value that begins here and step behind it."""
        wanted = 1
        refused: DoubleKeyError | None = None
        while True:
            try:
                decoder = self._lenient if refused else self._json
                value, end = decoder.raw_decode(self._text, self.position)
                break
            except DoubleKeyError as error:
                refused = error
            except RecursionError as error:
                raise BadRecordError("nested too deeply") from error
            except json.JSONDecodeError as error:
                line = self.line + self._text.count("\n", self.position, error.pos)
                if self._grow(wanted):
                    wanted = len(self._text)
                    continue
                raise BadRecordError(f"not JSON: {error.msg} at line {line}") from error
            except ValueError as error:
                raise BadRecordError(f"not JSON: {error}") from error
        self.line += self._text.count("\n", self.position, end)
        self.position = end
        return value if refused is None else refused

    def _grow(self, wanted: int) -> bool:
        """Read at least `wanted` more characters, or up to the end; False: there are no more."""
        parts = [self._text[self.position :]]
        held, got = len(parts[0]), 0
        self.position = 0
        while got < wanted:
            if held + got > MAX_VALUE_CHARACTERS:
                raise BadRecordError(
                    f"the value at line {self.line} is longer than {MAX_VALUE_CHARACTERS:,} "
                    "characters: write one record per line instead"
                )
            piece = next(self._pieces, b"")
            part = self._decoded(piece)
            parts.append(part)
            got += len(part)
            if not piece:
                break
        self._text = "".join(parts)
        return got > 0

    def _decoded(self, piece: bytes) -> str:
        try:
            text = self._decoder.decode(piece, final=not piece)
        except UnicodeDecodeError as error:
            raise BadRecordError(f"not UTF-8 near byte {self._bytes + error.start}") from error
        self._bytes += len(piece)
        return text
