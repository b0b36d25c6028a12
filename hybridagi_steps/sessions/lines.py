"""A cache of session lines: each message is decoded once, and a reader asks for what is new.

A branch only ever grows while a session reads it, so what was read of it stays true. What else can
happen (an erasure, a sweep of what nobody read) leaves a tombstone or begins an epoch, in whichever
process: then everything is forgotten. Messages handed out are shared by all who read the session:
nobody may change one. Grouping them into units goes on where it stopped, too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakKeyDictionary

import orjson

from hybridagi_steps._concurrency import ForkSafeLock
from hybridagi_steps.messages.units import Conversation, Grouping, Unit
from hybridagi_steps.protocols import MessageIndex, StoreBackend
from hybridagi_steps.records.message import Step
from hybridagi_steps.records.store_values import BranchPosition

MOST_BYTES = 128 * 2**20
"""What the lines of a store may take together; the one that is read stays whatever it takes."""
_STEP_BYTES = 2_500
"""A decoded message without its words, with its unit."""
_GROUPINGS = 2
"""Windows of a line whose units are kept: all of it, and the newest messages."""

TokenCounts = dict[str, dict[str, int]]
"""Tokens of messages by id, by the id under which they are kept."""


class History(NamedTuple):
    """A part of a session's line. Its messages and units are shared: nobody may change any."""

    messages: list[Step]
    """In order; the list itself is the caller's own."""
    conversation: Conversation
    """The same in units."""
    counts: TokenCounts
    """What is known of the tokens of this line's messages; takes what else is counted."""


class SessionLines:
    """What is known of the lines of one store; threads and event loops may share it.

    Of a store that does not tell what was erased (one without `MessageIndex`) nothing is kept.
    """

    def __init__(self, store: StoreBackend) -> None:
        self._tells = isinstance(store, MessageIndex)
        self._lock = ForkSafeLock()  # for who changes a line; never held while the store is read
        self._lines: OrderedDict[tuple[str, int], _Line] = OrderedDict()
        self._erasures: object = None
        self._size = 0

    def read(
        self, store: StoreBackend, session_id: str, end: BranchPosition, start: int
    ) -> History:
        """Return the messages of a line from `start` to `end`."""
        key, erasures = (session_id, end.branch_id), self._look_for_erasures(store)
        with self._lock:
            line = self._lines.get(key) if self._tells else None
            if line is None or start > line.last + 1:
                line = _Line(start)
            missing = line.missing(start, end.sequence)
        parts = [
            (first, store.messages(session_id, first, last, branch_id=end.branch_id))
            for first, last in missing
        ]
        with self._lock:
            before = line.size
            for first, found in parts:
                line.extend(first, found)
            history = line.part(start, end.sequence)
            if self._tells and erasures == self._erasures:
                self._keep(key, line, line.size - before)
        return history

    def forget(self) -> None:
        """Forget everything, as after an erasure."""
        with self._lock:
            self._lines.clear()
            self._size = 0

    def _look_for_erasures(self, store: StoreBackend) -> object:
        """Return what is another after every erasure; forget everything after one."""
        if not self._tells:
            return None
        position = store.frontier().position
        erasures = (position.epoch, position.tombstone)
        with self._lock:
            if self._erasures != erasures:
                self.forget()
                self._erasures = erasures
        return erasures

    def _keep(self, key: tuple[str, int], line: _Line, grown: int) -> None:
        """Keep a line as the one read last, and others as far as there is room."""
        known = self._lines.pop(key, None)
        self._size += grown if known is line else line.size - (known.size if known else 0)
        self._lines[key] = line
        while self._size > MOST_BYTES and len(self._lines) > 1:
            _, oldest = self._lines.popitem(last=False)
            self._size -= oldest.size


@dataclass(slots=True)
class _Line:
    """What is known of one branch, as a session reads it."""

    first: int
    """The sequence of the first message that is held."""
    messages: list[Step] = field(default_factory=list[Step])
    size: int = 0
    groupings: OrderedDict[int, Grouping] = field(default_factory=OrderedDict[int, Grouping])
    """By the sequence of the first message in it."""
    units: list[Unit | None] = field(default_factory=list[Unit | None])
    """Of each message the unit that it is by itself in any window; None where that depends."""
    counts: TokenCounts = field(default_factory=TokenCounts)

    @property
    def last(self) -> int:
        """The sequence of the last message that is held."""
        return self.first + len(self.messages) - 1

    def missing(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of a range that are not held."""
        parts = [(start, min(self.first - 1, end)), (max(self.last + 1, start), end)]
        return [(first, last) for first, last in parts if first <= last]

    def extend(self, first: int, found: Sequence[Step]) -> None:
        """Take messages before or behind what is held, but for those that came meanwhile."""
        if first < self.first:
            new = found[: self.first - first]
            self.messages[:0], self.first = new, first
            self.units[:0] = [None] * len(new)
        else:
            new = found[self.last + 1 - first :]
            self.messages += new
            self.units += [None] * len(new)
        self.size += sum(map(_size_of, new))

    def part(self, start: int, end: int) -> History:
        """Return a range that is held."""
        begin, stop = start - self.first, end - self.first + 1
        grouping = self.groupings.pop(start, None)
        if grouping is None or grouping.size > stop - begin:  # or an earlier end than before
            grouping = Grouping()
        self.groupings[start] = grouping
        if len(self.groupings) > _GROUPINGS:
            self.groupings.popitem(last=False)
        for place in range(begin + grouping.size, stop):
            if (unit := self.units[place]) is not None:
                grouping.share(unit)
            else:
                self.units[place] = grouping.add(self.messages[place], self.first - 1 + place)
        return History(self.messages[begin:stop], grouping.conversation(), self.counts)


_known: WeakKeyDictionary[StoreBackend, SessionLines] = WeakKeyDictionary()
_knowing = ForkSafeLock()


def history_of(
    store: StoreBackend,
    session_id: str,
    end: BranchPosition | None = None,
    most: int | None = None,
) -> History:
    """Return the newest messages of a session, of which only those that are new are read.

    Args:
        store: Where the session is.
        session_id: The session.
        end: The branch, and the last sequence wanted; by default where the session ends.
        most: How many messages at most; None is all.

    Raises:
        UnknownSessionError: No such session.
    """
    if end is None:
        end = store.session_end(session_id)
    start = 1 if most is None else max(1, end.sequence - most + 1)
    with _knowing:
        lines = _known.get(store) or _known.setdefault(store, SessionLines(store))
    return lines.read(store, session_id, end, start)


def forget_history(store: StoreBackend) -> None:
    """Forget what is known of a store's sessions, as after an erasure."""
    if (lines := _known.get(store)) is not None:
        lines.forget()


def _size_of(message: Step) -> int:
    """Return about how many bytes a message takes."""
    words = len(message.content) if isinstance(message.content, str) else 0
    nested = (None if words else message.content, message.tool_calls, message.metadata)
    return _STEP_BYTES + words + sum(2 * len(orjson.dumps(part)) for part in nested if part)
