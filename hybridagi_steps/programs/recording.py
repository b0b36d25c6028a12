"""The ways to record: around a block, with a program, as a decorator.

`record` gives one run for everything in a block; `Recorded` carries its recording along wherever
DSPy copies, streams or optimises a program; `record_step` lets a plain function take part. All
three join a run that is active on the same memory, so that nothing is recorded twice.
"""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Literal, ParamSpec, TypeVar, cast, get_args, get_type_hints, overload
from uuid import uuid4

import dspy
from dspy.utils.callback import ACTIVE_CALL_ID

from hybridagi_steps.display.view import plural
from hybridagi_steps.errors import InvalidSettingError, RecordingError, StepsError
from hybridagi_steps.programs import step_shapes as shapes
from hybridagi_steps.programs.call_steps import FunctionStep
from hybridagi_steps.programs.call_tree import Labels, Run
from hybridagi_steps.programs.dspy_settings import overriding
from hybridagi_steps.programs.recorder import StepRecorder
from hybridagi_steps.programs.step_writer import check_memory
from hybridagi_steps.programs.strands import in_context
from hybridagi_steps.records.agent_step import AgentStep, shown

__all__ = ["Recorded", "RunHandle", "in_context", "record", "record_step"]

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
        """Say how good the run was; its steps show the score from then on."""
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
        self._entered: list[AbstractContextManager[RunHandle]] = []

    def __enter__(self) -> RunHandle:
        block = _recording(self._memory, self._labels)
        handle = block.__enter__()
        self._entered.append(block)
        return handle

    def __exit__(self, *problem: Any) -> bool | None:
        return self._entered.pop().__exit__(*problem)

    async def __aenter__(self) -> RunHandle:
        return self.__enter__()

    async def __aexit__(self, *problem: Any) -> bool | None:
        return self.__exit__(*problem)


@contextmanager
def _recording(memory: Any, labels: Labels) -> Generator[RunHandle]:
    """Put a recorder of one run in the place of any recorder on the same memory."""
    callbacks: list[Any] = list(dspy.settings.get("callbacks", []))
    others = [known for known in callbacks if not _records(known, memory)]
    outer = next((known for known in callbacks if _records(known, memory)), None)
    recorder = (outer or StepRecorder(memory)).for_run(labels)
    run = recorder.run
    assert run is not None  # noqa: S101 - for_run gives one
    with overriding(callbacks=[*others, recorder]):
        yield RunHandle(memory, run)


def _records(callback: Any, memory: Any) -> bool:
    return isinstance(callback, StepRecorder) and callback.memory is memory


class Recorded(dspy.Module):
    """A program that records itself, wherever it is called.

    Use it where a block cannot reach: `streamify` keeps the callbacks of the moment it is made,
    `Evaluate` and optimisers copy programs, servers call them from many threads. Each outermost
    call is one run; inside an active run on the same memory it joins that. Predictors, demos, saved
    state and language models are those of the program inside.

    Args:
        program: Any DSPy module.
        memory: Where steps go; copies share it, a pickle reopens it.
        session_id: The session the steps belong to.
        user_id: Whose history it is.
        tags: Kept in each step's metadata.
        scope: Marks the steps as trials, hidden unless asked for.

    Raises:
        InvalidMemoryError: `memory` has no `add` and `run`.
        InvalidStepError: A label that no step can carry.
    """

    adds_no_step = True
    """For recorders: the program inside tells everything."""

    def __init__(
        self,
        program: Any,
        memory: Any,
        *,
        session_id: str | None = None,
        user_id: str | None = None,
        tags: Mapping[str, Any] | None = None,
        scope: str | None = None,
    ) -> None:
        super().__init__()
        self.program = program
        self.memory = check_memory(memory)
        self.labels = Labels.of(session_id, user_id, tags, scope)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program and record it."""
        with _recording(self.memory, self.labels):
            return self.program(*args, **kwargs)

    async def aforward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program asynchronously and record it."""
        with _recording(self.memory, self.labels):
            return await self.program.acall(*args, **kwargs)


Kind = Literal["action", "decision", "program"]


@overload
def record_step(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def record_step(
    *, kind: Kind = "action", purpose: str | None = None, name: str | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def record_step(
    function: Callable[P, R] | None = None,
    /,
    *,
    kind: Kind = "action",
    purpose: str | None = None,
    name: str | None = None,
) -> Callable[P, R] | Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a plain function or coroutine function take part in recorded runs as a step.

    Works as `@record_step`, an action, and as `@record_step(kind=…)`.

    Outside of a recorded run the function is called as it is. As a `program` it stands around what
    is called inside; as a `decision` its options are read from the return annotation (Literal,
    bool or Enum).

    Args:
        function: The function, when the decorator is written without parentheses.
        kind: What the function is.
        purpose: Why it is called; by default the first line of its docstring, else its name.
        name: The tool or program it is shown as; by default the function's name.

    Raises:
        InvalidSettingError: `kind` is none of the three, or what is decorated is no function.
        TypeError: The function is a generator: it has no single result to record.
    """
    if kind not in get_args(Kind):
        raise InvalidSettingError(f"kind is one of {', '.join(get_args(Kind))}; got {kind!r}.")

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        if not callable(function):
            raise InvalidSettingError(
                f"record_step decorates a function, not {function!r:.80}; options are given by "
                'name, as in @hs.record_step(purpose="…").'
            )
        return _recorded_function(function, _function_step(function, kind, purpose, name))

    return decorate if function is None else decorate(function)


def _recorded_function(function: Callable[P, R], step: FunctionStep) -> Callable[P, R]:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"record_step cannot record the generator {function.__name__}; record the function "
            "that consumes it."
        )

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with _function_call(step, function, args, kwargs) as finish:
            return finish(function(*args, **kwargs))

    @functools.wraps(function)
    async def acall(*args: P.args, **kwargs: P.kwargs) -> Any:
        with _function_call(step, function, args, kwargs) as finish:
            return finish(await cast("Any", function(*args, **kwargs)))

    return cast("Callable[P, R]", acall) if inspect.iscoroutinefunction(function) else call


def _function_step(
    function: Callable[..., Any],
    kind: Kind,
    purpose: str | None,
    name: str | None,
) -> FunctionStep:
    shown = name or getattr(function, "__name__", type(function).__name__)
    documented = shapes.first_line(function.__doc__ or "")
    options: list[str] | None = None
    if kind == "decision":
        options = shapes.options_of(get_type_hints(function).get("return"))
    return FunctionStep(kind, shown, purpose or documented or shown, tuple(options or ()))


@contextmanager
def _function_call(
    step: FunctionStep, function: Callable[..., Any], args: Any, kwargs: Any
) -> Generator[Callable[[Any], Any]]:
    """Tell every active recorder of one call; the yielded function takes the result."""
    recorders = [r for r in dspy.settings.get("callbacks", []) if isinstance(r, StepRecorder)]
    result: list[Any] = [None]

    def finish(value: Any) -> Any:
        result[0] = value
        return value

    if not recorders:
        yield finish
        return
    call_id = uuid4().hex
    arguments = shapes.function_arguments(function, args, kwargs)
    for recorder in recorders:
        recorder.on_function_start(call_id, step, arguments)
    active = cast("ContextVar[str | None]", ACTIVE_CALL_ID)
    token = active.set(call_id)
    error: BaseException | None = None
    try:
        yield finish
    except BaseException as problem:
        error = problem
        raise
    finally:
        active.reset(token)
        for recorder in recorders:
            recorder.on_function_end(call_id, result[0], error)
