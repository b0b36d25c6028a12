"""A recorded block: everything that runs inside it is one run.

The block's recorder is called beside the user's callbacks for as long as the block is open, in the
place of any other recorder on the same memory, whose run it joins. Blocks may be left in another
order than they were entered in, or in another context: nothing but the block's own recorder is
taken away.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from typing import Any, ParamSpec, TypeVar, cast

import dspy
from dspy.dsp.utils.settings import thread_local_overrides

from hybridagi_steps.display.view import plural
from hybridagi_steps.errors import (
    InvalidSettingError,
    InvalidStepError,
    MemoryClosedError,
    RecordingError,
    StepsError,
)
from hybridagi_steps.recording.call_tree import Labels, Run, on_own_strand
from hybridagi_steps.recording.manual_steps import record_step
from hybridagi_steps.recording.recorder import StepRecorder, active_recorders
from hybridagi_steps.recording.scopes import CALLBACKS, active_callbacks, override, own_callbacks
from hybridagi_steps.recording.step_writer import check_memory
from hybridagi_steps.records.agent_step import AgentStep, shown
from hybridagi_steps.records.run import RunTotals

P = ParamSpec("P")
R = TypeVar("R")


class RunHandle(RunTotals):
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

    @property
    def status(self) -> str:
        """running, completed, failed, cancelled or interrupted; empty: nothing was recorded."""
        where = {"run_id": self.id}
        return next((run.status for run in self._memory.runs(where, limit=1, scope="*")), "")

    def list_steps(self) -> list[AgentStep]:
        """Return the steps stored so far as a plain list."""
        found = self.steps
        return list(getattr(found, "steps", found))

    def __repr__(self) -> str:
        """The tree of its steps."""
        try:
            return repr(self.steps) if self.list_steps() else f"<run {self.id}, no steps>"
        except StepsError as error:
            return f"<run {self.id}: {error}>"

    def _repr_html_(self) -> str:
        """Show the tree of its steps in a notebook."""
        from hybridagi_steps.display import steps_html

        try:
            steps = self.list_steps()
        except StepsError as error:
            return steps_html([], title=f"run {self.id}: {error}")
        title = f"run {self.id}, {plural(len(steps), 'step')}"
        return steps_html([shown(step) for step in steps], title=title)


class record:  # noqa: N801 - reads as a statement: with record(memory)
    """Record everything that runs in a block, as one run.

    Works with `with` and `async with`, around sync and async programs, and as a decorator of a
    function, sync or async, of which each call is a run then. Inside a run that is active
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

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Record each call of a function as a run, the function as its outermost program.

        Raises:
            InvalidSettingError: A DSPy module, a generator, or nothing that is called.
        """
        if isinstance(function, dspy.Module):
            raise InvalidSettingError("hs.record is for functions; hs.Recorded(program, memory).")
        if inspect.isclass(function):
            raise InvalidSettingError(f"hs.record decorates a method of {function.__name__}.")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidSettingError(
                f"{function.__name__} is a generator: record who consumes it, with hs.record(…)."
            )
        if not callable(function):
            raise InvalidSettingError(f"hs.record decorates a function, not {function!r:.80}.")
        program = record_step(kind="program")(function)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return program(*args, **kwargs)

        @functools.wraps(function)
        async def acall(*args: P.args, **kwargs: P.kwargs) -> Any:
            with self:
                return await cast("Any", program(*args, **kwargs))

        return cast("Callable[P, R]", acall) if inspect.iscoroutinefunction(function) else call

    async def __aenter__(self) -> RunHandle:
        return self.__enter__()

    async def __aexit__(self, *problem: object) -> None:
        self.__exit__(*problem)


class Block:
    """One block of code that is recorded as one run, from when this is made until `leave`.

    Its recorder hides any other on the same memory, and joins the run of that.
    """

    def __init__(self, memory: Any, labels: Labels) -> None:
        outer = [each for each in active_recorders() if each.memory is memory]
        for recorder in outer:
            recorder.replaces = tuple(_without_closed(recorder.replaces))
        self.recorder = (
            outer[0].for_run(labels) if outer else StepRecorder.of_new_run(memory, labels)
        )
        self.recorder.replaces = tuple(outer)
        self._before = thread_local_overrides.get()
        override(**{CALLBACKS: (*_open(own_callbacks()), self.recorder)})
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
        return any(each is self.recorder for each in active_callbacks())

    def leave(self) -> None:
        """Record nothing more, and take the recorder away from here."""
        self.recorder.closed = True
        current = thread_local_overrides.get()
        before = self._before.get(CALLBACKS, ())
        if current is self._own and len(_open(before)) == len(before):
            thread_local_overrides.set(self._before)
        elif CALLBACKS in current:
            others = {name: value for name, value in current.items() if name != CALLBACKS}
            if remaining := _open(current[CALLBACKS]):
                others[CALLBACKS] = remaining
            thread_local_overrides.set(type(current)(others))

    def __enter__(self) -> Block:
        return self

    def __exit__(self, *problem: object) -> None:
        self.leave()


def _open(callbacks: Sequence[Any]) -> tuple[Any, ...]:
    """Return callbacks without the recorders of blocks that were left."""
    return tuple(each for each in callbacks if not _is_closed(each))


def _without_closed(recorders: Sequence[StepRecorder]) -> list[StepRecorder]:
    """Return recorders with each closed one's place given back to what it had replaced."""
    remaining: list[StepRecorder] = []
    for each in recorders:
        for recorder in _without_closed(each.replaces) if each.closed else [each]:
            if not any(recorder is known for known in remaining):
                remaining.append(recorder)
    return remaining


def _is_closed(callback: object) -> bool:
    return isinstance(callback, StepRecorder) and callback.closed


class _ProcessRecorder(StepRecorder):
    """What `autolog` has configured."""

    labels: dict[str, Any]


def autolog(
    memory: Any = None,
    *,
    disable: bool = False,
    session_id: str | None = None,
    user_id: str | None = None,
    tags: Mapping[str, Any] | None = None,
    keep_prompts: bool = False,
) -> None:
    """Record every DSPy program that this process calls from now on, each outermost call as a run.

    It sets `callbacks` of `dspy.configure`, beside those that are there, so it is called where that
    may be. Called again it changes the memory and the labels; what stands there already stays.

    Args:
        memory: Where steps go.
        disable: Turn it off; what runs is recorded to its end.
        session_id: The session the steps belong to.
        user_id: Whose history it is.
        tags: Kept in each step's metadata.
        keep_prompts: Whether what models are sent and give is kept, too.

    Raises:
        InvalidMemoryError: `memory` has no `add` and `run`, or keeps no prompts.
        InvalidStepError: A label that no step can carry.
        InvalidSettingError: Another thread or task has configured DSPy.
    """
    labels: dict[str, Any] = {"session_id": session_id, "user_id": user_id, "tags": tags}
    labels["keep_prompts"] = keep_prompts
    before: list[Any] = dspy.settings.callbacks
    others = [each for each in before if not isinstance(each, _ProcessRecorder)]
    if disable:
        _configure(others)
        return
    recorder = _ProcessRecorder(memory, **labels)
    recorder.labels = labels
    recorders = (each for each in before if isinstance(each, StepRecorder))
    same = [each for each in recorders if each.memory is memory]
    if not any(getattr(each, "labels", labels) == labels for each in same):
        _configure([*others, recorder])


def _configure(callbacks: list[Any]) -> None:
    try:
        dspy.configure(callbacks=callbacks)
    except RuntimeError as error:
        raise InvalidSettingError(
            f"hs.autolog sets what all of DSPy uses, so it is called where dspy.configure may be; "
            f"elsewhere write `with hs.record(memory):`. DSPy says: {error}"
        ) from error


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
