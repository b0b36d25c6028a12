"""From a name to an embedder: "auto", "wordllama", "hashing:64", "dspy:openai/…", or a plug-in's.

A name is looked up in a table, then among the entry points of the group
"hybridagi_steps.embedders"; what follows the colon is handed to the factory found there. Vectors of
two embedders cannot be compared, so a store remembers whose vectors it holds, and a memory opened
with another one is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from inspect import signature
from typing import Any, cast

from hybridagi_steps._concurrency import ForkSafeLock
from hybridagi_steps.errors import (
    DiskFullError,
    EmbedderError,
    EmbedderMismatchError,
    MissingExtraError,
    ReadOnlyStorageError,
    StorageBusyError,
)
from hybridagi_steps.protocols import Embedder, StepStore

AUTO = "auto"
"""The store's own embedder, else the one that every installation has: a file opens anywhere."""

_EXTRA = "hybridagi-steps[sentence-transformers]"
ENTRY_POINT_GROUP = "hybridagi_steps.embedders"
_FACTORIES = {
    AUTO: "hybridagi_steps.embedders.wordllama:WordLlamaEmbedder",
    "dspy": "hybridagi_steps.embedders.dspy_embedder:DspyEmbedder",
    "hashing": "hybridagi_steps.embedders.hashing:from_name",
    "sentence-transformers": (
        "hybridagi_steps.embedders.sentence_transformer:SentenceTransformerEmbedder"
    ),
    "wordllama": "hybridagi_steps.embedders.wordllama:WordLlamaEmbedder",
}
log = logging.getLogger("hybridagi_steps")


def resolve_embedder(embedder: Embedder | Callable[[list[str]], Any] | str | None) -> Embedder:
    """Return the embedder that is meant.

    Args:
        embedder: An embedder is returned as it is. A dspy.Embedder or another callable is wrapped.
            A name: "auto" (also None), "wordllama", "sentence-transformers" or
            "sentence-transformers:MODEL", "hashing" or "hashing:DIM", "dspy:PROVIDER/MODEL", or
            what an entry point of the group "hybridagi_steps.embedders" is called.

    Raises:
        EmbedderError: No embedder has this name, or the object is none.
        MissingExtraError: It needs a package that is not installed.
    """
    if embedder is None or isinstance(embedder, str):
        return _by_name(AUTO if embedder is None else embedder)
    if hasattr(embedder, "embed_documents") and hasattr(embedder, "embed_queries"):
        return cast(Embedder, embedder)
    if callable(embedder):
        from hybridagi_steps.embedders.dspy_embedder import DspyEmbedder

        return DspyEmbedder(embedder)
    raise EmbedderError(
        f"{type(embedder).__name__} is no embedder: give a name, a callable, or an object with "
        "model_id, dimension, embed_documents and embed_queries."
    )


def embedder_for(model_id: str) -> Embedder:
    """Return the embedder with this `model_id`, whichever name it goes by.

    Raises:
        EmbedderMismatchError: None that can be had here makes such vectors.
    """
    kind, _, rest = model_id.partition("/")
    argument = rest.rpartition("@")[0] or rest
    for name in (f"{kind}:{argument}", kind):
        try:
            found = resolve_embedder(name)
            if found.model_id == model_id:
                return found
        except (EmbedderError, MissingExtraError):
            continue  # the next name may do; if none does, the error below says so
    missing = "" if kind != "sentence-transformers" else f" (pip install '{_EXTRA}')"
    raise EmbedderMismatchError(
        model_id, f'embedder="auto", which cannot make such vectors here{missing}'
    )


def _by_name(name: str) -> Embedder:
    kind, colon, argument = name.partition(":")
    factory = _factory(kind)
    if colon and not argument.strip():
        raise EmbedderError(f"{name!r} names no model: say which after the colon.")
    arguments = [argument] if colon else []
    try:
        signature(factory).bind(*arguments)
    except TypeError as error:
        wrong = f"write {kind!r} alone" if arguments else f"say which model: '{kind}:MODEL'"
        raise EmbedderError(f"{name!r} does not name an embedder: {wrong}.") from error
    return factory(*arguments)


def _factory(kind: str) -> Callable[..., Embedder]:
    if kind in _FACTORIES:
        module, _, attribute = _FACTORIES[kind].partition(":")
        return getattr(import_module(module), attribute)
    plugins = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
    if kind in plugins:
        return plugins[kind].load()
    known = ", ".join(sorted({*_FACTORIES, *plugins}))
    raise EmbedderError(f"no embedder is called {kind!r}; known are {known}.")


class EmbedderBinding:
    """The embedder of one store, found when it is first needed; threads share it."""

    def __init__(self, store: StepStore, asked: str | Embedder | None) -> None:
        self.asked: str | Embedder = AUTO if asked is None else asked
        self._store = store
        self._known: Embedder | None = None
        self._changing: Embedder | None = None  # what the store is being told of by `change`
        self._lock = ForkSafeLock()  # for who changes `_known`; nothing is waited for under it
        self._bound = False
        self._epoch: int | None = None  # in which it was found to be the store's

    def known(self) -> Embedder:
        """Return the embedder, checked against the one the store was built with."""
        if (known := self._known) is not None:
            return known
        stored, asked = self._store.identity().embedder, self.asked
        follows = stored if asked == AUTO else None
        found = resolve_embedder(asked) if follows is None else embedder_for(follows)
        if stored not in (None, found.model_id):
            return self._followed(stored, found)
        return self._kept(found, None)

    def bound(self) -> Embedder:
        """Return the embedder, and have the store remember it."""
        embedder = self.known()
        stored = self._store.identity().embedder
        if stored is None:
            self._store.set_embedder(embedder.model_id, embedder.dimension)
            now = self._changing or self._known
            if now is not None and now is not embedder:  # another thread had changed it by then
                embedder = now
                self._store.set_embedder(embedder.model_id, embedder.dimension)
        elif stored != embedder.model_id:
            embedder = self._followed(stored, embedder)
        self._bound = True
        return embedder

    def bind(self) -> None:
        """Have the store remember an embedder; where it does, "auto" means that one, unloaded."""
        if self.asked != AUTO or self._store.identity().embedder is None:
            self.bound()

    def _followed(self, stored: str, before: Embedder) -> Embedder:
        """Return the embedder of a store that was changed: by another thread, or a process."""
        for now in (self._changing, self._known):
            if now is not None and now.model_id == stored:
                return now
        if self.asked != AUTO:
            raise EmbedderMismatchError(stored, before.model_id)
        return self._kept(embedder_for(stored), before)

    def _kept(self, found: Embedder, before: Embedder | None) -> Embedder:
        """Keep an embedder in the place of another, unless another thread was first."""
        with self._lock:
            if self._known is before:
                self._known = found
            return self._known or found

    def usable(self, epoch: int | None = None) -> Embedder:
        """Return the embedder as `bound` does, also when the store cannot be told of it now.

        While the `epoch` is the same the store is not asked again.
        """
        if epoch is not None and epoch == self._epoch:
            return self.known()
        try:
            embedder = self.bound()
        except (StorageBusyError, ReadOnlyStorageError, DiskFullError):
            return self.known()
        _, name, dimension = self._store.identity()
        if name == embedder.model_id and dimension not in (None, embedder.dimension):
            lengths = (f"{name}, {n} dimensions" for n in (dimension, embedder.dimension))
            raise EmbedderMismatchError(*lengths)
        self._epoch = epoch
        return embedder

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
        self._changing = fresh
        try:
            self._store.set_embedder(fresh.model_id, fresh.dimension)
            with self._lock:
                self.asked, self._known, self._bound, self._epoch = embedder, fresh, True, None
        finally:
            self._changing = None
