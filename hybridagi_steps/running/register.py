"""The runs in flight on a memory, whoever began them: one at a time for each session.

All runners of one memory share its register, so that a second run of a session is refused before
anything is stored, and a run can be cancelled by its id from anywhere in the process. Runs of other
processes are noticed by the store, when they write.
"""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakKeyDictionary

from hybridagi_steps.errors import SequenceConflictError
from hybridagi_steps.running.active_run import ActiveRun


class Register:
    """The runs in flight on one memory."""

    def __init__(self) -> None:
        self._runs: dict[str, ActiveRun] = {}
        self._sessions: dict[str, str] = {}
        self._lock = threading.Lock()

    def find(self, run_id: str) -> ActiveRun | None:
        """Return a run in flight."""
        return self._runs.get(run_id)

    def sessions(self) -> dict[str, str]:
        """Return the sessions of the runs in flight, by run id."""
        with self._lock:
            return {run_id: run.info.session_id for run_id, run in self._runs.items()}

    def check_free(self, session_id: str) -> None:
        """Check that a session has no run.

        Raises:
            SequenceConflictError: It has one.
        """
        if (other := self._sessions.get(session_id)) is not None:
            raise SequenceConflictError(
                f"session {session_id!r} has a run in flight, {other}; wait for its end or cancel "
                "it."
            )

    def add(self, run: ActiveRun) -> None:
        """Register a run until it is removed.

        Raises:
            SequenceConflictError: Its session has another one.
        """
        info = run.info
        with self._lock:
            self.check_free(info.session_id)
            self._sessions[info.session_id] = info.run_id
            self._runs[info.run_id] = run

    def remove(self, run: ActiveRun) -> None:
        """Forget a run that has ended; doing so twice changes nothing."""
        with self._lock:
            if self._runs.pop(run.info.run_id, None) is not None:
                del self._sessions[run.info.session_id]


_registers: WeakKeyDictionary[Any, Register] = WeakKeyDictionary()
_registering = threading.Lock()


def register_of(memory: Any) -> Register:
    """Return the register that all runners of a memory share."""
    with _registering:
        return _registers.setdefault(memory, Register())
