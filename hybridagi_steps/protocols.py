"""Every contract between the parts, on one screen.

A store keeps steps and what is derived from them; an index searches vectors; an embedder makes
them; a reranker reorders hits. Rows are a store's own integer keys: they grow, are never reused,
and mean nothing outside one store.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.filters import EVERY_SCOPE, StepFilter, StepHit
from hybridagi_steps.records.revocation import Revocation

FloatMatrix = npt.NDArray[np.float32]
"""Vectors as rows, shape (n, d)."""
FloatVector = npt.NDArray[np.float32]
"""One vector or one score per row."""
Rows = npt.NDArray[np.int64]
"""Row numbers of a store."""
StepKey = Literal[
    "user_id", "program_id", "program", "call_id", "tool", "step_type", "scope", "status",
    "created_at", "source",
]  # fmt: skip
"""What a filter looks at and what never changes; `program` is that which a ProgramCall or
ProgramEnd names, `call_id` the id of a ProgramCall, `source` what `source_of` says."""
Durability = Literal["normal", "full"]
"""`normal`: an acknowledged step survives kill -9. `full`: it survives a power loss, too."""
ABANDONED = "abandoned"
"""The scope that steps on branches show in which no session reads."""
REVOKED = "revoked"
"""The scope that revoked steps show."""
UNREVOKED = "* but revoked"
"""The scope that shows all but revoked steps: what `*` is to whoever recalls."""


class Embedder(Protocol):
    """Turns texts into vectors."""

    @property
    def model_id(self) -> str:
        """Names model and version; equal ids mean comparable vectors."""
        ...

    @property
    def dimension(self) -> int:
        """Length of every vector."""
        ...

    def embed_documents(self, texts: Sequence[str]) -> FloatMatrix:
        """Return one vector per text to be found, shape (n, d)."""
        ...

    def embed_queries(self, texts: Sequence[str]) -> FloatMatrix:
        """Return one vector per query, shape (n, d)."""
        ...


class ScoredRows(NamedTuple):
    """Rows with their scores, best first; ties go to the row stored first."""

    rows: Rows
    scores: FloatVector


class VectorIndex(Protocol):
    """Searches unit vectors by cosine similarity; every score it returns is exact."""

    def __len__(self) -> int:
        """Number of rows held."""
        ...

    def add(self, rows: Rows, vectors: FloatMatrix) -> None:
        """Add vectors, replacing rows already held. Normalises; refuses NaN, Inf and zero."""
        ...

    def remove(self, rows: Rows) -> int:
        """Forget rows; unknown ones are skipped. Returns how many were held."""
        ...

    def search(self, queries: FloatMatrix, k: int, *, rows: Rows | None = None) -> list[ScoredRows]:
        """Return up to k most similar rows per query, among `rows` (sorted) when given."""
        ...

    def similarities(self, query: FloatVector, rows: Rows) -> FloatVector:
        """Return the exact cosine of `query` with each row, NaN for rows not held."""
        ...


@runtime_checkable
class Reranker(Protocol):
    """Reorders hits; may change scores, keeps them in 0..1 and best first."""

    def rerank(self, query: str, hits: Sequence[StepHit]) -> list[StepHit]:
        """Return the hits in a better order."""
        ...


class TokenCounter(Protocol):
    """Counts an LLM's tokens."""

    @property
    def counter_id(self) -> str:
        """Names tokenizer and version, or says that it estimates."""
        ...

    def count(self, text: str) -> int:
        """Return the number of tokens in `text`."""
        ...


class AgentStepStore(Protocol):
    """Keeps steps. Every write is all or nothing, and durable when it returns."""

    def append(self, steps: Sequence[AgentStep], *, replace: bool = False) -> list[int]:
        """Store steps and return their rows; a step's own vector is kept as its embedding.

        With `replace`, a step whose id is stored already is replaced: it gets a new row and the old
        one is gone. Steps without `run_id` belong to no run.

        Raises:
            DuplicateStepError: An id is stored already, or twice in `steps`; nothing was stored.
        """
        ...

    def get(self, ids: Sequence[str], *, vectors: bool = False) -> list[AgentStep]:
        """Return the steps with these ids in the order asked; unknown ids are skipped."""
        ...

    def find(
        self, where: StepFilter, *, limit: int, offset: int = 0, newest_first: bool = False
    ) -> list[AgentStep]:
        """Return steps in stored order, those of one run (filter by run_id) by (hop, row)."""
        ...

    def rows(self, where: StepFilter) -> Rows:
        """Return the rows that match, ascending."""
        ...

    def users(self, where: StepFilter, *, limit: int) -> list[str]:
        """Return users that the steps name which match, each once, at most `limit`."""
        ...

    def read(self, rows: Sequence[int]) -> dict[int, AgentStep]:
        """Return the steps in these rows; rows that are gone are missing."""
        ...

    def children(self, ids: Sequence[str]) -> list[AgentStep]:
        """Return the steps whose parent_id is one of `ids`, by row."""
        ...


class RunSummary(NamedTuple):
    """One run as a listing shows it."""

    run_id: str
    session_id: str | None
    scope: str | None
    steps: int
    errors: int
    first_step: str
    started_at: str
    ended_at: str
    score: float | None
    feedback: str | None


class RunStore(Protocol):
    """What a store knows about runs."""

    def runs(self, *, limit: int, offset: int = 0) -> list[RunSummary]:
        """Return runs, newest first."""
        ...

    def score_run(self, run_id: str, value: float, feedback: str | None) -> None:
        """Set a run's score; steps without a score of their own show it from then on.

        Raises:
            UnknownRunError: No step carries this run id.
            InvalidStepError: `value` is NaN or infinite.
        """
        ...


class TextRow(NamedTuple):
    """The words of a step, ready for the lexical index."""

    row: int
    parent_row: int | None
    tokens: str
    """Stems of the window text, one blank between them; on a second line those that only the whole
    text has."""
    text_hash: int
    """Of the whole text."""
    purpose_hash: int
    """Of the purpose; 0 when there is none."""
    scoped: bool
    """Whether the step belongs to a trial run (`scope` is set); ignored on save."""


class VectorRow(NamedTuple):
    """The embedding of a step; vector None: the embedder gave nothing usable."""

    row: int
    text_hash: int
    vector: FloatVector | None
    scoped: bool
    """As in TextRow; ignored on save."""


class PendingText(NamedTuple):
    """A step whose words are not indexed yet, with the parent its window shows."""

    row: int
    step: AgentStep
    parent_row: int | None
    parent: AgentStep | None


class Position(NamedTuple):
    """How far a reader has followed a store. A new epoch means: start again from nothing."""

    epoch: int
    text: int
    vector: int
    tombstone: int
    branch: int
    """How often branches began or ceased to be read, or steps were revoked or reinstated: what is
    hidden may be others since."""


class Frontier(NamedTuple):
    """How far a store has come: while it is the same, nothing was stored, derived or removed."""

    position: Position
    row: int
    """The newest row in use; what is stored later has a higher one."""


NEWEST = 2**62
"""A row beyond all others."""


class Changes(NamedTuple):
    """What happened between two positions; apply texts and vectors first, then removals."""

    position: Position
    texts: list[TextRow]
    vectors: list[VectorRow]
    removed: list[int]


class Hidden(NamedTuple):
    """Rows that recall leaves out, each ascending."""

    abandoned: Rows
    """On branches that no session reads."""
    revoked: Rows
    """Revoked, or descending from what is."""

    def under(self, scope: str | None) -> Rows:
        """Return the rows that a scope leaves out."""
        if scope is None:
            return np.union1d(self.abandoned, self.revoked)
        return self.revoked[:0] if scope in (EVERY_SCOPE, REVOKED) else self.revoked


class FilterStore(Protocol):
    """What filters are answered from."""

    def rows(self, where: StepFilter) -> Rows:
        """Return the rows that match, ascending."""
        ...

    def hidden_rows(self) -> Hidden:
        """Return the rows of AgentSteps that recall leaves out."""
        ...

    def step_keys(
        self, names: Sequence[StepKey], *, after: int, limit: int
    ) -> tuple[Rows, dict[StepKey, list[str | None]]]:
        """Return the next rows above `after`, ascending, and each key's text for each of them.

        Rows become visible in the order of their numbers: none appears later below one returned.
        """
        ...


class DerivedStore(Protocol):
    """Keeps what is computed from steps: words and embeddings, behind a watermark.

    An append writes no derived data. Whoever searches asks for what is pending, computes it and
    saves it, or keeps it when somebody else writes; two processes doing so at once is harmless.
    Whatever only reads waits for no writer.
    """

    def waiting(self, seconds: float) -> AbstractContextManager[None]:
        """Let this thread wait no longer than `seconds` for other writers, inside a `with`.

        Writes raise StorageBusyError after that, as they do after the timeout of the store.
        """
        ...

    def frontier(self) -> Frontier:
        """Return how far the store has come; cheap enough to ask before every search."""
        ...

    def pending_texts(
        self, limit: int, *, after: int = 0, through: int = NEWEST
    ) -> list[PendingText]:
        """Return the next steps without words, by row, their children whose window is stale too.

        Only rows above `after` and up to `through` are looked at: who goes on from the last row
        returned, up to the row of a `frontier`, comes to an end whatever others store meanwhile.
        The parent is the step named by parent_id, else the previous step of the run by (hop, row);
        none when that is of another user or scope.
        """
        ...

    def save_texts(self, texts: Sequence[TextRow]) -> None:
        """Save words; skipped are rows that are gone meanwhile, or whose parent is."""
        ...

    def pending_vectors(
        self, limit: int, *, after: int = 0, through: int = NEWEST
    ) -> list[tuple[int, AgentStep]]:
        """Return the next steps without an embedding, by row, within bounds as above."""
        ...

    def save_vectors(self, vectors: Sequence[VectorRow], *, model_id: str | None = None) -> None:
        """Save embeddings; rows that are gone, or have one already, are skipped.

        Raises:
            EmbedderMismatchError: `model_id` is not the embedder the store remembers; nothing was
                saved. Another process may have changed it while these were made.
        """
        ...

    def save_derived(
        self, texts: Sequence[TextRow], vectors: Sequence[VectorRow], *, model_id: str | None = None
    ) -> int:
        """Save both in one transaction, so that it takes one turn among the writers.

        Returns:
            How many windows went stale by that: a step they should show came after them.

        Raises:
            EmbedderMismatchError: As in `save_vectors`; nothing was saved.
        """
        ...

    def position(self) -> Position:
        """Return the newest position."""
        ...

    def changes(self, since: Position, *, limit: int = 100_000) -> Changes:
        """Return what happened after `since`, oldest first, in one consistent view.

        At most `limit` texts and `limit` vectors; ask again from the position returned.
        When `since` is of another epoch the answer starts from nothing.
        """
        ...


class StoreIdentity(NamedTuple):
    """What a store says about itself and its embeddings."""

    store_id: str
    embedder: str | None
    dimension: int | None


class StoreAdmin(Protocol):
    """Keeps a store in order."""

    def identity(self) -> StoreIdentity:
        """Return the store's id and the embedder it was built with, None before the first."""
        ...

    def set_embedder(self, model_id: str, dimension: int) -> None:
        """Remember the embedder. Another than before drops all embeddings: a new epoch."""
        ...

    def note_place(self, place: str) -> None:
        """Note a file that holds texts of this store, such as a queue; twice is once."""
        ...

    def places(self) -> list[str]:
        """Return what was noted, of all namespaces."""
        ...

    def delete(self, ids: Sequence[str]) -> int:
        """Delete steps with text and embedding, leaving no trace in the data; return how many.

        Words that others show of them are deleted at once; those steps are pending again.
        """
        ...

    def vacuum(self) -> None:
        """Delete what no session reads any more, and `compact`."""
        ...

    def compact(self) -> tuple[str, ...]:
        """Give space back to the system; nothing that was deleted is left in any file.

        Returns:
            Places that may still hold some of it, which this store may not rewrite.
        """
        ...

    def verify(self) -> list[str]:
        """Return one line per thing that does not hold together; empty when all is well."""
        ...

    def stats(self) -> dict[str, Any]:
        """Return counts and sizes: steps, runs, pending, embedded, text_only, bytes."""
        ...


class IndexedStore(DerivedStore, FilterStore, Protocol):
    """What an index in memory follows."""


class RevocationStore(Protocol):
    """Takes steps, and what descends from them, out of recall, and gives them back.

    A step descends from those that its `metadata.recalled` names; the call of a program descends
    from the steps inside, and its end from the call. Steps stored later that descend from what is
    revoked are hidden, too.
    """

    def revoke(self, where: StepFilter, reason: str | None, *, dry_run: bool = False) -> Revocation:
        """Hide the steps that match now and all that descend from them; a dry run only tells."""
        ...

    def reinstate(self, revocation_id: str) -> Revocation:
        """Undo a revocation; what another one hides stays hidden. Undone ones are left as they are.

        The answer's `step_ids` are the steps that nothing hides any more.

        Raises:
            UnknownRevocationError: There is none with this id.
        """
        ...

    def revocations(self) -> list[Revocation]:
        """Return all revocations that are kept, oldest first."""
        ...

    def forget_revocations(self, where: StepFilter) -> None:
        """Forget revocations that name a purged user or session, and hide no step any more."""
        ...


class StepStore(AgentStepStore, RunStore, IndexedStore, StoreAdmin, RevocationStore, Protocol):
    """All of it: what a back-end implements."""

    def iter_steps(self, where: StepFilter) -> Iterator[AgentStep]:
        """Yield all matching steps by row, in pages, without holding a transaction open."""
        ...

    def clear(self) -> None:
        """Delete every step of this namespace: a new epoch."""
        ...

    def close(self) -> None:
        """Release everything; the store cannot be used afterwards. Closing twice is harmless."""
        ...
