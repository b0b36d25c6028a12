"""Where a memory is searched: in the process as long as the index fits a budget, else where it is.

A step takes some bytes for its words and links, measured on the shipped runs and on made-up ones
(the decision record has the command), and its vector as many as the index in the process holds it
in.
"""

from __future__ import annotations

import logging
from typing import Any

from pydantic import ByteSize, TypeAdapter, ValidationError

from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.stores.address import is_server

BYTES_PER_ROW = 800
"""Words, links and the keys of a few filters."""
BYTES_PER_DIMENSION = 5
"""A float, and the code that scans are made with."""

log = logging.getLogger("hybridagi_steps")
_SIZE = TypeAdapter(ByteSize)


def budget_bytes(memory_budget: str | int | None, address: str) -> int | None:
    """Return a budget in bytes; None where there is none.

    Args:
        memory_budget: Such as "256MB", "1 GiB", or a number of bytes.
        address: Of the memory.

    Raises:
        InvalidSettingError: It is no size, or the memory is a file.
    """
    if memory_budget is None:
        return None
    given: Any = memory_budget
    try:
        size = None if isinstance(given, bool) else int(_SIZE.validate_python(given))
    except ValidationError:
        size = None
    if size is None or size < 1:
        raise InvalidSettingError(
            f"memory_budget is a size such as '256MB' or '1GiB', or None; got {memory_budget!r}."
        )
    if not is_server(address):
        raise InvalidSettingError(
            f"memory_budget is for memories in PostgreSQL, which can search where the data is; "
            f"the index of {address!r} is always in this process. Leave it out."
        )
    return size


def fits(rows: int, dimension: int, budget: int) -> bool:
    """Tell whether the index of so many rows fits a budget of so many bytes."""
    return rows * (BYTES_PER_ROW + BYTES_PER_DIMENSION * dimension) <= budget
