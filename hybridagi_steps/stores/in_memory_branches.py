"""Sessions and branches in plain dictionaries: the readable twin of sqlite/lineage.py.

A branch keeps its own messages in a list, so sequence n stands at n - fork point - 1. How far each
branch is read is worked out anew when a pointer has moved. No lock; the store has one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

from hybridagi_steps.errors import (
    SequenceConflictError,
    UnknownSequenceError,
    UnknownSessionError,
)
from hybridagi_steps.records.message import utc_now
from hybridagi_steps.session_protocols import BranchPosition
from hybridagi_steps.stores.body import Written
from hybridagi_steps.stores.commits import ATTEMPT_HOURS

OPEN_END = 2**63 - 1
"""The last sequence of a range that still grows."""


class KeptMessage(NamedTuple):
    """One stored message."""

    sequence: int
    id: str
    written: Written


@dataclass(eq=False)
class Branch:
    """An append-only line of messages that continues a parent's."""

    id: int
    session_id: str
    parent: Branch | None
    fork_sequence: int
    reason: str
    created_at: str
    pointed: bool
    messages: list[KeptMessage] = field(default_factory=list[KeptMessage])

    @property
    def end(self) -> BranchPosition:
        """Where it ends."""
        return BranchPosition(self.id, self.fork_sequence + len(self.messages))

    def chain(self, start: int = 1, end: int = OPEN_END) -> list[tuple[Branch, int]]:
        """Return the branches read between `start` and `end`, oldest first, each with its last."""
        found: list[tuple[Branch, int]] = []
        branch, last = self, end
        while True:
            if branch.fork_sequence < last:
                found.append((branch, last))
            if branch.parent is None or branch.fork_sequence < start:
                return found[::-1]
            last = min(last, branch.fork_sequence)
            branch = branch.parent

    def rows(self, start: int = 1, end: int = OPEN_END) -> Iterator[KeptMessage]:
        """Yield the messages from `start` to `end`, both inclusive, in order."""
        for branch, last in self.chain(start, end):
            first = max(start - branch.fork_sequence - 1, 0)
            yield from branch.messages[first : last - branch.fork_sequence]


@dataclass
class Session:
    """A pointer to a branch."""

    id: str
    branch: Branch
    created_at: str
    updated_at: str
    forked_from: str | None = None
    forked_at: int | None = None
    written: int = 0
    """Grows with every write to any session, as no clock does."""


class UsedKey(NamedTuple):
    """What an idempotency key stored."""

    branch: Branch
    first: int
    last: int


@dataclass
class Branches:
    """All sessions of a store."""

    last_branch: int = 0
    last_write: int = 0
    branches: dict[int, Branch] = field(default_factory=dict[int, Branch])
    sessions: dict[str, Session] = field(default_factory=dict[str, Session])
    keys: dict[tuple[str, str], UsedKey] = field(default_factory=dict[tuple[str, str], UsedKey])
    messages: dict[str, KeptMessage] = field(default_factory=dict[str, KeptMessage])
    tokens: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    moved: int = 0
    """How often what sessions read may have become another."""
    _reach: dict[int, int] | None = None

    def branch_of(self, session_id: str, branch_id: int | None) -> Branch:
        """Return the branch that is asked: the session's current one, or another of its own."""
        if (session := self.sessions.get(session_id)) is None:
            raise UnknownSessionError(session_id)
        if branch_id is None:
            return session.branch
        branch = self.branches.get(branch_id)
        if branch is None or branch.session_id != session_id:
            raise SequenceConflictError(
                f"branch {branch_id} is not one of session {session_id!r}; attempts() lists them."
            )
        return branch

    def new_branch(
        self, session_id: str, asked: Branch | None, shared: int, *, reason: str, pointed: bool
    ) -> Branch:
        """Add a branch that continues after `shared` messages, as a child of their last's owner."""
        parent = None
        if asked is not None:
            if not 0 <= shared <= asked.end.sequence:
                raise UnknownSequenceError(asked.session_id, shared, asked.end.sequence)
            if shared:
                [(parent, _)] = asked.chain(shared, shared)
        self.last_branch += 1
        now = utc_now().isoformat()
        branch = Branch(self.last_branch, session_id, parent, shared, reason, now, pointed)
        self.branches[branch.id] = branch
        self._move()
        return branch

    def create(
        self,
        session_id: str,
        shares: tuple[Branch, int] | None = None,
        forked_from: str | None = None,
    ) -> Session:
        """Add a session, empty or sharing messages with another."""
        asked, shared = shares or (None, 0)
        reason = "start" if forked_from is None else "fork"
        branch = self.new_branch(session_id, asked, shared, reason=reason, pointed=True)
        now, forked_at = utc_now().isoformat(), None if forked_from is None else shared
        session = Session(session_id, branch, now, now, forked_from, forked_at)
        self.sessions[session_id] = session
        self.note_write(session)
        self._move()
        return session

    def note_write(self, session: Session) -> None:
        """Note that a session was written now, after all others."""
        session.updated_at = utc_now().isoformat()
        self.last_write += 1
        session.written = self.last_write

    def point(self, session_id: str, branch: Branch) -> None:
        """Let a session point at a branch."""
        session = self.sessions[session_id]
        session.branch, branch.pointed = branch, True
        self.note_write(session)
        self._move()

    def _move(self) -> None:
        self.moved += 1
        self._reach = None

    def reach(self) -> dict[int, int]:
        """Return, for each branch that is read, the last sequence that any session reads."""
        if self._reach is None:
            self._reach = read_through(session.branch for session in self.sessions.values())
        return self._reach

    def hides(self, pin: BranchPosition | None) -> bool:
        """Tell whether a step at this position stands where no session reads."""
        return pin is not None and pin.sequence > self.reach().get(pin.branch_id, 0)

    def lineage(self, session_id: str) -> dict[int, int]:
        """Return the last sequence a session reads of each of its branches; none when unknown."""
        if (session := self.sessions.get(session_id)) is None:
            return {}
        return {branch.id: last for branch, last in session.branch.chain()}

    def remove(self, session_id: str) -> list[Branch]:
        """Take a session and its keys away; return its branches, which nobody is at any more."""
        if self.sessions.pop(session_id, None) is None:
            return []
        for key in [key for key in self.keys if key[0] == session_id]:
            del self.keys[key]
        for session in self.sessions.values():
            if session.forked_from == session_id:
                session.forked_from = ""
        own = [b for b in self.branches.values() if b.session_id in (session_id, "")]
        for branch in own:
            branch.pointed = True
        self._move()
        return own

    def rewrite(self, changed: Mapping[str, tuple[str, Written]]) -> int:
        """Put other messages, each an id and what is written, in the place of some."""
        there = 0
        for branch in self.branches.values():
            for place, old in enumerate(branch.messages):
                if old.id not in changed:
                    continue
                new_id, written = changed[old.id]
                kept = branch.messages[place] = KeptMessage(old.sequence, new_id, written)
                del self.messages[old.id]
                self.messages[new_id] = kept
                self._forget_tokens(old.id)
                there += 1
        return there

    def _forget_tokens(self, message_id: str) -> None:
        for key in [key for key in self.tokens if key[0] == message_id]:
            del self.tokens[key]

    def sweep(self, only: list[Branch] | None = None) -> tuple[int, dict[int, int]]:
        """Delete messages that no session and no attempt under way reads.

        Returns:
            How many there were; and for each branch looked at, the last sequence that is kept.
        """
        since = (utc_now() - timedelta(hours=ATTEMPT_HOURS)).isoformat()
        tips = [session.branch for session in self.sessions.values()]
        under_way = [b for b in self.branches.values() if not b.pointed and b.created_at >= since]
        kept = read_through(iter([*tips, *under_way]))
        asked = None if only is None else {branch.id for branch in only}
        looked_at: dict[int, int] = {}
        for branch in sorted(self.branches.values(), key=lambda branch: branch.id):
            if asked is None or branch.id in asked or _hangs_in_the_air(branch, looked_at):
                looked_at[branch.id] = kept.get(branch.id, 0)
        gone = 0
        for branch_id, last in looked_at.items():
            branch = self.branches[branch_id]
            dropped = branch.messages[max(last - branch.fork_sequence, 0) :]
            del branch.messages[len(branch.messages) - len(dropped) :]
            gone += len(dropped)
            for message in dropped:
                del self.messages[message.id]
                self._forget_tokens(message.id)
            if last == 0:
                del self.branches[branch_id]
        self._move()
        return gone, looked_at


def _hangs_in_the_air(branch: Branch, kept: dict[int, int]) -> bool:
    """Tell whether a branch forks from what is being deleted; then nobody reads it."""
    parent = branch.parent
    return parent is not None and kept.get(parent.id, branch.fork_sequence) < branch.fork_sequence


def read_through(roots: Iterator[Branch]) -> dict[int, int]:
    """Return how far each branch is read when these are read to their ends."""
    reach: dict[int, int] = {}
    for root in roots:
        for branch, last in root.chain():
            reach[branch.id] = max(reach.get(branch.id, 0), last)
    return reach
