"""A cache of session lines: each message is decoded once, and one question tells what is new.

A branch only ever grows while a session reads it, so what was read of it stays true. What else can
happen (an erasure, a sweep of what nobody read) leaves a tombstone or begins an epoch, in whichever
process: then everything is forgotten. Messages are kept in half their room and made again when they
are asked for; what is nested in them is shared by all who read the session: nobody may change it.
Grouping them into units goes on where it stopped, too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from sys import getsizeof
from typing import NamedTuple, cast
from weakref import WeakKeyDictionary

import orjson

from hybridagi_steps._concurrency import ForkSafeLock
from hybridagi_steps.errors import UnknownSessionError
from hybridagi_steps.messages.units import Conversation, Grouping, Unit
from hybridagi_steps.protocols import SessionFollower, StoreBackend
from hybridagi_steps.records.filters import EVERY_SCOPE, StepFilter
from hybridagi_steps.records.message import KeptMessage, KeptMessages, Step, kept, restored
from hybridagi_steps.records.provenance import source_of
from hybridagi_steps.records.store_values import BranchPosition

MOST_BYTES = 128 * 2**20
"""What the lines of a store may take together; the one that is read stays whatever it takes."""
_SHORT = 1_000
"""Messages of a line up to which units hold theirs whole: to make them again takes a third of a
turn that sends them all."""
_WHOLE_BYTES = 540
_KEPT_BYTES, _INDEX_BYTES = 500, 80
"""What a kept message takes with its unit, and in an index of units, besides what it says. An index
takes about a byte for each character, too."""
_NESTED_TIMES = 8
"""How much more than as JSON nested values take."""
_WINDOWS = 2
"""Windows of a line whose units are kept: all of it, and the newest messages."""

TokenCounts = dict[str, dict[str, int]]
"""Tokens of messages by id, by the id under which they are kept."""


class History(NamedTuple):
    """A part of a session's line. Its messages and units are shared: nobody may change any."""

    messages: KeptMessages
    """In order."""
    conversation: Conversation
    """The same in units."""
    counts: TokenCounts
    """What is known of the tokens of this line's messages; takes what else is counted."""
    end: BranchPosition
    """Its last message."""
    kept: list[object]
    """What readers keep with this line; it is forgotten with it."""
    users: frozenset[str]
    """Whom messages of this line name, in this part or in another."""
    calls: bool
    """Whether some of them ask for tools."""
    imported: bool
    """Whether some of them come from elsewhere."""


class SessionLines:
    """What is known of the lines of one store; threads and event loops may share it.

    Of a store that does not tell what was erased (no `SessionFollower`) nothing is kept.
    """

    def __init__(self, store: StoreBackend) -> None:
        self._tells = isinstance(store, SessionFollower)
        self._lock = ForkSafeLock()  # for who changes a line; never held while the store is read
        self._lines: OrderedDict[str, _Line] = OrderedDict()
        self._erasures: object = None
        self._size = 0

    def look(
        self, store: StoreBackend, session_id: str, branch_id: int | None = None
    ) -> BranchPosition:
        """Return where a session ends; take what is new of it, forget all after an erasure."""
        if not self._tells:
            return store.session_end(session_id, branch_id=branch_id)
        with self._lock:
            known = self._lines.get(session_id) or _Line(0, 0)
            after, users_after = known.last, known.users_after
        end, erasures, users, messages = cast("SessionFollower", store).session_state(
            session_id,
            branch_id=branch_id,
            after=after if known.messages else None,
            users_after=users_after,
        )
        with self._lock:
            if self._erasures != erasures:
                self.forget()
                self._erasures = erasures
            line = self._lines.get(session_id)
            if line is None or line.branch_id != end.branch_id:
                line = _Line(end.branch_id, end.sequence + 1)
            elif line is known:
                line.users |= users
                if users_after is not None:
                    line.users_after = end.sequence
            if line is known and messages:
                line.extend(after + 1, messages)
            self._keep(session_id, line)
        return end

    def read(
        self, store: StoreBackend, session_id: str, end: BranchPosition, start: int
    ) -> History:
        """Return the messages of a line from `start` to `end`, where it was seen to end."""
        with self._lock:
            line, erasures = self._lines.get(session_id), self._erasures
            if line is None or line.branch_id != end.branch_id or start > line.last + 1:
                line = _Line(end.branch_id, start)
            missing = line.missing(start, end.sequence)
        parts = [
            (first, store.messages(session_id, first, last, branch_id=end.branch_id))
            for first, last in missing
        ]
        with self._lock:
            for first, found in parts:
                line.extend(first, found)
            history = line.part(start, end)
            if self._tells and erasures == self._erasures:
                self._keep(session_id, line)
        return history

    def users(
        self, store: StoreBackend, session_id: str, end: BranchPosition | None
    ) -> frozenset[str]:
        """Return whom the steps of a session name that was seen to end there: one or more."""
        with self._lock:
            line = self._lines.get(session_id)
            if end is None or (line is not None and line.branch_id != end.branch_id):
                line = None
            if line is not None and line.users_after is not None:
                return line.users
        where = StepFilter(session_id=session_id, scope=EVERY_SCOPE)
        found = frozenset(store.users(where, limit=2))
        with self._lock:
            if line is not None and end is not None:
                line.users, line.users_after = found, end.sequence
        return found

    def forget(self) -> None:
        """Forget everything, as after an erasure."""
        with self._lock:
            self._lines.clear()
            self._size = 0

    def _keep(self, session_id: str, line: _Line) -> None:
        """Keep a line as the one read last; where there is no room, forget those read first."""
        self._drop(session_id)
        self._lines[session_id] = line
        line.counted = line.size
        self._size += line.counted
        while self._size > MOST_BYTES and len(self._lines) > 1:
            self._drop(next(iter(self._lines)))

    def _drop(self, session_id: str) -> None:
        """Forget a line, if there is one."""
        if (line := self._lines.pop(session_id, None)) is not None:
            self._size -= line.counted


@dataclass(slots=True)
class _Line:
    """What is known of one branch, as a session reads it."""

    branch_id: int
    first: int
    """The sequence of the first message that is held."""
    messages: list[KeptMessage] = field(default_factory=list[KeptMessage])
    counted: int = 0
    """The size that it counted with when it was looked at last."""
    users: frozenset[str] = frozenset()
    """Whom its steps name."""
    users_after: int | None = None
    """The sequence at its end when that was so; None while nobody asked."""
    windows: OrderedDict[int, _Window] = field(default_factory=OrderedDict[int, "_Window"])
    """By the sequence of the first message in it."""
    units: list[Unit | None] = field(default_factory=list[Unit | None])
    """Of each message the unit that it is by itself in any window; None where that depends."""
    counts: TokenCounts = field(default_factory=TokenCounts)
    kept: list[object] = field(default_factory=list[object])
    named: frozenset[str] = frozenset()
    """Whom its messages name."""
    calls: bool = False
    imported: bool = False
    _held: int = 0
    _whole: int = 0
    """Messages that units hold whole, as they do while the line is short."""
    _characters: int = 0

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        index = self._characters + _INDEX_BYTES * len(self.messages) if self.kept else 0
        kept = _KEPT_BYTES * (1 + len(self.messages)) + _WHOLE_BYTES * self._whole
        return kept + self._held + index

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
            self.messages[:0], self.first = map(kept, new), first
            self.units[:0] = [None] * len(new)
        else:
            new = found[self.last + 1 - first :]
            self.messages += map(kept, new)
            self.units += [None] * len(new)
        self.named |= {one.user_id for one in new if one.user_id is not None}
        self.calls = self.calls or any(one.tool_calls for one in new)
        self.imported = self.imported or any(source_of(one.metadata) for one in new)
        self._held += sum(map(_held_by, new))
        self._characters += sum(len(one.content) for one in new if isinstance(one.content, str))

    def part(self, start: int, end: BranchPosition) -> History:
        """Return a range that is held; the same one again as long as nothing is new."""
        begin, stop = start - self.first, end.sequence - self.first + 1
        window = self.windows.pop(start, None)
        if window is None or window.grouping.size > stop - begin:  # or an earlier end than before
            window = _Window(Grouping())
        self.windows[start] = window
        if len(self.windows) > _WINDOWS:
            self.windows.popitem(last=False)
        if (read := window.read) is not None and (read.end, read.users) == (end, self.named):
            return read
        grouping = window.grouping
        grouping.keeps = len(self.messages) > _SHORT
        for place in range(begin + grouping.size, stop):
            if (unit := self.units[place]) is not None:
                grouping.share(unit)
                continue
            message = self.messages[place]
            unit = self.units[place] = grouping.add(restored(message), self.first - 1 + place)
            if unit is not None and grouping.keeps:
                unit.keep(None if unit.notes else (message,))
            self._whole += not grouping.keeps
        messages = KeptMessages(self.messages[begin:stop])
        units = grouping.conversation()
        known = (self.named, self.calls, self.imported)
        window.read = History(messages, units, self.counts, end, self.kept, *known)
        return window.read


@dataclass(slots=True)
class _Window:
    """A part of a line in units."""

    grouping: Grouping
    read: History | None = None
    """What it was when it was read last."""


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
        end: The branch, and the last sequence wanted, where `look_at` has seen it end or before;
            by default it is looked at now.
        most: How many messages at most; None is all.
    """
    lines = _lines_of(store)
    if end is None:
        end = lines.look(store, session_id)
    start = 1 if most is None else max(1, end.sequence - most + 1)
    return lines.read(store, session_id, end, start)


def look_at(store: StoreBackend, session_id: str, branch_id: int | None = None) -> BranchPosition:
    """Return where a session, or one of its branches, ends now; see `SessionLines.look`."""
    return _lines_of(store).look(store, session_id, branch_id)


def only_user(
    store: StoreBackend,
    session_id: str,
    end: BranchPosition | None,
    named: Set[str] = frozenset(),
) -> str | None:
    """Return the only user that a session's steps name; None for nobody, and for several.

    They are asked for once, and from then on only what is new of the session is looked at; always
    where no `end` is known, as of a session that has no messages.

    Args:
        store: Where the session is.
        session_id: The session.
        end: Where it was seen to end.
        named: Whom its messages name. They count as well, but where its steps name nobody one of
            them is the user only if the session is his.
    """
    users = _lines_of(store).users(store, session_id, end)
    if users or len(named) != 1:
        users |= named
    else:
        try:
            users = named & {store.session_owner(session_id)}
        except UnknownSessionError:
            return None
    return next(iter(users)) if len(users) == 1 else None


def forget_history(store: StoreBackend) -> None:
    """Forget what is known of a store's sessions, as after an erasure."""
    if (lines := _known.get(store)) is not None:
        lines.forget()


def _lines_of(store: StoreBackend) -> SessionLines:
    with _knowing:
        return _known.get(store) or _known.setdefault(store, SessionLines(store))


def _held_by(message: Step) -> int:
    """Return about how many bytes take what a message says, and what is known of it."""
    said = message.content if isinstance(message.content, str) else ""
    nested = (None if said else message.content, message.tool_calls, message.metadata)
    return getsizeof(said) + sum(_NESTED_TIMES * len(orjson.dumps(each)) for each in nested if each)
