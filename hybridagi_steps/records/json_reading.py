"""Readers of JSON that others wrote: what has another shape than expected is empty, never an error.

The one place that knows how foreign tools write texts, counts, times and arguments. What cannot be
read at all is a `BadRecordError`, which the rooms above turn into an error of their own. Repairing
values that are to be stored is `json_values`' affair.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID, uuid5

from pydantic import ValidationError

from hybridagi_steps.records.agent_step import ID_FIELDS, AgentStep
from hybridagi_steps.records.json_values import first_fault

JsonObject = dict[str, Any]

_NAMESPACE = UUID("6d1f0f43-0c39-5b8e-9c0d-6a5d5c1f7a52")
_TIME_KEYS = (
    *("created_at", "timestamp", "created", "create_time"),
    *("createdAt", "time", "date", "ts"),
)
_TOOL_RESULTS = {"tool_call_response", "tool_result", "function_call_output"}
_TOOL_RESULT_KEYS = {"function_response", "functionResponse", "toolResult"}
_MILLISECONDS_FROM = 1e11
"""Epoch numbers above this are milliseconds: as seconds they would lie after the year 5100."""
_SECONDS_FROM = 315_532_800
"""Those below it, the beginning of 1980, are none: 20261101 is a day, written as a number."""


class BadRecordError(ValueError):
    """A record cannot be read; the message says why. Never leaves this package."""


def as_object(value: Any) -> JsonObject:
    """Return a JSON object as it is, and anything else as an empty one."""
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """Return a JSON list as it is, and anything else as an empty one."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def as_text(value: object) -> str | None:
    """Return a string as it is, and anything else as None."""
    return value if isinstance(value, str) else None


def text_in(values: Mapping[str, Any], *names: str) -> str | None:
    """Return the first text that stands under one of these names and is not empty."""
    return next((t for name in names if isinstance(t := values.get(name), str) and t), None)


def objects_in(value: object, *names: str) -> list[JsonObject]:
    """Return the items of a list as objects: of the value, or of the first member that has any."""
    if names:
        fields = as_object(value)
        value = next((fields[name] for name in names if fields.get(name)), None)
    return [as_object(item) for item in as_list(value)]


def joined(*texts: str | None) -> str:
    """Return the texts that are not empty, a line each."""
    return "\n".join(filter(None, texts))


def is_one_of(value: object, names: Container[str]) -> bool:
    """Whether a JSON value is one of these strings; a list or an object is none of them."""
    return isinstance(value, str) and value in names


def known_fields(**fields: object) -> JsonObject:
    """Return the fields whose value is not None."""
    return {name: value for name, value in fields.items() if value is not None}


def without(value: object, *left_out: str) -> JsonObject:
    """Return a JSON object without some of its members."""
    return {name: item for name, item in as_object(value).items() if name not in left_out}


def json_or_text(value: object) -> Any:
    """Return what a string holds as JSON, else the value itself."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def as_arguments(given: object) -> JsonObject:
    """Return a call's arguments as an object; what is none stands under `value`."""
    if given is None or given == "":
        return {}
    read = json_or_text(given)
    return cast("JsonObject", read) if isinstance(read, dict) else {"value": read}


def as_json(value: Any) -> str:
    """Return a value as the text of its JSON, without escapes."""
    return json.dumps(value, ensure_ascii=False)


def whole_number(value: object) -> int | None:
    """Return a count as JSON or a string writes it; None when it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = int(value)
    except (ValueError, OverflowError):
        return None
    return found if 0 <= found < 2**63 else None


def first_number(values: Mapping[str, Any], *names: str) -> int | None:
    """Return the first count found under one of these names."""
    return next((n for name in names if (n := whole_number(values.get(name))) is not None), None)


_USAGE = {
    "input_tokens": (
        "input_tokens",
        "prompt_tokens",
        "request_tokens",
        "promptTokenCount",
        "input",
    ),
    "output_tokens": (
        *("output_tokens", "completion_tokens", "response_tokens"),
        *("candidatesTokenCount", "output"),
    ),
    "total_tokens": ("total_tokens", "totalTokenCount", "total"),
    "cache_read_tokens": (
        *("cache_read_input_tokens", "cached_input_tokens", "cachedContentTokenCount"),
        *("cached_tokens", "cache_read"),
    ),
    "cache_write_tokens": ("cache_creation_input_tokens", "cache_creation"),
}
"""Fields of StepMetrics, and how the counts of tokens are called."""
_USAGE_DETAILS = ("input_token_details", "prompt_tokens_details", "input_tokens_details")


def usage_metrics(usage: object, **about: object) -> JsonObject | None:
    """Return what one call of a model cost, under whichever names; None where nothing says so.

    `about` are further fields of StepMetrics, such as the model's name.
    """
    counts = as_object(usage)
    for name in _USAGE_DETAILS:
        counts = {**as_object(counts.get(name)), **counts}
    read = {field: first_number(counts, *names) for field, names in _USAGE.items()}
    metrics = known_fields(**read, **about)
    return {**metrics, "llm_calls": 1} if metrics else None


def text_of(content: Any) -> str:
    """Return the text of a message's content; parts that are no text are named in brackets."""
    if content is None:
        return ""
    if isinstance(content, dict) and isinstance(as_object(content).get("type"), str):
        content = [content]
    if not isinstance(content, list):
        return content if isinstance(content, str) else as_json(content)
    texts: list[str] = []
    for part in as_list(content):
        fields = as_object(part) or {"text": part}
        texts.append(part_text(fields) or f"[{fields.get('type', 'part')}]")
    return "\n".join(texts)


_TEXT_KEYS = ("text", "value", "refusal", "content", "transcript", "logs")
_OUTPUT_KEYS = ("stdout", "stderr", "error_code")
_TITLED = ("document", "search_result", "web_search_result", "web_fetch_result")


def part_text(part: JsonObject) -> str:
    """Return the words of a content part, whatever they are called; "" when it has none."""
    if not part:
        return ""
    said = next((text for key in _TEXT_KEYS if (text := _words(part.get(key)))), "")
    if not said:
        said = "\n".join(text for key in _OUTPUT_KEYS if (text := _words(part.get(key))))
    if part.get("type") not in _TITLED:
        return said
    source = as_object(part.get("source"))
    said = said or (_words(source.get("data")) if source.get("type") == "text" else "")
    said = said or _words(source.get("content"))
    head = (as_text(part.get(key)) for key in ("title", "url"))
    return "\n".join(filter(None, (*head, said)))


def _words(given: object) -> str:
    """Return the words inside a member of a part; "" for what names other parts alone."""
    if isinstance(given, str):
        return given
    parts = [part for part in as_list(given) or [given] if part]
    found = (part if isinstance(part, str) else part_text(as_object(part)) for part in parts)
    return "\n".join(filter(None, found)) if parts else ""


def last_user_text(messages: object) -> str:
    """Return what a user said last in a list of messages of any form; "" when nobody did.

    What a tool gave back is no user's word, also where it stands in a message of the user's.
    """
    for message in reversed(as_list(messages)):
        fields = as_object(message)
        if (fields.get("role") or fields.get("type")) not in ("user", "human"):
            continue
        content = fields.get("content") or fields.get("parts")
        if parts := as_list(content):
            content = [part for part in parts if not _is_tool_result(part)]
        if content:
            return text_of(content)
    return ""


def _is_tool_result(part: object) -> bool:
    fields = as_object(part)
    return is_one_of(fields.get("type"), _TOOL_RESULTS) or bool(fields.keys() & _TOOL_RESULT_KEYS)


def time_of(values: Mapping[str, Any], *keys: str) -> datetime | None:
    """Return when something was made, if it says so in a way that can be read."""
    read = (_time(values[key]) for key in keys or _TIME_KEYS if values.get(key))
    return next(filter(None, read), None)


def has_unread_time(values: Mapping[str, Any]) -> bool:
    """Whether a text says when something was made, in a way that cannot be read."""
    return text_in(values, *_TIME_KEYS) is not None and time_of(values) is None


def _time(value: object) -> datetime | None:
    try:
        if isinstance(value, str):
            read = datetime.fromisoformat(value)
            return read.replace(tzinfo=UTC) if read.tzinfo is None else read.astimezone(UTC)
        if isinstance(value, int | float) and value >= _SECONDS_FROM:
            seconds = value / 1_000 if value > _MILLISECONDS_FROM else value
            return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return None


def stable_id(*parts: str) -> UUID:
    """Return the id that these parts always give."""
    name = "\n".join(parts).encode("utf-8", "replace").decode("utf-8")
    return uuid5(_NAMESPACE, name)


def agent_step(fields: JsonObject) -> AgentStep:
    """Return the step with these fields; a number for its time is read as others mean it."""
    if isinstance(fields.get("created_at"), int | float):
        fields = {**fields, "created_at": time_of(fields, "created_at") or fields["created_at"]}
    try:
        step = AgentStep.model_validate(fields)
    except ValidationError as error:
        raise BadRecordError(first_fault(error, "step")) from error
    except RecursionError as error:
        raise BadRecordError("nested too deeply") from error
    except OverflowError as error:
        raise BadRecordError(f"a time out of range: {error}") from error
    _check_texts(step)
    return step


def _check_texts(step: AgentStep) -> None:
    """Refuse lone surrogates where nothing repairs them: no file and no database takes them."""
    texts: JsonObject = {name: getattr(step, name) for name in ID_FIELDS}
    texts |= {name: name for name in step.model_extra or {}}
    if step.metrics is not None:
        texts |= {"model_name": step.metrics.model_name, "provider": step.metrics.provider}
    for name, value in texts.items():
        if isinstance(value, str) and not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise BadRecordError(f"{name!a}: holds half a character") from error
