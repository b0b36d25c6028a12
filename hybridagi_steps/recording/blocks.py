"""A recorded block: everything that runs inside it is one run.

The block's recorder stands among DSPy's callbacks for as long as the block is open, in the place of
any other recorder on the same memory, whose run it joins. Blocks may be left in another order than
they were entered in, or in another context: nothing but the block's own recorder is taken away.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from typing import Any, ParamSpec, TypeVar, cast

import dspy
from dspy.dsp.utils.settings import main_thread_config, thread_local_overrides

from hybridagi_steps.display.view import plural
from hybridagi_steps.errors import (
    InvalidSettingError,
    InvalidStepError,
    MemoryClosedError,
    RecordingError,
    StepsError,
)
from hybridagi_steps.recording.call_tree import Labels, Run, on_own_strand
from hybridagi_steps.recording.recorder import StepRecorder
from hybridagi_steps.recording.scopes import override
from hybridagi_steps.recording.step_writer import check_memory
from hybridagi_steps.records.agent_step import AgentStep, shown

P = ParamSpec("P")
R = TypeVar("R")


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
        keep_prompts: Whether what models are sent and give is kept, too: `memory.prompt_of(id)`.

    Raises:
        InvalidMemoryError: `memory` has no `add` and `run`, or keeps no prompts.
        InvalidStepError: A label that no step can carry.
        MemoryClosedError: The memory is closed when the block is entered.

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
        *,
        keep_prompts: bool = False,
    ) -> None:
        self._memory = check_memory(memory, keep_prompts=keep_prompts)
        self._labels = Labels.of(session_id, user_id, tags, scope, keep_prompts)
        self._entered: list[Block] = []

    def __enter__(self) -> RunHandle:
        if getattr(self._memory, "closed", None) is True:
            raise MemoryClosedError(f"{self._memory!r} is closed: nothing can be recorded into it.")
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


class Block:
    """One block of code that is recorded as one run, from when this is made until `leave`.

    Its recorder stands in the place of any recorder on the same memory, and joins the run of that.
    """

    def __init__(self, memory: Any, labels: Labels) -> None:
        found = [_here(c) for c in dspy.settings.get("callbacks", [])]
        known = [c for c in found if c is not None]
        replaced = [c for c in known if isinstance(c, StepRecorder) and c.memory is memory]
        others = [c for c in known if c not in replaced]
        for recorder in replaced:
            recorder.replaces = tuple(_without_closed(recorder.replaces))
        self.recorder = (
            replaced[0].for_run(labels) if replaced else StepRecorder.of_new_run(memory, labels)
        )
        self.recorder.replaces = tuple(replaced)
        self._open = [c for c in known if not _is_closed(c)]
        self._standing = [*others, self.recorder]
        self._before = thread_local_overrides.get()
        override(callbacks=list(self._standing))
        self._own = thread_local_overrides.get()

    @property
    def run(self) -> Run:
        """The run that the block is recorded as."""
        run = self.recorder.run
        assert run is not None  # noqa: S101 - for_run gives one
        return run

    @property
    def stands_here(self) -> bool:
        """Whether the running code is in the block, and in no other on the same memory."""
        return any(each is self.recorder for each in dspy.settings.get("callbacks", []))

    def leave(self) -> None:
        """Record nothing more, and take the recorder away from here."""
        self.recorder.closed = True
        current = thread_local_overrides.get()
        untouched = current is self._own and current["callbacks"] == self._standing
        if untouched and not any(_is_closed(c) for c in self._open):
            thread_local_overrides.set(self._before)
        elif any(_is_closed(c) for c in current.get("callbacks", ())):
            _take_closed_away(current)
        if self.recorder in main_thread_config["callbacks"]:  # configured while it stood there
            left = _without_closed(main_thread_config["callbacks"])
            main_thread_config["callbacks"] = left

    def __enter__(self) -> Block:
        return self

    def __exit__(self, *problem: object) -> None:
        self.leave()


def _take_closed_away(settings: Any) -> None:
    """Leave what others put among the callbacks meanwhile, and the recorders still open."""
    left = _without_closed(settings["callbacks"])
    fewer = {**settings, "callbacks": left}
    if left == main_thread_config["callbacks"]:
        del fewer["callbacks"]  # what is configured later is to count here again
    thread_local_overrides.set(type(settings)(fewer))


def _without_closed(callbacks: Sequence[Any]) -> list[Any]:
    """Return callbacks with each closed recorder's place given back to what it had replaced."""
    left: list[Any] = []
    for each in callbacks:
        for callback in _without_closed(each.replaces) if _is_closed(each) else [each]:
            if not any(callback is known for known in left):
                left.append(callback)
    return left


def _is_closed(callback: object) -> bool:
    return isinstance(callback, StepRecorder) and callback.closed


def _here(callback: object) -> Any:
    return callback.here if isinstance(callback, StepRecorder) else callback


def in_context(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function` tied to the run that is active here, for raw threads and executors.

    DSPy carries a run's lineage through its own primitives and through asyncio, not through
    `threading.Thread` or `ThreadPoolExecutor`. Every call of the returned function is a branch of
    its own; coroutine functions work too.

    Raises:
        InvalidSettingError: What was given is no function.

    Example:
        `pool.map(hs.in_context(agent), questions)`
    """
    if not callable(function):
        raise InvalidSettingError(f"in_context ties a function to a run, not {function!r:.80}.")
    context = copy_context()

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return context.copy().run(on_own_strand, function, *args, **kwargs)

    @functools.wraps(function)
    async def acall(*args: P.args, **kwargs: P.kwargs) -> Any:
        coroutine = cast("Any", function(*args, **kwargs))
        return await asyncio.get_running_loop().create_task(coroutine, context=context.copy())

    return cast("Callable[P, R]", acall) if inspect.iscoroutinefunction(function) else call
