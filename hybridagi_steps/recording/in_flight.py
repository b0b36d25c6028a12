"""Runs in flight: what the recorders of this process know of runs that have begun and not ended."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Protocol
from uuid import UUID
from weakref import WeakSet

from hybridagi_steps._concurrency import ForkSafeLock
from hybridagi_steps.recording.call_tree import Labels, Run
from hybridagi_steps.recording_hooks import RunInFlight, tell_of_runs


class _Recorder(Protocol):
    @property
    def memory(self) -> Any: ...
    def runs_in_flight(self) -> Iterator[RunInFlight]: ...


_recorders: WeakSet[_Recorder] = WeakSet()
_lock = ForkSafeLock()
_BELOW_TIME = 80  # bits of an id behind its milliseconds


def watch(recorder: _Recorder) -> None:
    """Ask a recorder for its runs, as long as it is there."""
    with _lock:
        _recorders.add(recorder)


def in_flight(run: Run, labels: Labels, scope: str | None) -> RunInFlight:
    """Return what listings show of a run, whose id (RFC 9562) says when it began."""
    began = datetime.fromtimestamp((UUID(run.id).int >> _BELOW_TIME) / 1000, UTC)
    known = (labels.session_id, labels.user_id, scope)
    started_at = began.isoformat(timespec="microseconds")
    return RunInFlight(run.id, started_at, *known, tags=labels.tags)


def _runs_recorded(memory: object) -> Iterator[RunInFlight]:
    with _lock:
        known = list(_recorders)
    for recorder in known:
        if recorder.memory is memory:
            yield from recorder.runs_in_flight()


tell_of_runs(_runs_recorded)
