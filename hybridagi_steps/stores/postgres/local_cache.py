"""Where the search index of a memory in PostgreSQL is cached: in a folder of this machine's user.

A server has no file to cache beside. The name of the file stands for the store, the namespace and
the incarnation of the database: one that was restored or failed over may number other rows alike.
Who writes such a file notes that in the database first, so that a purge on another machine can name
what it does not reach. What the file holds, and whether it is whole, `search/index_cache.py` knows.
"""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from hybridagi_steps.errors import StorageError
from hybridagi_steps.stores.postgres.steps import PostgresTables

FOLDER_VARIABLE = "HYBRIDAGI_STEPS_CACHE"
"""Names the folder; `no` for none at all."""
_NONE = "no"
_WRITABLE_BY_OTHERS = 0o022
_INCARNATION = """SELECT (SELECT value FROM meta WHERE key = 'store_id'),
    concat_ws('.', (SELECT system_identifier FROM pg_control_system()),
        left(pg_walfile_name(pg_current_wal_insert_lsn()), 8),
        (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database()),
        CAST(CAST('meta' AS regclass) AS oid))"""
_NOTE = "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO NOTHING"
_NOTED = "SELECT value FROM meta WHERE substr(key, 1, ?) = ? ORDER BY value"
_FORGET_NOTES = "DELETE FROM meta WHERE substr(key, 1, ?) = ?"

log = logging.getLogger("hybridagi_steps")


class LocalCache(PostgresTables):
    """Implements `CachedApart`; see protocols.py for the contract."""

    _cache: Path | None = None

    def index_cache(self) -> Path | None:
        """Return the cache file of this user on this machine; None where there is to be none.

        Files of earlier incarnations of the database are erased: nobody reads them any more.
        """
        folder = cache_folder()
        if folder is None or not self._db.writable:
            return None
        try:
            store, incarnation = self._db.known(_INCARNATION, ())
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            held = folder.stat()
            if hasattr(os, "geteuid") and (
                held.st_uid != os.geteuid() or held.st_mode & _WRITABLE_BY_OTHERS
            ):
                log.warning("no index is cached in %s: others can write there", folder)
                return None
            begin = blake2b(f"{store}.{self._namespace}".encode(), digest_size=16).hexdigest()
            digest = blake2b(incarnation.encode(), digest_size=8).hexdigest()
            self._cache = folder / f"{begin}.{digest}.index"
            for other in {*_files(folder / begin)} - {*_files(self._cache)}:
                other.unlink(missing_ok=True)
        except (OSError, StorageError) as error:
            log.warning("the index of %s is not cached: %s", self._db.name, error)
            return None
        return self._cache

    def note_cache(self) -> None:
        """Note in the database that the file is about to be written."""
        place = f"{platform.node()}:{self._cache}"
        with self._db.writing(synced=True) as connection:
            connection.execute(_NOTE, (f"{self._noted_as}{place}", place))

    def caches_elsewhere(self) -> list[str]:
        """Erase what others noted on this machine; return what cannot be reached, and forget it."""
        key = (len(self._noted_as), self._noted_as)
        with self._db.writing() as connection:
            noted: list[str] = self._column(connection, _NOTED, *key)
            connection.execute(_FORGET_NOTES, key)
        return [place for place in noted if not _erased(place)]

    @property
    def _noted_as(self) -> str:
        return f"cache:{self._namespace}:"


def cache_folder() -> Path | None:
    """Return the folder for caches; None when the user wants, or has, none."""
    named = os.environ.get(FOLDER_VARIABLE, "")
    if named == _NONE:
        return None
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(named or f"{caches}/hybridagi_steps").expanduser().absolute()
    except RuntimeError:  # a user without a home
        return None


def _files(cache: Path) -> Iterator[Path]:
    """Yield a cache file and what lies beside it: columns of filters, what is half written."""
    for begin in ("", "."):
        yield from cache.parent.glob(f"{begin}{cache.stem}.*")


def _erased(place: str) -> bool:
    """Erase a noted file if it lies on this machine; tell whether nothing is left of it."""
    host, _, path = place.partition(":")
    if host == platform.node():
        with suppress(OSError):
            for file in _files(Path(path)):
                file.unlink(missing_ok=True)
            return True
    return False
