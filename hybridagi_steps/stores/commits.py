"""What is checked of a commit to a session: names, where its writer believes it ends, its key.

Nothing here reads or writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from hybridagi_steps.errors import DuplicateStepError, InvalidStepError, SequenceConflictError
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.json_values import is_clean
from hybridagi_steps.records.message import Step, in_utc, utc_now
from hybridagi_steps.records.store_values import BranchPosition
from hybridagi_steps.stores.body import Written, message_dicts
from hybridagi_steps.stores.checksums import as_bytes

ATTEMPT_HOURS = 24
"""Hours for which a branch that no session ever pointed at counts as an attempt under way."""


def check_names(session_id: str, messages: Sequence[Step], key: str | None) -> None:
    """Check the names that a database compares."""
    names = [("session id", session_id), *(("message id", message.id) for message in messages)]
    for what, name in (*names, *([("idempotency key", key)] if key is not None else [])):
        if not name or not is_clean(name):
            raise InvalidStepError(
                f"the {what} {name!r} is empty, or holds NUL or a lone surrogate; use another."
            )


def first_user(messages: Sequence[Step], agent_steps: Sequence[AgentStep]) -> str | None:
    """Return the first user that messages name, else the first that AgentSteps do."""
    return next((each.user_id for each in (*messages, *agent_steps) if each.user_id), None)


def first_and_last(messages: Iterable[Step]) -> tuple[str, str] | None:
    """Return when the earliest and the latest of messages were said; None where there are none."""
    times = [in_utc(message.created_at).isoformat() for message in messages]
    return (min(times), max(times)) if times else None


def change_time(before: str, at: str | None) -> str:
    """Return the time that a change of a session writes: now, or `at`.

    It is another one than `before` always, so that who read the row before sees the change.
    """
    if at is None or at > before:
        return at or utc_now().isoformat()
    return (datetime.fromisoformat(before) + timedelta(microseconds=1)).isoformat()


def check_end(session_id: str, end: BranchPosition, expected: int | BranchPosition | None) -> None:
    """Check that a line ends where its writer believes."""
    if expected is None or expected == (end if isinstance(expected, tuple) else end.sequence):
        return
    place = (
        f"{expected.sequence} of branch {expected.branch_id}"
        if isinstance(expected, tuple)
        else expected
    )
    raise SequenceConflictError(
        f"session {session_id!r} ends at sequence {end.sequence} of branch {end.branch_id}, not at "
        f"{place}: somebody else has written. Read it again, then decide."
    )


def check_repeated(
    session_id: str, key: str, stored: Sequence[Written], given: Sequence[Written], *, visible: bool
) -> None:
    """Check that a key used before comes with the same messages again.

    Ids and times may differ: who repeats a request makes them anew. What is said must not; and what
    was stored must still be `visible` in the session.
    """
    if not visible:
        raise SequenceConflictError(
            f"session {session_id!r}: what the key {key!r} stored was deleted since. "
            "Use a new key to write it again."
        )
    if _dicts(stored) != _dicts(given):
        raise SequenceConflictError(
            f"session {session_id!r}: the key {key!r} stored other messages than these. "
            "Use a new key for each commit."
        )


def refuse_twice(ids: Sequence[str]) -> None:
    """Check that no id stands twice in one call."""
    seen: set[str] = set()
    for step_id in ids if len({*ids}) < len(ids) else ():
        if step_id in seen:
            raise DuplicateStepError(step_id, in_call=True)
        seen.add(step_id)


def _dicts(written: Sequence[Written]) -> list[dict[str, Any]]:
    return message_dicts(as_bytes(one.said) for one in written)
