"""Step: one native LLM message with its metadata, as it stands in a session.

A Step is the message itself, so history becomes LLM input without conversion. It knows nothing of
storage; `to_message_dict` emits only what a provider accepts.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from numbers import Number
from typing import Annotated, Any, TypeAlias, overload
from uuid import UUID

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from hybridagi_steps.lazy import describe_fields
from hybridagi_steps.records.json_values import unvalidated


def utc_now() -> datetime:
    """Return the current time, timezone-aware, in UTC."""
    return datetime.now(UTC)  # noqa: TID251 - the one place that asks for the time


def from_local(value: object) -> Any:
    """Return a datetime without a zone as local time, as Python has it; all else as it is."""
    if not isinstance(value, datetime) or value.tzinfo is not None:
        return value
    try:
        return value.astimezone(UTC)
    except (OverflowError, OSError):  # the years 1 and 9999 have no local time everywhere
        return value.replace(tzinfo=UTC)


def in_utc(value: datetime) -> datetime:
    """Return a time in UTC; one without a zone is taken as UTC."""
    if value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    try:
        return value.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"{value.isoformat()} has no date in UTC") from error


def read_time(value: object) -> Any:
    """Return what a caller gives for a time as a datetime, where it is one beyond doubt.

    A number is refused, also one in a text: `20270101` as seconds would be a day of 1970, and a
    purge of all that is newer would erase everything. Eight digits in a text are a date.
    """
    if isinstance(value, datetime):
        return from_local(value)
    if isinstance(value, str):
        return _time_in_text(value)
    if isinstance(value, Number | bytes):
        raise _no_time(value)
    return value


def _time_in_text(text: str) -> datetime:
    known = text.strip().upper()
    if known.replace(".", "").lstrip("+-").isdigit() and len(known) != _DIGITS_OF_A_DATE:
        raise _no_time(text)
    try:
        return in_utc(datetime.fromisoformat(known))
    except ValueError as error:
        raise _no_time(text) from error


def _no_time(value: object) -> PydanticCustomError:
    return PydanticCustomError(
        "time",
        "{given} is no time; write a date, 2026-01-31, or a time, 2026-01-31T10:00:00Z",
        {"given": f"{value!r:.60}"},
    )


_DIGITS_OF_A_DATE = len("20260131")
UtcTime = Annotated[datetime, BeforeValidator(read_time), AfterValidator(in_utc)]
"""A time that is given from outside: ISO 8601, kept in UTC. A text without a zone is UTC."""
ERASED = "[erased]"
"""What stands in the place of a message that was erased and whose place is still read."""
SUMMARY_OF = "summary_of"
"""Metadata key: ids of the messages that a summary stands for, in order."""


class MessageRole(StrEnum):
    """Who speaks in a message."""

    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    SYSTEM = "system"


ROLE_ALIASES = {
    **{name: name for name in ("system", "developer", "user", "assistant", "tool", "function")},
    "human": "user",
    "ai": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "gpt": "assistant",
    "chatbot": "assistant",
    "ipython": "tool",
    "observation": "tool",
    "toolresult": "tool",
}
"""Who speaks: the names that providers and data sets have, and OpenAI's for the same."""
ROLES = {
    "system": MessageRole.SYSTEM,
    "developer": MessageRole.SYSTEM,
    "user": MessageRole.USER,
    "assistant": MessageRole.ASSISTANT,
    "tool": MessageRole.TOOL,
    "function": MessageRole.TOOL,
}
"""Who speaks, in OpenAI's words and in ours."""


def read_role(value: object) -> Any:
    """Return the role that a provider's name means; what is no such name as it is."""
    if isinstance(value, MessageRole) or not isinstance(value, str):
        return value
    return ROLES.get(ROLE_ALIASES.get(value.casefold(), value), value)


class StepMetrics(BaseModel):
    """What one step cost. Every figure is optional: None means not measured, never zero."""

    model_config = ConfigDict(json_schema_extra=describe_fields, protected_namespaces=())

    duration_ms: float | None = None
    """Wall time of the step, milliseconds."""
    first_token_latency_ms: float | None = None
    """Time to the first streamed token, milliseconds."""
    input_tokens: int | None = None
    """Prompt tokens, cached ones included."""
    output_tokens: int | None = None
    """Generated tokens."""
    total_tokens: int | None = None
    """Prompt and generated tokens together."""
    cache_read_tokens: int | None = None
    """Prompt tokens the provider served from its cache."""
    cache_write_tokens: int | None = None
    """Prompt tokens the provider wrote to its cache."""
    model_name: str | None = None
    """The model that answered."""
    provider: str | None = None
    """Who served the model."""
    tool_exec_time_ms: float | None = None
    """Wall time of the tool itself, milliseconds."""
    cost: float | None = None
    """Price of the step in US dollars, as the LM client reports it."""
    cache_hit: bool | None = None
    """Whether the client answered from its own cache without calling the provider."""
    llm_calls: int | None = None
    """LM calls made for this step; more than one after a retry or a format fallback."""


class Step(BaseModel):
    """One message of a session: role, content, tool calls, and who and what it belongs to."""

    model_config = ConfigDict(json_schema_extra=describe_fields)

    id: str = Field(default_factory=lambda: str(new_id()))
    """Unique identifier."""
    session_id: str
    """The session this message belongs to."""
    run_id: str | None = None
    """The run that produced it."""
    sequence: int = 0
    """Place in the session, 1, 2, 3 …; 0 until the store has assigned one."""
    role: Annotated[MessageRole, BeforeValidator(read_role)]
    """Who speaks; providers' other names for the four roles are read."""
    content: str | list[dict[str, Any]] | None = None
    """The text, or a provider's list of content parts."""
    tool_calls: list[dict[str, Any]] | None = None
    """An assistant's calls, in the provider's own form."""
    tool_call_id: str | None = None
    """The call a tool message answers."""
    name: str | None = None
    """Name of the tool, or of the speaker."""
    content_for_user: str | None = None
    """What a person should see instead of `content`."""
    reasoning_content: str | None = None
    """The model's reasoning, kept and never sent back."""
    agent_step_id: str | None = None
    """The AgentStep that this message shows."""
    parent_run_id: str | None = None
    """The run that called this one."""
    user_id: str | None = None
    """Who said it, or whom it was said to."""
    metadata: dict[str, Any] | None = None
    """Anything else, JSON values only."""
    metrics: StepMetrics | None = None
    """What it cost."""
    created_at: UtcTime = Field(default_factory=utc_now)
    """When it was made, UTC."""

    def is_user_step(self) -> bool:
        """Whether a user speaks; a summary has the user's role, and nobody said it."""
        return self.role is MessageRole.USER and SUMMARY_OF not in (self.metadata or {})

    def is_assistant_step(self) -> bool:
        """Whether the model speaks."""
        return self.role is MessageRole.ASSISTANT

    def is_tool_step(self) -> bool:
        """Whether this is a tool's result."""
        return self.role is MessageRole.TOOL

    def has_tool_calls(self) -> bool:
        """Whether the model asks for tools."""
        return self.is_assistant_step() and bool(self.tool_calls)

    def __repr__(self) -> str:
        """The message in one line."""
        from hybridagi_steps.display.titles import line

        said = self.content if self.content is not None else self.tool_calls
        place = f"message {self.sequence} of session {self.session_id!r:.60}"
        return f"<{place}, {self.role.value}: {line(said, 80)}>"

    def to_message_dict(self) -> dict[str, Any]:
        """Return the message in the provider's form, without any of our metadata."""
        message: dict[str, Any] = {"role": self.role.value, "content": self.content}
        for key in ("tool_calls", "tool_call_id", "name"):
            if value := getattr(self, key):
                message[key] = value
        return message


_NESTED = ("content", "tool_calls", "metadata", "metrics")


def own_copy(message: Step) -> Step:
    """Return a copy that shares nothing which can be changed; a fifth of a deep copy's time."""
    made = message.model_copy()
    for name in _NESTED:
        if (value := getattr(made, name)) is not None and not isinstance(value, str):
            setattr(made, name, copy.deepcopy(value))
    return made


KeptMessage: TypeAlias = "tuple[Any, ...]"
"""A message in half its room: names of fields, and the value of each.

A `Step` takes 540 bytes before it says anything, nearly all for the names of fields that are None.
The names are shared by messages of one kind, and what is nested by all that is made of a kept one.
"""

_NOTHING: dict[str, Any] = dict.fromkeys(Step.model_fields)
_shapes: dict[tuple[str, ...], tuple[str, ...]] = {}


def kept(message: Step) -> KeptMessage:
    """Return what a message says, to be kept."""
    values = {name: value for name, value in vars(message).items() if value is not None}
    names = tuple(values)
    return (_shapes.setdefault(names, names), *values.values())


def restored(message: KeptMessage) -> Step:
    """Return the message that was kept, in a microsecond."""
    fields = iter(message)
    values = _NOTHING.copy()
    values.update(zip(next(fields), fields, strict=True))
    return unvalidated(Step, values)


class KeptMessages(Sequence[Step]):
    """A list of kept messages; each is made again when it is asked for."""

    def __init__(self, messages: Sequence[KeptMessage]) -> None:
        self._messages = messages

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> Step: ...
    @overload
    def __getitem__(self, index: slice) -> list[Step]: ...
    def __getitem__(self, index: int | slice) -> Step | list[Step]:
        """Return one, or some in a list."""
        if isinstance(index, slice):
            return [*map(restored, self._messages[index])]
        return restored(self._messages[index])

    def __iter__(self) -> Iterator[Step]:
        """Yield all in order."""
        return map(restored, self._messages)

    def values(self, name: str) -> Iterator[Any]:
        """Yield the value of a field in each, without making any."""
        for message in self._messages:
            names: tuple[str, ...] = message[0]
            yield message[names.index(name) + 1] if name in names else None


_RANDOM_BITS = 62


def new_id() -> UUID:
    """Return a UUID of version 7: milliseconds since 1970, their fraction, 62 random bits.

    Reference: RFC 9562, section 5.7, with the fraction of section 6.2, method 3.

    Example:
        >>> new_id().version
        7
    """
    milliseconds, nanoseconds = divmod(time.time_ns(), 1_000_000)
    fraction = (nanoseconds << 12) // 1_000_000
    random = int.from_bytes(os.urandom(8), "big") >> (64 - _RANDOM_BITS)
    return UUID(int=milliseconds << 80 | 7 << 76 | fraction << 64 | 2 << _RANDOM_BITS | random)
