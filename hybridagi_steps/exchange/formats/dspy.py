"""What DSPy remembers, in: `lm.history`, traces of predictors, and predictions with a trajectory.

An entry of the history is one call of a language model: an Action whose arguments and outputs are
the fields of the prompt, where its adapter marked them (`[[ ## answer ## ]]`, or JSON). The entries
of one file are one run, in their order. A trace is a list of (predictor, inputs, outputs), a
trajectory what `ReAct` returns; each is a run of its own. DSPy's times carry no zone: they are
taken as UTC. The native entry stands unchanged in the step's `messages`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from functools import partial
from typing import Any

from pydantic import JsonValue

from hybridagi_steps.exchange.records import Parsed, Record, Records, Skipped, read_each
from hybridagi_steps.messages.conversation import content_key
from hybridagi_steps.records import json_reading as js
from hybridagi_steps.records.json_reading import BadRecordError, JsonObject

_MARK = re.compile(r"\[\[ ## (\w+) ## \]\][ \t]*\n?")
_END = "completed"
"""The mark behind the last field; what stands before the first is none either."""
_ASIDE = re.compile(r"\n\nRespond with (?:the corresponding output fields|a JSON object)\b.*", re.S)
_INPUTS = re.compile(r"Your input fields are:\n(.*?)\nYour output fields are:", re.S)
_LISTED = re.compile(r"^\d+\. `(\w+)`", re.M)
_HISTORY_KEYS = {"outputs", "usage", "timestamp", "model", "uuid", "kwargs", "response"}
_OF_A_MESSAGE = {"role", "type", "lc", "content"}
_OF_A_TURN = ("thought", "tool_name", "tool_args", "observation")
_THOUGHT = re.compile(r"thought_(\d{1,6})")


def recognises(value: JsonValue) -> bool:
    """Whether a record is an entry of a history, a trace, or a prediction with a trajectory."""
    fields = js.as_object(value)
    if "trajectory" in fields or _is_trace(fields.get("trace")) or _is_call(value):
        return True
    is_entry = "outputs" in fields and ("messages" in fields or "prompt" in fields)
    return is_entry and len(_HISTORY_KEYS & fields.keys()) > 2


def parse(records: Records) -> Iterator[Parsed | Skipped]:
    """Return the steps of entries (all one run), traces and trajectories (each a run)."""
    return read_each(records, partial(_steps, _Run()))


class _Run:
    """The run that the entries of a history make up."""

    def __init__(self) -> None:
        self.id = ""
        self.parent: str | None = None
        self.hop = 0

    def step(self, record: Record, key: str, kind: str = "Action", **fields: Any) -> Parsed:
        """Return the next step of the run; `key` names it, the first names the run."""
        self.id = self.id or f"dspy-{js.stable_id(key).hex[:16]}"
        metadata = {"format": "dspy", **fields.pop("metadata", {})}
        place = {"parent_id": self.parent, "hop": self.hop, "run_id": self.id}
        about = {"id": str(js.stable_id("dspy", key)), "step_type": kind, "metadata": metadata}
        step = js.agent_step({**about, **place, **js.known_fields(**fields)})
        self.parent, self.hop = str(step.id), self.hop + 1
        return Parsed(record.line, step)


def _steps(history: _Run, record: Record) -> Iterator[Parsed | Skipped]:
    value = js.as_object(record.value)
    if "trajectory" in value:
        yield from _trajectory(record, value)
    elif _is_trace(value.get("trace")):
        yield from _trace(record, value)
    elif _is_call(record.value):
        yield _called(history, record, record.value, f"{history.id}\n{history.hop}")
    else:
        yield _entry(history, record, value)


def _entry(history: _Run, record: Record, value: JsonObject) -> Parsed:
    outputs: object = value.get("outputs")
    if not isinstance(outputs, list) or not ("messages" in value or "prompt" in value):
        raise BadRecordError("not an entry of a history: no messages or prompt, or no outputs")
    question = js.last_user_text(value.get("messages")) or js.text_of(value.get("prompt"))
    arguments = _fields(_ASIDE.sub("", question), _declared(value.get("messages")))
    cost, model = value.get("cost"), js.text_in(value, "response_model", "model")
    about = js.known_fields(model_name=model, cost=cost if isinstance(cost, float | int) else None)
    return history.step(
        record,
        js.text_in(value, "uuid") or content_key(value),
        inputs={"purpose": next(iter(arguments.values()), "") or question, "arguments": arguments},
        outputs=_outputs(js.as_list(outputs)),
        created_at=js.time_of(value, "timestamp"),
        metrics=js.usage_metrics(value.get("usage"), **about) or {"llm_calls": 1},
        messages=[value],
    )


def _fields(text: str, declared: Collection[str] = ()) -> dict[str, str]:
    """Return the fields that the chat adapter marked in a text.

    A mark of none of the fields that are `declared`, where any are, is part of a field's text.
    """
    found: dict[str, str] = {}
    name, start = _END, 0
    for mark in _MARK.finditer(text):
        if declared and mark[1] not in {*declared, _END}:
            continue
        found[name] = text[start : mark.start()]
        name, start = mark[1], mark.end()
    found[name] = text[start:]
    return {name: body.strip() for name, body in found.items() if name != _END}


def _declared(messages: object) -> set[str]:
    """Return the input fields that the system message of an adapter lists."""
    first = js.as_object(next(iter(js.as_list(messages)), None))
    if first.get("role") not in ("system", "developer"):
        return set()
    listed = _INPUTS.search(js.text_of(first.get("content")))
    return set(_LISTED.findall(listed[1])) if listed else set()


def _outputs(outputs: list[Any]) -> JsonObject:
    """Return the fields of the first completion, else its text."""
    first = outputs[0] if outputs else ""
    said = js.as_object(first)
    text = js.text_of(said.get("text")) if said else js.text_of(first)
    fields: JsonObject = _fields(text) or js.as_object(js.json_or_text(text)) or {"result": text}
    calls = said.get("tool_calls")
    return {**fields, "tool_calls": calls} if calls else fields


def _is_trace(value: object) -> bool:
    calls = js.as_list(value)
    return bool(calls) and _call(calls[0]) is not None


def _is_call(value: JsonValue) -> bool:
    """Whether a record is one call of a trace by itself."""
    named = isinstance(value, list) or bool({"predictor", "signature"} & js.as_object(value).keys())
    return named and _call(value) is not None


def _call(item: object) -> tuple[str, JsonObject, JsonObject] | None:
    """Return predictor, inputs and outputs of one call in a trace."""
    fields = js.as_object(item)
    parts = js.as_list(item)
    if fields:
        name = fields.get("predictor", fields.get("signature", "Predict"))
        parts = [name, fields.get("inputs"), fields.get("outputs", fields.get("prediction"))]
    if len(parts) != 3 or not isinstance(parts[1], dict) or not isinstance(parts[2], dict):
        return None
    if _OF_A_MESSAGE & js.as_object(parts[0]).keys():
        return None  # three messages of somebody else's
    name = parts[0] if isinstance(parts[0], str) else "Predict"
    return name, js.as_object(parts[1]), js.as_object(parts[2])


def _trace(record: Record, value: JsonObject) -> Iterator[Parsed]:
    run, key, score = _Run(), content_key(value), value.get("score")
    about = js.without(value, "trace")
    fields = {"score": score if isinstance(score, int | float) else None}
    for place, item in enumerate(js.as_list(value["trace"])):
        extras = {"trace": about} if about and place == 0 else {}
        yield _called(run, record, item, f"{key}\n{place}", metadata=extras, **fields)


def _called(run: _Run, record: Record, item: object, key: str, **fields: Any) -> Parsed:
    """Return the step of one call: (predictor, inputs, outputs)."""
    call = _call(item)
    if call is None:
        raise BadRecordError(f"call {run.hop + 1} of the trace is not (predictor, inputs, outputs)")
    name, inputs, outputs = call
    purpose = next((text for text in inputs.values() if isinstance(text, str)), name)
    return run.step(
        record,
        f"{key}\n{content_key(item)}",
        inputs={"purpose": purpose, "arguments": inputs},
        outputs=outputs,
        messages=[item],
        metadata={"predictor": name, **fields.pop("metadata", {})},
        **fields,
    )


def _trajectory(record: Record, value: JsonObject) -> Iterator[Parsed]:
    """Yield a ReAct trajectory: thought, tool, arguments and observation are one Action."""
    trajectory = js.as_object(js.json_or_text(value["trajectory"]))
    numbers = [int(match[1]) for key in trajectory if (match := _THOUGHT.fullmatch(key))]
    if not numbers:
        raise BadRecordError("a trajectory without thoughts")
    run, key, unread = _Run(), content_key(value), dict(trajectory)
    for number in sorted(numbers):
        turn = {name: trajectory.get(f"{name}_{number}") for name in _OF_A_TURN}
        names = [f"{name}_{number}" for name in _OF_A_TURN if f"{name}_{number}" in trajectory]
        native = {name: unread.pop(name) for name in names}
        thought, tool, arguments, answer = turn.values()
        failed = isinstance(answer, str) and answer.startswith("Execution error in ")
        inputs = {"purpose": js.text_of(thought), "tool": js.text_of(tool)}
        error = {"error": {"type": "ToolError", "message": answer}}
        yield run.step(
            record,
            f"{key}\n{number}",
            inputs={**inputs, "arguments": js.as_arguments(arguments)},
            outputs=error if failed else {"result": answer},
            status="error" if failed else "ok",
            messages=[native],
        )
    yield run.step(
        record,
        f"{key}\nend",
        "ProgramEnd",
        inputs={"program": "ReAct"},
        outputs=js.without(value, "trajectory"),
        messages=[{name: unread[name] for name in sorted(unread)}] if unread else None,
    )
