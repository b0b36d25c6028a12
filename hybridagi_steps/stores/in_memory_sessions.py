"""Sessions of the in-memory store: the same contract as sqlite/sessions.py, under one lock."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from operator import itemgetter
from typing import Any

from hybridagi_steps.errors import DuplicateStepError
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.message import Step, new_id
from hybridagi_steps.session_protocols import Attempt, BranchPosition, SessionSummary
from hybridagi_steps.stores.body import (
    Written,
    decode_message,
    encode_body,
    encode_message,
    message_dicts,
    preview,
)
from hybridagi_steps.stores.checksums import as_bytes
from hybridagi_steps.stores.commits import (
    check_end,
    check_names,
    check_repeated,
    in_use,
    placed,
    refuse_twice,
    stale_pointer,
    with_session,
)
from hybridagi_steps.stores.in_memory_branches import (
    OPEN_END,
    Branch,
    Branches,
    KeptMessage,
    Session,
    UsedKey,
)
from hybridagi_steps.stores.in_memory_state import State


class InMemorySessions(ABC):
    """Implements `SessionBackend`; see session_protocols.py."""

    @abstractmethod
    def _opened(self) -> AbstractContextManager[State]:
        """Give the state while nobody else has it."""

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
    ) -> list[Step]:
        """Add messages and AgentSteps at the end, all or none."""
        check_names(session_id, messages, idempotency_key)
        written = [encode_message(message) for message in messages]
        steps = [with_session(step, session_id) for step in agent_steps]
        encoded = [(id_text(step.id), encode_body(step), step) for step in steps]
        refuse_twice([message.id for message in messages])
        refuse_twice([step_id for step_id, _, _ in encoded])
        places = [0] * len(steps) if after is None else after
        with self._opened() as state:
            held = state.sessions
            known = branch_id is not None or session_id in held.sessions
            branch = held.branch_of(session_id, branch_id) if known else None
            used = held.keys.get((session_id, idempotency_key or ""))
            if used is not None:
                return _repeated(held, session_id, idempotency_key or "", used, written)
            end = branch.end if branch else BranchPosition(held.last_branch + 1, 0)
            check_end(session_id, end, expect_last)
            _refuse_known(state, [m.id for m in messages], [step_id for step_id, _, _ in encoded])
            branch = branch or held.create(session_id).branch
            numbered = enumerate(zip(messages, written, strict=True), end.sequence + 1)
            for number, (message, parts) in numbered:
                kept = KeptMessage(number, message.id, parts)
                branch.messages.append(kept)
                held.messages[kept.id] = kept
            for entry, place in zip(encoded, places, strict=True):
                state.add_step(*entry, pin=BranchPosition(branch.id, end.sequence + 1 + place))
            if idempotency_key is not None:
                used = UsedKey(branch, end.sequence + 1, branch.end.sequence)
                held.keys[session_id, idempotency_key] = used
            held.note_write(held.sessions[session_id])
        return placed(messages, session_id, end.sequence)

    def messages(
        self,
        session_id: str,
        start: int = 1,
        end: int | None = None,
        *,
        branch_id: int | None = None,
    ) -> list[Step]:
        """Return the messages from `start` to `end`, with this session's id."""
        found = self._rows(session_id, start, end, branch_id)
        return [decode_message(row.written, row.id, session_id, row.sequence) for row in found]

    def message_dicts(
        self,
        session_id: str,
        start: int = 1,
        end: int | None = None,
        *,
        branch_id: int | None = None,
    ) -> list[dict[str, Any]]:
        """Return the same messages as providers take them."""
        found = self._rows(session_id, start, end, branch_id)
        return message_dicts(as_bytes(row.written.said) for row in found)

    def session_end(self, session_id: str, *, branch_id: int | None = None) -> BranchPosition:
        """Return where a session ends."""
        with self._opened() as state:
            return state.sessions.branch_of(session_id, branch_id).end

    def pinned_steps(
        self, session_id: str, *, branch_id: int | None = None
    ) -> list[tuple[int, str]]:
        """Return the AgentSteps pinned to a session's line."""
        with self._opened() as state:
            if session_id not in state.sessions.sessions:
                return []
            chain = state.sessions.branch_of(session_id, branch_id).chain()
            line = {branch.id: last for branch, last in chain}
            found = [
                (kept.pin.sequence, id_text(kept.step.id))
                for kept in state.steps.values()
                if kept.pin is not None and kept.pin.sequence <= line.get(kept.pin.branch_id, 0)
            ]
        return sorted(found, key=itemgetter(0))

    def place_of(self, message_id: str) -> tuple[str, int] | None:
        """Return a session that reads this message, and its sequence."""
        with self._opened() as state:
            message = state.sessions.messages.get(message_id)
            if message is None:
                return None
            place = message.sequence
            readers = [
                session
                for session in state.sessions.sessions.values()
                if message in session.branch.rows(place, place)
            ]
            oldest = min(readers, key=lambda session: session.created_at, default=None)
            return None if oldest is None else (oldest.id, place)

    def sessions(self, *, limit: int, offset: int = 0) -> list[SessionSummary]:
        """Return sessions, the one written last first."""
        with self._opened() as state:
            held = state.sessions.sessions.values()
            newest = sorted(held, key=lambda session: session.written, reverse=True)
            return [_summary(session) for session in newest[offset : offset + limit]]

    def fork(self, session_id: str, sequence: int, new_session_id: str | None = None) -> str:
        """Start a session that shares messages 1 to `sequence` with this one."""
        made = str(new_id()) if new_session_id is None else new_session_id
        check_names(made, [], None)
        with self._opened() as state:
            asked = state.sessions.branch_of(session_id, None)
            if made in state.sessions.sessions:
                raise in_use(made)
            state.sessions.create(made, (asked, sequence), session_id)
        return made

    def branch_at(self, session_id: str, sequence: int, reason: str = "retry") -> int:
        """Start a branch after `sequence`; the session stays as it is."""
        with self._opened() as state:
            asked = state.sessions.branch_of(session_id, None)
            return state.sessions.new_branch(
                session_id, asked, sequence, reason=reason, pointed=False
            ).id

    def adopt(self, session_id: str, branch_id: int, *, expect_branch: int | None = None) -> None:
        """Let the session point at one of its branches."""
        with self._opened() as state:
            tip = state.sessions.branch_of(session_id, None)
            if expect_branch is not None and tip.id != expect_branch:
                raise stale_pointer(session_id, tip.id, expect_branch)
            state.sessions.point(session_id, state.sessions.branch_of(session_id, branch_id))

    def hide_from(self, session_id: str, start: int) -> int:
        """Hide the messages from `start` on, in this session only."""
        with self._opened() as state:
            held = state.sessions
            tip = held.branch_of(session_id, None)
            kept = max(start, 1) - 1
            hidden = tip.end.sequence - kept
            if hidden > 0:
                branch = held.new_branch(session_id, tip, kept, reason="delete", pointed=False)
                held.point(session_id, branch)
        return max(hidden, 0)

    def attempts(self, session_id: str) -> list[Attempt]:
        """Return all branches of a session, oldest first."""
        with self._opened() as state:
            tip = state.sessions.branch_of(session_id, None)
            return [
                Attempt(
                    branch.id,
                    branch.fork_sequence,
                    len(branch.messages),
                    branch.reason,
                    branch.created_at,
                    current=branch is tip,
                )
                for branch in state.sessions.branches.values()
                if branch.session_id == session_id
            ]

    def delete_session(self, session_id: str) -> tuple[int, int]:
        """Delete a session with its attempts, and what no other session reads of it."""
        with self._opened() as state:
            own = state.sessions.remove(session_id)
            gone = state.sweep(own) if own else (0, 0)
            for branch in own:
                branch.session_id = ""
            return gone

    def rewrite_messages(self, changed: Mapping[str, Step]) -> int:
        """Put other messages in the place of some."""
        written = {old: (message.id, encode_message(message)) for old, message in changed.items()}
        with self._opened() as state:
            return state.sessions.rewrite(written)

    def sweep(self) -> tuple[int, int]:
        """Delete what no session and no attempt under way reads; return messages and steps."""
        with self._opened() as state:
            return state.sweep()

    def message_tokens(self, message_ids: Sequence[str], counter_id: str) -> dict[str, int]:
        """Return the counts known for these messages."""
        with self._opened() as state:
            tokens = state.sessions.tokens
            return {
                message_id: tokens[message_id, counter_id]
                for message_id in message_ids
                if (message_id, counter_id) in tokens
            }

    def save_message_tokens(self, counts: Mapping[str, int], counter_id: str) -> None:
        """Remember counts; messages that are gone are skipped."""
        with self._opened() as state:
            for message_id, count in counts.items():
                if message_id in state.sessions.messages:
                    state.sessions.tokens[message_id, counter_id] = count

    def _rows(
        self, session_id: str, start: int, end: int | None, branch_id: int | None
    ) -> list[KeptMessage]:
        with self._opened() as state:
            branch = state.sessions.branch_of(session_id, branch_id)
            return list(branch.rows(max(start, 1), OPEN_END if end is None else end))


def _refuse_known(state: State, message_ids: Sequence[str], step_ids: Sequence[str]) -> None:
    for message_id in message_ids:
        if message_id in state.sessions.messages:
            raise DuplicateStepError(message_id)
    for step_id in step_ids:
        if step_id in state.rows:
            raise DuplicateStepError(step_id)


def _repeated(
    held: Branches, session_id: str, key: str, used: UsedKey, given: Sequence[Written]
) -> list[Step]:
    """Return what an earlier commit stored under a key."""
    stored = [kept for kept in used.branch.messages if used.first <= kept.sequence <= used.last]
    whole = len(stored) == used.last - used.first + 1
    check_repeated(
        session_id,
        key,
        [kept.written for kept in stored],
        given,
        visible=whole and _is_read(held, session_id, used),
    )
    return [decode_message(kept.written, kept.id, session_id, kept.sequence) for kept in stored]


def _is_read(held: Branches, session_id: str, used: UsedKey) -> bool:
    """Whether a session has what a commit stored, or it is an attempt under way."""
    if used.last < used.first or not used.branch.pointed:
        return True
    owners = held.sessions[session_id].branch.chain(used.last, used.last)
    return bool(owners) and owners[0][0] is used.branch


def _summary(session: Session) -> SessionSummary:
    return SessionSummary(
        session_id=session.id,
        branch_id=session.branch.id,
        messages=session.branch.end.sequence,
        first_message=_first_message(session.branch),
        created_at=session.created_at,
        updated_at=session.updated_at,
        forked_from=session.forked_from or None,
        forked_at=session.forked_at,
    )


def _first_message(branch: Branch) -> str:
    for kept in branch.rows(1, 20):
        if (shown := preview(kept.written)) is not None:
            return shown
    return ""
