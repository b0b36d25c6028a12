"""record_step: plain functions that take part in recorded runs.

DSPy notices modules and tools, not functions. A decorated function tells the recorders that are
active where it is called; where none is, it is called as it is. Its arguments are copied before it
runs: it may change them.
"""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, ParamSpec, TypeVar, cast, get_args, get_type_hints, overload
from uuid import uuid4

from dspy.utils.callback import ACTIVE_CALL_ID

from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.recording import step_shapes as shapes
from hybridagi_steps.recording.call_steps import FunctionStep
from hybridagi_steps.recording.recorder import active_recorders

P = ParamSpec("P")
R = TypeVar("R")

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
    told = purpose or documented or shown
    return FunctionStep(kind, shown, told, tuple(options or ()), function=function)


@contextmanager
def _function_call(
    step: FunctionStep, function: Callable[..., Any], args: Any, kwargs: Any
) -> Generator[Callable[[Any], Any]]:
    """Tell every active recorder of one call; the yielded function takes the result."""
    recorders = active_recorders()
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
