"""Columns held in memory: read on from the store as rows come, and kept in a file.

A step's keys never change, and a row number is never used again, so what was read once stays true:
new rows are read on from the highest one seen, again from where all were there; removed ones are
marked, and dropped when they are many, so that what is listed by place outlives them. A key is read
on when it is asked for, all of metadata at once; whoever saves an index has all keys read, so that
no filter is the first. Not thread-safe by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from hybridagi_steps.protocols import IndexedStore, ValuedStore
from hybridagi_steps.records.filter_fields import StepKey
from hybridagi_steps.records.store_values import Metadata, Rows
from hybridagi_steps.search.columns.key_columns import (
    ABSENT,
    SCORE,
    Column,
    Flags,
    Numbers,
    PostingLists,
    Values,
    metadata_name,
    nothing,
)
from hybridagi_steps.search.columns.metadata_columns import MetadataColumns
from hybridagi_steps.search.index_cache import DamagedCacheError

PAGE = 100_000
"""Rows whose keys are read at once."""
_FEW_DEAD = 64
DEAD_SHARE = 0.1
"""Share of removed rows from which columns are made without them."""
FRESH_SHARE = 0.02
"""Share of new rows from which columns are saved anew: the next process has to read them, too."""
METADATA: StepKey = "metadata"
"""Stands for all metadata among names of columns."""
_BESIDE = (SCORE, METADATA)
"""What is read by itself: not all rows have it."""
_COLUMN = "column "

log = logging.getLogger("hybridagi_steps")


class HeldColumns:
    """The keys of rows, each where it stands in the rows, up to the newest row it was told of."""

    _kind = 0  # which of the rows of `Frontier.settled` is theirs
    _every: Sequence[StepKey] = ()
    """The keys that are read of all rows when an index is saved."""

    def __init__(self, store: IndexedStore, restore: Callable[[], object] = bool) -> None:
        """Read from `store`, when first asked; `restore` lets `revive` come before that."""
        self._store, self._restore = store, restore
        self._newest = 0
        self._values = store if isinstance(store, ValuedStore) else None
        self._in_file: set[StepKey] = set()
        self._rows_in_file = 0
        self.forget()

    def follow(self, rows: Rows, removed: Rows) -> None:
        """Take note of rows there are and that branches may have moved; drop removed."""
        self._newest = int(rows.max(initial=self._newest))
        if self._through > self._settled:  # more may have appeared below what was read
            self._cut(int(np.searchsorted(self._rows.values, self._settled, side="right")))
            self._through = self._settled
        places = (found := self._places(removed))[found != ABSENT]
        if not len(places):
            return
        kept = np.ones(len(self._rows.values), np.bool_) if self._alive is None else self._alive
        kept[places] = False
        self._alive = kept
        if len(kept) - np.count_nonzero(kept) > max(_FEW_DEAD, DEAD_SHARE * len(kept)):
            self._drop_removed()

    def _cut(self, count: int) -> None:
        if count < self._saved_rows:
            self._load_all()
        for column in (self._rows, *self._columns.values()):
            column.cut(count)
        self._metadata.cut(count)
        self._alive = None if self._alive is None else self._alive[:count]
        self._postings.cut(count)

    def _drop_removed(self) -> None:
        if self._alive is not None:
            self._load_all()
        if self._alive is not None:  # else the file was damaged
            for column in (self._rows, *self._columns.values()):
                column.keep(self._alive)
            self._metadata.keep(self._alive)
            self._postings, self._alive = PostingLists(), None

    def unsaved(self, least: int) -> bool:
        """Tell whether to save columns of so many rows: there is a new one, or many new rows."""
        count = len(self._rows.values)
        fresh = count > (1 + FRESH_SHARE) * self._rows_in_file
        held = self._columns.keys() | ({METADATA} if len(self._metadata) else set[StepKey]())
        return count >= least and (fresh or held > self._in_file)

    def read_on(self, *, every: bool = False) -> None:
        """Bring all columns that were ever asked for up to date; of `every` key, if asked so."""
        if self._through < 0:
            self._restore()
        self._load_all()
        asked = {*self._columns, *(self._every if every else ())}
        if len(self._metadata) or (every and self._values is not None):
            asked.add(METADATA)
        if asked:
            self._hold(sorted(asked))

    def to_arrays(self) -> dict[str, Values | bytes]:
        """Return the columns, of no row newer than those it was told of, or that is not settled.

        Whoever saves them has them read on first.
        """
        self._drop_removed()
        newest = min(self._newest, self._settled)
        count = int(np.searchsorted(self._rows.values, newest, side="right"))
        whole = {name: held for name, held in self._columns.items() if len(held) >= count}
        columns = {name: held.values[:count] for name, held in whole.items()}
        if SCORE in columns:
            columns[SCORE] = columns[SCORE].copy()  # which may change while it is written
        self._in_file, self._rows_in_file = {*columns}, count
        rows, through = self._rows.values[:count], np.array([min(self._through, newest)])
        arrays = {"rows": rows, "through": through, **self._numbers.to_arrays(columns)}
        if len(self._metadata):
            self._in_file.add(METADATA)
            arrays |= self._metadata.to_arrays(count)
        return arrays

    def revive(self, arrays: Mapping[str, Values], removed: Rows) -> None:
        """Take over what `to_arrays` gave, without rows removed since; a key when it is needed."""
        self._saved, self._numbers = arrays, Numbers(arrays)
        self._metadata = MetadataColumns(arrays)
        self._rows, self._through = Column(arrays["rows"]), int(arrays["through"][0])
        self._saved_rows = self._rows_in_file = len(self._rows)
        self._in_file = {*self._saved_keys()}
        if len(self._metadata):
            self._in_file.add(METADATA)
        self._settled = self._through
        self.follow(removed[:0], removed)

    def forget_saved(self) -> None:
        """Take note that nothing is saved any more."""
        self._in_file, self._rows_in_file = set(), 0

    def _keys_above(
        self, names: Sequence[StepKey], after: int
    ) -> tuple[Rows, dict[StepKey, list[str | None]]]:
        return self._store.step_keys(names, after=after, limit=PAGE)

    def _metadata_of(self, after: int, through: int) -> Metadata:
        """Return what rows within bounds have as metadata."""
        if self._values is None:
            return []
        return self._values.metadata_values(after=after, through=through)

    def _scores_of(self, after: int, through: int) -> Sequence[tuple[int, float]]:
        """Return the rows within bounds that have a score."""
        return (
            [] if self._values is None else self._values.scored_rows(after=after, through=through)
        )

    # -- what is held -----------------------------------------------------------------------------

    def forget(self) -> None:
        """Hold nothing."""
        self._rows = Column(np.empty(0, np.int64))
        self._alive: Flags | None = None
        self._saved: Mapping[str, Values] = {}
        self._saved_rows = 0
        self._columns: dict[StepKey, Column] = {}
        self._numbers, self._metadata = Numbers(), MetadataColumns()
        self.forget_saved()
        self._postings, self._through, self._settled = PostingLists(), -1, 0

    def _saved_keys(self) -> Iterator[StepKey]:
        return (name.removeprefix(_COLUMN) for name in self._saved if name.startswith(_COLUMN))

    def _load(self, names: Iterable[StepKey]) -> None:
        """Take columns over from the file, or begin them."""
        for name in names:
            if (key := metadata_name(name)) is not None:
                self._metadata.load([key])
            elif name == METADATA:
                self._metadata.load()
            elif name not in self._columns:
                stored = f"{_COLUMN}{name}"
                found = Column(self._saved[stored]) if stored in self._saved else Column.of(name)
                self._numbers.table(name)  # what it says must be read with it, or not at all
                self._columns[name] = found

    def _load_sound(self, names: Sequence[StepKey]) -> None:
        """Take columns over from the file; if that is damaged, nothing is held."""
        try:
            self._load(names)
        except DamagedCacheError as error:
            log.info("the columns of filters are not used, but read again: %s", error)
            self.forget()
            self._load(names)

    def _load_all(self) -> None:
        self._load_sound([*self._saved_keys(), METADATA])

    def _reads_first(self, names: Iterable[StepKey]) -> bool:
        """Tell whether some key would first be read of all rows."""
        if self._through < 0:
            self._restore()
        held = {*self._columns, *self._saved_keys()}
        return any(
            name not in held and not (name == METADATA and len(self._metadata))
            for name in map(_family, names)
        )

    def _hold(self, names: Sequence[StepKey]) -> None:
        """Read some keys on, from where they were read up to before; in the file, or the store."""
        if self._through < 0:
            self._restore()
        self._load_sound(names)
        keys = dict.fromkeys(map(_family, names))
        if self._newest <= self._through and not any(map(self._behind, keys)):
            return
        try:
            self._read_on([*keys])
        except BaseException:
            self.forget()  # half of a page is worse than none
            raise

    def _read_on(self, names: Sequence[StepKey]) -> None:
        if self._newest > self._through:
            self._settled = max(self._settled, self._store.frontier().settled[self._kind])
            level = [name for name in names if name not in _BESIDE and not self._behind(name)]
            for rows, columns in self._pages(level, self._through):
                self._rows.extend(rows)
                if self._alive is not None:
                    fresh = np.ones(len(rows), np.bool_)
                    self._alive = np.concatenate((self._alive, fresh))
                for name, values in columns.items():
                    self._columns[name].extend(values)
            self._through = max([self._newest, *self._rows.values[-1:].tolist()])
        behind: dict[int, list[StepKey]] = {}
        for name in names:
            if count := self._behind(name):
                if name in _BESIDE:
                    self._catch_up_beside(name, count)
                else:
                    behind.setdefault(count, []).append(name)
        for count, together in behind.items():
            self._catch_up(together, count)

    def _behind(self, name: StepKey) -> int:
        """Return how many of the rows held a column does not reach to."""
        held = self._metadata if name == METADATA else self._columns[name]
        return len(self._rows) - len(held)

    def _catch_up(self, names: Sequence[StepKey], count: int) -> None:
        """Read keys of the last rows held, so many."""
        known = self._rows.values
        first = len(known) - count
        columns = {name: nothing(name, count) for name in names}
        for rows, found in self._pages(names, int(known[first]) - 1):
            places = self._places(rows)
            held = places != ABSENT
            for name, values in found.items():
                columns[name][places[held] - first] = values[held]
            if rows[-1] >= known[-1]:
                break
        for name, column in columns.items():
            self._columns[name].extend(column)

    def _catch_up_beside(self, name: StepKey, count: int) -> None:
        """Read scores, or metadata, of the last rows held, so many."""
        known = self._rows.values
        if name == SCORE and count == len(known):
            self._in_file.discard(SCORE)  # what stands there is out of date, if it does
        for start in range(len(known) - count, len(known), PAGE):
            page = known[start : start + PAGE]
            bounds = int(page[0]) - 1, int(page[-1])
            if name == SCORE:
                self._columns[name].extend(_scores(page, self._scores_of(*bounds)))
            else:
                self._metadata.extend(known, len(page), self._metadata_of(*bounds))

    def _pages(
        self, names: Sequence[StepKey], after: int
    ) -> Iterator[tuple[Rows, dict[StepKey, Values]]]:
        """Yield the rows above `after`, with what is to stand in their columns."""
        full = True
        while full:
            rows, keys = self._keys_above(names, after)
            full = len(rows) == PAGE
            if len(rows):
                yield rows, {name: self._numbers.encoded(name, keys[name]) for name in names}
                after = int(rows[-1])

    def _places(self, rows: Rows) -> npt.NDArray[np.intp]:
        """Return where rows stand, `ABSENT` for those not held."""
        known = self._rows.values
        if not len(known):
            return np.full(len(rows), ABSENT, np.intp)
        found = np.minimum(np.searchsorted(known, rows), len(known) - 1)
        held = known[found] == rows
        if self._alive is not None:
            held &= self._alive[found]
        return np.where(held, found, ABSENT)


def _family(name: StepKey) -> StepKey:
    """Return what a key is read with: all keys of metadata are read at once."""
    return name if metadata_name(name) is None else METADATA


def _scores(rows: Rows, found: Sequence[tuple[int, float]]) -> Values:
    """Return the column of scores, which not all of some rows have."""
    column = nothing(SCORE, len(rows))
    if found:
        having, values = zip(*found, strict=True)
        places = np.minimum(np.searchsorted(rows, having), len(rows) - 1)
        held = rows[places] == having
        column[places[held]] = np.array(values, np.float64)[held]
    return column
