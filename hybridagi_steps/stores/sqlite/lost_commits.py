"""Finds commits in a write-ahead log that SQLite no longer reads, since a frame is damaged.

SQLite reads the log up to the first frame that does not fit the checksum of the one before it, and
says nothing of what follows. A commit behind that place is no proof of a loss: a writer that is
killed, or whose sync fails, before the commit counts leaves one, and the next writer may overwrite
only its first frames. Proof is either of

* a frame that was written behind the commit and continues its checksum: whoever wrote that had seen
  the commit;
* a first unfit frame that would fit but for one word (four bytes), as after a flipped bit.

Reads the log alone, through a descriptor of its own: SQLite keeps its locks on other files.
Reference: https://sqlite.org/fileformat2.html#walformat
"""

from __future__ import annotations

import sqlite3
import struct
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

Pair = tuple[int, int]

_HEADER, _FRAME = struct.Struct(">I12x4I"), struct.Struct(">4x5I")
_MAGIC = 0x377F0682
"""The last bit says in which order of bytes the checksums were made: this machine's, here."""
_ORDER = "<" if sys.byteorder == "little" else ">"
_MASK = 0xFFFF_FFFF


class _Frame(NamedTuple):
    commits: bool
    salts: Pair
    checksum: Pair
    content: bytes
    """What the checksum is of."""


def lost_commits(connection: sqlite3.Connection, log: Path) -> int:
    """Return about how many commits of a log were lost; 0 where nothing proves it.

    The connection is outside a transaction. Nobody else may write meanwhile; what SQLite reads of
    the log is copied into the database.
    """
    _, last, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
    if last < 0 or not log.exists():
        return 0
    with log.open("rb") as file:
        return _lost(file, last, page_bytes)


def committed_frames(log: Path, page_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield (number, content) of the pages in a log that SQLite would read, oldest first."""
    with log.open("rb") as file:
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size:
            return
        _, *salts, first, second = _HEADER.unpack(header)
        before, pending = (first, second), list[tuple[int, bytes]]()
        for frame in _frames(file, page_bytes):
            before = _checksum(frame.content, before)
            if [*frame.salts] != salts or before != frame.checksum:
                return
            pending.append((int.from_bytes(frame.content[:4]), frame.content[8:]))
            if frame.commits:
                yield from pending
                pending.clear()


def _lost(file: BinaryIO, last: int, page_bytes: int) -> int:
    """Count what follows the last frame that SQLite reads."""
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return 0
    magic, *salts, first, second = _HEADER.unpack(header)
    generation, before = tuple(salts), (first, second)
    known = magic | 1 == _MAGIC | 1
    header_damaged = not last and not (known and _checksum(header[:24], (0, 0)) == before)
    if last:
        file.seek(_HEADER.size + (last - 1) * (_FRAME.size + page_bytes))
        before = next(_frames(file, page_bytes)).checksum
    lost, committed, unfit, proven = 0, False, header_damaged, header_damaged
    for number, frame in enumerate(_frames(file, page_bytes)):
        if header_damaged and number < 2:  # the first may be damaged with the header
            generation = frame.salts
        # One salt of two is enough: the other may be what is damaged.
        same_generation = any(map(int.__eq__, frame.salts, generation))
        if same_generation:
            made = _checksum(frame.content, before)
            if made == frame.checksum and frame.salts == generation:
                proven |= unfit and committed
            elif not unfit:
                proven = made == frame.checksum or _one_word_differs(made, frame)
                unfit = True
        else:  # what an earlier round of the log left, or what nobody can tell
            unfit = True
        committed = same_generation and frame.commits
        lost += unfit and committed
        before = frame.checksum
    return lost if proven else 0


def _frames(file: BinaryIO, page_bytes: int) -> Iterator[_Frame]:
    size = _FRAME.size + page_bytes
    for frame in iter(partial(file.read, size), b""):
        if len(frame) == size:
            pages, *salts, first, second = _FRAME.unpack_from(frame)
            content = frame[:8] + frame[_FRAME.size :]
            yield _Frame(pages > 0, (salts[0], salts[1]), (first, second), content)


def _checksum(content: bytes, before: Pair) -> Pair:
    """Continue SQLite's checksum of a log."""
    first, second = before
    for even, odd in struct.iter_unpack(f"{_ORDER}2I", content):
        first = (first + even + second) & _MASK
        second = (second + odd + first) & _MASK
    return first, second


def _one_word_differs(made: Pair, frame: _Frame) -> bool:
    """Return whether one word explains why a frame has another checksum than it should.

    The sums are linear: a word that is off by d puts them off by d times two neighbours of the
    Fibonacci numbers, which ones says how far from the end it stands. By chance that happens to
    one frame in four million.
    """
    first, second = (frame.checksum[n] - made[n] for n in (0, 1))
    low, high = 1, 0  # the checksum itself
    for _ in range(len(frame.content) // 4 + 1):
        if not (first * high - second * low) & _MASK:
            return True
        low, high = high, (low + high) & _MASK
    return False
