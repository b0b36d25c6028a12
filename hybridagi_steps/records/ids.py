"""Ids that sort by the time they were made.

Databases keep ids in order, so a new id that sorts last is written where the one before it was; a
random one touches another page of the index with every append.
"""

from __future__ import annotations

import os
import time
from uuid import UUID

_RANDOM_BITS = 62


def new_id() -> UUID:
    """Return a UUID of version 7: milliseconds since 1970, their fraction, 62 random bits.

    Reference: RFC 9562, section 5.7, with the fraction of section 6.2, method 3.

    Example:
        >>> new_id().version
        7
    """
    milliseconds, nanoseconds = divmod(time.time_ns(), 1_000_000)
    fraction = (nanoseconds << 12) // 1_000_000
    random = int.from_bytes(os.urandom(8), "big") >> (64 - _RANDOM_BITS)
    return UUID(int=milliseconds << 80 | 7 << 76 | fraction << 64 | 2 << _RANDOM_BITS | random)
