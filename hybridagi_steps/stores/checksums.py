"""The checksum of a stored row: what shows that a disk gives back something else than was written.

CRC-32 of the row's text, kept in the row: it finds every run of up to 32 changed bits, and misses
other damage once in four billion times. A longer hash would be felt (decision 0011). It is no
protection against people: who can write the file can write a checksum. A row of an earlier schema
has none until `vacuum`.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any
from zlib import crc32

import numpy as np
import orjson

from hybridagi_steps.errors import DamagedFileError
from hybridagi_steps.records.store_values import FloatVector, ShortVector

REMEDY = "`hybridagi-steps export --salvage` writes all that is whole; or restore a backup"
_DIFFERS = "its checksum differs"
_LARGEST = np.iinfo(np.int16).max
_SHORT = np.dtype("<i2")
_RAW_4_KIB, _SMALL_TABLE = -12, 5
"""Of deflate: no header, a window of 4 KiB, little to clear before each text. With those that zlib
takes by itself the words of a step take 40 µs instead of 10, for one byte less in a hundred."""


class ChecksumError(ValueError):
    """A text is not the one that was written."""

    def __init__(self) -> None:
        super().__init__(_DIFFERS)


def row_checksum(*values: Any) -> int:
    """Return the checksum of a row of numbers and texts; of damaged ones it is another's."""
    return crc32(orjson.dumps(values, default=repr))


def session_checksum(*values: Any) -> int:
    """Return the checksum of a session, its owner last; nobody's has the one of earlier schemas."""
    return row_checksum(*(values if values[-1] is not None else values[:-1]))


def place_seed(branch_id: int, sequence: int) -> int:
    """Return what the checksum of a message at a place begins with; the next place has the next."""
    return branch_id * 1_000_003 + sequence


def message_checksums(said: bytes, body: bytes, message_id: str, place: int) -> tuple[int, int]:
    """Return the checksums of a message: of what it says at its place, and of all of it."""
    of_said = crc32(said, place)
    return of_said, crc32(message_id.encode(), crc32(body, of_said))


def as_bytes(text: Any) -> bytes:
    """Return a text as it was hashed: SQLite gives bytes, PostgreSQL a str."""
    return text.encode() if isinstance(text, str) else text


def damaged(what: str, why: object = _DIFFERS) -> DamagedFileError:
    """Return the error to raise for a row that is not what was written."""
    return DamagedFileError(f"{what} is not as it was written ({why}); {REMEDY}.")


def packed_words(words: str) -> str | bytes:
    """Return words deflated, or as they are where that is no shorter."""
    text = words.encode()
    deflate = zlib.compressobj(1, zlib.DEFLATED, _RAW_4_KIB, _SMALL_TABLE)
    packed = deflate.compress(text) + deflate.flush()
    return packed if len(packed) < len(text) else words


def unpacked_words(stored: Any) -> Any:
    """Return words that `packed_words` gave; what is no bytes, as it is."""
    if not isinstance(stored, bytes):
        return stored
    try:
        return zlib.decompress(stored, _RAW_4_KIB).decode()
    except zlib.error as error:
        raise ValueError(str(error)) from error


def words_checksum(
    row: int, parent_row: int | None, words: str | bytes, text_hash: int, purpose_hash: int
) -> int:
    """Return the checksum of a row of words, as they are stored."""
    if isinstance(words, bytes):
        return crc32(words, row_checksum(row, parent_row, text_hash, purpose_hash))
    return row_checksum(row, parent_row, words, text_hash, purpose_hash)


def vector_blob(vector: Sequence[float] | FloatVector | ShortVector) -> bytes:
    """Return a vector as bytes, little endian: float32, or whole numbers as int16 and a zero byte.

    The embedder's come as such numbers; an odd length tells them apart.
    """
    if isinstance(vector, np.ndarray) and vector.dtype == _SHORT:
        return vector.tobytes() + b"\0"
    single = np.asarray(vector, dtype="<f4")
    with np.errstate(invalid="ignore"):
        short = single.clip(-_LARGEST, _LARGEST).astype("<i2")
    return short.tobytes() + b"\0" if (short == single).all() else single.tobytes()


def vector_checksum(row: int, text_hash: int, given: int, blob: bytes | None) -> int:
    """Return the checksum of an embedding, given as `vector_blob` says."""
    return crc32(blob or b"", row_checksum(row, text_hash, given))


def checked_vector(
    row: int, text_hash: int, given: int, blob: bytes | None, checksum: int | None
) -> FloatVector | ShortVector | None:
    """Return the vector in a row, if it is the one that was written; None where there is none."""
    try:
        if checksum not in (None, vector_checksum(row, text_hash, given, blob)):
            raise ChecksumError
        if blob is None:
            return None
        if len(blob) % 2:
            return np.frombuffer(blob, _SHORT, len(blob) // 2)
        return np.frombuffer(blob, "<f4")
    except (ValueError, TypeError) as error:
        raise damaged(f"the embedding of row {row}", error) from error
