"""Values on their way into a statement: lists of any length, and names a database can hold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson


class Many(list[Any]):
    """Values for `IN (SELECT value FROM json_each(?))`: one parameter, any number.

    SQLite takes them as a JSON list; a database with arrays takes them as they are.
    """

    def __conform__(self, protocol: object) -> str:
        """Return what sqlite3 binds."""
        return orjson.dumps(list(self)).decode()


def many(values: Iterable[Any]) -> Many:
    """Return values as one parameter."""
    return Many(values)


def is_storable(text: str) -> bool:
    """Tell whether a name can be in a database at all; lone surrogates cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
