"""How a program is called: which field takes the message, which one is the answer, what it gave.

A program is a DSPy module, sync or async, or a callable over provider messages that returns a text
or a message, or yields pieces of text. What it gives back is read as one `Reply`.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import inspect
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import dspy
import orjson

from hybridagi_steps._concurrency import in_program_thread
from hybridagi_steps.errors import InvalidSettingError, MessageError
from hybridagi_steps.programs.adapters import StepMessages
from hybridagi_steps.recording import step_shapes as shapes
from hybridagi_steps.records.json_values import json_value
from hybridagi_steps.running.active_run import ActiveRun
from hybridagi_steps.running.model_events import Voice, voices_of
from hybridagi_steps.running.stopping import Threads, no_exit, without_exit
from hybridagi_steps.running.streaming import Piece

_BESIDE_THE_ANSWER = (
    "reasoning",
    "rationale",
    "trajectory",
    "history",
    "termination_reason",
    "next_thought",
    "finish_reason",
    "program_trace",
    "session",
)
_PROGRAM = "the program"
_END = object()
_ANSWERS = ("answer", "response", "final_answer", "output", "reply", "text", "content", "result")


@dataclass(frozen=True, slots=True)
class Agent:
    """A program with what a runner knows about it before it runs."""

    program: Any
    is_module: bool
    """Whether it is a DSPy module; else it is a callable over messages."""
    tells_itself: bool
    """Whether recording it writes a ProgramCall."""
    input_field: str | None
    """The input that takes the user's message; None when the program takes messages."""
    history_field: str | None
    """The input that takes earlier messages."""
    output_field: str | None
    tools: Mapping[str, Any]
    """Its tools by name."""
    voices: Sequence[Voice]
    """Its predictors whose words are shown."""
    name: str
    """What steps call it."""

    @classmethod
    def of(
        cls, program: Any, input_field: str | None, output_field: str | None, tools: Sequence[Any]
    ) -> Agent:
        """Return what there is to know of a program, with the fields and tools that were named."""
        found, module = inner(program), isinstance(program, dspy.Module)
        if module:
            output_field = output_field_of(program, output_field)
        return cls(
            program,
            module,
            tells_itself=isinstance(found, dspy.Module)
            and not isinstance(found, dspy.Predict | dspy.ChainOfThought),
            input_field=input_field_of(program, input_field) if module else None,
            history_field=history_field_of(program) if module else None,
            output_field=output_field,
            tools=tools_of(program, tools),
            voices=voices_of(program, output_field) if module else (),
            name=program_name(program),
        )

    @property
    def purpose(self) -> str:
        """What it is for."""
        return purpose_of(self.program) or self.name


@dataclass(slots=True)
class Reply:
    """What a program answered."""

    content: str | None
    reasoning: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    outputs: dict[str, Any] = field(default_factory=dict[str, Any])
    """Its other outputs, by name."""
    usage: dict[str, Any] | None = None
    model_name: str | None = None


def inner(program: Any) -> Any:
    """Return the program inside wrappers that add no step of their own."""
    while getattr(type(program), "adds_no_step", False):
        program = program.program
    return program


def program_name(program: Any) -> str:
    """Return what steps call a program."""
    found = inner(program)
    return str(getattr(found, "__name__", None) or type(found).__name__)


def tools_of(program: object, named: Sequence[Any]) -> dict[str, Any]:
    """Return the tools of a program by name: those named for it, and those its modules hold."""
    tools = [tool if isinstance(tool, dspy.Tool) else dspy.Tool(tool) for tool in named]
    if isinstance(program, dspy.Module):
        for _, module in program.named_sub_modules():
            held = getattr(module, "tools", None)
            values = held.values() if isinstance(held, Mapping) else held or ()
            tools += [tool for tool in values if isinstance(tool, dspy.Tool)]
    return {str(tool.name): tool for tool in tools}


def signature_of(program: object) -> Any:
    """Return the signature of a module, None when it has none of its own."""
    found = inner(program)
    if isinstance(found, dspy.ChainOfThought):
        found = found.predict
    return getattr(found, "signature", None)


def input_field_of(program: object, given: str | None) -> str:
    """Return the input field that takes the user's message."""
    fields, open_ended = _inputs_of(program)
    if given is not None:
        if given not in fields and not open_ended:
            raise InvalidSettingError(
                f"{_name(program)} has no input {given!r}; it has {', '.join(fields) or 'none'}."
            )
        return given
    if len(fields) != 1:
        raise InvalidSettingError(
            f"{_name(program)} takes {', '.join(fields) or 'no named input'}: say which of them "
            'is the user\'s message, as in StepRunner(program, memory, input_field="question").'
        )
    return fields[0]


def output_field_of(program: Any, given: str | None) -> str | None:
    """Return the output field that is the answer as far as the program tells before it runs."""
    signature = signature_of(program)
    if given is not None:
        own = type(inner(program)).__module__.startswith("dspy.")  # another one may give any
        names = [] if signature is None else [*signature.output_fields]
        if own and names and given not in (*names, *_BESIDE_THE_ANSWER):
            raise InvalidSettingError(
                f"{_name(program)} has no output {given!r}; it has {', '.join(names)}."
            )
        return given
    if signature is None:
        predictors = program.named_predictors()
        signature = predictors[-1][1].signature if predictors else None
    return None if signature is None else answer_field(list(signature.output_fields))


def answer_field(names: list[str]) -> str | None:
    """Return the output that reads as the answer: one known by name, else the last."""
    candidates = [name for name in names if name not in _BESIDE_THE_ANSWER]
    known = next((name for name in _ANSWERS if name in candidates), None)
    return known or (candidates[-1] if candidates else None)


def history_field_of(program: object) -> str | None:
    """Return the input that takes earlier messages: one of type StepMessages."""
    signature = signature_of(program)
    if signature is not None:
        fields = {name: info.annotation for name, info in signature.input_fields.items()}
    else:
        fields = {name: p.annotation for name, p in _parameters(program).items()}
    return next((name for name, kind in fields.items() if _takes_messages(kind)), None)


def purpose_of(program: object) -> str:
    """Return what a program is for; of a function its docstring, empty when it has none."""
    found = inner(program)
    while isinstance(found, partial):
        found = cast("Any", found).func
    if inspect.isroutine(found):
        return shapes.first_line(found.__doc__ or "")
    return shapes.purpose_of(found)


def call_module(program: Any, threads: Threads, inputs: Mapping[str, Any]) -> Awaitable[Any]:
    """Call a module: on the event loop when it can, else in one of a run's threads."""
    # A wrapper's inside is asked, too: `Recorded` has both ways for any program.
    if all(hasattr(type(each), "aforward") for each in (program, inner(program))):
        return program.acall(**inputs)
    # A thread of its own: what would end the process is turned before it leaves there.
    in_thread = threads.counted(without_exit(_PROGRAM, program))
    return cast("Any", dspy).asyncify(in_thread)(**inputs)


async def call_function(run: ActiveRun, program: Any, messages: list[dict[str, Any]]) -> Any:
    """Return what one call of a callable says: a text, a message, or pieces of either."""
    with no_exit(_PROGRAM):
        if inspect.iscoroutinefunction(program) or inspect.isasyncgenfunction(program):
            given = program(messages)
        else:
            given = await _in_a_thread(run, partial(program, messages))
        if inspect.isawaitable(given):
            given = await given
        if hasattr(given, "__aiter__"):
            return await _put_together(run, program, cast("AsyncIterator[Any]", given))
        if hasattr(given, "__next__"):
            return await _put_together(run, program, _drawn(run, cast("Iterator[Any]", given)))
    return _answer(given)


async def _in_a_thread(run: ActiveRun, call: Callable[..., Any]) -> Any:
    named = run.threads.named(without_exit(_PROGRAM, call))
    return await in_program_thread(named)


async def _drawn(run: ActiveRun, pieces: Iterator[Any]) -> AsyncIterator[Any]:
    while (piece := await _in_a_thread(run, partial(next, pieces, _END))) is not _END:
        yield piece


async def _put_together(run: ActiveRun, program: object, pieces: AsyncIterator[Any]) -> Any:
    """Show pieces as they come; return their text, or the message among them."""
    text: list[str] = []
    async for piece in pieces:
        if isinstance(piece, Mapping) and "role" in piece:
            return cast("Mapping[str, Any]", piece)
        content, reasoning = _parts(piece)
        text.append(content or "")
        run.piece(Piece((id(program), len(run.turn.messages)), content, reasoning, None))
    return "".join(text)


def _parts(piece: object) -> tuple[str | None, str | None]:
    if isinstance(piece, str):
        return piece, None
    if isinstance(piece, Mapping):
        fields = cast("Mapping[str, Any]", piece)
        parts = fields.get("content"), fields.get("reasoning_content")
        if all(part is None or isinstance(part, str) for part in parts):
            return parts
    raise MessageError(f"the program yielded {_shown(piece)}; it yields texts, or one message.")


def _answer(given: object) -> Any:
    """Return what can be read as an answer."""
    named = isinstance(given, Mapping | dspy.Example | tuple) or hasattr(given, "told_fields")
    if given is None or isinstance(given, str) or named:
        return cast("Any", given)
    raise MessageError(
        f"the program returned {_shown(given)}; return a text or a message, or yield pieces of "
        "text."
    )


def _shown(value: object) -> str:
    return f"{value!r:.80} of type {type(value).__name__}"


def reply_of(given: object, output_field: str | None) -> Reply | None:
    """Read what a program gave; None when it gave nothing.

    An agent that says it did not finish did not answer: what it failed with is raised.
    """
    if given is None:
        return None
    failed: object = getattr(getattr(given, "error", None), "exception", None)
    if isinstance(failed, Exception):
        raise failed
    if isinstance(given, str):
        return Reply(given)
    if isinstance(given, Mapping) and "role" in given:
        return _reply_of_message(cast("Mapping[str, Any]", given))
    fields = shapes.output_fields(given)
    name = output_field if output_field in fields else answer_field(list(fields))
    if name is None or fields.get(name) is None:
        return None
    reasoning = fields.pop("reasoning", None)
    content = text_of(fields.pop(name))
    outputs = {
        key: json_value(value, [])
        for key, value in fields.items()
        if key not in ("trajectory", "history", "program_trace", "session")
    }
    thought = None if reasoning is None else str(getattr(reasoning, "content", reasoning))
    return Reply(content, thought, outputs=outputs)


def _reply_of_message(message: Mapping[str, Any]) -> Reply | None:
    content = message.get("content")
    calls = message.get("tool_calls")
    if content is None and not calls:
        return None
    return Reply(
        None if content is None else text_of(content),
        message.get("reasoning_content"),
        [dict(call) for call in calls] if calls else None,
        usage=message.get("usage"),
        model_name=message.get("model"),
    )


def text_of(value: object) -> str:
    """Return a value as a message's text: texts as they are, all else as JSON."""
    if isinstance(value, str):
        return value
    plain = json_value(value, [])
    return plain if isinstance(plain, str) else orjson.dumps(plain).decode()


def _inputs_of(program: object) -> tuple[list[str], bool]:
    """Return the names of a module's inputs, and whether it takes others, too."""
    signature = signature_of(program)
    if signature is not None:
        fields = signature.input_fields.items()
        return [name for name, info in fields if not _is_history(info.annotation)], False
    parameters = _parameters(program).values()
    kinds = {p.kind for p in parameters}
    named = [
        p
        for p in parameters
        if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL) and not _is_history(p.annotation)
    ]
    required = [p.name for p in named if p.default is p.empty]
    return required or [p.name for p in named], inspect.Parameter.VAR_KEYWORD in kinds


def _parameters(program: object) -> dict[str, inspect.Parameter]:
    """Return what a module's own method takes."""
    kind = type(inner(program))
    forward = getattr(kind, "aforward", None) or getattr(kind, "forward", None)
    if forward is None:
        return {}
    return dict(list(inspect.signature(forward).parameters.items())[1:])


def _is_history(annotation: object) -> bool:
    return annotation is dspy.History or _takes_messages(annotation)


def _takes_messages(annotation: object) -> bool:
    if isinstance(annotation, str):  # a module that postpones its annotations
        return "StepMessages" in annotation
    return bool(StepMessages.extract_custom_type_from_annotation(annotation))


def _name(program: object) -> str:
    return type(program).__name__


@contextmanager
def naming_missing_method() -> Generator[None]:
    """Say which class lacks which method when an LM in the block is asked in a way it cannot be."""
    try:
        yield
    except NotImplementedError as error:
        if (missing := _missing_method(error)) is None:
            raise
        raise InvalidSettingError(
            f"{missing}() is missing: programs that run on the event loop ask an LM with "
            "`aforward`, those in a thread with `forward`."
        ) from error


def _missing_method(error: NotImplementedError) -> str | None:
    """Return the method of an LM that raised because nobody has written it."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None:
        return None
    code, lm = last.tb_frame.f_code, last.tb_frame.f_locals.get("self")
    methods = (getattr(dspy.BaseLM, name, None) for name in ("forward", "aforward"))
    if code not in {getattr(method, "__code__", None) for method in methods}:
        return None
    return f"{type(lm).__name__}.{code.co_name}"
