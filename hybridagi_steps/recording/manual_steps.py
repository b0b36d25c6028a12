"""Functions as steps: what a decorated function did, and each node of a graph program.

Recorders are told that a function of some kind began and ended; what DSPy calls in between belongs
to it. `record_step` tells them for a function that a program calls; `RunSteps` for what a run of
ours does, step by step, and hands each step back as it was written. Without a recorder at hand it
makes the same steps with a private one that stores nothing.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal, ParamSpec, TypeVar, cast, get_args, get_type_hints, overload
from uuid import uuid4

from dspy.utils.callback import ACTIVE_CALL_ID

from hybridagi_steps.errors import InvalidSettingError, RecordingError
from hybridagi_steps.recording.call_steps import FunctionStep
from hybridagi_steps.recording.recorder import StepRecorder, active_recorders
from hybridagi_steps.recording.scopes import CALLBACKS, overriding, own_callbacks
from hybridagi_steps.recording.step_shapes import first_line, function_arguments, options_of
from hybridagi_steps.records.agent_step import AgentStep

P = ParamSpec("P")
R = TypeVar("R")

Kind = Literal["action", "decision", "program"]


@dataclass(slots=True)
class OpenStep:
    """A step that has begun: what it was called with, and what will come of it."""

    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    """Filled in until the step ends."""
    outcome: Any = None
    """What it gave."""
    written: AgentStep | None = None
    """The step, once it has ended."""


@contextmanager
def _function_call(
    steps: Sequence[tuple[StepRecorder, FunctionStep]], opened: OpenStep
) -> Generator[OpenStep]:
    """Tell recorders of one call, each as it reads it as a step."""
    call_id = uuid4().hex
    for recorder, step in steps:
        recorder.on_function_start(call_id, step, opened.arguments)
    token = ACTIVE_CALL_ID.set(call_id)
    error: BaseException | None = None
    try:
        yield opened
    except BaseException as problem:
        error = problem
        raise
    finally:
        ACTIVE_CALL_ID.reset(token)
        for recorder, _ in steps:
            recorder.on_function_end(call_id, opened.outcome, error)


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
        InvalidSettingError: `kind` is none of the three, or what is decorated is no function, or
            a generator: that has no single result to record.
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
        raise InvalidSettingError(
            f"record_step cannot record the generator {function.__name__}; record the function "
            "that consumes it."
        )

    def called(*args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[OpenStep]:
        recorders = active_recorders()
        if not recorders:
            return nullcontext(OpenStep())
        opened = OpenStep(function_arguments(function, args, kwargs))
        return _function_call([(recorder, step) for recorder in recorders], opened)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with called(*args, **kwargs) as opened:
            opened.outcome = result = function(*args, **kwargs)
            return result

    @functools.wraps(function)
    async def acall(*args: P.args, **kwargs: P.kwargs) -> Any:
        with called(*args, **kwargs) as opened:
            opened.outcome = result = await cast("Any", function(*args, **kwargs))
            return result

    return cast("Callable[P, R]", acall) if inspect.iscoroutinefunction(function) else call


def _function_step(
    function: Callable[..., Any], kind: Kind, purpose: str | None, name: str | None
) -> FunctionStep:
    shown = name or getattr(function, "__name__", type(function).__name__)
    options: list[str] | None = None
    if kind == "decision":
        options = options_of(get_type_hints(function).get("return"))
    return FunctionStep(
        kind,
        shown,
        purpose or first_line(function.__doc__ or "") or shown,
        options=tuple(options or ()),
        function=function,
    )


def annotate(**metadata: Any) -> bool:
    """Add to the metadata of the step under way: of the tool, function or program that is running.

    What a program adds is told by its ProgramEnd. Later values of a key replace earlier ones, and
    those given as `tags`. Where nothing is recorded nothing happens, so it can stay in the code.

    Args:
        metadata: Anything; what JSON cannot hold is repaired as in every step.

    Returns:
        Whether a step is under way that will carry it.
    """
    told = [recorder.annotate(metadata) for recorder in active_recorders()]
    return any(told)


class RunSteps:
    """Writes the steps of one run and keeps them in order.

    Args:
        memory: The memory whose recorder decides ids and numbers; without one the first active. Of
            a run that nobody records the steps are kept here alone, and tell as much.
    """

    def __init__(self, memory: object = None) -> None:
        self.steps: list[AgentStep] = []
        self._recorders = active_recorders()
        self._unheard = not self._recorders
        if self._unheard:
            self._recorders = [StepRecorder(_Nowhere())]
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
    def step(self, of: FunctionStep, arguments: dict[str, Any]) -> Generator[OpenStep]:
        """Write one step around a block; an error inside is written as the step's outcome."""
        opened = OpenStep(arguments)

        def watch(step: AgentStep, stored: bool) -> None:
            opened.written = step if stored else self._in_place(step)
            self.steps.append(opened.written)

        watched = replace(of, watch=watch)
        steps = [watched if each is self._first else of for each in self._recorders]
        around = list(self._programs)
        try:
            with (
                self._listening(),
                _function_call(list(zip(self._recorders, steps, strict=True)), opened),
            ):
                if of.kind == "program" and opened.written is not None:
                    self._programs.append(str(opened.written.id))
                yield opened
        finally:
            self._programs = around

    def _listening(self) -> AbstractContextManager[None]:
        """Let DSPy tell of the models that are asked in the block, where nobody else records it."""
        own = own_callbacks()
        heard = not self._unheard or any(each is self._first for each in own)
        return nullcontext() if heard else overriding(**{CALLBACKS: (*own, self._first)})

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
