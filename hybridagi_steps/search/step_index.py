"""StepIndex: a store's words, vectors and links in memory, kept in step with the store.

It follows the store's change counters, so it sees what any process committed. It holds two shards:
the user's own history, and trial runs (steps with a scope), whose words must not distort the
weights of the first. The file beside the store is a cache: verified as it is read, or built anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from hybridagi_steps.errors import DamagedFileError, StorageError
from hybridagi_steps.outside_files import cached_files, erase_cache
from hybridagi_steps.protocols import CachedApart, IndexedStore
from hybridagi_steps.records.store_values import (
    MESSAGE_ROWS,
    Changes,
    Position,
    Rows,
    TextRow,
    VectorRow,
)
from hybridagi_steps.search.bm25 import LexicalIndex
from hybridagi_steps.search.columns.row_filter import FilterFile, RowFilter, is_past_of, stood_at
from hybridagi_steps.search.columns.step_columns import StepColumns, TurnColumns, turns_of
from hybridagi_steps.search.index_cache import (
    CacheFile,
    CacheHeader,
    DamagedCacheError,
    load_cache,
    save_cache,
)
from hybridagi_steps.search.vector_index import FaissIndex

FORMAT = 12
"""Layout of the cache; another one is not read."""

PAGE = 2_000
"""Texts and vectors taken in at once: all of a large store side by side took three times the memory
that the index takes."""
_WORTH_CACHING = 2_000
_STALE_SHARE = 0.1
_NOTHING = Position(epoch=-1, text=0, vector=0, tombstone=0, branch=0)

_Result = TypeVar("_Result")

log = logging.getLogger("hybridagi_steps")


def _removed_since(then: Position, now: Position) -> bool:
    return (then.epoch, then.tombstone) != (now.epoch, now.tombstone)


class Shard:
    """One body of steps: their words and their vectors."""

    def __init__(self, lexical: LexicalIndex, vectors: FaissIndex) -> None:
        self.lexical, self.vectors = lexical, vectors


class StepIndex:
    """What a search reads. Not thread-safe by itself."""

    whole = True

    def __init__(self, store: IndexedStore, store_id: str, cache: Path | None) -> None:
        """Follow `store`; `cache` is the file to start from and to save to."""
        self._store, self._store_id, self._cache = store, store_id, cache
        self._filter_file = FilterFile(store, store_id, cache)
        self._header = cache and CacheHeader(cache)
        self._apart = isinstance(store, CachedApart)
        self._model: tuple[str, int] = ("", 0)
        self._distrusted = False
        self.own = self.scoped = Shard(LexicalIndex(), FaissIndex(1))
        self._reset()

    def _reset(self) -> None:
        self.close()
        self.columns = StepColumns()
        self.turns = TurnColumns()
        self.filters = RowFilter(self._store, self._filter_file.read)
        self.own = Shard(LexicalIndex(), FaissIndex(self._model[1] or 1))
        self.scoped = Shard(LexicalIndex(), FaissIndex(self._model[1] or 1))
        self.position = _NOTHING
        self._unsaved = 0
        self._codes_saved = self._codes_made()
        self._taken: dict[int, TextRow] = {}
        self._taken_vectors: dict[int, VectorRow] = {}

    @property
    def in_use(self) -> bool:
        """Whether it follows the store yet; before, it holds nothing worth keeping."""
        return self.position != _NOTHING

    def shards(self, *, own_only: bool) -> list[Shard]:
        """Return the shards to search."""
        return [self.own] if own_only else [self.own, self.scoped]

    @contextmanager
    def exactly(self) -> Generator[None]:
        """Let searches look at every vector, inside a `with`.

        Else two indexes of the same steps may answer in different ways now and then: codes are
        learnt of what there was when they were made.
        """
        shards = self.shards(own_only=False)
        for shard in shards:
            shard.vectors.exact = True
        try:
            yield
        finally:
            for shard in shards:
                shard.vectors.exact = False

    def follow(self, model_id: str, dimension: int) -> None:
        """Take in what the store had committed at this call, maybe more; it ends, whoever writes.

        Another embedder of the store than before starts from nothing.
        """
        self._expect(model_id, dimension)
        if not self.in_use:
            self._load()
        target, whole = self._store.frontier().position, False
        self._erase_what_went(target)
        while not whole and self.position != target:
            changes = self._store.changes(self.position, limit=PAGE)
            if changes.position.epoch != self.position.epoch:
                self._reset()
            self.own.vectors.expect(target.vector - self.position.vector)
            self._apply(changes)
            self.position = changes.position
            # A page that is not full has all there was when it was read, which was after the call.
            whole = max(len(changes.texts), len(changes.vectors)) < PAGE or (
                self.position.epoch == target.epoch and self._reached(target)
            )

    def _expect(self, model_id: str, dimension: int) -> None:
        if (model_id, dimension) != self._model:
            self._model = (model_id, dimension)
            self._reset()

    def _erase_what_went(self, now: Position) -> None:
        """Erase a cache out of reach of those who removed what it holds."""
        if self._apart and _removed_since(self.position, now):
            try:
                self.forget_cache()
            except StorageError as error:
                log.warning("%s", error)

    def _reached(self, target: Position) -> bool:
        return self.position.text >= target.text and self.position.vector >= target.vector

    def trusted(self, work: Callable[[], _Result]) -> _Result:
        """Do what follows and reads this index; do it again if its cache proves damaged by that."""
        try:
            return work()
        except DamagedCacheError as damage:
            log.warning("the index cache is not used: %s; building it anew", damage)
            self._distrusted = True
            self._reset()
            return work()

    def worth_following(self, embedder: Callable[[], tuple[str, int]]) -> bool:
        """Return whether `worth_saving` may say so once this has followed the store.

        Else that is left to the next search: for a step at a time it costs as much as indexing it.
        Where nothing is held yet, the header of the cache says what the file has. `embedder`
        returns that of `follow`.
        """
        if self._cache is None:
            return False
        if not self.in_use:
            self._expect(*embedder())
        now = self._store.frontier().position
        known, held = (self.position, len(self.columns)) if self.in_use else self._in_file(now)
        if known == _NOTHING:  # there are no more steps than texts
            return now.text >= _WORTH_CACHING
        gone = now.tombstone - known.tombstone
        if known.epoch != now.epoch or (gone and self._apart) or self.filters_worth_saving():
            return True
        fresh = now.text - known.text + now.vector - known.vector + gone
        return self.worth_saving(fresh) if self.in_use else fresh > _STALE_SHARE * held

    def _in_file(self, now: Position) -> tuple[Position, int]:
        """Return up to where the cache goes, and how many steps it has; nothing if it is no use."""
        header = self._header and self._header.read(self._identity())
        position = Position(*header["position"]) if header else _NOTHING
        if header and position.may_be_past_of(now):
            return position, int(header["steps"])
        return _NOTHING, 0

    def worth_saving(self, fresh: int = 0) -> bool:
        """Return whether to write the cache: many steps, and much that is, or will be, new to it.

        Codes being built count: a program that ends before they are ready would never have any. So
        does what the store has that this has not followed yet (`fresh`).
        """
        held = len(self.columns)
        if self._cache is None or not self.in_use or held + fresh < _WORTH_CACHING:
            return False
        return (
            self._unsaved + fresh > _STALE_SHARE * held
            or self._codes_made() != self._codes_saved
            or any(shard.vectors.building for shard in self.shards(own_only=False))
        )

    def filters_worth_saving(self) -> bool:
        """Return whether to write what filters have read of a large store, to the next's use."""
        return self._cache is not None and self.filters.unsaved(_WORTH_CACHING)

    def finish_builds(self) -> None:
        """Wait for what is built in the background; needs no lock."""
        for shard in self.shards(own_only=False):
            shard.vectors.finish_build()

    def close(self) -> None:
        """Abandon what is built in the background."""
        for shard in self.shards(own_only=False):
            shard.vectors.close()

    def save(self) -> bool:
        """Write the cache when it is worth it; return whether the index itself was written.

        Who erased something meanwhile erased the cache too early: then it is erased once more.
        """
        saved = self._written()
        if _removed_since(self.position, self._store.frontier().position):
            self.forget_cache()
        return saved

    def _written(self) -> bool:
        if self._cache is None:
            return False
        if (every := self.worth_saving()) or self.filters_worth_saving():
            self._filter_file.save(self.filters, self.position, every=every)
        if not every:
            return False
        arrays = {
            f"{part}/{name}": array
            for part, parts in self._parts().items()
            for name, array in parts.items()
        }
        held = stood_at(self._store, self.position, self.columns.held())
        saved = save_cache(self._cache, {**self._identity(), **held}, arrays)
        if saved:
            self._distrusted = False
            self._unsaved, self._codes_saved = 0, self._codes_made()
        return saved

    def read_cache(self, model_id: str, dimension: int) -> None:
        """Follow the store from the cache if this holds nothing yet: what is left outlives it.

        To make an index of the store takes the next process five times as long.
        """
        if not self.in_use and self._cache is not None and self._cache.exists():
            self.trusted(lambda: self.follow(model_id, dimension))

    def removed_in_files(self) -> bool:
        """Return whether a cache may hold what was removed from the store since it was written."""
        now, ours = self._store.frontier().position, {"store": self._store_id}
        return any(
            (header := CacheHeader(path).read(ours)) is None
            or _removed_since(Position(*header["position"]), now)
            for path in (cached_files(self._cache) if self._cache else ())
            if path.exists()
        )

    def forget_cache(self) -> None:
        """Delete the cache file: what was deleted from the store must not live on in it."""
        self._unsaved = len(self.columns)
        self.filters.forget_saved()
        if self._cache is not None:
            erase_cache(self._cache)

    def take_in(
        self, texts: Mapping[int, TextRow], vectors: Mapping[int, VectorRow], since: Position
    ) -> bool:
        """Hold what the store has not saved; the position goes back to where that was so (`since`).

        What is held already is not taken in again. Returned is whether something was: then follow
        once more, as some may be gone since.
        """
        new_texts = [text for row, text in texts.items() if self._taken.get(row) is not text]
        new = [vector for row, vector in vectors.items() if row not in self._taken_vectors]
        if not (new_texts or new):
            return False
        self._apply(Changes(self.position, new_texts, new, []))
        self._taken.update((text.row, text) for text in new_texts)
        self._taken_vectors.update((vector.row, vector) for vector in new)
        # What others saved meanwhile of these rows is newer: it is read, and taken in, once more.
        self.position = self.position._replace(
            text=min(self.position.text, since.text),
            vector=min(self.position.vector, since.vector),
            tombstone=min(self.position.tombstone, since.tombstone),
        )
        return True

    def _apply(self, changes: Changes) -> None:
        for row in (*changes.removed, *(text.row for text in changes.texts)):
            self._taken.pop(row, None)
        for row in (*changes.removed, *(vector.row for vector in changes.vectors)):
            self._taken_vectors.pop(row, None)
        self.columns.add(changes.texts)
        gone = np.array(changes.removed, np.int64)
        self._take_turns(changes.texts, gone)
        self.filters.follow([text.row for text in changes.texts], gone)
        if changes.position.branch != self.position.branch:
            self.filters.rescore(self.position.branch, changes.position.branch)
        for shard, scoped in ((self.own, False), (self.scoped, True)):
            texts = [text for text in changes.texts if text.scoped == scoped]
            shard.lexical.add_lines((text.row, text.tokens) for text in texts if text.text_hash)
            usable = [v for v in changes.vectors if v.scoped == scoped and v.vector is not None]
            if usable:
                rows = np.array([item.row for item in usable], np.int64)
                shard.vectors.add(rows, np.array([item.vector for item in usable]))
        if len(gone):  # looking for nothing takes as long as adding a step
            self.columns.remove(gone)
            for shard in self.shards(own_only=False):
                shard.lexical.remove(gone)
                shard.vectors.remove(gone)
        self._unsaved += len(changes.texts) + len(changes.vectors) + len(gone)

    def _take_turns(self, texts: Sequence[TextRow], gone: Rows) -> None:
        self.turns.remove(np.concatenate((gone, [text.row for text in texts])).astype(np.int64))
        self.turns.add(turns_of(texts))

    def _identity(self) -> dict[str, Any]:
        model_id, dimension = self._model
        return {
            "format": FORMAT,
            "store": self._store_id,
            "model": model_id,
            "dimension": dimension,
        }

    def _parts(self) -> dict[str, Mapping[str, Any]]:
        return {
            "columns": self.columns.to_arrays(),
            "turns": self.turns.to_arrays(),
            "own/lexical": self.own.lexical.to_arrays(patched=True),
            "own/vectors": self.own.vectors.to_arrays(patched=True),
            "scoped/lexical": self.scoped.lexical.to_arrays(patched=True),
            "scoped/vectors": self.scoped.vectors.to_arrays(patched=True),
        }

    def _load(self) -> None:
        """Start from the cache when it is whole and belongs to this store's past."""
        now = self._store.frontier().position
        if self._cache is None or self._distrusted:
            return
        found = load_cache(self._cache, self._identity())
        if found is None:
            return
        position = Position(*found.header["position"])
        if not is_past_of(self._store, found.header, now):
            log.info("the index cache is of another time of this store; building it anew")
            return
        try:
            self._revive(found)
        except (KeyError, DamagedFileError) as error:
            log.warning("the index cache does not fit together (%s); building it anew", error)
            self._reset()
            return
        self.position, self._codes_saved = position, self._codes_made()
        rows = self.columns.held()
        newest = [*rows[rows < MESSAGE_ROWS][-1:].tolist(), *rows[-1:].tolist()]
        self.filters.follow(newest, rows[:0])

    def _codes_made(self) -> list[tuple[int, int]]:
        """Return what tells whether codes are others than before."""
        held = [shard.vectors for shard in self.shards(own_only=False)]
        return [(vectors.trained_on, vectors.lists) for vectors in held]

    def _revive(self, file: CacheFile) -> None:
        """Take over the arrays of a cache file."""
        self.columns = StepColumns.from_arrays(file.part("columns/"))
        self.turns = TurnColumns.from_arrays(file.part("turns/"))
        self.own, self.scoped = (
            Shard(
                LexicalIndex.from_arrays(file.part(f"{name}/lexical/")),
                FaissIndex.from_arrays(self._model[1], file.part(f"{name}/vectors/")),
            )
            for name in ("own", "scoped")
        )
