"""An index of a conversation's older units: by their words, the names in them, what they show.

It is kept with the session's line and follows it: a build takes in what has left the tail since
the last one, however long the session is. One build at a time has it, another makes its own.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from operator import is_not

import numpy as np

from hybridagi_steps.messages.agent_steps import shown_steps
from hybridagi_steps.messages.units import Unit, messages_text
from hybridagi_steps.protocols import MessageIndex, StoreBackend
from hybridagi_steps.records.excerpts import identifiers, words, words_and_names
from hybridagi_steps.records.message import Step
from hybridagi_steps.search.bm25 import Document, LexicalIndex

_COMMONEST = 0.3
"""A name in more than this share of the older units tells none of them apart."""


class _Places:
    """The places of units by a key; most keys have one, for which nothing is made.

    A set for each took two thirds of an index.
    """

    def __init__(self) -> None:
        self._held: dict[str, int | array[int]] = {}

    def add(self, key: str, place: int) -> None:
        """Note that a key stands in a place."""
        held = self._held.setdefault(key, place)
        if isinstance(held, int):
            if held != place:
                self._held[key] = array("q", sorted((held, place)))
        elif (at := bisect_left(held, place)) == len(held) or held[at] != place:
            held.insert(at, place)

    def discard(self, key: str, place: int) -> None:
        """Forget that a key stands in a place."""
        held = self._held.get(key)
        if held == place:
            del self._held[key]
        elif isinstance(held, array) and place in held:
            held.remove(place)
            if len(held) == 1:
                self._held[key] = held[0]

    def of(self, key: str) -> Sequence[int]:
        """Return the places of a key, in order."""
        held = self._held.get(key, ())
        return (held,) if isinstance(held, int) else held


class OlderUnits:
    """Units by their place. Not for several threads at once; see `lent`."""

    def __init__(self) -> None:
        self._words = LexicalIndex()
        self._units: dict[int, Unit] = {}
        self._held: list[Unit] = []
        self._naming, self._showing = _Places(), _Places()
        self._rows, self._ids = array("q"), list[str]()
        """The rows of messages in order, and the id of the message in each."""
        self._located: set[str] = set()
        self._unlocated: list[str] = []

    def hold(self, units: list[Unit]) -> None:
        """Hold these units and no others.

        Complexity: linear in the words of what is new or gone; what stays is only compared.
        """
        if units == self._held:
            return
        # Nearly all stay where they are: what is equal at the beginning is not looked at.
        moved = map(is_not, self._held, units)
        same = next(
            (n for n, differs in enumerate(moved) if differs), min(len(self._held), len(units))
        )
        wanted = {unit.place: unit for unit in units[same:]}
        before = {unit.place: unit for unit in self._held[same:]}
        gone = [unit for place, unit in before.items() if wanted.get(place) is not unit]
        new = [unit for place, unit in wanted.items() if before.get(place) is not unit]
        for unit in gone:
            said = unit.messages
            for places, key in self._keys(said, identifiers(messages_text(said))):
                places.discard(key, unit.place)
        self._words.remove(np.array([unit.place for unit in gone], np.int64))
        self._words.add(self._taken_in(unit) for unit in new)
        for unit in gone:
            del self._units[unit.place]
        self._units.update((unit.place, unit) for unit in new)
        self._held = units

    def locate(self, store: StoreBackend, others: Iterable[Unit]) -> None:
        """Learn in which rows of a store the messages of these units and of others stand."""
        if not isinstance(store, MessageIndex):
            return
        shown = [message.id for unit in others for message in unit.messages]
        if new := [each for each in (*self._unlocated, *shown) if each not in self._located]:
            rows = store.rows_of_messages(new)
            for message_id in filter(rows.__contains__, new):  # not the texts of the answer
                self._note(rows[message_id], message_id)
        self._located, self._unlocated = {*shown}, []

    def messages_in(self, rows: Sequence[int]) -> list[str | None]:
        """Return the id of the message of this session that stands in each row of the store."""
        if not self._ids:
            return [None] * len(rows)
        held, wanted = np.frombuffer(self._rows, np.int64), np.array(rows, np.int64)
        at = held.searchsorted(wanted).clip(max=len(held) - 1)
        found = zip(at.tolist(), (held[at] == wanted).tolist(), strict=True)
        return [self._ids[place] if there else None for place, there in found]

    def _note(self, row: int, message_id: str) -> None:
        """Note which message stands in a row."""
        at = bisect_left(self._rows, row)
        if at == len(self._rows) or self._rows[at] != row:
            self._rows.insert(at, row)
            self._ids.insert(at, message_id)

    def by_words(self, query: str, limit: int) -> list[Unit]:
        """Return units that share the rarest words with a query, best first."""
        rows, _ = self._words.match(words(query)).top(limit)
        return [self._units[int(row)] for row in rows]

    def first_naming(self, name: str) -> Unit | None:
        """Return the first unit that names an id or number; None if none, or too many do."""
        places = self._naming.of(name)
        if not places or len(places) > max(1, _COMMONEST * len(self._units)):
            return None
        return self._units[places[0]]

    def showing(self, step_id: str) -> Unit | None:
        """Return the last unit that a message or a step stands in."""
        places = self._showing.of(step_id)
        return self._units[places[-1]] if places else None

    def _taken_in(self, unit: Unit) -> Document:
        said = unit.messages
        found, names = words_and_names(messages_text(said))
        for places, key in self._keys(said, names):
            places.add(key, unit.place)
        self._unlocated += [message.id for message in said]
        return Document(unit.place, found)

    def _keys(self, said: Iterable[Step], names: Iterable[str]) -> Generator[tuple[_Places, str]]:
        """Yield by what a unit is found besides its words."""
        for name in names:
            yield self._naming, name
        for message in said:
            for step_id in (message.id, *shown_steps(message)):
                yield self._showing, step_id


@contextmanager
def lent(kept: list[object], units: list[Unit]) -> Generator[OlderUnits]:
    """Give an index that holds some units: the one that is kept there, if nobody has it."""
    try:
        index = kept.pop()
    except IndexError:  # nobody has made one, or another thread has it
        index = None
    if not isinstance(index, OlderUnits):
        index = OlderUnits()
    index.hold(units)
    yield index
    kept[:] = [index]
