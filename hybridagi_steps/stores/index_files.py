"""Where the index of a memory in a file is cached, and how those files are erased.

What stands in them `search.index_cache` knows; here is what they are called, those included that
somebody writes who has not given them their place yet.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from glob import escape
from pathlib import Path

from hybridagi_steps.errors import StorageError
from hybridagi_steps.stores.address import IN_MEMORY, is_server

UNFINISHED = ".tmp"
_ABANDONED_SECONDS = 3600
log = logging.getLogger("hybridagi_steps")


def cache_path(address: str, namespace: str) -> Path | None:
    """Return where the index of a store is cached: beside its file, one for each namespace.

    A store that is no file of this machine says itself where, if it is `CachedApart`.
    """
    if address == IN_MEMORY or is_server(address):
        return None
    digest = hashlib.blake2b(namespace.encode(), digest_size=4).hexdigest()
    return Path(f"{address}.{digest}.index")


def columns_path(cache: Path) -> Path:
    """Return where the columns of filters are cached: many an index is not worth writing for."""
    return cache.with_suffix(".keys.index")


def erase_cache(cache: Path) -> None:
    """Remove an index and the columns of filters, or empty what cannot be removed.

    What is half written goes, too: who is writing finds it gone and goes on without a cache.

    Raises:
        StorageError: A file can be neither removed nor emptied.
    """
    for path in (cache, columns_path(cache)):
        for file in (path, *_unfinished(path)):
            _erase(file)


def remove_abandoned(path: Path) -> None:
    """Remove temporary files that writers killed halfway left behind."""
    for leftover in _unfinished(path):
        with suppress(FileNotFoundError):  # another process was faster
            if time.time() - leftover.stat().st_mtime > _ABANDONED_SECONDS:
                leftover.unlink()


def _unfinished(path: Path) -> Iterator[Path]:
    """Yield the files that writers of a cache are at, or were at when they were killed."""
    return path.parent.glob(f".{escape(path.name)}.*{UNFINISHED}")


def _erase(path: Path) -> None:
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
