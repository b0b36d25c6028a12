"""Steps as demonstrations of a predictor: typed, whole, once each, and with their provenance.

A step is used as it is or not at all: one that failed, that was cut or repaired when it was stored,
or that does not fit the signature as it is today is left out and counted by reason. No mark of an
adapter or a chat template acts in it. Where it comes from is kept under the keys that DSPy keeps to
itself, so that no prompt shows it.
"""

from __future__ import annotations

import heapq
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import dspy
import orjson
from dspy.adapters import utils as adapter_utils  # pyright: ignore[reportMissingTypeStubs]
from pydantic import ValidationError

from hybridagi_steps.errors import InvalidSettingError, ProgramError, UnknownRunError
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.messages.fences import inert_json
from hybridagi_steps.optimize.exclusion import (
    Exclusions,
    Fence,
    Learnable,
    Ties,
    learnable,
    of_served_user,
)
from hybridagi_steps.recording.call_steps import CHOSEN_FIELD, NODE
from hybridagi_steps.recording.recorded_program import ProgramShell
from hybridagi_steps.recording.step_shapes import REASONING, RUN_ID, STEP_ID, signature_key
from hybridagi_steps.recording.trajectories import (
    NEXT_TOOL,
    TOOL_CALLS,
    TRAJECTORY,
    call_turn_fields,
    calls_of_turn,
    is_turn,
    shown_trajectory,
    turn_fields,
)
from hybridagi_steps.recording_hooks import unnoted
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType, id_text
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.records.step_text import text_hash
from hybridagi_steps.records.store_values import CLOSING
from hybridagi_steps.validation import Where, whole_number

_FIRST_PAGE, _GROWTH = 500, 3
_EVERYTHING = 2**62
_parse_value: Callable[[Any, Any], Any] = vars(adapter_utils)["parse_value"]
NodeFields = Callable[[AgentStep, StepMemory], dict[str, Any]]
"""Reads what a node of a graph agent was asked, and gave, from its step and the run around it."""
LeftOut = Counter[str]
"""How many steps were not used, by reason."""


class LeftOutError(ValueError):
    """A step that is no demonstration; never leaves this package."""


class Examples(list[dspy.Example]):
    """Examples made of steps, the newest first.

    Attributes:
        left_out: How many steps were not used, by reason.
    """

    def __init__(self, found: Iterable[dspy.Example] = (), left_out: LeftOut | None = None) -> None:
        super().__init__(found)
        self.left_out = LeftOut() if left_out is None else left_out


class Demos(dict[str, list[dspy.Example]]):
    """Demonstrations by the name of their predictor, the newest first.

    Attributes:
        left_out: How many steps were not used, by reason.
    """

    def __init__(self) -> None:
        super().__init__()
        self.left_out = LeftOut()


def steps_to_demos(
    memory: StepMemory,
    program: dspy.Module,
    *,
    where: Where = None,
    min_score: float | None = None,
    exclude: Exclusions = None,
    per_predictor: int | None = None,
) -> Demos:
    """Return what a program's predictors did well, as demonstrations.

    Args:
        memory: Where its runs are.
        program: Whose predictors and signatures count, as they are now.
        where: Which steps may be used; by default the history of the user that the run around it
            names, and where none is named everybody's, without trials.
        min_score: Least score of a step or its run; a step without one is not used then.
        exclude: What `hs.exclude` names.
        per_predictor: Most demonstrations of each.

    Returns:
        Examples by the predictor's name in the program, the newest first; of near duplicates (same
        outputs, and inputs that differ in case and white space only) the newest stands. `left_out`
        counts the others by reason.

    Raises:
        InvalidSettingError: `program` is no `dspy.Module`, or a limit below 1.
        InvalidFilterError: An unknown key in `where`.
    """
    if not isinstance(program, dspy.Module):  # pyright: ignore[reportUnnecessaryIsInstance] - callers err
        raise InvalidSettingError(f"steps_to_demos takes a dspy.Module, not {program!r:.80}.")
    most = _EVERYTHING if per_predictor is None else per_predictor
    limit = whole_number("per_predictor", most, 1)
    usable, found = learnable(memory, where, exclude, min_score), Demos()
    for name, predict in program.named_predictors():
        steps = steps_of(usable, predictor_name(program, name), predict)
        demos = demos_of(steps, predict, memory, found.left_out, node_fields_of(program, predict))
        found[name] = collapsed(demos, limit)
    return found


def predictor_name(program: dspy.Module, name: str) -> str:
    """Return how steps name a predictor of a program that is called by itself."""
    shown = unwrapped(program)
    return "Predict" if isinstance(shown, dspy.Predict) else f"{type(shown).__name__}.{name}"


def unwrapped(program: dspy.Module) -> dspy.Module:
    """Return the program in the shells that add no step."""
    shown: Any = program
    while isinstance(shown, ProgramShell):
        shown = shown.program
    return shown


def node_fields_of(program: dspy.Module, predict: object) -> NodeFields | None:
    """Return how steps of a predictor are read whose own fields only a run's course tells."""
    for _, module in program.named_sub_modules():
        read = getattr(module, "node_fields", None)
        if read is not None and any(each is predict for each in module.predictors()):
            return read
    return None


def defaults_of(program: dspy.Module) -> dict[str, Any]:
    """Return what a program takes for the inputs that a call leaves out."""
    shown = unwrapped(program)
    predictors: list[Any] = shown.predictors()
    fields = (field for each in predictors for field in each.signature.input_fields.items())
    found = {name: field.default for name, field in fields if not field.is_required()}
    forward = getattr(type(shown), "forward", None) or getattr(type(shown), "aforward", None)
    taken = inspect.signature(forward).parameters.values() if forward is not None else ()
    return found | {each.name: each.default for each in taken if each.default is not each.empty}


def steps_of(usable: Learnable, predictor: str, predict: Any) -> Iterator[AgentStep]:
    """Yield the steps of a predictor, the newest first; of none, those of its signature."""
    asked = {"predictors": [predictor]}, {"signatures": [signature_key(predict.signature)]}
    for each in asked:
        steps = newest(usable, **each)
        if TOOL_CALLS in predict.signature.output_fields and usable.where.scope is None:
            closing = usable.where.model_copy(update={"scope": CLOSING})  # the answer is a call
            both = steps, newest(usable._replace(where=closing), **each)
            steps = heapq.merge(*both, key=lambda step: step.created_at, reverse=True)
        if (first := next(steps, None)) is not None:
            yield first
            yield from steps
            return


def newest(usable: Learnable, **keys: object) -> Iterator[AgentStep]:
    """Yield the steps that may be learned from, the newest first."""
    memory, where, examples = usable
    asked = of_served_user(memory, where.and_(StepFilter(**keys)))
    fence = Fence(memory, None) if examples else None
    offset, limit = 0, _FIRST_PAGE
    while asked is not None:
        with unnoted():
            page = memory.find(asked, limit=limit, offset=offset, newest_first=True).steps
        out = fence.tied(page, Ties(examples=examples)) if fence is not None else ()
        yield from (step for step in page if not out or (step.run_id or str(step.id)) not in out)
        if len(page) < limit:
            return
        offset, limit = offset + limit, limit * _GROWTH


def demos_of(
    steps: Iterable[AgentStep],
    predict: Any,
    memory: StepMemory,
    left_out: LeftOut,
    node_fields: NodeFields | None = None,
) -> Iterator[dspy.Example]:
    """Yield the demonstrations of a predictor that steps are; count those that are none."""
    for step in steps:
        try:
            yield demo_of(step, predict.signature, memory, node_fields)
        except LeftOutError as reason:
            left_out[str(reason)] += 1


def demo_of(
    step: AgentStep, signature: Any, memory: StepMemory, node_fields: NodeFields | None = None
) -> dspy.Example:
    """Return a step as a demonstration for a signature; LeftOutError says why it is none."""
    check_whole(step)
    if step.signature is not None and step.signature != signature_key(signature):
        raise LeftOutError("another signature")
    given = _fields_of(step, signature, memory, node_fields)
    # A turn of ReActV2 is asked what stands in no history yet, and its tools are the agent's own.
    required = given if TOOL_CALLS in signature.output_fields else signature.fields
    typed = {
        name: typed_value(name, field.annotation, given)
        for name, field in _fields(signature)
        if name in required
    }
    return with_provenance(step, typed).with_inputs(*signature.input_fields)


def check_whole(step: AgentStep) -> None:
    """Refuse a step that failed, or of which something is missing."""
    metadata = step.metadata or {}
    if step.status != "ok":
        raise LeftOutError(f"status {step.status}")
    if metadata.get("truncated"):
        raise LeftOutError("truncated")
    if any(str(note).startswith(("inputs", "outputs")) for note in metadata.get("repairs") or ()):
        raise LeftOutError("repaired")


def with_provenance(step: AgentStep, fields: Mapping[str, Any]) -> dspy.Example:
    """Return an example that knows the step that it is made of."""
    return dspy.Example({**fields, STEP_ID: id_text(step.id), RUN_ID: step.run_id})


def typed_value(name: str, annotation: Any, given: Mapping[str, Any]) -> Any:
    """Return a stored value as a signature's field has it."""
    if name not in given:
        raise LeftOutError(f"no {name}")
    value = given[name]
    if isinstance(value, dspy.History | dspy.ToolCalls):
        return value
    if annotation is str:
        if not isinstance(value, str):
            raise LeftOutError(f"{name} does not validate")
        return value
    try:
        return _parse_value(value, annotation)
    except (ValidationError, ValueError, TypeError, SyntaxError) as error:
        raise LeftOutError(f"{name} does not validate") from error


def collapsed(examples: Iterable[dspy.Example], limit: int = _EVERYTHING) -> list[dspy.Example]:
    """Return the first of each that say the same, at most so many."""
    found: dict[tuple[int, int], dspy.Example] = {}
    for example in examples:
        sides = (told_hash(example.inputs().toDict()), told_hash(example.labels().toDict()))
        found.setdefault(sides, example)
        if len(found) >= limit:
            break
    return list(found.values())


def told_hash(fields: Mapping[str, Any]) -> int:
    """Return a hash of fields that is blind to case, white space and provenance."""
    shown = {key: value for key, value in fields.items() if not key.startswith("dspy_")}
    options = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS
    return text_hash(orjson.dumps(shown, default=str, option=options).decode())


def _fields(signature: Any) -> list[tuple[str, Any]]:
    return [*signature.fields.items()]


def _fields_of(
    step: AgentStep, signature: Any, memory: StepMemory, node_fields: NodeFields | None
) -> dict[str, Any]:
    """Return what a predictor was asked and gave, by the names of its fields."""
    if node_fields is not None and NODE in (step.metadata or {}):
        try:
            with unnoted():  # what is shown of it is noted by its own id
                return node_fields(step, memory)
        except (InvalidSettingError, ProgramError, UnknownRunError) as error:
            raise LeftOutError("its run cannot be followed") from error
    if is_turn(step):
        if NEXT_TOOL in signature.output_fields:
            return turn_fields(step, memory)
        if TOOL_CALLS not in signature.output_fields:
            raise LeftOutError("a turn of an agent")
        return _fields_of_calls(step, memory)
    asked = dict(inert_json(step.arguments))
    outputs = dict(inert_json(step.outputs or {}))
    if isinstance(asked.get(TRAJECTORY), dict) and TRAJECTORY in signature.input_fields:
        asked[TRAJECTORY] = shown_trajectory(step, memory)
    if step.step_type is AgentStepType.Decision and "choice" in outputs:
        chosen = (step.metadata or {}).get(CHOSEN_FIELD)
        closed = [name for name in signature.output_fields if name not in REASONING]
        outputs[str(chosen or closed[0])] = outputs.pop("choice")
    return {**asked, **outputs}


def _fields_of_calls(step: AgentStep, memory: StepMemory) -> dict[str, Any]:
    """Return a turn of `dspy.ReActV2`, which is told by the first of its calls."""
    calls = calls_of_turn(step, memory)
    if calls[0].id != step.id:
        raise LeftOutError("a further call of its turn")
    for call in calls:
        check_whole(call)
    return call_turn_fields(step, memory)
