"""A conversation with title, times and user, as the readers of named formats hand it on.

A reader turns a record into a `Chat`: messages in OpenAI's or Anthropic's form, each beside the
native one that it came from. What a message says is then read in `messages`, where parts, roles and
calls are known. Formats that tell one conversation on many lines are gathered first.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from hybridagi_steps.exchange.records import (
    Entry,
    Parsed,
    ParsedScore,
    Record,
    Records,
    Skipped,
    record_steps,
    refused,
)
from hybridagi_steps.messages.conversation import LONGEST_RUN_ID, Conversation, content_key
from hybridagi_steps.messages.turns import Message, Turn, openai_turns
from hybridagi_steps.records.json_reading import (
    BadRecordError,
    JsonObject,
    as_object,
    first_number,
    known_fields,
    time_of,
)

MAX_GATHERED = 200_000
"""Records of one conversation that are gathered; a longer one is refused."""


class ChatMessage(NamedTuple):
    """One message in OpenAI's or Anthropic's form, and where it came from."""

    view: Message
    native: Message | None = None
    """The message as the file has it; None where the message before carries it."""
    made: datetime | None = None
    metrics: JsonObject | None = None
    """Fields of StepMetrics."""
    failed: bool = False
    """Whether it is the result of a call that failed."""


@dataclass(slots=True)
class Chat:
    """The messages of one conversation, and what is known about it as a whole."""

    messages: list[ChatMessage]
    id: str | None = None
    title: str | None = None
    user_id: str | None = None
    created_at: datetime | None = None
    score: float | None = None
    feedback: str | None = None
    """What was said of the score."""
    extras: JsonObject = field(default_factory=dict[str, Any])
    turns: Callable[[Sequence[Message]], list[Turn]] = openai_turns
    """Who reads the messages: OpenAI's form or Anthropic's."""


ChatReader = Callable[[Any], Iterable[Chat]]
"""Returns the conversations of one record's value."""


def parse_chats(records: Records, format_name: str, read: ChatReader) -> Iterator[Entry]:
    """Yield the steps of the conversations that `read` sees in each record."""
    for record in records:
        if isinstance(record, Skipped):
            yield record
            continue
        try:
            entries = [
                e for chat in read(record.value) for e in _entries(record, chat, format_name)
            ]
        except (BadRecordError, RecursionError) as error:
            entries = [refused(record, error)]
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            # A format that was named, or a damaged record: a member is missing or of another type.
            reason = f"not in the form of {format_name}: {type(error).__name__} {error}"
            entries = [Skipped(record.line, f"{record.place}{reason:.200}")]
        yield from entries


def gathered(
    records: Records, key: Callable[[JsonObject], Hashable | None]
) -> Iterator[Record | Skipped]:
    """Yield lists of records that have the same key, when all were read.

    A key of None is that of the record before.
    """
    groups: dict[Hashable, Record] = {}
    last: Hashable = ""
    for record in records:
        if isinstance(record, Skipped):
            yield record
            continue
        value = as_object(record.value)
        if (own := key(value)) is not None:
            last = own
        group = groups.setdefault(last, Record(record.line, []))
        if len(group.value) >= MAX_GATHERED:
            reason = f"one conversation of more than {MAX_GATHERED:,} records"
            yield Skipped(record.line, reason)
            continue
        group.value.append(value)
    yield from groups.values()


def message(
    role: str, content: object, native: Message | None = None, /, **fields: object
) -> ChatMessage:
    """Return a message; its time is that of the native one, fields that are None are left out."""
    view: Message = {"role": role, "content": content, **known_fields(**fields)}
    return ChatMessage(view, native, time_of(native) if native else None)


def result(call_id: object, content: object, native: Message | None = None) -> ChatMessage:
    """Return what a tool answered to a call."""
    return message("tool", content, native, tool_call_id=call_id)


_INPUT = ("input_tokens", "prompt_tokens", "request_tokens", "promptTokenCount", "input")
_OUTPUT = (
    "output_tokens",
    "completion_tokens",
    "response_tokens",
    "candidatesTokenCount",
    "output",
)


def usage_metrics(usage: object, **about: object) -> JsonObject | None:
    """Return what one call of a model cost, under whichever names; None where nothing says so.

    `about` are further fields of StepMetrics, such as the model's name.
    """
    counts = as_object(usage)
    metrics = known_fields(
        input_tokens=first_number(counts, *_INPUT),
        output_tokens=first_number(counts, *_OUTPUT),
        total_tokens=first_number(counts, "total_tokens", "totalTokenCount", "total"),
        cache_read_tokens=first_number(counts, "cached_input_tokens", "cachedContentTokenCount"),
        **about,
    )
    return {**metrics, "llm_calls": 1} if metrics else None


def _entries(record: Record, chat: Chat, format_name: str) -> Iterator[Entry]:
    if not any(m.view.get("role") != "system" for m in chat.messages):
        raise BadRecordError("nothing was said in this conversation")
    key = f"{format_name}:{chat.id}" if chat.id else content_key([m.view for m in chat.messages])
    short = chat.id and len(chat.id) <= LONGEST_RUN_ID
    conversation = Conversation(
        _turns(chat),
        key=key,
        format=format_name,
        session_id=chat.id,
        run_id=chat.id if short else None,
        created_at=chat.created_at,
        extras=chat.extras,
    )
    steps = record_steps(record, conversation, title=chat.title, user_id=chat.user_id)
    yield from steps
    first = next((entry.step for entry in steps if isinstance(entry, Parsed)), None)
    if chat.score is not None and first is not None and first.run_id is not None:
        yield ParsedScore(record.line, first.run_id, chat.score, chat.feedback)


def _turns(chat: Chat) -> list[Turn]:
    """Return what the messages say, each turn beside the native message."""
    sources = chat.messages

    def sourced(turn: Turn) -> Turn:
        source = sources[turn.place]
        return turn._replace(
            native=source.native if turn.native is not None else None,
            made=source.made,
            metrics=turn.metrics or (source.metrics if turn.native is not None else None),
            failed=turn.failed or source.failed,
            also=tuple(map(sourced, turn.also)),
        )

    return [sourced(turn) for turn in chat.turns([source.view for source in sources])]
