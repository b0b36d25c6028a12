"""LangGraph's checkpoints, in: dumped checkpoint tuples, state snapshots, or bare checkpoints.

Every checkpoint of a thread repeats all messages so far, so only the last of each line of descent
is read, newest first. Messages that two lines share have the same ids and are stored once: a fork
made by time travel hangs on its origin by parent links. A message's time is that of the first
checkpoint that holds it; what else a checkpoint says is kept on the first step.

Messages that a thread has dropped since (`RemoveMessage`) stand in no newest checkpoint: all of
them are one more line, so that nothing of the file is lost.

Held in memory: the newest messages of every line, and the ids of all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

from pydantic import JsonValue

from hybridagi_steps.exchange import records as entries
from hybridagi_steps.exchange.records import Parsed, Record, Records, Skipped
from hybridagi_steps.messages.conversation import LONGEST_RUN_ID, Conversation, content_key
from hybridagi_steps.messages.turns import (
    Message,
    Turn,
    is_langchain_message,
    langchain_id,
    langchain_turns,
    openai_turns,
)
from hybridagi_steps.records.json_reading import (
    BadRecordError,
    JsonObject,
    as_list,
    as_object,
    time_of,
)

KNOWN_VERSIONS = (1, 2, 3, 4)
"""Checkpoint versions whose form is known; others are read with a note."""

_DROPPED = "removed"
"""What the line of messages that a thread has dropped is called."""


def recognises(value: JsonValue) -> bool:
    """Whether a record is a checkpoint."""
    fields = as_object(value)
    if "values" in fields:
        return bool({"next", "config", "parent_config", "tasks"} & fields.keys())
    return "channel_values" in {**as_object(fields.get("checkpoint")), **fields}


def parse(records: Records) -> Iterator[Parsed | Skipped]:
    """Yield the steps of threads, when all their checkpoints were seen."""
    threads: dict[str, _Thread] = {}

    def take(record: Record) -> list[Parsed]:
        if (checkpoint := _checkpoint(record)) is not None:
            threads.setdefault(checkpoint.thread, _Thread()).take(checkpoint)
        return []

    yield from entries.read_each(records, take)
    for thread in threads.values():
        yield from thread.steps()


@dataclass(slots=True)
class _Checkpoint:
    """What one checkpoint says."""

    record: Record
    thread: str
    id: str
    parent: str | None
    made: datetime | None
    messages: list[Message]
    extras: JsonObject


@dataclass(slots=True)
class _Thread:
    """The checkpoints of one thread: its newest messages, and when each message came."""

    leaves: dict[str, _Checkpoint] = field(default_factory=dict[str, _Checkpoint])
    parents: set[str] = field(default_factory=set[str])
    times: dict[str, datetime] = field(default_factory=dict[str, datetime])
    holders: dict[str, _Checkpoint] = field(default_factory=dict[str, _Checkpoint])
    """The last checkpoint that has each message."""

    def take(self, checkpoint: _Checkpoint) -> None:
        for own in filter(None, map(langchain_id, checkpoint.messages)):
            if made := checkpoint.made:
                self.times[own] = min(made, self.times.get(own, made))
            if (holder := self.holders.get(own)) is None or holder.id < checkpoint.id:
                self.holders[own] = checkpoint
        if checkpoint.parent:
            self.parents.add(checkpoint.parent)
            self.leaves.pop(checkpoint.parent, None)
        if checkpoint.id not in self.parents:
            self.leaves[checkpoint.id] = checkpoint

    def steps(self) -> Iterator[Parsed | Skipped]:
        newest_first = sorted(self.leaves.values(), key=lambda c: c.id, reverse=True)
        for place, checkpoint in enumerate((*newest_first, *self._dropped())):
            yield from entries.read_each(
                [checkpoint.record], partial(self._read, checkpoint, place)
            )

    def _dropped(self) -> Iterator[_Checkpoint]:
        """Yield the messages that no newest checkpoint has, in their order, as the last one."""
        newest = {own for leaf in self.leaves.values() for own in map(langchain_id, leaf.messages)}
        holders = {own: holder for own, holder in self.holders.items() if own not in newest}
        if not holders:
            return
        messages: list[Message] = []
        for holder in sorted({h.id: h for h in holders.values()}.values(), key=lambda c: c.id):
            messages += [m for m in holder.messages if holders.get(langchain_id(m) or "") is holder]
        last = max(holders.values(), key=lambda c: c.id)
        yield replace(last, id=_DROPPED, messages=messages, extras={})

    def _read(self, checkpoint: _Checkpoint, place: int, record: Record) -> list[Parsed | Skipped]:
        conversation = self._conversation(checkpoint, first=place == 0)
        if checkpoint.id == _DROPPED:
            conversation.key += f"@{_DROPPED}"
        return entries.record_steps(record, conversation)

    def _conversation(self, checkpoint: _Checkpoint, *, first: bool) -> Conversation:
        reader = langchain_turns if is_langchain_message(checkpoint.messages[0]) else openai_turns
        turns = [self._timed(turn) for turn in reader(checkpoint.messages)]
        name = checkpoint.thread if first else f"{checkpoint.thread}@{checkpoint.id}"
        return Conversation(
            turns,
            key=f"langgraph:{checkpoint.thread}",
            format="langchain" if reader is langchain_turns else "openai",
            session_id=checkpoint.thread,
            line=None if first else name,
            run_id=name if len(name) <= LONGEST_RUN_ID else None,
            created_at=checkpoint.made,
            extras=checkpoint.extras,
        )

    def _timed(self, turn: Turn) -> Turn:
        made = self.times.get(langchain_id(turn.native) or "")
        return turn._replace(made=made) if made else turn


def _checkpoint(record: Record) -> _Checkpoint | None:
    """Return a checkpoint; None when it is one from before the first message."""
    if not recognises(record.value):
        raise BadRecordError("not a checkpoint: no channel_values, and no values")
    value = as_object(record.value)
    inner = as_object(value.get("checkpoint")) or value
    state_key = "channel_values" if "channel_values" in inner else "values"
    state = inner.get(state_key) if state_key in inner else value.get(state_key)
    channel, messages = _messages(state)
    config = _configurable(value.get("config")) or _configurable(value.get("checkpoint"))
    own = str(inner.get("id") or config.get("checkpoint_id") or content_key(record.value))
    if channel is None:
        if _before_messages(as_object(state)):
            return None
        raise BadRecordError("no channel of this checkpoint holds messages")
    parent = _configurable(value.get("parent_config") or value.get("parent_checkpoint"))
    parent_id = parent.get("checkpoint_id")
    thread = config.get("thread_id")
    place = config.get("checkpoint_ns")
    name = str(thread) if thread else f"checkpoint-{content_key(messages)[:16]}"
    return _Checkpoint(
        record,
        thread=f"{name}/{place}" if place else name,
        id=own,
        parent=str(parent_id) if parent_id else None,
        made=time_of(inner, "ts") or time_of(value, "ts", "created_at"),
        messages=messages,
        extras=_extras(value, inner, channel),
    )


def _before_messages(channels: JsonObject) -> bool:
    """Whether a state is that of a thread in which nothing was said yet."""
    return not channels or "__start__" in channels or channels.get("messages") == []


def _messages(state: JsonValue) -> tuple[str | None, list[Message]]:
    """Return the channel that holds messages, and them."""
    if is_langchain_message(state):
        return "", [as_object(state)]
    channels = as_object(state) or {"": state}
    for channel in sorted(channels, key=lambda name: name != "messages"):
        messages = as_list(channels[channel])
        if messages and all(is_langchain_message(m) or "role" in as_object(m) for m in messages):
            return channel, messages
    return None, []


def _configurable(config: object) -> JsonObject:
    fields = as_object(config)
    return as_object(fields.get("configurable")) or fields


def _extras(value: JsonObject, inner: JsonObject, channel: str) -> JsonObject:
    """Return the checkpoint without its messages."""

    def bare(part: JsonObject) -> JsonObject:
        bare_part = dict(part)
        for key in ("channel_values", "values"):
            if key in bare_part:
                bare_part[key] = {
                    k: v for k, v in as_object(bare_part[key]).items() if k != channel
                }
        return bare_part

    extras = bare(value)
    if inner is not value:
        extras["checkpoint"] = bare(inner)
    version = inner.get("v")
    if version is not None and version not in KNOWN_VERSIONS:
        extras["note"] = f"a checkpoint of version {version!r:.20}, which is not known"
    return extras
