"""The messages of sessions out, in `jsonl`: each after the steps that are pinned to it.

A fork is written as what it shares with a session before it, and its own messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from hybridagi_steps.exchange.formats.jsonl import header_line, message_line
from hybridagi_steps.protocols import SessionStore
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.message import Step
from hybridagi_steps.records.store_values import SessionSummary

if TYPE_CHECKING:
    from hybridagi_steps.stores.sql.salvage import Salvaged

_PAGE = 500


class _Place(NamedTuple):
    """Where a message was written."""

    session_id: str
    sequence: int


class SessionLines:
    """The lines of sessions, and which steps stand among them.

    Args:
        store: Where they are kept.
        session_id: The only one to write; None: all.
    """

    def __init__(self, store: SessionStore | Salvaged, session_id: str | None) -> None:
        self._store = store
        known = _oldest_first(store)
        # Steps may name a session that has no messages.
        self._sessions = [one for one in known if session_id in (None, one)]
        self._places: dict[str, _Place] = {}
        self._written: set[str] = set()

    def step_ids(self) -> set[str]:
        """Return the ids of the steps that are written with their sessions."""
        pinned = map(self._store.pinned_steps, self._sessions)
        return {step_id for steps in pinned for _, step_id in steps}

    def lines(
        self,
        steps_of: Callable[[Sequence[str]], list[AgentStep]],
        step_line: Callable[[AgentStep], bytes],
    ) -> Iterator[bytes]:
        """Yield everything that belongs to the sessions.

        Args:
            steps_of: Returns steps by their ids, in order.
            step_line: Returns the line of a step.
        """
        for session_id in self._sessions:
            messages = self._store.messages(session_id)
            origin = self._origin(messages)
            shared = 0 if origin is None else origin.sequence
            if origin is None:
                yield header_line(session_id)
            else:
                yield header_line(session_id, origin.session_id, messages[shared - 1])
            yield from self._body(session_id, messages[shared:], steps_of, step_line)
            for message in messages[shared:]:
                self._places[message.id] = _Place(session_id, message.sequence)

    def _body(
        self,
        session_id: str,
        messages: Sequence[Step],
        steps_of: Callable[[Sequence[str]], list[AgentStep]],
        step_line: Callable[[AgentStep], bytes],
    ) -> Iterator[bytes]:
        """Yield messages in order, each after the steps that are pinned to it or before it."""
        pinned = [
            place for place in self._store.pinned_steps(session_id) if place[1] not in self._written
        ]
        self._written.update(step_id for _, step_id in pinned)
        waiting = iter(messages)
        message = next(waiting, None)
        for first in range(0, len(pinned), _PAGE):
            page = pinned[first : first + _PAGE]
            found = {id_text(step.id): step for step in steps_of([step_id for _, step_id in page])}
            for sequence, step_id in page:
                while message is not None and message.sequence < sequence:
                    yield message_line(message)
                    message = next(waiting, None)
                if step_id in found:  # else it was deleted meanwhile
                    yield step_line(found[step_id])
        while message is not None:
            yield message_line(message)
            message = next(waiting, None)

    def _origin(self, messages: Sequence[Step]) -> _Place | None:
        """Return the last message that a session written before has, too.

        What stands before a message never changes, so everything before it is shared as well.
        """
        for message in reversed(messages):
            place = self._places.get(message.id)
            if place is not None and place.sequence == message.sequence:
                return place
        return None


def _oldest_first(store: SessionStore | Salvaged) -> list[str]:
    """Return all sessions, so that what was forked comes before its forks."""
    found: list[SessionSummary] = []
    while page := store.sessions(limit=_PAGE, offset=len(found)):
        found += page
    return [s.session_id for s in sorted(found, key=lambda s: (s.created_at, s.session_id))]
