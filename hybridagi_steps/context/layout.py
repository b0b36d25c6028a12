"""How a context is laid out, and what each part of it costs.

The tail comes first by right; a summary, and the request that the tail answers, stand before it
where there is room; a conversation that would not begin with a user gets a synthetic opening.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Literal, get_args

from hybridagi_steps.context.compaction import summarised
from hybridagi_steps.context.quoting import Filled, Recalled
from hybridagi_steps.context.receipt import Receipt, ReceiptEntry, add_entry
from hybridagi_steps.context.sources import Source
from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.messages.provider_out import OPENING
from hybridagi_steps.messages.units import SYNTHETIC, Costs, Unit, Units, flat
from hybridagi_steps.records.message import MessageRole, Step
from hybridagi_steps.search.formulas import Aim
from hybridagi_steps.token_counters import MessageCounter
from hybridagi_steps.validation import is_number

LayoutName = Literal["recent", "cached"]
"""How a context is laid out; see ContextBuilder."""
OPENING_MESSAGE = {"role": MessageRole.USER.value, "content": OPENING}
RECALLED_STEPS = "recalled_steps"
"""Metadata key: ids of the steps that a recall message quotes."""


def recalled_in(messages: Iterable[Step]) -> list[str]:
    """Return the ids of the steps that messages quote."""
    return [
        step_id for step in messages for step_id in (step.metadata or {}).get(RECALLED_STEPS, ())
    ]


@dataclass(slots=True)
class Quoted:
    """The message that quotes older steps, and its cost."""

    found: Filled
    tokens: int

    def message(self, session_id: str) -> Step:
        """Return it as a message: a user's, never the system's."""
        return Step(
            id="recalled",
            session_id=session_id,
            role=MessageRole.USER,
            content=self.found.text,
            metadata={SYNTHETIC: True, RECALLED_STEPS: [step.id for step in self.found.steps]},
        )


@dataclass(slots=True)
class Layout:
    """What is shown of a conversation."""

    units: Sequence[Unit]
    costs: Sequence[Sequence[int]]
    """Tokens of each message of each unit."""
    start: int
    """Position of the tail's first unit."""
    front: list[int]
    """Positions of the units shown before the tail: summaries, the tail's request."""
    opening: bool
    """Whether a synthetic user opens the conversation."""
    left: int
    """Tokens that are not used."""
    recent: int | None
    """Units that were asked for; None for as many as fit."""
    recalled: Quoted | None = None
    _hidden: list[Unit] = field(default_factory=list[Unit])

    @property
    def tail(self) -> Sequence[Unit]:
        """The newest units, shown as they are."""
        return self.units[self.start :]

    @property
    def shown(self) -> list[Unit]:
        """The units that are shown as they are, in order."""
        return [self.units[n] for n in self.front] + list(self.tail)

    @property
    def hidden(self) -> list[Unit]:
        """The units that are not shown as they are, in order."""
        if not self._hidden and self.start:
            ends = [*(n for n in self.front if n < self.start), self.start]
            self._hidden = [
                unit
                for before, end in pairwise((-1, *ends))
                for unit in self.units[before + 1 : end]
            ]
        return self._hidden

    @property
    def cut_short(self) -> bool:
        """Whether the tail is shorter than was asked for."""
        wanted = 0 if self.recent is None else max(0, len(self.units) - self.recent)
        return self.start > wanted

    @property
    def stable(self) -> int:
        """How many messages stand before what is recalled, and before the newest unit."""
        before = [*self.front, *range(self.start, len(self.units) - 1)]
        return sum(len(self.units[n]) for n in before) + self.opening

    def messages(self, session_id: str) -> list[Step]:
        """Return the messages in order."""
        before = [*self.front, *range(self.start, len(self.units) - 1)]
        shown = [message for n in before for message in self.units[n].messages]
        if self.opening:
            shown.insert(0, _opening(session_id))
        if self.recalled is not None:
            shown.append(self.recalled.message(session_id))
        return shown + self.units[-1].messages

    def report(self, receipt: Receipt, source: Source, counter: MessageCounter) -> None:
        """Write down what is shown and what is not."""
        if self.opening:
            why = "a conversation begins with a user"
            receipt.keep(ReceiptEntry("opening", why, counter.message(OPENING_MESSAGE)))
        last = len(self.units) - 1
        for place in (*self.front, *range(self.start, last)):
            self._keep(receipt, source, place, self._why(place))
        if self.recalled is not None:
            _report_recalled(receipt, self.recalled)
        self._keep(receipt, source, last, "newest")
        receipt.drop(partial(self._dropped, source))

    def _dropped(self, source: Source) -> list[ReceiptEntry]:
        """Return a line for each message that is not shown, in order."""
        quoted = {step.id for step in self.recalled.found.steps} if self.recalled else set[str]()
        front = set(self.front)
        why = "older than the tail, not recalled" if not self.cut_short else "no room"
        dropped: list[ReceiptEntry] = []
        for place in range(self.start):
            if place in front:
                continue
            for message, tokens in zip(self.units[place].messages, self.costs[place], strict=True):
                entry = source.entry(message, why, tokens)
                if entry.id not in quoted and message.id not in quoted:
                    add_entry(dropped, entry)
        return dropped

    def shown_ids(self, source: Source) -> set[str]:
        """Return the ids of the messages and steps that are shown as they are."""
        messages = [message for unit in self.shown for message in unit.messages]
        return {message.id for message in messages} | {
            source.names(message) for message in messages
        }

    def _keep(self, receipt: Receipt, source: Source, place: int, why: str) -> None:
        unit = self.units[place]
        for message, tokens in zip(unit.messages, self.costs[place], strict=True):
            receipt.keep(source.entry(message, why, tokens))
        receipt.notes += [f"{unit.messages[0].id}: {note}" for note in unit.notes]

    def _why(self, place: int) -> str:
        if place < self.start:
            ids = summarised(self.units[place].messages[0])
            return f"summary of {len(ids)} messages" if ids else "the request before the tail"
        steady = self.recent is not None and place < len(self.units) - self.recent
        return "recent, keeps the prefix stable" if steady else "recent"


def least_tokens(
    counter: MessageCounter, system: str | None, newest: Unit, newest_tokens: int
) -> int:
    """Return what the smallest context costs: system prompt and newest unit.

    A newest unit that cannot begin a conversation costs its opening, too.
    """
    needed = newest_tokens
    if system and system.strip():
        needed += counter.message({"role": "system", "content": system})
    return needed if newest.begins_with_user() else needed + counter.message(OPENING_MESSAGE)


def planned(
    units: Units,
    costs: Costs,
    room: int,
    recent: int | None,
    counter: MessageCounter,
    history: int | None = None,
) -> Layout:
    """Return a layout without anything recalled.

    Args:
        units: The conversation; at least one unit.
        costs: Tokens of each message of each unit.
        room: Tokens beyond what `least_tokens` counts.
        recent: Units of the tail; None for as many as fit.
        counter: Counts tokens.
        history: Tokens of a tail that is to grow for long and then lose its older half, the newest
            unit included; None for one of `recent` units.
    """
    tokens = costs.totals
    newest, opening_tokens = len(units) - 1, counter.message(OPENING_MESSAGE)
    if not units[newest].begins_with_user():
        room += opening_tokens  # counted already, and may be needed for something better
    summaries = [n for n in units.summaries if n < newest]
    pinned = sum(tokens[n] for n in summaries)
    if pinned > room // 2:
        summaries, pinned = [], 0
    if history is None:
        start = tail_start(tokens, room - pinned, recent)
    else:
        start = steady_start(tokens, min(room - pinned, history), history)
        recent = None
    while True:
        left = room - pinned - sum(tokens[start:newest])
        front = [n for n in summaries if n < start]
        left += sum(tokens[n] for n in summaries if n >= start)
        if units[start].begins_with_user():
            return Layout(units, costs, start, front, False, left, recent)
        request = _request_before(units, start)
        if request is not None and request not in front and tokens[request] <= left:
            front = sorted([*front, request])
            return Layout(units, costs, start, front, False, left - tokens[request], recent)
        if front or opening_tokens <= left:
            spent = 0 if front else opening_tokens
            return Layout(units, costs, start, front, not front, left - spent, recent)
        start += 1


def stands_in_summary(source: Source, standing: Mapping[str, str]) -> list[ReceiptEntry]:
    """Return a line for each message that a summary stands for."""
    return [
        source.entry(message, f"stands in summary {standing[message.id]}", 0)
        for message in flat(source.in_units().units)
        if message.id in standing
    ]


def _request_before(units: Sequence[Unit], start: int) -> int | None:
    """Return the position of what the user asked last before the tail."""
    asked = (n for n in range(start - 1, -1, -1) if units[n].begins_with_user())
    return next((n for n in asked if not units[n].summary), None)


def _opening(session_id: str) -> Step:
    return Step(
        id="opening",
        session_id=session_id,
        role=MessageRole.USER,
        content=OPENING,
        metadata={SYNTHETIC: True},
    )


def _report_recalled(receipt: Receipt, recalled: Quoted) -> None:
    """Write down what is quoted, what the newest messages need before what was found."""
    frame = recalled.tokens - sum(step.tokens for step in recalled.found.steps)
    for step in recalled.found.steps:
        tokens = step.tokens
        if frame < 0:  # the marks are shared by neighbours, and parts are counted apart
            tokens, frame = max(0, tokens + frame), min(0, tokens + frame)
        receipt.keep(ReceiptEntry(step.id, "", tokens, step.rank), partial(_why_quoted, step))
    receipt.keep(ReceiptEntry("recalled", "marks what was recalled as data", frame))


def _why_quoted(step: Recalled) -> str:
    cut = f", cut from {step.whole_tokens:,} tokens" if step.cut else ""
    return f"recalled: {step.why()}{cut}"


_JUMPS_PER_BUDGET = 4


def tail_start(tokens: Sequence[int], room: int, recent: int | None) -> int:
    """Return the position of the first unit of the tail; the newest is always in it.

    Args:
        tokens: Tokens of each unit, in order; at least one.
        room: Tokens there are for the tail without its newest unit.
        recent: Units wanted; None wants as many as fit.
    """
    newest = len(tokens) - 1
    if recent is None:
        return _filling(tokens, room)
    wanted = max(0, len(tokens) - recent)
    steady = wanted - wanted % recent
    for start in (steady, wanted):
        if sum(tokens[start:newest]) <= room:
            return start
    return longest_start(tokens, room)


def steady_start(tokens: Sequence[int], room: int, history: int) -> int:
    """Return where a tail begins that stays there until it has outgrown its history.

    Then it jumps by half of it. The jumps hang on the units alone, not on what else there is room
    for: so a growing conversation keeps its beginning, byte for byte, for many turns.

    Args:
        tokens: Tokens of each unit, in order; at least one.
        room: Tokens there are right now for the tail without its newest unit.
        history: Tokens that the tail may grow to, its newest unit included.
    """
    newest, jump = len(tokens) - 1, max(1, history // 2)
    to_drop = -(-max(0, sum(tokens) - history) // jump) * jump
    start = 0
    while start < newest and to_drop > 0:
        to_drop -= tokens[start]
        start += 1
    return start if sum(tokens[start:newest]) <= room else longest_start(tokens, room)


def longest_start(tokens: Sequence[int], room: int) -> int:
    """Return where the longest tail that fits begins; the newest unit is not counted."""
    start = len(tokens) - 1
    while start > 0 and tokens[start - 1] <= room:
        start -= 1
        room -= tokens[start]
    return start


def _filling(tokens: Sequence[int], room: int) -> int:
    """Return where a tail begins that fills the room, moving in jumps of a quarter of it."""
    newest = len(tokens) - 1
    excess = sum(tokens[:newest]) - room
    if excess <= 0:
        return 0
    jump = max(1, room // _JUMPS_PER_BUDGET)
    to_drop = -(-excess // jump) * jump
    start = 0
    while start < newest and to_drop > 0:
        to_drop -= tokens[start]
        start += 1
    return start


def check_numbers(budget: tuple[object, int], **optional: tuple[object, int]) -> None:
    """Check whole numbers, each with the least that it may be; all but the budget may be None."""
    given = {name: pair for name, pair in optional.items() if pair[0] is not None}
    for name, (value, least) in {"budget": budget, **given}.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InvalidSettingError(f"{name} is a whole number, at least {least}; got {value!r}.")


def check_layout(layout: str, aim: str | None, cache_weight: float) -> None:
    """Check what a context is made for, and what a token from the cache costs."""
    for setting, name, known in (("layout", layout, LayoutName), ("aim", aim, Aim)):
        if name not in get_args(known) and (name is not None or setting == "layout"):
            names = ", ".join(get_args(known))
            raise InvalidSettingError(f"{setting} is one of {names}; got {name!r}.")
    if not is_number(cache_weight) or not 0 <= cache_weight <= 1:
        raise InvalidSettingError(
            f"cache_weight is a number from 0 (cached tokens are free) to 1, not {cache_weight!r}."
        )
