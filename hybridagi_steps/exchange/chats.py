"""Formats of conversations: what a record of one looks like, and what chats are in it.

A reader turns a record into `Chat`s: messages in OpenAI's or Anthropic's form, each beside the
native one that it came from. What a message says is then read in `messages`, where parts, roles and
calls are known. Formats that tell one conversation on many lines are gathered first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import accumulate
from typing import Any, NamedTuple

from hybridagi_steps.exchange import records as entries
from hybridagi_steps.exchange.records import Entry, Parsed, Record, Records, Skipped
from hybridagi_steps.messages.conversation import LONGEST_RUN_ID, Conversation, content_key
from hybridagi_steps.messages.parts import function_call
from hybridagi_steps.messages.turns import Message, Turn, openai_turns
from hybridagi_steps.records import json_reading as js
from hybridagi_steps.records.json_reading import BadRecordError, JsonObject

MAX_GATHERED = 200_000
"""Records of one conversation that are gathered; a longer one is refused."""
_ID_KEYS = ("id", "conversation_id", "session_id", "thread_id")

Shape = Any
"""Any value (`...`), a type, a set of texts, an object of shapes, the shape of a list's first item
in a list, or a function that tells."""


def has_shape(value: object, shape: Shape) -> bool:
    """Whether a JSON value has a shape; an object may have further members."""
    if isinstance(shape, dict):
        fields, members = js.as_object(value), js.as_object(shape)
        return members.keys() <= fields.keys() and all(
            has_shape(fields[name], member) for name, member in members.items()
        )
    if isinstance(shape, list):
        items, (first,) = js.as_list(value), js.as_list(shape)
        return bool(items) and has_shape(items[0], first)
    if isinstance(shape, set):
        return isinstance(value, str) and value in shape
    if isinstance(shape, type):
        return isinstance(value, shape)
    return shape is ... or shape(value)


class ChatMessage(NamedTuple):
    """One message in OpenAI's or Anthropic's form, and where it came from."""

    view: Message
    native: Message | None = None
    """The message as the file has it; None where the message before carries it."""
    time: datetime | None = None
    metrics: JsonObject | None = None
    """Fields of StepMetrics."""
    failed: bool = False
    """Whether it is the result of a call that failed."""
    also: tuple[Message, ...] = ()
    """Further native messages that are part of it."""


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
    """The words beside the score."""
    extras: JsonObject = field(default_factory=dict[str, Any])
    turns: Callable[[Sequence[Message]], list[Turn]] = openai_turns
    """Reader of the messages: of OpenAI's form or Anthropic's."""
    branch: str | None = None
    """Session of the messages, where they are a branch of the conversation with this id."""


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """A format whose records hold conversations."""

    name: str
    chats: Callable[[Any], Iterable[Chat | Conversation]]
    """Returns the conversations of one record's value."""
    shapes: tuple[Shape, ...]
    """What its records look like."""
    session: Callable[[JsonObject], Hashable | None] | None = None
    """Returns the key of the conversation that a line is of, or None if that of the line before."""

    def recognises(self, value: object) -> bool:
        """Whether a record is in this format."""
        return any(has_shape(value, shape) for shape in self.shapes)

    def parse(self, records: Records) -> Iterator[Entry]:
        """Yield the steps of the conversations in each record."""
        for record in records if self.session is None else gathered(records, self.session):
            if isinstance(record, Skipped):
                yield record
                continue
            try:
                read = [e for chat in self.chats(record.value) for e in self._entries(record, chat)]
            except (BadRecordError, RecursionError) as error:
                read = [entries.refused(record, error)]
            except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
                # An explicit format, or a damaged record: a member is missing or of another type.
                reason = f"not in the form of {self.name}: {type(error).__name__} {error}"
                read = [Skipped(record.line, f"{record.place}{reason:.200}")]
            yield from read

    def _entries(self, record: Record, chat: Chat | Conversation) -> Iterator[Entry]:
        if isinstance(chat, Conversation):
            yield from entries.record_steps(record, chat)
            return
        if all(each.view.get("role") == "system" for each in chat.messages):
            raise BadRecordError("nothing was said in this conversation")
        run_id, views = chat.branch or chat.id, [each.view for each in chat.messages]
        conversation = Conversation(
            _turns(chat),
            key=f"{self.name}:{chat.id}" if chat.id else content_key(views),
            format=self.name,
            session_id=chat.id,
            line=chat.branch,
            run_id=run_id if run_id and len(run_id) <= LONGEST_RUN_ID else None,
            created_at=chat.created_at,
            extras=chat.extras,
        )
        steps = entries.record_steps(record, conversation, title=chat.title, user_id=chat.user_id)
        yield from steps
        first = next((entry.step for entry in steps if isinstance(entry, Parsed)), None)
        if chat.score is not None and first is not None and first.run_id is not None:
            yield entries.ParsedScore(record.line, first.run_id, chat.score, chat.feedback)


def gathered(
    records: Records, session: Callable[[JsonObject], Hashable | None]
) -> Iterator[Record | Skipped]:
    """Yield the lists of lines that are of one conversation, when all were read."""
    groups: dict[Hashable, Record] = {}
    last: Hashable = ""
    for record in records:
        if isinstance(record, Skipped):
            yield record
            continue
        value = js.as_object(record.value)
        if (own := session(value)) is not None:
            last = own
        group = groups.setdefault(last, Record(record.line, []))
        if len(group.value) >= MAX_GATHERED:
            reason = f"one conversation of more than {MAX_GATHERED:,} records"
            yield Skipped(record.line, reason)
            continue
        group.value.append(value)
    yield from groups.values()


def branches(
    parents: Mapping[str, str | None], current: str | None
) -> Iterator[tuple[str, list[str]]]:
    """Yield each leaf of a tree with the path to it, the one through `current` first.

    Args:
        parents: The parent of each node, in the order of the file.
        current: A node of the path that was shown last; by default the last leaf.
    """
    inner = set(parents.values())
    paths = {leaf: _path(parents, leaf) for leaf in parents if leaf not in inner}
    current_leaf = next((leaf for leaf, path in paths.items() if current in path), None)
    for leaf in sorted(paths, key=lambda leaf: leaf != (current_leaf or next(reversed(paths)))):
        yield leaf, list(reversed(paths[leaf]))


def _path(parents: Mapping[str, str | None], leaf: str) -> dict[str, None]:
    path: dict[str, None] = {}
    node: str | None = leaf
    while node is not None and node in parents and node not in path:
        path[node] = None
        node = parents[node]
    return path


def message(
    role: object, content: object, native: Message | None = None, /, **fields: object
) -> ChatMessage:
    """Return a message; its time is that of the native one, fields that are None are left out."""
    view: Message = {"role": role, "content": content, **js.known_fields(**fields)}
    return ChatMessage(view, native, js.time_of(native) if native else None)


def result(
    call_id: object,
    content: object,
    native: Message | None = None,
    *,
    name: object = None,
    failed: object = False,
) -> ChatMessage:
    """Return what a tool answered to a call."""
    answer = message("tool", content, native, tool_call_id=call_id, name=name)
    return answer._replace(failed=bool(failed))


class CallQueue:
    """Gives ids to calls that have none, and finds the call that a result answers."""

    def __init__(self) -> None:
        self._open: deque[tuple[object, object]] = deque()
        self._count = 0

    def call(self, name: object, arguments: object, own_id: object = None) -> JsonObject:
        """Return a call in OpenAI's form, which waits for its result."""
        self._count += 1
        own_id = own_id or f"call_{self._count}"
        self._open.append((name, own_id))
        return function_call(own_id, name, arguments)

    def answered(self, name: object = None, own_id: object = None) -> object:
        """Return the id of the first open call with this id or name, or of the first at all."""
        for waiting in self._open:
            if waiting[1] == own_id or (not own_id and name in (None, waiting[0])):
                self._open.remove(waiting)
                return waiting[1]
        return None


def message_list(
    value: object, format_name: str, turns: Callable[[list[Message]], list[Turn]]
) -> Conversation:
    """Return a list of messages, or an object that holds one, as a conversation."""
    messages: object = js.as_list(value) or js.as_object(value).get("messages")
    if not isinstance(messages, list):
        raise BadRecordError("no list of messages")
    if not messages:
        raise BadRecordError("an empty list of messages")
    extras, messages = js.without(value, "messages"), js.as_list(messages)
    for place, item in enumerate(messages, start=1):
        if not isinstance(item, dict):
            raise BadRecordError(f"message {place} is not an object")
    own_id = next((extras[key] for key in _ID_KEYS if isinstance(extras.get(key), str)), None)
    return Conversation(
        turns(messages),
        key=f"conversation:{own_id}" if own_id else content_key(messages),
        format=format_name,
        session_id=js.text_in(extras, "session_id"),
        run_id=own_id if own_id and len(own_id) <= LONGEST_RUN_ID else None,
        created_at=js.time_of(extras),
        extras=extras,
    )


def _turns(chat: Chat) -> list[Turn]:
    """Return what the messages say, each turn beside the native message."""
    sources = chat.messages
    places = list(accumulate(1 + len(source.also) for source in sources))

    def with_source(turn: Turn) -> Turn:
        source, carries, place = (
            sources[turn.place],
            turn.native is not None,
            places[turn.place] - 1,
        )
        more = (Turn({}, place, native) for native in source.also if carries)
        return turn._replace(
            place=place,
            native=source.native if carries else None,
            made=source.time,
            metrics=turn.metrics or (source.metrics if carries else None),
            failed=turn.failed or source.failed,
            also=(*map(with_source, turn.also), *more),
        )

    return [with_source(turn) for turn in chat.turns([source.view for source in sources])]
