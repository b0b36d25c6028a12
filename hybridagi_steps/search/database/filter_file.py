"""FilterFile: what filters have read, in a file for the next process on the machine.

An index in the process has it beside its own file; one in the database has nothing else to keep.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np

from hybridagi_steps.errors import StorageError
from hybridagi_steps.protocols import IndexedStore
from hybridagi_steps.records.store_values import Position
from hybridagi_steps.search.index_cache import CacheFile, load_cache, save_cache
from hybridagi_steps.search.row_filter import RowFilter, SavedColumns

FILTER_FORMAT = 1
"""Layout of the file of columns; another one is not read."""

log = logging.getLogger("hybridagi_steps")


class FilterFile:
    """The file in which the columns of filters are cached, beside that of the index.

    Many an index is not worth writing for a column.
    """

    def __init__(self, store: IndexedStore, store_id: str, cache: Path | None) -> None:
        """Keep it beside `cache`, the file of the index; None: nothing is kept."""
        self._store, self._identity = store, {"format": FILTER_FORMAT, "store": store_id}
        self._path = cache and cache.with_suffix(".keys.index")

    def read(self) -> SavedColumns | None:
        """Return what filters of an earlier process have read of this store's past."""
        file = self._opened()
        if file is None:
            return None
        since, now = Position(*file.header["position"]), self._store.frontier().position
        if not is_past_of(now, since):
            return None
        found = self._store.changes(since._replace(text=now.text, vector=now.vector), limit=1)
        removed, rescored = np.array(found.removed, np.int64), since.branch != now.branch
        same = found.position.epoch == since.epoch
        return SavedColumns(file, removed, rescored) if same else None

    def position(self) -> Position | None:
        """Return where the store stood when it was written; None where there is none."""
        file = self._opened()
        return None if file is None else Position(*file.header["position"])

    def save(self, filters: RowFilter, position: Position) -> None:
        """Write the columns of filters, which have followed the store up to a position."""
        if self._path is not None:
            header = {**self._identity, "position": list(position)}
            save_cache(self._path, header, filters.to_arrays())

    def erase(self) -> None:
        """Remove it."""
        if self._path is not None:
            erase_cache(self._path)

    def _opened(self) -> CacheFile | None:
        return None if self._path is None else load_cache(self._path, self._identity)


def is_past_of(now: Position, position: Position) -> bool:
    """Tell whether a store that is at `now` may have been at a position."""
    ahead = any(old > new for old, new in zip(position[1:], now[1:], strict=True))
    return position.epoch == now.epoch and not ahead


def erase_cache(path: Path) -> None:
    """Remove a cache file, or empty it where it cannot be removed."""
    try:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            if path.exists():
                os.truncate(path, 0)
                log.info("the cache %s was emptied, since it cannot be removed: %s", path, error)
    except OSError as error:
        raise StorageError(
            f"what was deleted is gone from the memory, but {path} still holds words and vectors "
            f"of it, and can be neither removed nor emptied ({error.strerror}). Remove that file, "
            "or call vacuum() once it can be written."
        ) from error
