"""What a step says, compared without bookkeeping: the same thing is found once.

An agent's end names the steps of its trajectory, and those ids differ each time; the end of a
program does not repeat what it was asked; a predictor that is asked what its program was asked says
what that says. So what is compared of a step is the question and the answer, nothing else. A row
that only asks gives way to one that answers it, which carries the question's hash in a form of its
own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

import orjson

from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.step_text import CHAT, text_hash, whole_text
from hybridagi_steps.records.store_values import Rows

BOOKKEEPING = frozenset({"trajectory", "history"})
"""Fields in which an agent repeats its own steps."""
RECALLING = frozenset({"StepRetriever", "StepReranker", "LMStepReranker"})
"""Programs that only hand out what is remembered: their calls are no memories."""

Hash = TypeVar("Hash", int, Rows)
"""One hash, or an array of them."""

_ANSWERS = 0x5DEECE66D1234567


def recalls(step: AgentStep) -> bool:
    """Whether a step only tells that steps were recalled."""
    return step.program in RECALLING


def with_question(end: AgentStep, call: AgentStep) -> AgentStep:
    """Return the end of a program with what the program was asked."""
    asked = {key: value for key, value in (call.inputs or {}).items() if key != "program"}
    return end.model_copy(update={"inputs": {**asked, **(end.inputs or {})}})


def same_owner(one: AgentStep, other: AgentStep) -> bool:
    """Whether two steps are of one user and scope: else neither tells the other's words."""
    return (one.user_id, one.scope) == (other.user_id, other.scope)


def is_end(step: AgentStep) -> bool:
    """Whether a step ends a program."""
    return str(step.step_type) == "ProgramEnd"


def may_repeat_a_call(step: AgentStep) -> bool:
    """Whether what a step says depends on the call that it stands in."""
    predicted = str(step.step_type) == "Action" and not step.tool
    return step.program_id is not None and (predicted or is_end(step))


def without_bookkeeping(step: AgentStep) -> AgentStep:
    """Return a step without lists of ids in place of its trajectory; itself where it has none."""
    inputs, outputs = step.inputs or {}, step.outputs or {}
    held = [inputs.get("arguments"), outputs]
    if not any(names_steps(fields.get(name)) for fields in _objects(held) for name in BOOKKEEPING):
        return step
    changed: dict[str, Any] = {"outputs": _without(outputs)}
    if isinstance(inputs.get("arguments"), dict):
        changed["inputs"] = {**inputs, "arguments": _without(inputs["arguments"])}
    return step.model_copy(update=changed)


def told_with(step: AgentStep, call: AgentStep | None) -> AgentStep:
    """Return a step as a search tells it: without bookkeeping, an end with its question."""
    told = without_bookkeeping(step)
    return told if call is None or not is_end(step) else with_question(told, call)


def told_alone(step: AgentStep, call: AgentStep | None) -> AgentStep | None:
    """Return a step as a search tells it; None of one that only recalls, and is no memory."""
    return None if only_recalls(step, call) else told_with(step, call)


def only_recalls(step: AgentStep, call: AgentStep | None) -> bool:
    """Whether a step, or the call around it, only tells that steps were recalled."""
    return recalls(step) or (call is not None and recalls(call))


def says(step: AgentStep, call: AgentStep | None = None, whole: str | None = None) -> str:
    """Return what two steps have in common that say the same.

    `call` is the ProgramCall that it stands in, and `whole` its whole text without bookkeeping, if
    they are at hand.
    """
    kind = str(step.step_type)
    if step.program == CHAT or _is_spoken(step):
        if kind == "ProgramCall":
            return step.purpose
        asked = call.purpose if call is not None and is_end(step) else step.purpose
        return f"{asked} -> {_answer(step)}"
    if call is not None and answers(step, call):
        return f"{whole_text(call)} -> {_answer(step)}"
    return whole if whole is not None else whole_text(without_bookkeeping(step))


def answers(step: AgentStep, call: AgentStep) -> bool:
    """Whether a step says what came of the call that it stands in."""
    # A runner hands its message on under the name that the program's input has.
    asked = _asked(call)
    return is_end(step) or (not step.tool and bool(asked) and _asked(step) == asked)


def given_answer(step: AgentStep) -> str | None:
    """Return what a program or predictor gave, whatever it was asked; None of any other step."""
    given = step.program_id is not None or is_end(step)
    return (_answer(step) or None) if given and not step.tool and step.outputs else None


def asks(call: AgentStep) -> str | None:
    """Return the message that a program was run for in a session; None of any other step."""
    is_call = str(call.step_type) == "ProgramCall" and call.program != CHAT
    match call.arguments if is_call else {}:
        case {"message": str(asked), **more} if not more:
            return asked
        case _:
            return None


def answer_to(question: Hash) -> Hash:
    """Return the purpose hash of a row that answers the one whose text has this hash."""
    return question ^ _ANSWERS


def answered_hash(asked: AgentStep) -> int:
    """Return the purpose hash of what answers a step."""
    return answer_to(text_hash(says(asked)))


def _is_spoken(step: AgentStep) -> bool:
    """Whether a step is an answer in words: no tool, no predictor's inputs."""
    return str(step.step_type) == "Action" and not step.tool and not step.arguments


def _asked(step: AgentStep) -> list[Any]:
    return [value for key, value in step.arguments.items() if key not in BOOKKEEPING]


def _answer(step: AgentStep) -> str:
    """Return what came of a step, whatever the order of its fields."""
    outputs = {key: value for key, value in (step.outputs or {}).items() if key not in BOOKKEEPING}
    if len(outputs) == 1 and isinstance(only := next(iter(outputs.values())), str):
        return only
    try:
        return orjson.dumps(outputs, option=orjson.OPT_SORT_KEYS, default=str).decode()
    except (TypeError, ValueError):
        return str(outputs)


def _objects(values: list[Any]) -> list[Mapping[str, Any]]:
    return [cast("Mapping[str, Any]", value) for value in values if isinstance(value, dict)]


def names_steps(value: object) -> bool:
    """Whether a value only names steps by their ids, as a trajectory does."""
    return isinstance(value, dict) and value.keys() == {"steps"}  # pyright: ignore[reportUnknownMemberType]


def _without(fields: Mapping[str, Any]) -> dict[str, Any]:
    listed = {key for key in BOOKKEEPING if names_steps(fields.get(key))}
    return {key: value for key, value in fields.items() if key not in listed}
