"""The events of runs that are over, from the store: those that ended, and those that were cut off.

A run that a kill cut off before any step of its program was stored has left messages only; they
stand at the end of one of the sessions that were written last.
"""

from __future__ import annotations

from typing import Any

from hybridagi_steps.errors import UnknownRunError
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.records.event import StepEvent, StepEventType
from hybridagi_steps.records.message import Step
from hybridagi_steps.server.views import run_data

_SESSIONS, _MESSAGES = 200, 50
"""How far a run that was cut off is looked for."""


def events_from_store(
    memory: StepMemory, run_id: str, after: int, message: Step | None = None
) -> list[StepEvent]:
    """Return a run's messages and its end as events, numbered after `after`; may block.

    Args:
        memory: Where it was stored.
        run_id: The run.
        after: The last number the reader has.
        message: One of its messages, when that is known.

    Raises:
        UnknownRunError: The memory has nothing of it.
    """
    from hybridagi_steps.running.stored_events import stored_events

    try:
        return stored_events(memory, run_id, after=after)
    except UnknownRunError:
        if messages := left_behind(memory, run_id) if message is None else [message]:
            return _cut_off(run_id, messages, after)
        raise


def interrupted_run(memory: StepMemory, run_id: str) -> dict[str, Any]:
    """Return a run that was cut off before a step of it was stored; may block.

    Raises:
        UnknownRunError: The memory has nothing of it.
    """
    messages = left_behind(memory, run_id)
    if not messages:
        raise UnknownRunError(run_id)
    times = [message.created_at.isoformat() for message in messages]
    data = run_data(run_id, [], session_id=messages[0].session_id, status="interrupted")
    data["run"].update(started_at=min(times), ended_at=max(times))
    return data


def left_behind(memory: StepMemory, run_id: str) -> list[Step]:
    """Return the messages of a run that stand at the end of a session; may block."""
    store = memory.repository().store
    for session in store.sessions(limit=_SESSIONS):
        first = max(1, session.messages - _MESSAGES + 1)
        last = store.messages(session.session_id, first, session.messages)
        if own := [step for step in last if step.run_id == run_id]:
            return own
    return []


def _cut_off(run_id: str, messages: list[Step], after: int) -> list[StepEvent]:
    events = [
        StepEvent(type=StepEventType.STEP_COMPLETED, run_id=run_id, step_id=step.id, snapshot=step)
        for step in messages
    ]
    if after == 0:
        events.insert(0, StepEvent(type=StepEventType.RUN_STARTED, run_id=run_id))
    how = {
        "status": "failed",
        "termination_reason": "interrupted",
        "last_sequence": messages[-1].sequence,
    }
    events.append(StepEvent(type=StepEventType.RUN_FAILED, run_id=run_id, data=how))
    for number, event in enumerate(events, after + 1):
        event.number, event.session_id = number, messages[0].session_id
    return events
