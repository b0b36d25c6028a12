"""Values that a store and its users exchange: what is derived from steps, positions, listings.

Rows are a store's own integer keys: they grow, are never reused, and mean nothing outside one
store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from json import dumps
from typing import Any, NamedTuple
from uuid import UUID, uuid5

import numpy as np
import numpy.typing as npt

from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.filters import EVERY_SCOPE
from hybridagi_steps.records.message import Step

FloatMatrix = npt.NDArray[np.float32]
"""Vectors as rows, shape (n, d)."""
FloatVector = npt.NDArray[np.float32]
"""One vector or one score per row."""
ShortVector = npt.NDArray[np.int16]
"""One vector in whole numbers."""
Rows = npt.NDArray[np.int64]
"""Row numbers of a store."""
RowMetadata = list[tuple[int, Mapping[str, Any]]]
"""Rows with the metadata of each, those that have any."""
Metadata = RowMetadata | Mapping[str, tuple[Rows, npt.NDArray[np.intp], Sequence[Any]]]
"""The same, or of each key the rows that have it, ascending, where its value is, and the values."""
ABANDONED = "abandoned"
"""The scope that steps on branches show in which no session reads."""
REVOKED = "revoked"
"""The scope that revoked steps show."""
UNREVOKED = "* but revoked"
"""The scope that shows all but revoked steps: what `*` is to whoever recalls."""
QUESTIONS = "consent"
"""The scope of questions whether a tool may run, in the line of a session."""
CALL_STEP = "call_step_id"
"""The key in a question's metadata of the AgentStep that will tell what its call gave."""
RULES, DENIALS = "consent_rule", "consent_denial"
"""The scopes of rules that allow a tool, in the line of a session; that deny one, beside it."""
CLOSING = "closing"
"""The scope of the Action that ends a ReAct agent's loop: no recall shows it."""
DETAILS = "session_details"
"""The scope of the steps that keep what people call sessions, and what programs note of them."""
PROFILES, USER_QUESTIONS = "user_profile", "user_question"
OWN_SCOPES = frozenset({QUESTIONS, RULES, DENIALS, DETAILS, PROFILES, USER_QUESTIONS})
"""The scopes of what the library keeps as steps for itself: nobody's work, and no example of it."""
_DETAILS = UUID("2b0f5a0e-6f0b-4c55-9a35-8f3c1f1b7f42")
_DENIED = UUID("8d5c2e1a-40f7-5b93-a6de-3c9b7f10e258")
_ANSWERS = UUID("2f4a7c1e-6d0b-5b8e-9c37-8f1d5e2a4b60")
MESSAGE_ROWS = 2**40
"""Rows from here on are messages of sessions: this plus the row that the message itself has."""
SEVERAL_USERS = "(several users)"
"""Who a message is said to be of that any of several users may have said."""


def owner(of_run: Set[str], of_sessions: Set[str]) -> str | Set[str] | None:
    """Return whose a message is: one user's, of one of several, or nobody's.

    Users of the steps of its run count, else those of its session and of what that was forked from.
    """
    known = of_run if len(of_run) == 1 else of_sessions
    users = known if len(known) == 1 else of_run | of_sessions
    return users if len(users) > 1 else next(iter(users), None)


def details_id(session_id: str) -> str:
    """Return the id of the step that keeps a session's title, so that who erases one finds it."""
    return str(uuid5(_DETAILS, session_id))


def tool_id(tool: str) -> str:
    """Return what the rules that deny a tool name it by, whatever redaction makes of its name."""
    return str(uuid5(_DENIED, tool))


def denial_id(tool: str, session_id: str | None, user_id: str | None) -> str:
    """Return the id of the rule that denies a tool, by its `tool_id`, in a session, to a user."""
    return str(uuid5(UUID(tool), dumps([session_id, user_id])))


def answer_ids(question: AgentStep) -> tuple[UUID, UUID]:
    """Return the id of the answer about a call; then the one that older files have it under."""
    call = str((question.metadata or {})[CALL_STEP])
    return uuid5(_ANSWERS, call), uuid5(_ANSWERS, id_text(question.id))


def line_of(step: AgentStep) -> str | None:
    """Return the session in whose line a step stands, unless it stands beside it."""
    return None if step.scope == DENIALS else step.session_id


def among(rows: Rows, known: Rows) -> npt.NDArray[np.bool_]:
    """Return which of `rows` stand in `known`, which ascends."""
    if not len(known):
        return np.zeros(len(rows), np.bool_)
    return known[np.minimum(np.searchsorted(known, rows), len(known) - 1)] == rows


def distinct(numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return each number once, ascending. np.unique loads masked arrays first, all of them."""
    ordered = np.sort(numbers)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]


def without(rows: Rows, gone: Rows) -> Rows:
    """Return those of `rows`, which ascend, that are not among `gone`."""
    return np.delete(rows, np.searchsorted(rows, gone[among(gone, rows)]))


class TextRow(NamedTuple):
    """The words of a step, ready for the lexical index."""

    row: int
    parent_row: int | None
    tokens: str
    """Stems of the window text, one blank between them, a tab between what it shows of the parent
    and the step's own; on a second line those that only the whole text has; on a third what counts
    of a spoken turn."""
    text_hash: int
    """Of the whole text."""
    purpose_hash: int
    """Of the purpose; 0 when there is none. Of what it answers where that is a row of its own, as
    `step_identity.answer_to` makes it."""
    scoped: bool
    """Whether the step belongs to a trial run (`scope` is set); ignored on save."""


class VectorRow(NamedTuple):
    """The embedding of a step; vector None: the embedder gave nothing usable."""

    row: int
    text_hash: int
    vector: FloatVector | ShortVector | None
    scoped: bool
    """As in TextRow; ignored on save."""


class StemCounts(NamedTuple):
    """What the weights of words depend on, of the user's own history: no trial runs."""

    documents: int
    words: int
    """Of all windows together."""
    own_words: int
    """Of all steps' own texts together."""
    holding: dict[str, int]
    """How many documents hold each stem asked for."""


class PendingText(NamedTuple):
    """A step or message whose words are not indexed yet, with the parent its window shows."""

    row: int
    step: AgentStep | None
    """The step, or what a message tells; None of a message that tells nothing."""
    parent_row: int | None
    parent: AgentStep | None
    asked: AgentStep | None = None
    """What it answers: the call of a program, a question, a call of tools."""
    shown: AgentStep | None = None
    """The stored step that a message shows: both say the same."""
    shown_in: AgentStep | None = None
    """The call that it stands in."""


class Position(NamedTuple):
    """How far a reader has followed a store. A new epoch means: start again from nothing."""

    epoch: int
    text: int
    vector: int
    tombstone: int
    branch: int
    """How often branches began or ceased to be read, steps were revoked, reinstated or scored: what
    is hidden, and what is well scored, may be others since."""

    def may_be_past_of(self, now: Position) -> bool:
        """Tell whether a store that is at `now` may have been here."""
        ahead = any(old > new for old, new in zip(self[1:], now[1:], strict=True))
        return now.epoch == self.epoch and not ahead


class Unsettled(NamedTuple):
    """Where writers side by side have not all committed: rows may appear below the newest."""

    row: int
    """Up to here no row of a step appears any more."""
    message_row: int
    """As row, of a message."""
    beyond: int
    """How many rows above these there are already."""


class Frontier(NamedTuple):
    """How far a store has come: while it is the same, nothing was stored, derived or removed."""

    position: Position
    row: int
    """The newest row of a step."""
    message_row: int = 0
    """The newest row of a message, from `MESSAGE_ROWS` on; 0 of a store that indexes none."""
    unsettled: Unsettled | None = None
    """None: what is stored later has higher rows than these."""

    @property
    def settled(self) -> tuple[int, int]:
        """The rows of a step and of a message below which none appears any more."""
        return self[1:3] if self.unsettled is None else self.unsettled[:2]


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
        if scope is None and len(self.abandoned):
            return distinct(np.concatenate([self.abandoned, self.revoked]))
        return self.revoked[:0] if scope in (EVERY_SCOPE, REVOKED) else self.revoked


class MessagePlace(NamedTuple):
    """Where a message is read."""

    session_id: str
    sequence: int


class StoreIdentity(NamedTuple):
    """What a store says about itself and its embeddings."""

    store_id: str
    embedder: str | None
    dimension: int | None


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
    status: str = ""
    """completed, failed, cancelled, paused (it waits for an answer), or interrupted: no end is
    stored, for it was cut off or goes on in another process. A memory says running of what is in
    flight in this one, and superseded of a paused run that a later one took up or passed over."""
    title: str = ""
    """What its first step is called and was asked, in a line; stores leave it out."""


class BranchPosition(NamedTuple):
    """Where a line of messages ends.

    Unlike a bare sequence it tells "delete two, append two" apart.
    """

    branch_id: int
    sequence: int


class SessionState(NamedTuple):
    """Where a session stands at one moment, and what is new of it."""

    end: BranchPosition
    erasures: tuple[int, int, int]
    """Another after every erasure, of whichever process."""
    users: frozenset[str]
    """Users that AgentSteps name which are pinned to this branch beyond a sequence: the first and
    the last by name."""
    messages: list[Step]
    """Those that follow on a sequence, as far as this branch has them itself."""


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """One session."""

    session_id: str
    branch_id: int
    """The branch it points at."""
    messages: int
    """How many messages it has."""
    first_message: str
    """Beginning of its first user message."""
    created_at: str
    updated_at: str
    forked_from: str | None = None  # also when that session is deleted
    """The session it was forked from."""
    forked_at: int | None = None
    """The last sequence they share."""
    user_id: str | None = None
    """Whose it is; None: nobody was named when it began."""
    runs: int | None = None
    """Of one that was only recorded, and has no messages and no branch: how many runs name it. Of
    others they are not counted."""
    title: str | None = None
    """What people call it."""
    metadata: dict[str, Any] | None = field(default=None, hash=False)
    """What programs note of it."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One branch of a session."""

    branch_id: int
    forked_at: int
    """The last sequence it shares with the branch it came from."""
    messages: int
    """Messages of its own."""
    reason: str
    """start, fork, retry, edit or delete."""
    created_at: str
    current: bool
    """Whether the session points at it."""

    def __str__(self) -> str:
        here = ", current" if self.current else ""
        return (
            f"branch {self.branch_id}: {self.reason} after message {self.forked_at}, "
            f"{self.messages:,} of its own, {self.created_at[:16].replace('T', ' ')}{here}"
        )


class Erased(int):
    """How many messages and AgentSteps were erased; compares and counts as that number.

    Attributes:
        unreached: Files that may still hold some of it, which this memory could not open: a queue
            that is gone or held by others, a workspace's folder that is away, statistics of a
            PostgreSQL database that belongs to another user, caches of its index on other machines
            until these next read it; the database itself when somebody reads it: its old pages go
            with the next `purge` or `vacuum` after that.
        messages_left: How many messages match and stay, since others of their session do not, or
            a fork reads on.
        sessions_left: The sessions that read them: `purge({"session_id": …})` erases each as a
            whole, `revoke` with the same filter hides the messages that match.
    """

    unreached: tuple[str, ...]
    messages_left: int
    sessions_left: tuple[str, ...]

    def __new__(
        cls,
        count: int = 0,
        unreached: Iterable[str] = (),
        messages_left: int = 0,
        sessions_left: Iterable[str] = (),
    ) -> Erased:
        """Return a number with what was not reached, and what stays."""
        made = super().__new__(cls, count)
        made.unreached, made.messages_left = tuple(unreached), messages_left
        made.sessions_left = tuple(sessions_left)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return Erased, (int(self), self.unreached, self.messages_left, self.sessions_left)

    def but(self, unreached: Iterable[str]) -> Erased:
        """Return the same with further places that were not reached."""
        places = (*self.unreached, *unreached)
        return Erased(int(self), places, self.messages_left, self.sessions_left)


class Level(NamedTuple):
    """Rows that hold all stems of one of some groups, and stand in no level before."""

    groups: Sequence[Sequence[str]]
    one_by_one: bool = False
    """Whether those of the first group come first; a row that is in several comes several times."""
    newest: int | None = None
    """Only of so many newest rows: some may then hold longer words that have the stems in them."""
