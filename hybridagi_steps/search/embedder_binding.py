"""Which embedder a memory works with: the one its store was built with, or the one it is given.

Vectors of two embedders cannot be compared, so a store remembers whose vectors it holds, and a
memory opened with another one is refused.
"""

from __future__ import annotations

import logging

from hybridagi_steps.embedders import embedder_for, resolve_embedder
from hybridagi_steps.errors import (
    DiskFullError,
    EmbedderError,
    EmbedderMismatchError,
    ReadOnlyStorageError,
    StorageBusyError,
)
from hybridagi_steps.protocols import Embedder, StepStore

AUTO = "auto"
"""The store's own embedder, else the best that is installed."""

log = logging.getLogger("hybridagi_steps")


class EmbedderBinding:
    """The embedder of one store, found when it is first needed."""

    def __init__(self, store: StepStore, asked: str | Embedder | None) -> None:
        self.asked: str | Embedder = AUTO if asked is None else asked
        self._store = store
        self._known: Embedder | None = None
        self._bound = False

    def known(self) -> Embedder:
        """Return the embedder, checked against the one the store was built with."""
        if self._known is None:
            stored = self._store.identity().embedder
            if self.asked == AUTO and stored is not None:
                self._known = embedder_for(stored)
            else:
                found = resolve_embedder(self.asked)
                if stored is not None and stored != found.model_id:
                    raise EmbedderMismatchError(stored, found.model_id)
                self._known = found
        return self._known

    def bound(self) -> Embedder:
        """Return the embedder, and have the store remember it."""
        embedder = self.known()
        stored = self._store.identity().embedder
        if stored not in (None, embedder.model_id) and self.asked == AUTO:
            self._known = embedder = embedder_for(stored)  # another process changed it: follow
        if stored is None:
            self._store.set_embedder(embedder.model_id, embedder.dimension)
        elif stored != embedder.model_id:
            raise EmbedderMismatchError(stored, embedder.model_id)
        self._bound = True
        return embedder

    def usable(self) -> Embedder:
        """Return the embedder as `bound` does, also when the store cannot be told of it now."""
        try:
            return self.bound()
        except (StorageBusyError, ReadOnlyStorageError, DiskFullError):
            return self.known()

    def bind_early(self) -> None:
        """Have the store remember an embedder that was named, before anything is embedded.

        A hosted one that cannot be reached now must not keep a step from being stored: it is bound
        when it is first used.
        """
        if self._bound or self.asked == AUTO:
            return
        try:
            self.bound()
        except EmbedderMismatchError:
            raise
        except EmbedderError as error:
            log.warning("the embedder is not bound to the memory yet: %s", error)

    def change(self, embedder: str | Embedder) -> None:
        """Bind another embedder for good; the store drops the embeddings of the old one."""
        fresh = resolve_embedder(embedder)
        self._store.set_embedder(fresh.model_id, fresh.dimension)
        self.asked, self._known, self._bound = embedder, fresh, True
