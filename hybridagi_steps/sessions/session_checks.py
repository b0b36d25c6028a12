"""Checks of what a session is asked for: by whom, its name, numbers of its messages, forks.

Nothing here writes.
"""

from __future__ import annotations

from collections.abc import Sequence

from hybridagi_steps.errors import (
    InvalidSettingError,
    InvalidStepError,
    NotAllowedError,
    OwnershipError,
    SequenceConflictError,
    UnknownSessionError,
)
from hybridagi_steps.protocols import MessageIndex, SessionStore, StoreBackend
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.filters import EVERY_SCOPE, StepFilter
from hybridagi_steps.records.message import Step

_LONGEST_BATCH = 256
"""Messages around a fork point that are looked at."""


def check_owner(
    store: StoreBackend,
    session_id: str,
    user_id: str,
    *,
    new: bool = False,
    nobodys: bool = False,
) -> None:
    """Check that a session is a user's: the one that it names, else the only one of its steps.

    One that is not there is another's, too, when steps of another user name it. It may be one that
    is not there (`new`), or has neither an owner nor steps that name a user (`nobodys`).
    """
    try:
        owner, free = store.session_owner(session_id), nobodys
    except UnknownSessionError:
        if not new:
            raise NotAllowedError.of_session(session_id) from None
        owner, free = None, True
    users = {owner}
    if owner is None:
        where = StepFilter(session_id=session_id, scope=EVERY_SCOPE)
        users = set(store.users(where, limit=2))
    if not user_id or users - {user_id} or not (users or free):
        raise NotAllowedError.of_session(session_id)


def check_step_owner(store: StoreBackend, steps: Sequence[AgentStep], user_id: str) -> None:
    """Check that the stored runs and steps that new AgentSteps of a user join are that user's.

    Raises:
        OwnershipError: One is another user's, or nobody's.
    """
    above = {id_text(name) for step in steps for name in (step.parent_id, step.program_id) if name}
    foreign = {id_text(one.id) for one in store.get([*above]) if one.user_id != user_id}
    runs = {step.run_id for step in steps if step.run_id is not None}
    foreign_runs = {run_id for run_id in runs if _has_others(store, run_id, user_id)}
    for step in steps:
        for field in ("parent_id", "program_id", "run_id"):
            value = getattr(step, field)
            if value and id_text(value) in (foreign_runs if field == "run_id" else foreign):
                raise OwnershipError(id_text(step.id), field, id_text(value))


def _has_others(store: StoreBackend, run_id: str, user_id: str) -> bool:
    """Whether a run has a step or message that is not a user's."""
    others = StepFilter(run_id=run_id, scope=EVERY_SCOPE, exclude={"user_id": user_id})
    messages = isinstance(store, MessageIndex) and len(store.message_rows(others))
    return bool(messages or len(store.rows(others)))


def checked_user(user_id: str | None) -> str | None:
    """Return whom somebody acts for; an empty text would be nobody, and None is everybody."""
    if user_id == "":
        raise InvalidSettingError("user_id is empty; name a user, or leave it out for all.")
    return user_id


def check_batch(steps: Sequence[Step]) -> tuple[str, int]:
    """Check that messages are of one session, one after another; return it and the first number."""
    for step in steps:
        check_sequence(step.sequence)
    session_id, first = steps[0].session_id, steps[0].sequence
    if any(step.session_id != session_id for step in steps):
        raise InvalidStepError("a batch is of one session; save each session's by itself.")
    wanted = list(range(first, first + len(steps)))
    if first < 1 or [step.sequence for step in steps] != wanted:
        raise SequenceConflictError(
            f"session {session_id!r}: sequences {[step.sequence for step in steps][:5]} do not "
            "count 1, 2, 3 …; append() gives messages the next ones by itself."
        )
    return session_id, first


def check_session(session_id: object, *numbers: object) -> None:
    """Check the name of a session, and numbers of its messages or branches."""
    if not isinstance(session_id, str):
        raise InvalidSettingError(f"the id of a session is a text, not {session_id!r:.80}.")
    for number in numbers:
        check_sequence(number)


def check_sequence(sequence: object) -> None:
    """Check that something can be the number of a message."""
    if isinstance(sequence, bool) or not isinstance(sequence, int):
        raise InvalidSettingError(f"a sequence is a whole number, not {sequence!r:.80}.")


def fork_point(store: SessionStore, session_id: str, sequence: int) -> int:
    """Return the last sequence up to `sequence` at which no tool call waits for its result."""
    around = store.messages(session_id, max(sequence - _LONGEST_BATCH, 1), sequence)
    results: set[str | None] = set()
    for step in reversed(around):
        if step.is_tool_step():
            results.add(step.tool_call_id)
            continue
        open_calls = {call.get("id") for call in step.tool_calls or []} - results
        return step.sequence - 1 if open_calls else sequence
    return sequence
