"""An index of a conversation's older units: by their words, the names in them, what they show.

It is kept with the session's line and follows it: a build takes in what has left the tail since
the last one, however long the session is. One build at a time has it, another makes its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from operator import is_not

import numpy as np

from hybridagi_steps.messages.agent_steps import shown_steps
from hybridagi_steps.messages.units import Unit, unit_text
from hybridagi_steps.protocols import MessageIndex, StoreBackend
from hybridagi_steps.records.excerpts import identifier_set, words
from hybridagi_steps.search.bm25 import Document, LexicalIndex

_COMMONEST = 0.3
"""A name in more than this share of the older units tells none of them apart."""


class OlderUnits:
    """Units by their place. Not for several threads at once; see `lent`."""

    def __init__(self) -> None:
        self._words = LexicalIndex()
        self._units: dict[int, Unit] = {}
        self._held: list[Unit] = []
        self._naming: defaultdict[str, set[int]] = defaultdict(set)
        self._showing: defaultdict[str, set[int]] = defaultdict(set)
        self._message_ids: dict[int, str] = {}
        self._located: set[str] = set()
        self._unlocated: list[str] = []

    def hold(self, units: Sequence[Unit]) -> None:
        """Hold these units and no others.

        Complexity: linear in the words of what is new or gone; what stays is only compared.
        """
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
            for place_sets, key in self._keys(unit, unit_text(unit)):
                place_sets[key].discard(unit.place)
        self._words.remove(np.array([unit.place for unit in gone], np.int64))
        self._words.add(self._taken_in(unit) for unit in new)
        self._unlocated += [message.id for unit in new for message in unit.messages]
        for unit in gone:
            del self._units[unit.place]
        self._units.update((unit.place, unit) for unit in new)
        self._held = [*units]

    def locate(self, store: StoreBackend, others: Iterable[Unit]) -> None:
        """Learn in which rows of a store the messages of these units and of others stand."""
        if not isinstance(store, MessageIndex):
            return
        ids = [*self._unlocated, *(message.id for unit in others for message in unit.messages)]
        if new := [each for each in ids if each not in self._located]:
            rows = store.rows_of_messages(new)
            self._message_ids |= {row: message_id for message_id, row in rows.items()}
            self._located.update(new)
        self._unlocated = []

    def message_in(self, row: int) -> str | None:
        """Return the id of the message of this session that stands in a row of the store."""
        return self._message_ids.get(row)

    def by_words(self, query: str, limit: int) -> list[Unit]:
        """Return units that share the rarest words with a query, best first."""
        rows, _ = self._words.match(words(query)).top(limit)
        return [self._units[int(row)] for row in rows]

    def first_naming(self, name: str) -> Unit | None:
        """Return the first unit that names an id or number; None if none, or too many do."""
        places = self._naming.get(name)
        if not places or len(places) > max(1, _COMMONEST * len(self._units)):
            return None
        return self._units[min(places)]

    def showing(self, step_id: str) -> Unit | None:
        """Return the last unit that a message or a step stands in."""
        places = self._showing.get(step_id)
        return self._units[max(places)] if places else None

    def _taken_in(self, unit: Unit) -> Document:
        text = unit_text(unit)
        for place_sets, key in self._keys(unit, text):
            place_sets[key].add(unit.place)
        return Document(unit.place, words(text))

    def _keys(self, unit: Unit, text: str) -> Generator[tuple[defaultdict[str, set[int]], str]]:
        """Yield by what a unit is found besides its words."""
        for name in identifier_set(text):
            yield self._naming, name
        for message in unit.messages:
            for step_id in (message.id, *shown_steps(message)):
                yield self._showing, step_id


@contextmanager
def lent(kept: list[object], units: Sequence[Unit]) -> Generator[OlderUnits]:
    """Give an index that holds some units: the one that is kept there, if nobody has it."""
    index = kept.pop() if kept else None
    if not isinstance(index, OlderUnits):
        index = OlderUnits()
    index.hold(units)
    yield index
    kept[:] = [index]
