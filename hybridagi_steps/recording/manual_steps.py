"""The steps of one run of a graph program, written through the recorders that are active.

A node is one step: the recorder is told that a function of that kind began and ended, and which
predictor and tool belong to it, so that what they do is counted with the node and recorded once.
With no recorder at hand a private one that stores nothing makes the same steps; either way the run
sees the very steps that were written.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

from dspy.utils.callback import ACTIVE_CALL_ID

from hybridagi_steps.errors import RecordingError
from hybridagi_steps.recording.call_steps import FunctionStep
from hybridagi_steps.recording.recorder import StepRecorder, active_recorders
from hybridagi_steps.records.agent_step import AgentStep


@dataclass(slots=True)
class OpenStep:
    """A step that has begun: what it was called with, and what will come of it."""

    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    """Filled in until the step ends."""
    outcome: Any = None
    """What it gave."""
    written: AgentStep | None = None
    """The step, once it has ended."""


class RunSteps:
    """Writes the steps of one run and keeps them in order.

    Args:
        memory: The memory whose recorder decides ids and numbers; without one the first active.
    """

    def __init__(self, memory: Any = None) -> None:
        self.steps: list[AgentStep] = []
        self._recorders = active_recorders() or [StepRecorder(_Nowhere())]
        known = (r for r in self._recorders if memory is not None and r.memory is memory)
        self._first = next(known, self._recorders[0])
        self._problems_before = len(self._first.errors)
        self._programs: list[str] = []

    @property
    def problems(self) -> list[RecordingError]:
        """What recording has failed at since this was made; empty when all is well."""
        return self._first.errors[self._problems_before :]

    def run_ids(self) -> list[str]:
        """Return the ids of the runs that these steps belong to."""
        runs = [recorder.active_run for recorder in self._recorders]
        return list(dict.fromkeys(run.id for run in runs if run is not None))

    @contextmanager
    def step(self, told: FunctionStep, arguments: dict[str, Any]) -> Generator[OpenStep]:
        """Write one step around a block; an error inside is written as the step's outcome."""
        opened = OpenStep(arguments)

        def watch(step: AgentStep, stored: bool) -> None:
            opened.written = step if stored else self._in_place(step)
            self.steps.append(opened.written)

        watched = replace(told, watch=watch)
        call_id = uuid4().hex
        for recorder in self._recorders:
            step = watched if recorder is self._first else told
            recorder.on_function_start(call_id, step, arguments)
        around = list(self._programs)
        if told.kind == "program" and opened.written is not None:
            self._programs.append(str(opened.written.id))
        token = ACTIVE_CALL_ID.set(call_id)
        error: BaseException | None = None
        try:
            yield opened
        except BaseException as problem:
            error = problem
            raise
        finally:
            ACTIVE_CALL_ID.reset(token)
            for recorder in self._recorders:
                recorder.on_function_end(call_id, opened.outcome, error)
            self._programs = around

    def _in_place(self, step: AgentStep) -> AgentStep:
        """Return a step that could not be stored, linked to those that the run has so far."""
        if not self.steps:
            return step
        before = self.steps[-1]
        program_id = self._programs[-1] if self._programs else None
        links = {"hop": before.hop + 1, "parent_id": before.id, "program_id": program_id}
        return step.model_copy(update=links)


class _Nowhere:
    """A memory that keeps nothing: the run itself keeps its steps."""

    def add(self, step_or_steps: AgentStep, /) -> None:
        """Forget the step."""

    def run(self, run_id: str, /) -> list[AgentStep]:  # noqa: ARG002 - there is none
        """Return nothing."""
        return []
