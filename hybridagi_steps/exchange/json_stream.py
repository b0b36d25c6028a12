"""The values of a large JSON document, one after the other, in bounded memory.

A top-level list gives its items, anything else the values that follow each other (pretty-printed
objects in one file). Python's own decoder is tried on a growing buffer, so numbers and strings
arrive exactly as in a line of JSON; only one value and one piece of the file are ever held.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from typing import Any

from hybridagi_steps.exchange.records import BadRecordError, DoubleKeyError, unique_members

MAX_VALUE_CHARACTERS = 64 * 1024 * 1024
"""Longest value read whole; a longer file must hold a list of values or one value per line."""

_SPACE = " \t\r\n"


def json_values(pieces: Iterator[bytes]) -> Iterator[tuple[int, Any]]:
    """Yield (line, value) for each value of a document given in pieces of UTF-8.

    An object that has a key twice comes as the error that says so: what follows it can be read.

    Raises:
        BadRecordError: From here on it is not JSON; what was yielded before stands.
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
