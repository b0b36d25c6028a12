"""StepMemory: what people hold. Store, embedder and index, kept consistent.

Every write goes through here: checked, redacted, stored, and durable when the call returns. What a
search needs beyond the row itself is computed when somebody searches or flushes. A memory is shared
by reference when it is copied, reopened by its address when it is unpickled, and safe to use from
threads, from several processes and after a fork.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, Self
from weakref import WeakValueDictionary

from hybridagi_steps.embedders.resolution import AUTO, EmbedderBinding
from hybridagi_steps.erasure import erase, erase_all, purge_filter
from hybridagi_steps.errors import (
    InvalidFilterError,
    InvalidStepError,
    MemoryClosedError,
    MemoryNotPicklableError,
    ReadOnlyStorageError,
    StorageBusyError,
)
from hybridagi_steps.protocols import (
    CachedApart,
    Durability,
    Embedder,
    MessageIndex,
    StoreBackend,
)
from hybridagi_steps.recording_hooks import note_steps
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.filters import EVERY_SCOPE, StepFilter, unknown_argument
from hybridagi_steps.records.listings import StepHits
from hybridagi_steps.records.provenance import Revocation
from hybridagi_steps.records.redaction import Redact, redacted
from hybridagi_steps.records.store_values import Erased
from hybridagi_steps.search.database.planner import budget_bytes
from hybridagi_steps.search.formulas import Aim, Mode
from hybridagi_steps.search.indexing import START_AT
from hybridagi_steps.search.lineage import Expand, ancestors
from hybridagi_steps.search.searcher import Searcher
from hybridagi_steps.stores import address_text, open_store
from hybridagi_steps.stores.address import IN_MEMORY, cache_path, lasting_address, shown_address
from hybridagi_steps.stores.copying import Copying, back_up
from hybridagi_steps.stores.hygiene import Hygiene, TracksDeletions
from hybridagi_steps.stores.listing import Listing, StepIds, step_id_texts
from hybridagi_steps.stores.placement import placed
from hybridagi_steps.stores.prompts import Prompting
from hybridagi_steps.stores.retention import Retention
from hybridagi_steps.stores.waiting import DEFAULT_TIMEOUT_SECONDS
from hybridagi_steps.validation import (
    StepId,
    Steps,
    Where,
    admitted,
    check_vector,
    checked_page,
    checked_redact,
    for_recall,
    in_every_scope,
    of_steps,
    one_id,
)

if TYPE_CHECKING:
    from hybridagi_steps.dspy_types import AgentStepList, Query, QueryList, QueryWithSteps
    from hybridagi_steps.sessions.repository import SessionRepository
    from hybridagi_steps.sessions.session_handle import SessionHandle

_EVERYTHING = 2**62
OPEN_MEMORIES: WeakValueDictionary[int, StepMemory] = WeakValueDictionary()
"""Those that are open in this process, to be listed by `valuerefs`: threads open and close them."""


class StepMemory(Hygiene, Retention, Prompting, Listing, Copying):
    """Past steps, durable and searchable.

    Example:
        >>> memory = StepMemory(":memory:", embedder="hashing")
        >>> memory.add(AgentStep(step_type="Action", inputs={"purpose": "refund the ticket"}))
        >>> memory.search("refund")[0].step.purpose
        'refund the ticket'
    """

    def __init__(
        self,
        address: str | os.PathLike[str] = "steps.db",
        *,
        embedder: str | Embedder | None = "auto",
        namespace: str = "default",
        redact: Redact | None = None,
        durability: Durability = "full",
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        memory_budget: str | int | None = None,
    ) -> None:
        """Open or create a memory.

        Args:
            address: A file, ":memory:", which goes with it, postgresql://…, or placement.toml#name.
            embedder: A name, an embedder, or "auto": the one the file was built with, else
                `wordllama`, which every installation has.
            namespace: Memories of other namespaces in the same file are invisible.
            redact: Called with every string of a step before anything is stored or embedded.
            durability: What an acknowledged step survives.
            timeout_seconds: How long a call waits for other writers, processes and threads alike,
                before it raises StorageBusyError; 0 to 86,400. Searches and reads wait for none.
            memory_budget: What the index may take of this process, such as "256MB". A larger one is
                searched where it is, in PostgreSQL with pgvector; None: it is always held here.

        Raises:
            StorageError: The file is foreign, damaged, of a newer version, or cannot be opened.
            EmbedderMismatchError: The file was built with another embedder than the one named.
            InvalidStepError: `redact` is no function.
            InvalidSettingError: `timeout_seconds` or `memory_budget` is none, or is not for files.
        """
        self.redact = checked_redact(redact)
        named, self.namespace = placed(address_text(address), namespace)
        self.address, self.whole_address = shown_address(named), lasting_address(named)
        self.memory_budget = budget_bytes(memory_budget, self.whole_address)
        self.durability: Durability = durability
        self.timeout_seconds = timeout_seconds
        how: dict[str, Any] = {"durability": durability, "timeout_seconds": timeout_seconds}
        self._store = open_store(self.whole_address, namespace=self.namespace, **how)
        self.closed, self._appended = False, 0
        OPEN_MEMORIES[id(self)] = self
        self.added = 0  # AgentSteps that were stored through this object
        self._pid, self._locks = os.getpid(), dict[int, AbstractContextManager[Any]]()
        self._searcher: Searcher | None = None
        self._binding = EmbedderBinding(self._store, embedder)
        if self._binding.asked != AUTO:
            try:
                self._binding.known()
            except BaseException:
                self._store.close()
                raise

    # -- writing

    def add(self, steps: Steps) -> None:
        """Store steps; all or nothing, durable on return.

        Raises:
            DuplicateStepError: An id is stored already; `update` replaces it.
            InvalidStepError: A step that cannot be kept; nothing was stored.
            VectorError: A step's own vector does not fit this memory; nothing was stored.
        """
        self._append(steps, replace=False)

    def update(self, steps: Steps) -> None:
        """Store steps, replacing those whose id is stored already; all or nothing."""
        self._append(steps, replace=True)

    def _append(self, steps: Steps, *, replace: bool) -> None:
        self._check_open()
        if kept := self._admitted(steps):
            self._store.append(kept, replace=replace)
            self._count(len(kept))

    def _admitted(self, steps: Steps | Sequence[AgentStep]) -> list[AgentStep]:
        """Return steps as they may be stored, their vectors checked."""
        kept = admitted(steps, self.redact)
        if given := [step for step in kept if step.vector is not None]:
            dimension = self._binding.bound().dimension
            for step in given:
                check_vector(step, dimension)
        if kept:
            self._binding.bind_early()
        return kept

    def _count(self, added: int) -> None:
        """Note that steps were stored; many of them begin to be indexed in the background."""
        self.added += added
        self._appended += added
        if self._appended >= START_AT:
            self._appended = 0
            self.searcher.work_off()

    def repository(self, *, user_id: str | None = None) -> SessionRepository:
        """Return the sessions of this memory, for async callers; or those of one user."""
        from hybridagi_steps.sessions.repository import SessionRepository

        own: dict[str, Any] = {"admit": self._admitted, "stored": self._count, "user_id": user_id}
        return SessionRepository(self._open_store, memory=self, **own)

    def session(
        self, session_id: str, program: object = None, *, user_id: str | None = None
    ) -> SessionHandle:
        """Return one session for code that does not await: `.ask`, `.messages`, `.retry`, `.fork`.

        Args:
            session_id: The session; a new one begins with its first message.
            program: What answers in it: a StepRunner, or a DSPy module for one with usual limits.
            user_id: The user that it acts for; see `repository`.
        """
        from hybridagi_steps.sessions.session_handle import SessionHandle

        return SessionHandle(self.repository(user_id=user_id), session_id, program)

    def delete(self, ids: StepIds) -> int:
        """Delete steps, so that nothing reads them (their last bytes: `purge`); return how many."""
        deleted = self._open_store.delete(step_id_texts(ids))
        if deleted:
            self._forget_cache()
        return deleted

    def clear(self) -> Erased:
        """Erase all of this namespace, trial and durable runs, too; not what a ProgramMemory keeps.

        Returns:
            What `purge` returns, of which only `unreached` means something.
        """
        store = self._open_store
        try:
            return erase_all(store, self.namespace, self.whole_address).but(self._places_left())
        finally:
            self._forget_cache()

    def purge(self, where: Where, *, by: str | None = None) -> Erased:
        """Erase matching steps, trial runs included, from every file; return how many there were.

        A filter of only a session or a user erases messages and durable runs, too. Of a session
        forks keep what they read; of a user nobody does: see `erasure`. Any other erases those
        sessions of which everything matches, and no single message.

        Args:
            where: What is erased.
            by: The user who asks: of a session, too, AgentSteps that name another user stay.

        Returns:
            A number whose `unreached` names files that may still hold some of it, on other machines
            as `machine:path`, and PostgreSQL's statistics where only the database's owner could
            rewrite them; `messages_left` counts messages that match and stay, in `sessions_left`.

        Raises:
            InvalidFilterError: No condition that picks anything; `clear` deletes everything.
        """
        store, asked = self._open_store, purge_filter(where)
        try:
            erased = erase(store, asked, self.namespace, self.whole_address, by)
            owed = not isinstance(store, TracksDeletions) or store.compaction_owed()
            return erased.but(self._places_left(rewrite=owed))
        finally:
            self._forget_cache(if_outdated=True)

    def revoke(
        self, where: Where, *, reason: str | None = None, dry_run: bool = False
    ) -> Revocation:
        """Take matching steps, and all that descends from them, out of recall.

        A step descends from what its `metadata.recalled` names, the call of a program from the
        steps inside, its end from the call. `find`, `search`, retrievers and contexts show none of
        them but under the scope `revoked`; steps recorded later that descend from them are hidden,
        too. Steps that come to match later are not. Nothing is deleted: `reinstate` undoes it.

        Args:
            where: The source, trial runs included unless a scope is named.
            reason: Why, for `revocations`.
            dry_run: Only tell what would be hidden.

        Raises:
            InvalidFilterError: No condition that leaves anything out, or an unknown key.
            InvalidStepError: `reason` is no text.
        """
        asked = StepFilter.of(where)
        if asked.passes_everything:
            raise InvalidFilterError(
                "revoke needs at least one condition that leaves something out, such as sources."
            )
        if reason is not None and not isinstance(reason, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers err
            raise InvalidStepError(f"a reason is a text, not {type(reason).__name__}.")
        if reason is not None and self.redact is not None:
            reason = redacted(reason, self.redact)
        return self._open_store.revoke(in_every_scope(asked), reason, dry_run=dry_run)

    def reinstate(self, revocation_id: str) -> Revocation:
        """Undo a revocation; what another one hides stays hidden.

        Returns:
            The revocation, in `step_ids` the steps that nothing hides any more.

        Raises:
            UnknownRevocationError: There is none with this id.
            InvalidQueryError: An id is a text.
        """
        return self._open_store.reinstate(one_id(revocation_id))

    def revocations(self) -> list[Revocation]:
        """Return what was revoked, when and why, oldest first, undone revocations included."""
        return self._open_store.revocations()

    def vacuum(self) -> None:
        """Delete what no session reads any more, and give the space of what is deleted back."""
        try:
            self._open_store.vacuum()
        finally:
            self._forget_cache()

    # -- reading

    def exist(self, step_id: StepId) -> bool:
        """Return whether a step has this id; a UUID and its text are the same."""
        return bool(self._open_store.get([one_id(step_id)]))

    def get(self, ids: StepIds, *, vectors: bool = False) -> AgentStepList:
        """Return steps in the order asked; unknown ids are skipped.

        A message of a session that no step has the id of comes as a search shows it, as a step.
        """
        wanted, store = step_id_texts(ids), self._open_store
        found = {id_text(step.id): step for step in self.get_steps(wanted, vectors=vectors)}
        missing = [step_id for step_id in wanted if step_id not in found]
        if missing and isinstance(store, MessageIndex):
            rows = store.rows_of_messages(missing).values()
            found |= {id_text(step.id): step for step in store.read([*rows]).values()}
        return _step_list([found[step_id] for step_id in wanted if step_id in found])

    def get_steps(self, ids: StepIds, *, vectors: bool = False) -> list[AgentStep]:
        """Do as `get` does, as a plain list and without loading DSPy."""
        wanted = step_id_texts(ids)
        return self.searcher.with_vectors(wanted) if vectors else self._open_store.get(wanted)

    def find(
        self,
        where: Where = None,
        *,
        limit: int = 100,
        offset: int = 0,
        newest_first: bool = False,
    ) -> AgentStepList:
        """Return steps that match, in stored order; those of one run by hop.

        Raises:
            InvalidFilterError: An unknown key in `where`, or `kinds` without steps: messages are
                found by `search`, and read by `repository().get_steps`.
            InvalidQueryError: `limit` or `offset` is no number of steps.
        """
        limit, offset = checked_page(limit, offset)
        found = self._open_store.find(
            for_recall(of_steps(where)), limit=limit, offset=offset, newest_first=newest_first
        )
        return _step_list(found)

    def iter_steps(self, where: Where = None) -> Iterator[AgentStep]:
        """Yield every matching step without loading DSPy, trial runs included.

        Raises:
            InvalidFilterError: As `find` does.
        """
        return self._open_store.iter_steps(in_every_scope(of_steps(where)))

    def parents(self, step_id: StepId) -> AgentStepList:
        """Return the steps that led to this one, nearest first."""
        return _step_list(ancestors(self._open_store, one_id(step_id)))

    def children(self, step_id: StepId) -> AgentStepList:
        """Return the steps that name this one as their parent."""
        return _step_list(self._open_store.children([one_id(step_id)]))

    def run(self, run_id: str) -> AgentStepList:
        """Return all steps of a run, by hop."""
        return _step_list(self.run_steps(run_id))

    def run_steps(self, run_id: str) -> list[AgentStep]:
        """Do as `run` does, as a plain list and without loading DSPy."""
        where = StepFilter(run_id=one_id(run_id), scope=EVERY_SCOPE)
        return self._open_store.find(where, limit=_EVERYTHING)

    def search(
        self,
        query: str
        | AgentStep
        | Query
        | QueryList
        | QueryWithSteps
        | Sequence[str | AgentStep | Query],
        k: int = 5,
        *,
        where: Where = None,
        mode: Mode = "hybrid",
        expand: Expand | None = None,
        min_score: float | None = None,
        aim: Aim | None = None,
        **others: Never,
    ) -> StepHits:
        """Find past steps by meaning and words.

        Args:
            query: A text, several, or an AgentStep ("steps like this one").
            k: Most hits wanted over all queries; at least 1.
            where: Which steps may be found; by default the user's own history.
            mode: `hybrid`, or one half of it.
            expand: What each hit brings along in `context`.
            min_score: Least score of a hit, 0..1.
            aim: What it is for: `next`, what was done in a state like this one (the query is the
                last step, or has `steps`); `episode`, the run that did this; `tool`, which tool
                can do this. Each finds worse what it is not for, so none is guessed.
            others: Refused, by the name of the argument that does it.

        Raises:
            InvalidQueryError: An empty query, k below 1, an unknown mode, aim, expansion, argument
                or `min_score`; `next` of a query without a step.
            InvalidFilterError: An unknown key in `where`.
            EmbedderError: The embedder failed; `mode="lexical"` works without it.
        """
        if others:
            raise unknown_argument(**others)
        hits = self.searcher.search(
            query, k, for_recall(where), mode=mode, expand=expand, min_score=min_score, aim=aim
        )
        note_steps(step for hit in hits for step in (hit.step, *hit.context))
        return StepHits(hits).with_feedback(self._feedback_on)

    # -- keeping

    def flush(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Index what is stored by now, and save the index beside the file, if it is one.

        Args:
            progress: Called with (done, total) as batches finish.
        """
        self._binding.bind()
        done = total = self._appended = 0
        if progress is not None:
            pending = self._open_store.stats()
            total = int(pending["pending_texts"]) + int(pending["pending_vectors"])
        for count in self.searcher.catch_up():
            done += count
            if progress is not None:
                progress(done, max(done, total))
        self.searcher.save()

    def reembed(
        self,
        embedder: str | Embedder,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Change the embedder for good and embed every step anew.

        Vectors that steps brought along are dropped when the new embedder has another name.
        """
        self._check_open()
        self._binding.change(embedder)
        self._forget_cache()
        self.searcher.deriver.mend(everything=True)
        self.flush(progress)

    def stats(self) -> dict[str, Any]:
        """Return counts and sizes: steps, runs, pending, embedded, text_only, bytes."""
        identity = self._open_store.identity()
        return {
            "address": self.address,
            "namespace": self.namespace,
            **self._store.stats(),
            "embedder": identity.embedder,
            "dimension": identity.dimension,
        }

    def backup(self, path: str | Path) -> int:
        """Write the file, all namespaces, into a new one; as `stores.backup.back_up` has it."""
        return back_up(self._open_store, Path(path))

    def verify(self) -> list[str]:
        """Return one line per thing that does not hold together; empty when all is well."""
        return self._open_store.verify()

    def close(self) -> None:
        """Release the file. What is not indexed yet will be by the next who searches."""
        if self.closed:
            return
        self.closed = True
        OPEN_MEMORIES.pop(id(self), None)
        with closing(self._store):
            if self._searcher is not None and self._pid == os.getpid():
                self._searcher.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if self.address == IN_MEMORY:
            raise MemoryNotPicklableError(
                "a memory at ':memory:' cannot be pickled; give it a file."
            )
        return self._opening, (self.whole_address,)

    def __repr__(self) -> str:
        return f"StepMemory({self.address!r}, namespace={self.namespace!r})"

    # -- inside

    @property
    def _opening(self) -> partial[StepMemory]:
        return partial(
            StepMemory,
            embedder=self._binding.asked,
            namespace=self.namespace,
            redact=self.redact,
            durability=self.durability,
            timeout_seconds=self.timeout_seconds,
            memory_budget=self.memory_budget,
        )

    @property
    def embedder(self) -> Embedder:
        """The embedder of this memory.

        Raises:
            EmbedderMismatchError: The file was built with one that cannot be had here.
        """
        return self._binding.known()

    def note_queue(self, place: str) -> None:
        """Remember a queue that holds texts of this memory, so that `purge` finds it.

        Args:
            place: The path of its file, or its address without a password.
        """
        if place not in self._open_store.places():
            self._open_store.note_place(place)

    @property
    def _open_store(self) -> StoreBackend:
        self._check_open()
        return self._store

    @property
    def searcher(self) -> Searcher:
        """What answers searches, for other rooms of this package."""
        self._check_open()
        # A child of fork starts over: its parent may have held a lock at that moment.
        with self._locks.setdefault(here := os.getpid(), threading.RLock()):
            if self._searcher is None or self._pid != here:
                if isinstance(self._store, CachedApart):
                    cache = self._store.index_cache()
                else:
                    cache = cache_path(self.whole_address, self.namespace)
                how = (self.redact, self.timeout_seconds, self.memory_budget)
                self._searcher = Searcher(self._store, self._binding.usable, cache, *how)
                self._pid = here
            return self._searcher

    def _check_open(self) -> None:
        if self.closed:
            raise MemoryClosedError(f"{self!r} is closed; open it again.")

    def _places_left(self, *, rewrite: bool = True) -> list[str]:
        """Overwrite what was deleted; return where it is until that is next read, or rewritten."""
        store, beyond = self._open_store, tuple[str, ...]()
        if rewrite:
            if not isinstance(store, CachedApart):  # first: who is killed later leaves no cache
                self._forget_cache()
            try:
                beyond = store.compact()
            except (StorageBusyError, ReadOnlyStorageError):  # that the rows are gone is to be told
                beyond = (shown_address(self.whole_address),)
        return [*beyond, *(store.caches_elsewhere() if isinstance(store, CachedApart) else [])]

    def _forget_cache(self, *, if_outdated: bool = False) -> None:
        from hybridagi_steps.sessions.lines import forget_history

        forget_history(self._open_store)
        self.searcher.forget_cache(if_outdated=if_outdated)


def _step_list(steps: list[AgentStep]) -> AgentStepList:
    from hybridagi_steps.dspy_types import AgentStepList

    note_steps(steps)
    return AgentStepList(steps=steps)
