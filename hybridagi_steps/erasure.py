"""What a purge erases: steps, and whole sessions when a filter names nothing but their owner.

A filter of only a session, or only a user, means everything of theirs: messages, attempts and
AgentSteps. What a fork of another session still reads stays with that fork. Any further condition
picks single AgentSteps, and sessions keep their messages.
"""

from __future__ import annotations

from typing import Any

from hybridagi_steps.arguments import in_every_scope
from hybridagi_steps.errors import InvalidFilterError
from hybridagi_steps.records.agent_step import id_text
from hybridagi_steps.records.filters import StepFilter


def erase(store: Any, where: StepFilter) -> int:
    """Delete what a filter means; return how many messages and AgentSteps there were.

    Raises:
        InvalidFilterError: No condition at all.
    """
    asked = where.model_dump(exclude_none=True)
    if not asked:
        raise InvalidFilterError("purge needs at least one condition; clear() deletes all.")
    erased = sum(sum(store.delete_session(name)) for name in whole_sessions(store, where))
    steps = [id_text(step.id) for step in store.iter_steps(in_every_scope(where))]
    return erased + store.delete(steps)


def whole_sessions(store: Any, where: StepFilter) -> list[str]:
    """Return the sessions that a filter means with all their messages."""
    asked = where.model_dump(exclude_none=True)
    if asked.keys() == {"session_id"}:
        return [asked["session_id"]]
    return store.sessions_of_user(asked["user_id"]) if asked.keys() == {"user_id"} else []
