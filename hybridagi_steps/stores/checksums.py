"""The checksum of a stored row: what shows that a disk gives back something else than was written.

63 bits, CRC-32 and Adler-32 of the row's text, kept in the row. CRC-32 finds every run of up to 32
changed bits; both together miss other damage once in 10^18. It is no protection against people: who
can write the file can write a checksum. A row of an earlier schema has none until `vacuum`.
"""

from __future__ import annotations

from typing import Any
from zlib import adler32, crc32

import numpy as np
import orjson

from hybridagi_steps.errors import DamagedFileError

REMEDY = "`hybridagi-steps export --salvage` writes all that is whole; or restore a backup"
_DIFFERS = "its checksum differs"
_SEEDS = 2**32


class ChecksumError(ValueError):
    """A text is not the one that was written."""

    def __init__(self) -> None:
        super().__init__(_DIFFERS)


def text_checksum(text: bytes, seed: int = 0) -> int:
    """Return the checksum of a text; two seeds give two checksums."""
    return (crc32(text, seed) << 31) ^ adler32(text)


def row_checksum(*values: Any) -> int:
    """Return the checksum of a row of numbers and texts."""
    return text_checksum(orjson.dumps(values))


def said_checksum(said: bytes, branch_id: int, sequence: int) -> int:
    """Return the checksum of what a message says, at its place."""
    return text_checksum(said, (branch_id * 1_000_003 + sequence) % _SEEDS)


def body_checksum(body: bytes, message_id: str) -> int:
    """Return the checksum of what else is known of a message."""
    return text_checksum(body, crc32(message_id.encode()))


def as_bytes(text: Any) -> bytes:
    """Return a text as it was hashed: SQLite gives bytes, PostgreSQL a str."""
    return text.encode() if isinstance(text, str) else text


def damaged(what: str, why: object = _DIFFERS) -> DamagedFileError:
    """Return the error to raise for a row that is not what was written."""
    return DamagedFileError(f"{what} is not as it was written ({why}); {REMEDY}.")


def vector_checksum(row: int, text_hash: int, given: int, blob: bytes | None) -> int:
    """Return the checksum of an embedding, float32 as bytes."""
    return text_checksum(blob or b"", (row * 31 + text_hash * 2 + given) % _SEEDS)


def checked_vector(
    row: int, text_hash: int, given: int, blob: bytes | None, checksum: int | None
) -> np.ndarray[tuple[int], np.dtype[np.float32]] | None:
    """Return the vector in a row, if it is the one that was written; None where there is none."""
    try:
        if checksum not in (None, vector_checksum(row, text_hash, given, blob)):
            raise ChecksumError
        return None if blob is None else np.frombuffer(blob, dtype="<f4")
    except (ValueError, TypeError) as error:
        raise damaged(f"the embedding of row {row}", error) from error
