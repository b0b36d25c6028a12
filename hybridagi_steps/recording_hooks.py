"""Hooks of the recorder for what stands below it and must not load it.

A memory, a retriever or a context cannot know whether a program is being recorded. So it notes here
which steps it gave, which a recorder adds to the call that is running, whose prompt may hold them
from then on; and it asks here whose run that is, and which runs have begun and not ended.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol
from uuid import UUID
from weakref import WeakSet

from hybridagi_steps._concurrency import ForkSafeLock
from hybridagi_steps.records.agent_step import id_text


class _OfARun(Protocol):
    @property
    def id(self) -> str | UUID: ...
    @property
    def run_id(self) -> str | None: ...


class RunInFlight(NamedTuple):
    """A run that has begun in this process and not ended."""

    run_id: str
    started_at: str
    session_id: str | None = None
    user_id: str | None = None
    scope: str | None = None
    title: str = ""
    """What was asked, as far as it is known."""
    tags: Mapping[str, Any] = MappingProxyType({})
    """What the metadata of each of its steps says."""

    @classmethod
    def of(
        cls,
        run_id: str,
        session_id: str | None,
        user_id: str | None,
        scope: str | None,
        tags: Mapping[str, Any],
    ) -> RunInFlight:
        """Return what is known of a run, whose id (RFC 9562) says when it began."""
        began = datetime.fromtimestamp((UUID(run_id).int >> _BELOW_TIME) / 1000, UTC)
        started_at = began.isoformat(timespec="microseconds")
        return cls(run_id, started_at, session_id, user_id, scope, tags=tags)


class _Recorder(Protocol):
    @property
    def memory(self) -> Any: ...
    def runs_in_flight(self) -> Iterable[RunInFlight]: ...


Recalled = Mapping[str, str | None]
"""Ids of steps and messages, each with the run it belongs to, None where that is not known."""

_listeners: list[Callable[[Recalled], None]] = []
_users: list[Callable[[object], str | None]] = []
_runs: list[Callable[[object], Iterable[RunInFlight]]] = []
_recorders: WeakSet[_Recorder] = WeakSet()
_lock = ForkSafeLock()
_BELOW_TIME = 80  # bits of an id behind its milliseconds
_quiet: ContextVar[bool] = ContextVar("hybridagi_steps_recall_quiet", default=False)


def note_recalled(ids: Iterable[str | UUID]) -> None:
    """Say that the running program's next prompts hold these steps or messages.

    Retrievers, searches, contexts and steps given to predictors are noted by themselves; this is
    for text that a program took from elsewhere. Outside of recorded code it does nothing.

    Args:
        ids: Ids of steps or messages; they are kept in `metadata.recalled` of what follows.
    """
    several = [ids] if isinstance(ids, str | UUID) else ids
    tell({id_text(one): None for one in several})


def _shown(step: _OfARun) -> list[str]:
    metadata: dict[str, Any] = getattr(step, "metadata", None) or {}
    found: list[Any] = metadata.get("agent_step_ids") or []
    return [str(one) for one in found]


def note_steps(steps: Iterable[_OfARun]) -> None:
    """Say that these steps were handed out, and with a message the steps that it shows."""
    if _listeners and not _quiet.get():
        tell({one: step.run_id for step in steps for one in (id_text(step.id), *_shown(step))})


@contextmanager
def unnoted() -> Generator[None]:
    """Note nothing inside: whoever asks says itself what of the answer it hands on."""
    token = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(token)


def listen(listener: Callable[[Recalled], None], user_of: Callable[[object], str | None]) -> None:
    """Have all that is handed out from now on told to `listener`, and `user_of` asked for users.

    The latter returns the user of the active recording, those into a given memory first.
    """
    _listeners.append(listener)
    _users.append(user_of)


def tell_of_runs(runs_of: Callable[[object], Iterable[RunInFlight]]) -> None:
    """Have `runs_of` asked for the runs in flight that are recorded into a memory."""
    _runs.append(runs_of)


def watch(recorder: _Recorder) -> None:
    """Have a recorder asked for its runs, as long as it is there."""
    with _lock:
        _recorders.add(recorder)


def runs_in_flight(memory: object) -> dict[str, RunInFlight]:
    """Return the runs in flight that are recorded into a memory, by their ids, newest first."""
    with _lock:
        known = list(_recorders)
    found = [run for each in known if each.memory is memory for run in each.runs_in_flight()]
    found += [run for runs_of in _runs for run in runs_of(memory)]
    return {run.run_id: run for run in sorted(found, key=lambda run: run.started_at, reverse=True)}


def active_user_id(memory: object) -> str | None:
    """Return the user that the running code is recorded for, None when no recording names one.

    A recording into `memory` comes first; one into another memory tells as well who is served.
    """
    return next((user for user_of in _users if (user := user_of(memory)) is not None), None)


def tell(recalled: Recalled) -> None:
    """Say that these were handed out."""
    if recalled:
        for listener in _listeners:
            listener(recalled)
