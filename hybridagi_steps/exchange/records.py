"""What parsers yield: a step with the place it came from, or why a record was passed over.

Parsers are generators over records, which are JSON values with their line; they know nothing of
files or memories, so each can be tried on a literal. A bad record never stops the ones after it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, cast
from uuid import UUID, uuid5

from pydantic import ValidationError

from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.message import Step

_NAMESPACE = UUID("6d1f0f43-0c39-5b8e-9c0d-6a5d5c1f7a52")
_TEXTS = ("id", "parent_id", "session_id", "user_id", "run_id", "program_id", "scope")

Lines = Iterable[tuple[int, bytes]]
"""Lines with their numbers, counted from 1."""


class Record(NamedTuple):
    """One JSON value of a file: a line, an item of a list, or the whole document."""

    line: int
    value: Any
    place: str = ""
    """Where in the line it stands, ready to be put before a reason: "item 3: "."""


class Said(NamedTuple):
    """What a step of a conversation has to do with the messages of a session."""

    messages: list[Step]
    """Those that end with it: the steps since the ones before belong to them."""
    line: str | None = None
    """The session they go to, where it is not the step's own."""
    begins: bool = False
    """Whether a conversation begins with it."""
    anywhere: bool = False
    """Whether it may begin anywhere in its session."""


class Parsed(NamedTuple):
    """A step, and the line on which its record began."""

    line: int
    step: AgentStep
    said: Said | None = None
    """None for a step that is not of a conversation."""
    embedder: str | None = None
    """Who made its vector; None when the file does not say."""


class ParsedMessages(NamedTuple):
    """Messages of a session, as we write them: the steps before them belong to them."""

    line: int
    session_id: str
    messages: list[Step]
    shares: int = 0
    """How many messages of a session written before it begins with."""
    last_shared: str | None = None
    """The id of the last of them."""


class ParsedScore(NamedTuple):
    """How good a run was, as we write it."""

    line: int
    run_id: str
    score: float
    feedback: str | None


class ParsedTrace(NamedTuple):
    """Spans of one trace, maybe not all: those stored already have a say in where they stand."""

    line: int
    run_id: str
    spans: int
    """How many there are."""
    placed: Callable[[Iterable[AgentStep]], Iterator[Parsed | Skipped]]
    """Yields the steps of the whole trace, from what is stored of its run; line 0 stands for a
    span that is stored and not in the file."""


class Skipped(NamedTuple):
    """A record that was not imported."""

    line: int
    reason: str


Entry = Parsed | ParsedMessages | ParsedScore | ParsedTrace | Skipped
"""What a parser yields."""
Records = Iterable[Record | Skipped]
"""What a parser reads; what is skipped already passes through."""


class BadRecordError(ValueError):
    """A record cannot be read; the message says why. Never leaves this package."""


class DoubleKeyError(BadRecordError):
    """An object has a key twice; what follows it can be read."""


def read_each(
    records: Records, read: Callable[[Record], Iterable[Parsed | Skipped]]
) -> Iterator[Parsed | Skipped]:
    """Yield what `read` makes of each record; of one that it refuses, why."""
    for record in records:
        if isinstance(record, Skipped):
            yield record
            continue
        try:
            found = list(read(record))
        except (BadRecordError, RecursionError) as error:
            found = [refused(record, error)]
        yield from found


def refused(record: Record, error: BadRecordError | RecursionError) -> Skipped:
    """Return why a record was passed over."""
    reason = str(error) if isinstance(error, BadRecordError) else "nested too deeply"
    return Skipped(record.line, record.place + reason)


def line_records(lines: Lines) -> Iterator[Record | Skipped]:
    """Yield the JSON value of each line; empty lines are passed over."""
    for number, line in lines:
        if not line.strip():
            continue
        try:
            yield Record(number, json_record(line))
        except BadRecordError as error:
            yield Skipped(number, str(error))


def unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the members of a JSON object, for a decoder's `object_pairs_hook`."""
    members = dict(pairs)
    if len(members) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise DoubleKeyError(f"the key {twice!r:.80} stands twice in one object")
    return members


def json_record(line: bytes) -> Any:
    """Return the JSON value on a line.

    Python's own parser is used for its exactness: long integers and lone surrogates arrive as
    they were written, so that a step can repair them and say so.
    """
    try:
        return json.loads(line.decode("utf-8"), object_pairs_hook=unique_members)
    except BadRecordError:
        raise
    except UnicodeDecodeError as error:
        raise BadRecordError(f"not UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        where = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno}"
        raise BadRecordError(f"not JSON: {error.msg} at {where}") from error
    except RecursionError as error:
        raise BadRecordError("nested too deeply") from error
    except ValueError as error:
        raise BadRecordError(f"not JSON: {error}") from error


def agent_step(fields: dict[str, Any]) -> AgentStep:
    """Return the step with these fields."""
    try:
        step = AgentStep.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "step"
        raise BadRecordError(f"{field}: {first['msg']}") from error
    except RecursionError as error:
        raise BadRecordError("nested too deeply") from error
    except OverflowError as error:
        raise BadRecordError(f"a time out of range: {error}") from error
    _check_texts(step)
    return step


def stable_id(*parts: str) -> UUID:
    """Return the id that these parts always give."""
    name = "\n".join(parts).encode("utf-8", "replace").decode("utf-8")
    return uuid5(_NAMESPACE, name)


def _check_texts(step: AgentStep) -> None:
    """Refuse lone surrogates where nothing repairs them: no file and no database takes them."""
    texts: dict[str, Any] = {name: getattr(step, name) for name in _TEXTS}
    texts |= {name: name for name in step.model_extra or {}}
    if step.metrics is not None:
        texts |= {"model_name": step.metrics.model_name, "provider": step.metrics.provider}
    for name, value in texts.items():
        if isinstance(value, str) and not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise BadRecordError(f"{name!a}: holds half a character") from error


def as_object(value: Any) -> dict[str, Any]:
    """Return a JSON object as it is, and anything else as an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """Return a JSON list as it is, and anything else as an empty one."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def is_one_of(value: Any, names: Container[str]) -> bool:
    """Whether a JSON value is one of these strings; a list or an object is none of them."""
    return isinstance(value, str) and value in names


def json_or_text(value: Any) -> Any:
    """Return what a string holds as JSON, else the value itself."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def as_arguments(given: Any) -> dict[str, Any]:
    """Return a call's arguments as an object; what is none stands under `value`."""
    if given is None or given == "":
        return {}
    read = json_or_text(given)
    return cast("dict[str, Any]", read) if isinstance(read, dict) else {"value": read}


def whole_number(value: Any) -> int | None:
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
