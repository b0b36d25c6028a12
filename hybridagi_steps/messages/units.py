"""Messages in units that stay together, repaired where a strict provider would refuse them.

A unit is one message, or an assistant's calls with all their results. Histories are not always
whole: a process dies between call and result, a range begins in the middle, two turns interleave,
agents repeat call ids. The originals stay as they are; of what goes to a provider

* a call without a result is answered with a synthetic error,
* results stand right after their calls; such a unit takes the place of its last result,
* a result without a call becomes a user's message that quotes it as data,
* a call id that is missing, repeated or of a form that a provider refuses is replaced,
* half a character (a lone surrogate) and NUL become U+FFFD,
* a system message amid the conversation becomes a user's note: no provider takes it there.

Each repair is told in the unit's notes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from hybridagi_steps.messages.agent_steps import INTERRUPTED, IS_ERROR
from hybridagi_steps.messages.fences import Quotable, fenced, inert
from hybridagi_steps.messages.parts import (
    OpenCalls,
    call_id,
    hanging,
    is_call_id,
    speaker_label,
    tool_name,
)
from hybridagi_steps.messages.recalled_text import call_text
from hybridagi_steps.records.excerpts import Fragments
from hybridagi_steps.records.json_reading import (
    JsonObject,
    as_arguments,
    as_list,
    as_object,
    as_text,
    text_of,
)
from hybridagi_steps.records.json_values import json_value
from hybridagi_steps.records.message import (
    SUMMARY_OF,
    KeptMessage,
    MessageRole,
    Step,
    kept,
    restored,
)

THINKING = "thinking"
"""Metadata key: Anthropic's thinking blocks, with the signatures that it wants back."""
SYNTHETIC = "synthetic"
"""Metadata key: a message that nobody said; it makes the others acceptable."""
_SPEAKERS = (MessageRole.USER, MessageRole.ASSISTANT)


class Unit:
    """Messages that stay together.

    Args:
        messages: As a provider gets them, in order.
        place: Position of its last message in the conversation, from 0; of a line, in the line.
        notes: What was repaired.
    """

    __slots__ = (
        "_held",
        "costs",
        "fragments",
        "notes",
        "of_user",
        "place",
        "quoted",
        "shows",
        "summary",
    )

    def __init__(self, messages: list[Step], place: int, notes: Sequence[str] = ()) -> None:
        self._held: list[Step] | tuple[KeptMessage, ...] = messages
        self.place = place
        self.notes = notes
        self.of_user = messages[0].role is MessageRole.USER
        metadata = messages[0].metadata
        self.summary = bool(metadata) and bool(as_list(metadata.get(SUMMARY_OF)))
        """Whether it stands for earlier messages."""
        self.costs: tuple[str, tuple[int, ...]] | None = None
        """Tokens of each message, behind the id of the counter that said so; None until counted."""
        self.fragments: Fragments | None = None
        """What it says in fragments, once it was quoted in part."""
        self.quoted: Quotable | None = None
        """What it says as it is quoted, once it was found."""
        self.shows: str | None = None
        """The step that it shows first, else its first message, once it was found."""

    def __len__(self) -> int:
        """Return how many messages there are."""
        return len(self._held)

    @property
    def messages(self) -> list[Step]:
        """The messages in order; made anew whenever they are asked for, once they are kept."""
        return self._held if isinstance(self._held, list) else [*map(restored, self._held)]

    def keep(self, messages: tuple[KeptMessage, ...] | None = None) -> None:
        """Hold the messages in half the room, for good; those given are the same, kept already."""
        if isinstance(self._held, list):
            self._held = messages or tuple(map(kept, self._held))

    def begins_with_user(self) -> bool:
        """Whether a conversation may begin with this unit."""
        return self.of_user


class Costs(list[tuple[int, ...]]):
    """Tokens of each message of each unit, and of each unit."""

    def __init__(self, rows: Iterable[tuple[int, ...]]) -> None:
        super().__init__(rows)
        self.totals = array("q", map(sum, self))


class Units(list[Unit]):
    """Units that stay the same, with what was found out about them; nobody may change them."""

    def __init__(self, units: Iterable[Unit] = ()) -> None:
        super().__init__(units)
        self.costs: tuple[str, Costs] | None = None
        """What they cost, behind the id of the counter that said so; None until counted."""

    @cached_property
    def summaries(self) -> list[int]:
        """Where units stand that stand for earlier messages."""
        return [place for place, unit in enumerate(self) if unit.summary]


class Conversation(NamedTuple):
    """A system prompt and the units after it."""

    system: str | None
    units: Units


@dataclass(slots=True)
class _Waiting:
    """An assistant's message and the results that came for it."""

    message: Step
    calls: list[JsonObject]
    unit: Unit
    results: list[Step | None]
    position: int
    """Where its unit stands among all."""


def message_units(messages: Iterable[Step]) -> Conversation:
    """Return a conversation in units, repaired; the messages given stay as they are.

    Complexity: linear in the number of messages.
    """
    grouping = Grouping()
    for place, step in enumerate(messages):
        grouping.add(step, place)
    return grouping.conversation()


class Grouping:
    """A conversation that grows: puts messages into units as they come.

    A unit whose calls are all answered is final: later conversations share it, so nobody may change
    one that was handed out. Knows the calls that wait.
    """

    def __init__(self) -> None:
        self.keeps = False
        """Whether units with calls hold their messages in half the room once they are final."""
        self.size = 0
        """How many messages it was given."""
        self._system: list[str] = []
        self._begun = False
        self._units: list[Unit] = []
        self._open: OpenCalls[tuple[_Waiting, int]] = OpenCalls()
        self._unanswered: dict[int, _Waiting] = {}
        self._used: set[str] = set()
        self._reordered = False

    def add(self, step: Step, place: int) -> Unit | None:
        """Take the next message; return its unit if that is the same in any other grouping."""
        self.size += 1
        if not self._begun and step.role is MessageRole.SYSTEM:
            if text := text_of(step.content):
                self._system.append(text)
            return None
        self._begun = True
        units = len(self._units)
        sound, repairs = _sound(step)
        self._take(sound, place)
        if repairs and len(self._units) > units:
            self._units[-1].notes = [*self._units[-1].notes, *repairs]
        speaks = step.role in _SPEAKERS and not step.tool_calls
        return self._units[-1] if speaks else None

    def share(self, unit: Unit) -> None:
        """Take the next message as the unit that another grouping has made of it."""
        self.size += 1
        self._begun = True
        self._units.append(unit)

    def conversation(self) -> Conversation:
        """Return the units so far, in order, every call answered.

        Complexity: linear in the number of units, by a copy of the list alone.
        """
        units = Units(self._units)
        for position, waiting in self._unanswered.items():
            units[position] = _filled(waiting)
        if self._reordered:
            units.sort(key=lambda unit: unit.place)
        return Conversation("\n\n".join(self._system) or None, units)

    def _take(self, step: Step, place: int) -> None:
        if step.role is MessageRole.ASSISTANT and step.tool_calls:
            self._calls(step, place)
        elif (role := _odd_role(step)) is not None:
            quoted = _as_user(step, fenced("recalled", text_of(step.content), role=role))
            self._units.append(
                Unit([quoted], place, [f"a message of role {role!r:.60} was quoted"])
            )
        elif step.role is MessageRole.TOOL:
            self._result(step, place)
        elif step.role is MessageRole.SYSTEM:
            note = "a system message amid the conversation was made a note"
            self._units.append(Unit([_note(step)], place, [note]))
        else:
            self._units.append(Unit([step], place))

    def _calls(self, step: Step, place: int) -> None:
        calls = [as_object(call) for call in step.tool_calls or []]
        unit = Unit([step], place)
        waiting = _Waiting(step, calls, unit, [None] * len(calls), len(self._units))
        for number, call in enumerate(calls):
            native = call.get("id")
            known = native if isinstance(native, str) else ""
            unique, attempt = known, 0
            while not is_call_id(unique) or unique in self._used:
                unique, attempt = call_id(step.id, number, known, attempt), attempt + 1
            if unique != native:
                calls[number] = {**call, "id": unique}
                unit.notes = [*unit.notes, f"call id {known!r:.60} became {unique}"]
            self._used.add(unique)
            self._open.add(known, place, (waiting, number))
        if unit.notes:
            unit.messages[0] = step.model_copy(update={"tool_calls": calls})
        self._unanswered[waiting.position] = waiting
        self._units.append(unit)

    def _result(self, step: Step, place: int) -> None:
        answered = self._open.answer(step.tool_call_id or "")
        if answered is None:
            note = "a result without its call was quoted"
            self._units.append(Unit([_quoted(step)], place, [note]))
            return
        waiting, number = answered
        call = waiting.calls[number]
        if call["id"] != step.tool_call_id:
            step = step.model_copy(update={"tool_call_id": call["id"]})
        waiting.results[number] = step
        if self._units[-1] is not waiting.unit:
            note = "a result that came later was put beside its call"
            waiting.unit.notes = [*waiting.unit.notes, note]
            self._reordered = True
        waiting.unit.place = place
        if None not in waiting.results:
            unit = self._units[waiting.position] = _filled(waiting)
            if self.keeps:
                unit.keep()
            del self._unanswered[waiting.position]


def _sound(step: Step) -> tuple[Step, list[str]]:
    """Return a message whose texts are JSON, repaired as the store does it, and the repairs."""
    repairs: list[str] = []
    metadata = step.metadata or {}
    changed: JsonObject = {
        "content": json_value(step.content, repairs, "content"),
        "tool_calls": json_value(step.tool_calls, repairs, "tool_calls"),
    }
    if thinking := metadata.get(THINKING):
        changed["metadata"] = {**metadata, THINKING: json_value(thinking, repairs, THINKING)}
    return (step.model_copy(update=changed), repairs) if repairs else (step, repairs)


def _filled(waiting: _Waiting) -> Unit:
    """Return a unit with its results in the order of its calls, and an answer to what has none."""
    messages, notes = [*waiting.unit.messages], [*waiting.unit.notes]
    for number, call in enumerate(waiting.calls):
        result = waiting.results[number]
        if result is None:
            result = _interrupted(waiting.message, call, number)
            notes.append(f"call {call['id']} has no result")
        messages.append(result)
    return Unit(messages, waiting.unit.place, notes)


def _interrupted(step: Step, call: JsonObject, number: int) -> Step:
    return Step(
        id=f"{step.id}:interrupted:{number}",
        session_id=step.session_id,
        run_id=step.run_id,
        role=MessageRole.TOOL,
        content=INTERRUPTED,
        tool_call_id=call["id"],
        name=tool_name(as_object(call.get("function")).get("name")),
        metadata={SYNTHETIC: True, IS_ERROR: True},
        created_at=step.created_at,
    )


def _odd_role(step: Step) -> str | None:
    """Return the role of a message that is kept as data since nobody knows its role."""
    is_data = step.role is MessageRole.TOOL and not step.tool_call_id
    return as_text((step.metadata or {}).get("role")) if is_data else None


def _quoted(step: Step) -> Step:
    # The call's id, not the message's: that may be random, and equal histories give equal prompts.
    text = fenced("tool_result", text_of(step.content), id=step.tool_call_id, tool=step.name)
    return _as_user(step, text)


def _note(step: Step) -> Step:
    return _as_user(step, f"[system note] {inert(text_of(step.content))}")


def _as_user(step: Step, text: str) -> Step:
    changed = {"role": MessageRole.USER, "content": text, "tool_call_id": None, "name": None}
    return step.model_copy(update=changed)


def flat(units: Sequence[Unit]) -> list[Step]:
    """Return the messages of units, in order."""
    return [message for unit in units for message in unit.messages]


def unit_text(unit: Unit) -> str:
    """Return what a unit's messages say, as lines of text: who speaks, calls and their results.

    Only these begin a line; further lines of what they say are set in.
    """
    return messages_text(unit.messages)


def messages_text(messages: Iterable[Step]) -> str:
    """Return the same of a unit's messages."""
    return "\n".join(line for message in messages for line in _lines(message))


def _lines(message: Step) -> Iterator[str]:
    text = text_of(message.content)
    if (role := _odd_role(message)) is not None:
        yield f"{speaker_label(role, 'data')}: {hanging(text)}"
    elif message.role is MessageRole.TOOL:
        yield f"-> {hanging(text)}"
    elif text:
        yield f"{speaker_label(message.name, message.role.value)}: {hanging(text)}"
    for call in message.tool_calls or ():
        function = as_object(call.get("function"))
        name, arguments = str(function.get("name")), as_arguments(function.get("arguments"))
        yield hanging(call_text(name, arguments))
