"""How DSPy's calls read as steps: purpose, arguments, options, outputs.

Pure functions from a module, tool or function and its values to the keys that every AgentStep has;
nothing is copied or cleaned here, and nothing is stored.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from hashlib import sha256
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, cast, get_args, get_origin
from weakref import WeakKeyDictionary, ref

import dspy
from dspy.lm15 import Request, Response
from dspy.teleprompt.bootstrap_trace import FailedPrediction  # pyright: ignore[reportMissingTypeStubs]
from pydantic import BaseModel

from hybridagi_steps.recording.call_tree import Maker
from hybridagi_steps.recording.values import plain, steps_held
from hybridagi_steps.validation import MAX_ID_LENGTH

_FIELD_MARK = re.compile(r"\[\[ ## \w+ ## \]\]")
_SCOPE_CANCELLED = "Cancelled via cancel scope"
"""How anyio's message begins."""
REASONING = ("reasoning", "rationale")
_PLAIN = (str, int, float, bool, type(None))
STEP_ID, RUN_ID, RECALLED_IDS = "dspy_step_id", "dspy_run_id", "dspy_recalled"
"""Under these keys an example names the step that it is made of, or those that were in the prompt
of the run that it is made of; DSPy shows none of them."""
_CALL_OPTIONS = ("signature", "demos", "config", "lm", "_trace")


class Choice(NamedTuple):
    """The one closed output of a routing signature."""

    field: str
    options: list[str]


@lru_cache(maxsize=2048)
def choice_of(signature: Any) -> Choice | None:
    """Return a signature's only output besides its reasoning when it is Literal, bool or Enum."""
    outputs = {
        name: field.annotation
        for name, field in signature.output_fields.items()
        if name not in REASONING and field.annotation is not dspy.Reasoning
    }
    if len(outputs) != 1:
        return None
    [(name, annotation)] = outputs.items()
    options = options_of(annotation)
    return None if options is None else Choice(name, options)


def options_of(annotation: object) -> list[str] | None:
    """Return the texts of a closed set of values, None when the set is open."""
    if annotation is bool:
        return ["True", "False"]
    if get_origin(annotation) is Literal:
        return [choice_text(value) for value in get_args(annotation)]
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return [choice_text(member) for member in annotation]
    if get_origin(annotation) in (Union, UnionType) and type(None) in get_args(annotation):
        rest = [kind for kind in get_args(annotation) if kind is not type(None)]
        chosen = options_of(rest[0]) if len(rest) == 1 else None
        return chosen and [*chosen, choice_text(None)]
    return None


def choice_text(value: object) -> str:
    """Return a choice as it stands among the options."""
    return str(value.value if isinstance(value, Enum) else value)


def choice_fields(outputs: object) -> dict[str, Any]:
    """Return a Decision's outputs from what a function gave: a choice, or fields with one."""
    if isinstance(outputs, dict) and "choice" in outputs:
        return dict(outputs)
    return {"choice": choice_text(outputs)}


def purpose_of(module: object) -> str:
    """Return what a module is for: its own `purpose`, its instructions, its docstring, its name."""
    own = getattr(module, "purpose", None)
    if isinstance(own, str) and own:
        return own
    instructions = getattr(getattr(module, "signature", None), "instructions", None)
    if isinstance(instructions, str) and instructions.strip():
        return first_line(instructions)
    kind = type(module)
    documented = kind.__doc__ if kind.__module__.split(".", 1)[0] != "dspy" else None
    return first_line(documented or "") or kind.__name__


def first_line(text: str) -> str:
    """Return the first line that says something."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def module_arguments(module: object, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a module was called with, by name."""
    named: dict[str, Any] = dict(inputs.get("kwargs") or {})
    positional = inputs.get("args") or ()
    if not positional:
        return named
    # Looked up on the class: DSPy warns when `forward` is read from a module.
    forward = getattr(type(module), "forward", None) or getattr(type(module), "aforward", None)
    if forward is None:
        return {"args": list(positional), **named}
    return function_arguments(forward, (module, *positional), named)


def predict_arguments(predict: object, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a predictor's input fields, without the options of the call itself."""
    fields = signature_of(predict, inputs).input_fields
    named: dict[str, Any] = inputs.get("kwargs") or {}
    return {key: value for key, value in named.items() if key in fields or key not in _CALL_OPTIONS}


def steps_in_demos(predict: Any, inputs: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the steps in a predictor's demos, which stand in its prompt, each with its run."""
    demos = (inputs.get("kwargs") or {}).get("demos", predict.demos) or ()
    values = [value for demo in demos for value in dict(demo).values()]
    held = [value for value in values if not isinstance(value, _PLAIN)]
    made_of = {str(demo[STEP_ID]): demo.get(RUN_ID) for demo in demos if demo.get(STEP_ID)}
    echoed = {step_id: None for demo in demos for step_id in demo.get(RECALLED_IDS) or ()}
    return echoed | made_of | (steps_held(held) if held else {})


def signature_of(predict: Any, inputs: Mapping[str, Any]) -> Any:
    """Return the signature of this call: the predictor's, unless the call brings its own."""
    own = (inputs.get("kwargs") or {}).get("signature")
    return own if isinstance(own, type) else predict.signature


def maker_of(predict: Any, inputs: Mapping[str, Any]) -> Maker:
    """Return how a predictor is named in the steps of a call that begins now, or goes on here."""
    key = signature_key(signature_of(predict, inputs))
    callers = [caller for caller in dspy.settings.caller_modules or () if caller is not predict]
    programs = [caller for caller in callers if not _is_shell(caller)]
    if not programs:
        return Maker(_kind_of(predict), key)
    outermost, known = programs[0], _NAMES.get(predict)
    if known is None or known[0]() is not outermost:
        known = _NAMES[predict] = ref(outermost), _path_of(predict, programs)
    return Maker(known[1], key)


_NAMES: WeakKeyDictionary[Any, tuple[ref[Any], str]] = WeakKeyDictionary()
"""Of each predictor the outermost program that called it last, and its path from there."""


def _path_of(predict: object, programs: Sequence[Any]) -> str:
    """Return a predictor's name in the outermost program that has it; of a passing one its kind."""
    for program in programs:
        for path, known in program.named_predictors():
            if known is predict:
                return _fitting(f"{type(program).__name__}.{path}")
    return _fitting(f"{type(programs[0]).__name__}.{_kind_of(predict)}")


def _kind_of(predict: object) -> str:
    """Return the class of a predictor, or the one that it stands for."""
    return getattr(predict, "told_as", None) or type(predict).__name__


def _fitting(name: str) -> str:
    """Return a name that a step can carry, the end of one that is too long."""
    printable = "".join(letter if letter.isprintable() else "?" for letter in name)
    return printable[-MAX_ID_LENGTH:]


def _is_shell(module: object) -> bool:
    return getattr(type(module), "adds_no_step", False)


@lru_cache(maxsize=2048)
def signature_key(signature: Any) -> str:
    """Return 12 hexadecimal characters over the names and types of a signature's fields."""
    sides = (signature.input_fields, signature.output_fields)
    told = [[(name, type_text(field.annotation)) for name, field in side.items()] for side in sides]
    return sha256(repr(told).encode()).hexdigest()[:12]


def type_text(annotation: Any) -> str:
    """Return a type as text that is the same in each process and Python."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_text(arguments[0])
    if origin is None:
        return getattr(annotation, "__qualname__", None) or repr(annotation)
    if origin is Literal:
        return f"Literal{[choice_text(value) for value in arguments]}"
    name = "Union" if origin in (Union, UnionType) else type_text(origin)
    return f"{name}[{', '.join(map(type_text, arguments))}]"


def decided(choice: Choice, prediction: object) -> dict[str, Any]:
    """Return a Decision's outputs: the choice first, then whatever else was said."""
    fields = output_fields(prediction)
    return {"choice": choice_text(fields.pop(choice.field, None)), **fields}


def output_fields(outputs: Any) -> dict[str, Any]:
    """Return what a program gave back, by name; a value without names is its `result`."""
    if with_trace(outputs):
        outputs = outputs[0]
    if outputs is None:
        return {}
    own: Callable[[Any], dict[str, Any]] | None = getattr(type(outputs), "told_fields", None)
    if own is not None:
        return own(outputs)
    if isinstance(outputs, dspy.Example) and not isinstance(outputs, BaseModel):
        return {key: outputs[key] for key in outputs.keys()}  # noqa: SIM118 - an Example is no dict
    return dict(outputs) if isinstance(outputs, dict) else {"result": outputs}  # pyright: ignore[reportUnknownVariableType]


def with_trace(outputs: object) -> bool:
    """Whether an optimiser has patched `forward` to return (prediction, trace)."""
    if not isinstance(outputs, tuple) or len(outputs) != 2:
        return False
    prediction, trace = cast("tuple[Any, Any]", outputs)
    return isinstance(prediction, dspy.Prediction | FailedPrediction) and isinstance(trace, list)


def error_fields(error: BaseException) -> dict[str, Any]:
    """Return the outputs of a step that failed."""
    try:
        message = str(error)
    except Exception as broken:
        message = f"<{type(broken).__name__} in str()>"
    if isinstance(error, asyncio.CancelledError) and message.startswith(_SCOPE_CANCELLED):
        message = ""  # it names the task, its code and the file that stands in
    return {"error": {"type": type(error).__name__, "message": message}}


def answer_text(outputs: object) -> str:
    """Return the text of a model's answer, without an adapter's field marks.

    Beside native tool calls DSPy keeps the calls and drops the text; it is what the model thought.
    """
    first: Any = outputs[0] if isinstance(outputs, list) and outputs else None
    text = first.get("text") if isinstance(first, dict) else first
    return _FIELD_MARK.sub("", text).strip() if isinstance(text, str) else ""


def asked_of_model(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a model is asked, as the arguments of a step."""
    request: Any = inputs.get("prompt")
    if not isinstance(request, Request):
        return {name: value for name, value in inputs.items() if value}
    said = [{"role": message.role, "content": message.text} for message in request.messages]
    return {"messages": said} | ({"system": request.system} if request.system else {})


def answer_of_model(outputs: Any) -> object:
    """Return what a model answered: one text where it is one."""
    if isinstance(outputs, Response):
        return outputs.text
    return outputs[0] if isinstance(outputs, list) and len(outputs) == 1 else outputs


def wraps(wrapper: Callable[..., Any], function: object) -> bool:
    """Whether `wrapper` is `function`, or decorates it as `functools.wraps` tells."""
    return inspect.unwrap(wrapper, stop=lambda inner: inner is function) is function


def function_arguments(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a plain function was called with, by name and without `self`."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return {"args": list(args), **kwargs}
    return {key: value for key, value in bound.arguments.items() if key not in ("self", "cls")}


def program_state(program: Any) -> dict[str, Any]:
    """Return the state that a program is in; a plain function has none."""
    named: Callable[[], Iterable[tuple[str, Any]]] = getattr(program, "named_predictors", tuple)
    return {name: _predictor_state(predict) for name, predict in named()}


def _predictor_state(predict: Any) -> dict[str, Any]:
    signature: Any = predict.signature
    fields: dict[str, Any] = signature.fields
    told: dict[str, Any] = {n: known.json_schema_extra or {} for n, known in fields.items()}
    recalls: dict[str, Any] | None = getattr(predict, "recalls", None)
    return {
        "instructions": signature.instructions,
        "fields": {name: [extra.get("prefix"), extra.get("desc")] for name, extra in told.items()},
        "demos": plain([dict(demo) for demo in predict.demos], []),
        **({} if recalls is None else {"recalls": recalls}),
    }


def prediction_in(outputs: Any) -> Any:
    """Return a prediction that an optimiser may have paired with its trace."""
    return outputs[0] if with_trace(outputs) else outputs
