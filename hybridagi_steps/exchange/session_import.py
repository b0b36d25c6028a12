"""The messages of imported conversations into sessions, each unit together with its steps.

A unit is a user's message, or an assistant's with the results of its calls, and the AgentSteps that
are pinned to it, so that a fork sees those of its own messages and no later ones. Units of one
session are stored in one commit. Messages that a session holds already are left alone. A
conversation that begins like another session becomes a fork of it and shares what they have in
common.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from hybridagi_steps.errors import UnknownSessionError
from hybridagi_steps.exchange.records import Parsed
from hybridagi_steps.message_admission import admitted_messages
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.message import Step
from hybridagi_steps.session_protocols import SessionBackend


class Sessions(Protocol):
    """What an import asks of a memory's sessions; SessionRepository has it."""

    store: SessionBackend
    memory: Any

    def commit_now(
        self,
        session_id: str,
        messages: Sequence[Step],
        agent_steps: Sequence[AgentStep] = (),
        *,
        after: Sequence[int] | None = None,
    ) -> list[Step]:
        """Store messages and AgentSteps, all or none."""
        ...


class Unit(NamedTuple):
    """Messages that belong together, and the steps that are pinned to the first of them."""

    line: int
    messages: Sequence[Step]
    records: list[Parsed]


class _Line(NamedTuple):
    """The session that is being written."""

    session_id: str
    held: set[str]
    """Ids of its messages."""
    origin: list[str]
    """Ids of the messages of the session that it may fork, in order."""


class SessionImport:
    """Writes the messages of one conversation after the other."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._line: _Line | None = None
        self._shared = 0

    def commit(self, session_id: str, forks: str | None, units: Sequence[Unit]) -> list[Parsed]:
        """Store units, leaving out messages that are there.

        Returns:
            The steps of units without a new message, which were not stored.

        Raises:
            InvalidStepError: A message or step that cannot be kept, or whose id is taken; nothing
                was stored.
            MessageError: A message that is none; nothing was stored.
        """
        line = self._opened(session_id, forks)
        self._line = None  # until all went well
        messages: list[Step] = []
        steps: list[AgentStep] = []
        after: list[int] = []
        rest: list[Parsed] = []
        for unit in units:
            fresh = self._fresh(line, unit.messages, begun=bool(messages or line.held))
            if fresh:
                steps += [record.step for record in unit.records]
                after += [len(messages)] * len(unit.records)
                messages += fresh
            else:
                rest += unit.records
        if messages:
            redact = getattr(self._sessions.memory, "redact", None)
            kept = admitted_messages(messages, session_id, redact)
            if self._shared and forks is not None and not line.held:
                self._sessions.store.fork(forks, self._shared, session_id)
            self._sessions.commit_now(session_id, kept, steps, after=after)
            line.held.update(message.id for message in kept)
        self._line = line
        return rest

    def _fresh(self, line: _Line, messages: Sequence[Step], *, begun: bool) -> list[Step]:
        """Return the messages that are new; before the first one, some may be shared."""
        fresh = [message for message in messages if message.id not in line.held]
        while fresh and not begun and fresh[0].id in line.origin[self._shared :][:1]:
            self._shared += 1
            fresh = fresh[1:]
        return fresh

    def begin(self, session_id: str, forks: str | None, shares: int) -> None:
        """Make a session that is not there yet, as a fork where it is one.

        Raises:
            UnknownSessionError: The session that it forks is not there.
            UnknownSequenceError: That one is shorter.
        """
        try:
            self._sessions.store.session_end(session_id)
        except UnknownSessionError:
            if forks is None:
                self._sessions.commit_now(session_id, [])
            else:
                self._sessions.store.fork(forks, shares, session_id)
        self._line = None

    def _opened(self, session_id: str, forks: str | None) -> _Line:
        """Return what is known of a session; of one line at a time."""
        if self._line is None or self._line.session_id != session_id:
            held = self._ids(session_id)
            origin = self._ids(forks) if forks is not None and not held else []
            self._line, self._shared = _Line(session_id, set(held), origin), 0
        return self._line

    def _ids(self, session_id: str) -> list[str]:
        try:
            return [message.id for message in self._sessions.store.messages(session_id)]
        except UnknownSessionError:
            return []
