"""Opening what a person wants imported: encodings, line by line, and which format it is.

Memory stays constant for line formats: one line at a time, a line over `MAX_LINE_BYTES` is passed
over without being held. UTF-8 (with or without a byte order mark) and UTF-16 with one are read;
what is neither text nor JSON is refused at once, before anything is stored.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from hybridagi_steps.errors import ExchangeError

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Longest line read; steps end at 8 MiB, a conversation on one line may be longer."""
_HEAD = 256 * 1024
_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

FORMATS = ("auto", "jsonl", "openai")
"""Formats to ask for."""


class Source:
    """An opened file: its numbered lines, or all of it."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file, self._name = file, name
        self._encoding = "utf-8"
        self._head = file.read(_HEAD)
        self.bytes_read = len(self._head)
        self._check_head()

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield numbered lines as UTF-8, without their line ends.

        A line that is too long comes as a line that is no JSON and says so.
        """
        pieces = self._utf8_pieces()
        number, rest = 0, b""
        for piece in pieces:
            whole = rest + piece
            *complete, rest = whole.split(b"\n")
            for line in complete:
                number += 1
                yield number, line.rstrip(b"\r")
            if len(rest) > MAX_LINE_BYTES:
                raise ExchangeError(
                    f"{self._name}, line {number + 1}: longer than {MAX_LINE_BYTES:,} bytes."
                )
        if rest:
            yield number + 1, rest

    def all(self) -> bytes:
        """Return everything as UTF-8."""
        return b"".join(self._utf8_pieces())

    def is_document(self) -> bool:
        """Whether the file is one JSON value over several lines, or one list."""
        first = self._first_line()
        if not first.startswith((b"[", b"{")):
            return False
        if self._first_line_is_cut():
            return first.startswith(b"[") and not self._name.endswith((".jsonl", ".ndjson"))
        if _json(first) is _NOT_JSON:
            return first == b"{" or first.startswith(b"[") or first.endswith((b"{", b"["))
        return first.startswith(b"[") and b"\n" not in self._text_head().strip()

    def holds_conversations(self) -> bool:
        """Whether the first line is a conversation rather than a step or a message."""
        value = _json(self._first_line())
        if value is _NOT_JSON:
            head = self._text_head()
            return b'"messages"' in head and b'"step_type"' not in head
        if isinstance(value, dict):
            return "messages" in value and "step_type" not in value
        return isinstance(value, list)

    def _first_line(self) -> bytes:
        return self._text_head().lstrip().split(b"\n", 1)[0].strip()

    def _first_line_is_cut(self) -> bool:
        return len(self._head) >= _HEAD // 2 and b"\n" not in self._text_head().lstrip()

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


@contextmanager
def opened(path: Path) -> Generator[Source]:
    """Open a file for import.

    Raises:
        ExchangeError: It cannot be opened, is empty, or is no text.
    """
    try:
        with path.open("rb") as file:
            yield Source(cast("BinaryIO", file), str(path))
    except FileNotFoundError as error:
        raise ExchangeError(f"there is no file {path}.") from error
    except OSError as error:
        if isinstance(error, ExchangeError) or error.filename != str(path):
            raise
        raise ExchangeError(f"cannot read {path}: {error.strerror}.") from error


_NOT_JSON = object()


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _NOT_JSON
