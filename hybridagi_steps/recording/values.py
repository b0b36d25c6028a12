"""What a program was given and gave back, as detached JSON data of a bearable size.

A step must never hold on to a live prompt, tool or memory, nor store again what other steps hold:
steps stand for themselves as ids, tools and language models as their names, long histories, media
and vectors as a few words. What is left is copied, redacted, repaired, and cut only when the step
would be refused for its size; whatever was left out or cut is named. This module knows DSPy's
types; it does not know what a step means.

What a model is sent is copied when it is asked, since a program may go on writing to its messages.
Of the model's settings those are kept that shape its answer, never keys, addresses or headers.
"""

# pyright: reportUnknownVariableType=false

from __future__ import annotations

import dataclasses
import functools
from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from enum import Enum
from math import prod
from pathlib import PurePath
from typing import Any, cast
from uuid import UUID

import dspy
import orjson
from dspy.lm15 import Request
from dspy.primitives.repl_types import REPLHistory
from pydantic import BaseModel

from hybridagi_steps.dspy_types import PastMessages
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.filters import StepHit
from hybridagi_steps.records.json_values import json_value, transformed, without_address
from hybridagi_steps.records.prompts import SETTINGS, LMCall
from hybridagi_steps.records.redaction import redacted_fields

REDACTION_FAILED = "[redaction failed]"

_DEEPEST = 40
_MOST_VALUES = 200_000
_STEP_BYTES = 7 * 1024 * 1024
_KEPT_CHARACTERS = (1_000_000, 100_000, 10_000, 1_000)
_SURELY_SMALL = 500_000
_CHARACTERS_PER_VALUE = 24
_VECTOR_LENGTH = 128
_KNOWN_TO_JSON_REPAIR = (str, int, float, datetime, date, time, UUID, PurePath)
_NUMBERS_KEPT, _BYTES_KEPT = 64, 256
_LONGEST_DESCRIPTION = 20_000
_HISTORY_KEPT, _MESSAGES_KEPT = 4_000, 100
"""Characters and messages of a history that a step keeps: each step of a talk holds it again."""
_LONGEST_PATH, _MOST_NOTES, _LONGEST_MEDIUM = 200, 100, 1_000
_PAYLOADS = ("data", "file_data")


def plain(value: Any, cuts: list[str], path: str = "") -> Any:
    """Return `value` as a detached copy made of dicts, lists, texts, numbers and leaves.

    `cuts` receives "path: what was left out" for each value that was not kept whole.
    """
    return _Copy(cuts).field(path, value)


def plain_fields(
    fields: dict[str, Any],
    cuts: list[str],
    *,
    keep_bytes: bool = True,
    seen: dict[str, str | None] | None = None,
) -> tuple[dict[str, Any], bool]:
    """Return plain copies of a step's fields by name, and whether they surely fit into one step.

    `cuts` as of `plain`. `keep_bytes`: a few bytes may stay, as base64 text, in which no redaction
    could find anything. `seen` receives the ids of the steps and messages among the values, with
    their runs.
    """
    copy = _Copy(cuts, keep_bytes=keep_bytes, seen=seen)
    copied: dict[str, Any] = {}
    for name, value in fields.items():
        copied[name] = None if value is None else copy.field(name, value)
    return copied, copy.size <= _SURELY_SMALL


def steps_held(value: object) -> dict[str, str | None]:
    """Return the ids of the steps and messages anywhere in a value, each with its run."""
    seen: dict[str, str | None] = {}
    plain_fields({"": value}, [], seen=seen)
    return seen


class _Copy:
    """A traversal for each field: knows what it stands inside of, so that cycles and floods end."""

    __slots__ = (
        *("_characters", "_cuts", "_inside", "_keep_bytes", "_left", "_path", "_seen"),
        "_values",
    )

    def __init__(
        self,
        cuts: list[str],
        *,
        keep_bytes: bool = True,
        seen: dict[str, str | None] | None = None,
    ) -> None:
        self._cuts = cuts
        self._seen: dict[str, str | None] = {} if seen is None else seen
        self._keep_bytes = keep_bytes
        self._path = ""
        self._left = _MOST_VALUES
        self._characters = self._values = 0
        self._inside: set[int] = set()

    def field(self, path: str, value: object) -> Any:
        """Copy one field, which may hold as many values as any other."""
        self._path = path
        copied = self.of(value, 0)
        self._values, self._left = self._values + _MOST_VALUES - self._left, _MOST_VALUES
        return copied

    @property
    def size(self) -> int:
        """About how many characters the copies have as JSON."""
        values = self._values + _MOST_VALUES - self._left
        return self._characters + values * _CHARACTERS_PER_VALUE

    def of(self, value: Any, depth: int) -> Any:
        kind: type[Any] = type(value)
        self._left -= 1
        if kind is str:
            self._characters += len(value)
            return value
        if value is None or kind is int or kind is float or kind is bool:
            return value
        if self._left < 0:
            return self._cut(value, f"more than {_MOST_VALUES:,} values")
        if depth > _DEEPEST:
            return self._cut(value, f"nested deeper than {_DEEPEST} levels")
        if id(value) in self._inside:
            return self._cut(value, "contains itself")
        self._inside.add(id(value))
        try:
            if kind is dict:
                return self._mapping(value, depth)
            if kind is list or kind is tuple:
                return self._sequence(value, depth)
            return self._foreign(value, depth)
        except Exception as error:
            return self._cut(value, f"{type(error).__name__} when it was read")
        finally:
            self._inside.discard(id(value))

    def _cut(self, value: object, why: str) -> str:
        self._note(why)
        return f"<{type(value).__name__}: {why}>"

    def _left_out(self, what: str) -> str:
        self._note(f"{what} left out")
        return f"<{what}>"

    def _note(self, what: str) -> None:
        note = f"{self._path}: {what}"
        if len(self._cuts) < _MOST_NOTES and note not in self._cuts:
            self._cuts.append(note)

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> dict[Any, Any]:
        copied: dict[Any, Any] = {}
        for key, item in list(value.items()):
            if self._left < 0:
                self._cut(value, f"more than {_MOST_VALUES:,} values")
                break
            copied[key] = self.of(item, depth + 1)
        return copied

    def _sequence(self, value: Sequence[Any], depth: int) -> Any:
        if len(value) >= _VECTOR_LENGTH and all(type(number) is float for number in value):
            return self._left_out(f"{len(value)} numbers")
        copied: list[Any] = []
        for item in value:
            if self._left < 0:
                self._cut(value, f"more than {_MOST_VALUES:,} values")
                break
            copied.append(self.of(item, depth + 1))
        return copied

    def _foreign(self, value: object, depth: int) -> Any:
        """Turn an object into data: its own short form, else its fields, else its description."""
        if isinstance(value, dspy.History):
            return self._history(value, depth)
        if isinstance(value, PastMessages):
            self._seen.update(dict.fromkeys(value.recalled))
            return self._stood_for(f"history of {len(value.messages)} messages", value.messages)
        if isinstance(value, REPLHistory):
            return self._stood_for(f"history of {len(value)} entries", len(value))
        if isinstance(value, dspy.Image | dspy.Audio | dspy.File):
            return self._medium(value)
        if steps := _steps_in(value):
            self._seen.update((id_text(step.id), step.run_id) for step in steps)
        short = _short_form(value)
        if short is not None:
            return short
        fields = _fields(value)
        if fields is not None:
            return self._mapping(fields, depth)
        if isinstance(value, Enum):
            return self.of(value.value, depth + 1)
        if isinstance(value, list | tuple | set | frozenset):
            return self._sequence(list(cast("Sequence[Any]", value)), depth)
        if isinstance(value, bytes | bytearray | memoryview):
            return self._bytes(bytes(cast("bytes", value)))
        if hasattr(value, "dtype") and hasattr(value, "shape"):
            return self._array(value, depth)
        return self._leaf(value)

    def _history(self, value: dspy.History, depth: int) -> Any:
        """Keep a short history, of a long one how many messages it had."""
        notes, size = len(self._cuts), self.size
        if len(value.messages) <= _MESSAGES_KEPT:
            copied = self._mapping({"messages": value.messages}, depth)
            if self.size - size <= _HISTORY_KEPT:
                return copied
        del self._cuts[notes:]
        return self._left_out(f"history of {len(value.messages)} messages")

    def _stood_for(self, words: str, content: object) -> str:
        return self._left_out(words) if content else f"<{words}>"

    def _medium(self, value: object) -> str:
        kind = type(value).__name__.lower()
        source = getattr(value, "url", None) or getattr(value, "filename", None)
        data = getattr(value, "data", None) or getattr(value, "file_data", None)
        if isinstance(source, str) and not source.startswith("data:"):
            return self._stood_for(f"{kind} {source}", data)
        data = source or data or ""
        return self._stood_for(f"{kind} of {len(str(data)):,} characters", data)

    def _bytes(self, value: bytes) -> str:
        if self._keep_bytes and len(value) <= _BYTES_KEPT:
            return b64encode(value).decode()
        return self._left_out(f"{len(value):,} bytes")

    def _array(self, value: Any, depth: int) -> Any:
        if not value.shape and hasattr(value, "item"):
            return value.item()
        if prod(value.shape) <= _NUMBERS_KEPT and hasattr(value, "tolist"):
            return self.of(value.tolist(), depth + 1)
        return self._left_out(f"{type(value).__name__} of shape {tuple(value.shape)}")

    def _leaf(self, value: object) -> Any:
        """Return what JSON repair knows how to turn into text, or a description of the rest."""
        kind = type(value)
        name = getattr(value, "__qualname__", None)
        if callable(value) and isinstance(name, str):
            return f"<function {name}>"
        if kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__:
            return self._left_out(kind.__name__)
        if isinstance(value, _KNOWN_TO_JSON_REPAIR):
            return json_value(value, [])
        return self._described(value)

    def _described(self, value: object) -> str:
        """Return an object as text: whole, or not at all, lest a cut hides a secret."""
        try:
            text = str(value)
        except Exception as error:
            return self._cut(value, f"{type(error).__name__} in str()")
        if len(text) > _LONGEST_DESCRIPTION:
            return self._cut(value, f"{len(text):,} characters")
        words = without_address(text)
        return text if words == text else self._left_out(words.strip("<>"))


def _short_form(value: object) -> Any:
    """Return the few words that stand for steps, tools and models, else None."""
    if isinstance(value, AgentStep):
        return {"step": str(value.id)}
    if isinstance(value, StepHit):
        return {"step": str(value.step.id), "score": value.score}
    steps = _steps(value)
    if steps is not None:
        return {"steps": [str(step.id) for step in steps]}
    if isinstance(value, dspy.Tool):
        return f"<tool {value.name}>"
    if isinstance(value, dspy.BaseLM):
        return f"<language model {value.model}>"
    if isinstance(value, dspy.Module):
        return f"<module {type(value).__name__}>"
    if isinstance(value, dspy.Reasoning):
        return str(value)
    if isinstance(value, type):
        return f"<class {value.__name__}>"
    return None


def _steps_in(value: object) -> list[AgentStep] | None:
    if isinstance(value, AgentStep | StepHit):
        return [value.step if isinstance(value, StepHit) else value]
    return _steps(value)


def _steps(value: object) -> list[AgentStep] | None:
    """Return the steps of an AgentStepList, a QueryWithSteps or a StepContext."""
    if not isinstance(value, dspy.Example | dspy.Type):
        return None
    steps = getattr(value, "steps", None)
    if not isinstance(steps, list) or not steps:
        return [] if steps == [] and isinstance(value, BaseModel) else None
    return steps if all(isinstance(step, AgentStep) for step in steps) else None


def _fields(value: object) -> Mapping[Any, Any] | None:
    """Return an object's fields without embeddings, None when it is no record."""
    if isinstance(value, dspy.Example):
        fields = {key: value[key] for key in value.keys()}  # noqa: SIM118 - an Example is no dict
    elif isinstance(value, BaseModel):
        fields = {name: getattr(value, name, None) for name in type(value).model_fields}
        fields.update(value.__pydantic_extra__ or {})
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name, None) for f in dataclasses.fields(value)}
    elif isinstance(value, Mapping):
        fields = cast("Mapping[Any, Any]", value)
    else:
        return None
    if isinstance(fields, dict) and isinstance(value, BaseModel):
        fields.pop("vector", None)
    return fields


def without_texts(value: dict[str, Any]) -> dict[str, Any]:
    """Return a step's fields with every text replaced, names of theirs too: redaction failed."""

    def hidden(_text: str) -> str:
        return REDACTION_FAILED

    return redacted_fields(value, hidden)


def fitted(fields: dict[str, Any], cuts: list[str]) -> dict[str, Any]:
    """Return `fields` small enough for one step, with their longest texts cut where they are not.

    Texts up to 1,000,000 characters are kept as long as the whole fits; `cuts` as of `plain`.
    """
    for kept in _KEPT_CHARACTERS:
        if len(orjson.dumps(fields)) <= _STEP_BYTES:
            return fields
        fields = transformed(fields, functools.partial(_shortened, kept, cuts))
    if len(orjson.dumps(fields)) <= _STEP_BYTES:
        return fields
    cuts.append("inputs and outputs: left out, too large for one step")
    left_out = {"left_out": "too large for one step"}
    return {name: left_out if value else value for name, value in fields.items()}


def _shortened(kept: int, cuts: list[str], value: object, path: str) -> Any:
    if not isinstance(value, str) or len(value) <= kept:
        return value
    if len(cuts) < _MOST_NOTES:
        cuts.append(f"{path[:_LONGEST_PATH]}: kept {kept:,} of {len(value):,} characters")
    return value[:kept]


def request_of(model: Any, inputs: Mapping[str, Any]) -> LMCall:
    """Return the request of a call that begins."""
    prompt, given = inputs.get("prompt"), {**getattr(model, "kwargs", {}), **(inputs["kwargs"])}
    messages = inputs.get("messages")
    if isinstance(prompt, Request):
        messages = [{"role": each.role, "parts": each.parts} for each in prompt.messages]
        if prompt.system:
            messages.insert(0, {"role": "system", "content": prompt.system})
        given |= {**_copied(prompt.config), "tools": prompt.tools}
    elif not messages:
        messages = [{"role": "user", "content": prompt}]
    settings = {name: given[name] for name in given if name in SETTINGS}
    return LMCall(
        lm=str(model.model) if hasattr(model, "model") else None,
        messages=_copied(messages),
        tools=_copied(given.get("tools") or []),
        settings=_copied({name: value for name, value in settings.items() if value is not None}),
    )


def with_answer(request: LMCall, outputs: object, exception: BaseException | None) -> LMCall:
    """Return a call whose model has answered, or failed."""
    error = None if exception is None else f"{type(exception).__name__}: {exception}"
    return request.model_copy(update={"completion": _copied(outputs), "error": error})


def _copied(value: object) -> Any:
    return transformed(plain(value, []), _without_medium)


def _without_medium(value: Any, path: str) -> Any:
    """Return a few words for a picture, a sound or a file, anything else as it is."""
    if not isinstance(value, str) or len(value) <= _LONGEST_MEDIUM:
        return value
    medium = value.startswith("data:") or path.rpartition(".")[2] in _PAYLOADS
    return f"<medium of {len(value):,} characters>" if medium else value
