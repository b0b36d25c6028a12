"""The ways to record: around a block, with a program, as a decorator.

`record` gives one run for everything in a block; `Recorded` carries its recording along wherever
DSPy copies, streams or optimises a program; `record_step` lets a plain function take part. All
three join a run that is active on the same memory, so that nothing is recorded twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hybridagi_steps.display.view import plural
from hybridagi_steps.errors import InvalidStepError, RecordingError, StepsError
from hybridagi_steps.programs.blocks import Block
from hybridagi_steps.programs.recorded import Recorded
from hybridagi_steps.programs.recorded_functions import record_step
from hybridagi_steps.programs.strands import in_context
from hybridagi_steps.recording.call_tree import Labels, Run
from hybridagi_steps.recording.step_writer import check_memory
from hybridagi_steps.records.agent_step import AgentStep, shown

__all__ = ["Recorded", "RunHandle", "in_context", "record", "record_step"]


class RunHandle:
    """One run while it is recorded, and afterwards."""

    def __init__(self, memory: Any, run: Run) -> None:
        self._memory = memory
        self._run = run

    @property
    def id(self) -> str:
        """The run's id; every step of the run carries it."""
        return self._run.id

    @property
    def memory(self) -> Any:
        """Where the steps are."""
        return self._memory

    @property
    def steps(self) -> Any:
        """The steps stored so far, an AgentStepList in order."""
        return self._memory.run(self._run.id)

    @property
    def errors(self) -> list[RecordingError]:
        """What recording failed at; empty when all is well."""
        return self._run.problems

    def score(self, value: float, feedback: str | None = None) -> None:
        """Say how good the run was; its steps show the score from then on.

        Raises:
            UnknownRunError: The run has no step.
            InvalidStepError: The value is no finite number, or the feedback no text.
        """
        if feedback is not None and not isinstance(feedback, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers err
            raise InvalidStepError(f"feedback is a text, not {type(feedback).__name__}.")
        self._memory.score(self._run.id, value, feedback)

    def __repr__(self) -> str:
        return f"<run {self.id}>"

    def _repr_html_(self) -> str:
        """Show the tree of its steps in a notebook."""
        from hybridagi_steps.display import steps_html

        try:
            found = self.steps
        except StepsError as error:
            return steps_html([], title=f"run {self.id}: {error}")
        steps: list[AgentStep] = list(getattr(found, "steps", found))
        title = f"run {self.id}, {plural(len(steps), 'step')}"
        return steps_html([shown(step) for step in steps], title=title)


class record:  # noqa: N801 - reads as a statement: with record(memory)
    """Record everything that runs in a block, as one run.

    Works with `with` and `async with`, around sync and async programs. Inside a run that is active
    on the same memory the block joins it. What goes wrong in recording never reaches the program;
    it stands in `run.errors` and in the log.

    Args:
        memory: Where steps go.
        session_id: The session the steps belong to; by default that of the enclosing run.
        user_id: Whose history it is; by default that of the enclosing run.
        tags: Kept in each step's metadata.
        scope: Marks the steps as trials, hidden unless asked for.

    Raises:
        InvalidMemoryError: `memory` has no `add` and `run`.
        InvalidStepError: A label that no step can carry.

    Example:
        `with hs.record(memory, session_id="notebook") as run: agent(question="…")`
    """

    def __init__(
        self,
        memory: Any,
        session_id: str | None = None,
        user_id: str | None = None,
        tags: Mapping[str, Any] | None = None,
        scope: str | None = None,
    ) -> None:
        self._memory = check_memory(memory)
        self._labels = Labels.of(session_id, user_id, tags, scope)
        self._entered: list[Block] = []

    def __enter__(self) -> RunHandle:
        block = Block(self._memory, self._labels)
        self._entered.append(block)
        return RunHandle(self._memory, block.run)

    def __exit__(self, *problem: object) -> None:
        # One `record` may be entered by several threads or tasks: each leaves its own.
        newest_first = self._entered[::-1]
        block = next((b for b in newest_first if b.stands_here), newest_first[0])
        self._entered.remove(block)
        block.leave()

    async def __aenter__(self) -> RunHandle:
        return self.__enter__()

    async def __aexit__(self, *problem: object) -> None:
        self.__exit__(*problem)
