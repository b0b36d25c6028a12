"""AgentSteps of a run that wait for the next commit, and what is known of all it has told."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from uuid import UUID

from hybridagi_steps.records.agent_step import AgentStep, AgentStepType


class WaitingSteps:
    """Keeps steps in the order they were told; each id once, each program's end once.

    A thread that is left alone still tells what it does, after its tool or program was told of as
    cut off: who tells first is believed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[AgentStep] = []
        self._told: set[str] = set()
        self._ends: dict[str, AgentStep] = {}
        self.last_id: UUID | str | None = None
        """The step told last."""
        self.root_call: AgentStep | None = None
        """The call of the outermost program."""

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def keep(self, step: AgentStep) -> bool:
        """Keep a step; return False for one that was told of before."""
        with self._lock:
            ends = step.program_id if step.step_type is AgentStepType.ProgramEnd else None
            if str(step.id) in self._told or ends in self._ends:
                return False
            self._told.add(str(step.id))
            if ends is not None:
                self._ends[ends] = step
            if step.step_type is AgentStepType.ProgramCall and step.program_id is None:
                self.root_call = step
            self._waiting.append(step)
            self.last_id = step.id
            return True

    def was_told(self, step_id: UUID | str) -> bool:
        """Tell whether a step with this id was ever kept."""
        return str(step_id) in self._told

    @property
    def root_end(self) -> AgentStep | None:
        """The end of the outermost program, if it has ended."""
        return None if self.root_call is None else self._ends.get(str(self.root_call.id))

    def waiting(self) -> list[AgentStep]:
        """Return those that wait."""
        with self._lock:
            return list(self._waiting)

    def take(self, *, root_end: bool) -> list[AgentStep]:
        """Take those that wait, the outermost program's end only if `root_end` says so."""
        with self._lock:
            stays = None if root_end else self.root_end
            taken = [step for step in self._waiting if step is not stays]
            self._waiting = [step for step in self._waiting if step is stays]
            return taken

    def put_back(self, steps: Sequence[AgentStep]) -> None:
        """Let steps wait again that were not stored, before all others."""
        with self._lock:
            self._waiting = [*steps, *self._waiting]
