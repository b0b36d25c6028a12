"""Every contract between the parts: Embedder, Reranker, TokenCounter, StepStore, SessionStore.

The values that they exchange stand in records/store_values.py. A session points at one branch; a
branch is an append-only line of messages that knows its parent and the last sequence it shares with
it, so fork, retry and delete add one row and copy nothing. An AgentStep can be pinned to a message
it works towards: then it belongs to every session whose lineage reads that branch so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.filter_fields import StepKey
from hybridagi_steps.records.filters import StepFilter, StepHit
from hybridagi_steps.records.message import Step
from hybridagi_steps.records.provenance import Revocation
from hybridagi_steps.records.store_values import (
    Attempt,
    BranchPosition,
    Changes,
    FloatMatrix,
    Frontier,
    Hidden,
    MessagePlace,
    Metadata,
    PendingText,
    Position,
    Rows,
    RunSummary,
    SessionState,
    SessionSummary,
    StoreIdentity,
    TextRow,
    VectorRow,
)

Durability = Literal["normal", "full"]
"""`normal`: an acknowledged step survives kill -9. `full`: it survives a power loss, too."""
NEWEST = 2**62
"""A row beyond all others."""


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


class IndexedStore(Protocol):
    """What an index in memory follows: filters, and what is computed from steps.

    An append writes no derived data. Whoever searches asks for what is pending, computes and saves
    it, or keeps it when somebody else writes; two doing so at once is harmless. Readers never wait.
    """

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

        Rows up to what `frontier` called settled before are all there; above, more may appear.
        """
        ...

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
        The parent is the step named by parent_id, none when that is of another user or scope; else
        the previous one by (hop, row) that its user and scope have in the run.
        """
        ...

    def pending_vectors(
        self,
        limit: int,
        *,
        after: int = 0,
        through: int = NEWEST,
        known: Mapping[int, AgentStep | None] | None = None,
    ) -> list[tuple[int, AgentStep | None]]:
        """Return the next steps without an embedding, by row, within bounds as above.

        Steps that are `known`, by row as `pending_texts` told them, need not be read again.
        """
        ...

    def save_derived(
        self, texts: Sequence[TextRow], vectors: Sequence[VectorRow], *, model_id: str | None = None
    ) -> int:
        """Save words and embeddings in one transaction: one turn among the writers.

        Skipped are words of rows that are gone or whose parent is, and embeddings of rows that are
        gone or have one. Of rows that no `frontier` called settled before none may be given.

        Returns:
            How many windows went stale by that: a step they should show came after them.

        Raises:
            EmbedderMismatchError: `model_id` is not the embedder the store remembers; nothing was
                saved. Another process may have changed it while these were made.
        """
        ...

    def changes(self, since: Position, *, limit: int = 100_000) -> Changes:
        """Return what happened after `since`, oldest first, in one consistent view.

        At most `limit` texts and `limit` vectors; ask again from the position returned.
        When `since` is of another epoch the answer starts from nothing.
        """
        ...


@runtime_checkable
class ValuedStore(Protocol):
    """What a store has whose scores and metadata an index keeps in columns of its own."""

    def scored_rows(self, *, after: int, through: int) -> list[tuple[int, float]]:
        """Return the AgentSteps above one row and up to another that have a score of their own."""
        ...

    def metadata_values(self, *, after: int, through: int) -> Metadata:
        """Return what AgentSteps within bounds as above have as plain metadata."""
        ...

    def rescored(self, since: int, through: int) -> Mapping[int, float] | None:
        """Return the AgentSteps scored between two `Position.branch`, by row; None if unknown."""
        ...

    def rated_runs(self, least: float) -> list[str]:
        """Return the runs whose score, which may have changed, is at least this, ascending."""
        ...


@runtime_checkable
class CachedApart(Protocol):
    """What a store has besides whose index is cached on each machine that searches it."""

    def index_cache(self) -> Path | None:
        """Return the file of this machine; None where there is to be none."""
        ...

    def note_cache(self) -> None:
        """Let `caches_elsewhere` know of the file, before what it will hold is read."""
        ...

    def caches_elsewhere(self) -> list[str]:
        """Erase the files noted on this machine; return the others, which are noted no longer.

        Each is erased by the machine it lies on when that next reads the store.
        """
        ...


@runtime_checkable
class MessageIndex(Protocol):
    """What a store has besides that indexes messages of sessions; without it a search finds none.

    What a message tells holds words of its owner alone, in its window, too; of an excluded user are
    also those that any of several may have said. Its row is its own plus `MESSAGE_ROWS`; `changes`,
    `read` and what is pending are of both kinds, `frontier` is of the newest of each.
    """

    def hidden_messages(self) -> Hidden:
        """Return the rows of messages that recall leaves out."""
        ...

    def message_keys(
        self, names: Sequence[StepKey], *, after: int, limit: int
    ) -> tuple[Rows, dict[StepKey, list[str | None]]]:
        """Return the next messages above `after` with their keys, as `step_keys` does.

        `sessions` is a JSON list: the session that a message was written to, and those that it was
        forked from; `author` the user that the message, or the question it answers, names;
        `asked_by` whom that names where another run's message stands behind it.
        """
        ...

    def message_metadata(self, *, after: int, through: int) -> list[tuple[int, Mapping[str, Any]]]:
        """Return the messages within bounds as above that have metadata, each with it."""
        ...

    def message_rows(self, where: StepFilter) -> Rows:
        """Return the rows of messages that match, ascending."""
        ...

    def rows_of_messages(self, ids: Sequence[str]) -> dict[str, int]:
        """Return the rows of the messages with these ids; unknown ids are missing."""
        ...

    def message_places(
        self, rows: Sequence[int], session_id: str | None = None, user_id: str | None = None
    ) -> dict[int, MessagePlace]:
        """Return where each is read: that session first; for a user, no fork that is another's."""
        ...

    def message_line(
        self, row: int, session_id: str, *, before: int, after: int
    ) -> list[tuple[int, Any]]:
        """Return the messages around one as steps (`messages.message_steps`), with their rows."""
        ...


class StepStore(IndexedStore, Protocol):
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

    def users(self, where: StepFilter, *, limit: int) -> list[str]:
        """Return users that the steps name which match, each once, at most `limit`."""
        ...

    def read(self, rows: Sequence[int]) -> dict[int, AgentStep]:
        """Return the steps in these rows; rows that are gone are missing."""
        ...

    def children(self, ids: Sequence[str]) -> list[AgentStep]:
        """Return the steps whose parent_id is one of `ids`, by row."""
        ...

    def iter_steps(self, where: StepFilter) -> Iterator[AgentStep]:
        """Yield all matching steps by row, in pages, without holding a transaction open."""
        ...

    def runs(
        self, *, limit: int, offset: int = 0, where: StepFilter | None = None
    ) -> list[RunSummary]:
        """Return runs with a step that matches, newest first; user and scope as in `Listing`."""
        ...

    def score_run(self, run_id: str, value: float, feedback: str | None) -> None:
        """Set a run's score; steps without a score of their own show it from then on.

        Raises:
            UnknownRunError: No step carries this run id.
            InvalidStepError: `value` is NaN or infinite.
        """
        ...

    def score_steps(self, scores: Mapping[str, float]) -> None:
        """Set scores of steps where they are, all or none; UnknownStepError: an id is of none."""
        ...

    def run_scores(self, run_ids: Sequence[str]) -> dict[str, tuple[float, str | None]]:
        """Return runs' scores, with what was said of each in words; unscored ones are missing."""
        ...

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

    def sync(self) -> None:
        """Make durable what was saved of words and embeddings, which waits for no disk by itself.

        To be called before something outside the store is kept that relies on it.
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

    def clear(self) -> None:
        """Delete every step of this namespace: a new epoch."""
        ...

    def close(self) -> None:
        """Release everything; the store cannot be used afterwards. Closing twice is harmless."""
        ...

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


@runtime_checkable
class SessionFollower(Protocol):
    """What a store has besides that tells in one question what is new of a session.

    Without it a reader asks for all of a session whenever it wants it.
    """

    def session_state(
        self,
        session_id: str,
        *,
        branch_id: int | None = None,
        after: int | None = None,
        users_after: int | None = None,
    ) -> SessionState:
        """Return where a session, or one of its branches, stands.

        Args:
            session_id: The session.
            branch_id: The branch; by default the one that the session points at.
            after: The messages that follow on this sequence are wanted; None for no messages.
            users_after: So are users of the AgentSteps pinned beyond this one; None for no users.

        Raises:
            UnknownSessionError: No such session.
            SequenceConflictError: The branch is not one of this session.
        """
        ...


class MessageTokenStore(Protocol):
    """Remembers how many tokens each message has, by the counter that said so."""

    def message_tokens(self, message_ids: Sequence[str], counter_id: str) -> dict[str, int]:
        """Return the counts known for these messages."""
        ...

    def save_message_tokens(self, counts: Mapping[str, int], counter_id: str) -> None:
        """Remember counts; messages that are gone are skipped."""
        ...


class SessionStore(MessageTokenStore, Protocol):
    """Keeps sessions: gap-free lines of messages, in branches that never lose anything.

    Whatever a session is asked for raises `UnknownSessionError` when it is not there, if not noted.
    """

    def commit(
        self,
        session_id: str,
        messages: Sequence[Step],
        agent_steps: Sequence[AgentStep] = (),
        *,
        after: Sequence[int] | None = None,
        branch_id: int | None = None,
        expect_last: int | BranchPosition | None = None,
        idempotency_key: str | None = None,
        user_id: str | None = None,
        keep_times: bool = False,
    ) -> list[Step]:
        """Add messages at the end with the next sequences, and their AgentSteps; all or none.

        An unknown session is created. With `branch_id` they go to that branch of the session, which
        need not be its current one. AgentSteps are pinned to the branch and to the sequence of the
        first message here, or of the next one when there is none; `after` says for each how many of
        these messages stand before its own. One that names no session gets this one. A key used
        before in this session returns what it stored then, and stores nothing: the same key must
        come with messages that say the same (ids and times may differ).
        With `user_id` the session has to be this user's, or nobody's: else NotAllowedError. A
        session that is created is that user's, else the first's whom messages or AgentSteps name.
        With `keep_times`, also in `fork`, it was written when its newest message was said, not now.
        """
        ...

    def messages(
        self,
        session_id: str,
        start: int = 1,
        end: int | None = None,
        *,
        branch_id: int | None = None,
    ) -> list[Step]:
        """Return the messages from `start` to `end`, both inclusive, with this session's id.

        A range outside the session is empty.
        """
        ...

    def message_dicts(
        self,
        session_id: str,
        start: int = 1,
        end: int | None = None,
        *,
        branch_id: int | None = None,
    ) -> list[dict[str, Any]]:
        """Return the same messages as providers take them, without validating any."""
        ...

    def session_end(self, session_id: str, *, branch_id: int | None = None) -> BranchPosition:
        """Return where a session ends; sequence 0 when it is empty."""
        ...

    def pinned_steps(
        self, session_id: str, *, branch_id: int | None = None
    ) -> list[tuple[int, str]]:
        """Return (sequence, id) of the AgentSteps pinned to a session's line, in that order.

        Steps of the same sequence stand as they were stored. An unknown session has none.
        """
        ...

    def place_of(self, message_id: str) -> tuple[str, int] | None:
        """Return a session that reads this message, and its sequence; None when none does."""
        ...

    def sessions(
        self, *, limit: int, offset: int = 0, user_id: str | None = None, recorded: bool = False
    ) -> list[SessionSummary]:
        """Return sessions, or a user's, the last written first; `recorded`: of steps alone."""
        ...

    def session_owner(self, session_id: str) -> str | None:
        """Return the first user whom a commit named, None before; "": of several, none first."""
        ...

    def fork(
        self,
        session_id: str,
        sequence: int,
        new_session_id: str | None = None,
        *,
        user_id: str | None = None,
        keep_times: bool = False,
    ) -> str:
        """Start a session that shares 1 to `sequence`, of `user_id` or its owner; return its id."""
        ...

    def branch_at(self, session_id: str, sequence: int, reason: str = "retry") -> int:
        """Start a branch after `sequence` to write an attempt to; the session stays as it is."""
        ...

    def adopt(self, session_id: str, branch_id: int, *, expect_branch: int | None = None) -> None:
        """Let the session point at one of its branches from now on."""
        ...

    def hide_from(self, session_id: str, start: int) -> int:
        """Hide the messages from `start` on, in this session only; return how many."""
        ...

    def attempts(self, session_id: str) -> list[Attempt]:
        """Return all branches of a session, oldest first, abandoned ones too."""
        ...

    def delete_session(self, session_id: str, *, by: str | None = None) -> tuple[int, int]:
        """Delete a session with its attempts, and what no other session reads of it.

        Messages and AgentSteps that a fork still reads stay with the fork; where it is deleted `by`
        a user, those of others stay at no message. An unknown session is no error.

        Returns:
            How many messages and how many AgentSteps were deleted.
        """
        ...

    def rewrite_messages(self, changed: Mapping[str, Step]) -> int:
        """Put other messages in the place of some, by the ids of these; return how many there were.

        The place stays: session, branch and sequence are those of the message before. It is what
        erasing needs where another session reads on; nothing else changes a stored message.
        """
        ...


class StoreBackend(StepStore, SessionStore, Protocol):
    """All that a memory asks of the back-end that serves its address."""
