"""The ways to record: around a block, with a program, as a decorator.

`record` gives one run for everything in a block; `Recorded` carries its recording along wherever
DSPy copies, streams or optimises a program; `record_step` lets a plain function take part. All
three join a run that is active on the same memory, so that nothing is recorded twice.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, ParamSpec, TypeVar, cast, get_args, get_type_hints, overload
from uuid import uuid4

import dspy
from dspy.dsp.utils.settings import main_thread_config, thread_local_overrides
from dspy.predict.parameter import Parameter
from dspy.utils.callback import ACTIVE_CALL_ID

from hybridagi_steps.display.view import plural
from hybridagi_steps.errors import InvalidSettingError, InvalidStepError, RecordingError, StepsError
from hybridagi_steps.recording.call_steps import FunctionStep
from hybridagi_steps.recording.call_tree import Labels, Run, in_context
from hybridagi_steps.recording.recorder import StepRecorder, active_recorders
from hybridagi_steps.recording.scopes import override
from hybridagi_steps.recording.step_shapes import first_line, function_arguments, options_of
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


_PREFIX = "program."
_OWN = ("program", "memory", "labels", "callbacks", "history")
"""What the shell has of its own, also when the program inside has such a name."""
_ITSELF = "self"
"""How DSPy names a predictor among its own parameters."""


class Recorded(dspy.Module):
    """A program that records itself, wherever it is called.

    Use it where a block cannot reach: `streamify` keeps the callbacks of the moment it is made,
    optimisers copy programs, servers call them from many threads. Each outermost call is one run;
    inside an active run on the same memory it joins that. Predictors, demos, saved state and
    language models are those of the program inside.

    Args:
        program: Any DSPy module.
        memory: Where steps go; copies share it, a pickle reopens it.
        session_id: The session the steps belong to.
        user_id: Whose history it is.
        tags: Kept in each step's metadata.
        scope: Marks the steps as trials, hidden unless asked for.

    Raises:
        InvalidSettingError: `program` is no instance of `dspy.Module`.
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
        self.program = _checked(program)
        self.memory = check_memory(memory)
        self.labels = Labels.of(session_id, user_id, tags, scope)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program and record it."""
        with Block(self.memory, self.labels):
            return self.program(*args, **kwargs)

    async def aforward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program asynchronously and record it."""
        with Block(self.memory, self.labels):
            return await self.program.acall(*args, **kwargs)

    def named_parameters(self) -> list[tuple[str, Any]]:
        """Return the parameters of the program inside, by the names they have there."""
        return self.program.named_parameters()

    def map_named_predictors(self, func: Callable[[Any], Any]) -> Recorded:
        """Replace each predictor of the program inside by what `func` makes of it."""
        if isinstance(self.program, dspy.Predict):
            self.program = func(self.program)
        else:
            self.program.map_named_predictors(func)
        return self

    def dump_state(self, *args: Any, **options: Any) -> dict[str, Any]:
        """Return the state of the program inside."""
        return self.program.dump_state(*args, **options)

    def load_state(self, state: Mapping[str, Any], **options: Any) -> None:
        """Load a state of the program inside, or of a `Recorded` that named it `program`."""
        self.program.load_state(_without_prefix(self.program, state), **options)

    @property
    def _compiled(self) -> bool:
        """Whether optimisers leave the program inside as it is."""
        return getattr(self.__dict__.get("program"), "_compiled", False)

    @_compiled.setter
    def _compiled(self, compiled: bool) -> None:
        if "program" in self.__dict__:  # DSPy sets it first of all
            self.program._compiled = compiled  # noqa: SLF001 - DSPy's own mark, set from outside

    def __getattr__(self, name: str) -> Any:
        """Return what only the program inside has: names of parameters are paths to them."""
        if name in _OWN or name.startswith("__") or "program" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self.program if name == _ITSELF else getattr(self.program, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set what only the program inside has, there."""
        own = name in _OWN or name in self.__dict__ or hasattr(type(self), name)
        if own or "program" not in self.__dict__ or not hasattr(self, name):
            super().__setattr__(name, value)
        elif name == _ITSELF:
            self.program = value
        else:
            setattr(self.program, name, value)


def _checked(program: Any) -> Any:
    if isinstance(program, dspy.Module):
        return program
    given = f"the class {program.__name__}" if isinstance(program, type) else repr(program)[:80]
    raise InvalidSettingError(
        f'Recorded takes a dspy.Module instance, such as dspy.Predict("question -> answer"), not '
        f"{given}; a function or tool is recorded by hs.record_step, or in a block: "
        "with hs.record(memory)."
    )


def _without_prefix(program: Any, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a state under the names of `program`: it may have been saved with `program.` before.

    A predictor's own state has no names.
    """
    if isinstance(program, Parameter):
        return state.get(_PREFIX.rstrip("."), state)
    if all(name in state for name, _ in program.named_parameters()):
        return state
    return {name.removeprefix(_PREFIX): value for name, value in state.items()}


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
    documented = first_line(function.__doc__ or "")
    options: list[str] | None = None
    if kind == "decision":
        options = options_of(get_type_hints(function).get("return"))
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
    arguments = function_arguments(function, args, kwargs)
    for recorder in recorders:
        recorder.on_function_start(call_id, step, arguments)
    token = ACTIVE_CALL_ID.set(call_id)
    error: BaseException | None = None
    try:
        yield finish
    except BaseException as problem:
        error = problem
        raise
    finally:
        ACTIVE_CALL_ID.reset(token)
        for recorder in recorders:
            recorder.on_function_end(call_id, result[0], error)


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
        self.recorder = (replaced[0] if replaced else StepRecorder(memory)).for_run(labels)
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


def _is_closed(callback: Any) -> bool:
    return isinstance(callback, StepRecorder) and callback.closed


def _here(callback: Any) -> Any:
    return callback.here if isinstance(callback, StepRecorder) else callback
