"""What filters look at, in memory: which rows pass is answered without asking the database.

A step's keys never change, and a row number is never used again, so what was read once stays true:
new rows are read on from the highest one seen, again from where all were there; removed ones are
marked, and dropped when they are many, so that what is listed by place outlives them. A key is read
on when a filter names it, all of metadata at once; whoever saves an index has all keys read, so
that no filter is the first. Texts are numbered, one small integer per row; the rows of a value
asked for again are kept as a posting list. The store is asked each time for what can change without
a new row (where branches stand, which runs have a score), and for what its indexes answer at once:
one run, one session. What was read is kept in a file beside the index. Not thread-safe by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridagi_steps.protocols import IndexedStore, ValuedStore
from hybridagi_steps.records.filter_fields import StepKey
from hybridagi_steps.records.filters import EVERY_SCOPE, StepFilter
from hybridagi_steps.records.store_values import ABANDONED, REVOKED, Hidden, RowMetadata, Rows
from hybridagi_steps.search.columns.key_columns import (
    ABSENT,
    NOWHERE,
    SCORE,
    TIME,
    Answers,
    Column,
    Flags,
    MetadataColumns,
    Numbers,
    Positions,
    PostingLists,
    Value,
    Values,
    equalities,
    metadata_name,
    microseconds,
    nothing,
    one_of,
    plain_value,
    without,
)
from hybridagi_steps.search.index_cache import DamagedCacheError
from hybridagi_steps.stores.sql.tables import is_storable

PAGE = 100_000
"""Rows whose keys are read at once."""
COMPARED_ALONE = 256
"""Rows of which the metadata are compared one by one; those of more are read from first to last."""
_LOOKED_AT = 1_000
_FEW_DEAD = 64
FEW_RUNS = 32
"""So many excluded runs are asked for one by one; of more the column is looked through once."""
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


class FilterColumns:
    """Answers filters like `store.rows`, for rows up to the newest it was told of."""

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
        self._hidden: Hidden | None = None
        self._answers = Answers()
        self.forget()

    def follow(self, rows: Rows, removed: Rows) -> None:
        """Take note of rows there are and that branches may have moved; drop removed."""
        self._newest = int(rows.max(initial=self._newest))
        self._hidden = None
        self._answers.clear()
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

    def rows(self, where: StepFilter) -> Rows:
        """Return the rows that match, ascending; asked again, the same read-only array.

        Complexity: O(rows of the narrowest value asked for) once its posting list is kept, else
        O(n) over four-byte numbers.
        """
        if self._is_for_the_store(where):
            return self._rows_of(where)
        least = where.min_score
        rated = self._values.rated_runs(least) if self._values and least is not None else []
        given = {name: value for name, value in vars(where).items() if value is not None}
        asked = repr(given), *rated  # its lists might be changed afterwards
        if (found := self._answers.known(asked)) is not None:
            return found
        self._hold(self._names(where))
        if not all(map(self._metadata.holds, where.metadata or ())):
            return self._rows_of(where)
        found = self._but_hidden(self._held_rows(self._matching(where, rated)), where)
        return self._answers.kept(asked, found, len(self._rows.values))

    def numbers(self, name: StepKey, rows: Rows) -> npt.NDArray[Any]:
        """Return the number of each row's value of a key, -1 where it has none."""
        self._hold([name])
        places = self._places(rows)
        if not len(self._rows.values):
            return np.full(len(rows), ABSENT, np.int32)
        values = np.where(places == ABSENT, ABSENT, self._columns[name].values[places])
        return np.where(values == self._numbers.number(name, None), ABSENT, values)

    def first_rows(
        self, name: StepKey, number: int, most: int, passing: Callable[[Rows], Flags]
    ) -> Rows:
        """Return the first rows with a value, given by its number, that pass."""
        self._hold([name])
        rows = self._held_rows(self._posting(name, number))
        found = np.empty(0, np.int64)
        for start in range(0, len(rows), _LOOKED_AT):
            page = rows[start : start + _LOOKED_AT]
            found = np.concatenate((found, page[passing(page)]))[:most]
            if len(found) == most:
                break
        return found

    def hidden(self) -> Hidden:
        """Return the rows that recall leaves out, as the store last said."""
        if self._hidden is None:
            self._hidden = self._hidden_rows()
        return self._hidden

    def value_numbers(self, name: StepKey) -> Mapping[Value, int]:
        """Return the number of each text that a key has had; they only grow."""
        return self._numbers.of(name)

    def of_runs(self, run_ids: Sequence[str]) -> list[Rows]:
        """Return the rows of some runs, of every scope."""
        wheres = (StepFilter(run_id=run_id, scope=EVERY_SCOPE) for run_id in run_ids)
        return [self._rows_of(where) for where in wheres]

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

    # -- what the store says ----------------------------------------------------------------------

    def _hidden_rows(self) -> Hidden:
        return self._store.hidden_rows()

    def _rows_of(self, where: StepFilter) -> Rows:
        """Return the rows that match, as the store says."""
        return self._store.rows(where)

    def _keys_above(
        self, names: Sequence[StepKey], after: int
    ) -> tuple[Rows, dict[StepKey, list[str | None]]]:
        return self._store.step_keys(names, after=after, limit=PAGE)

    def _metadata_of(self, after: int, through: int) -> RowMetadata:
        """Return the rows within bounds with their metadata."""
        if self._values is None:
            return []
        return self._values.metadata_values(after=after, through=through)

    def _scores_of(self, after: int, through: int) -> Sequence[tuple[int, float]]:
        """Return the rows within bounds that have a score."""
        return (
            [] if self._values is None else self._values.scored_rows(after=after, through=through)
        )

    def _is_for_the_store(self, where: StepFilter) -> bool:
        """Tell whether the database knows better: by an index, or because it may change."""
        return where.run_id is not None or self._may_change(where)

    def _may_change(self, where: StepFilter) -> bool:
        """Tell whether what is found may change without a new row, or is in no column."""
        if where.session_id is not None or where.scope in (ABANDONED, REVOKED):
            return True
        if self._values is None and (where.min_score is not None or where.metadata):
            return True
        return not all(map(is_storable, where.metadata or ()))

    def _names(self, where: StepFilter) -> list[StepKey]:
        names: dict[StepKey, None] = dict.fromkeys(name for name, _ in equalities(where))
        if where.min_score is not None:
            names |= {"run_id": None, SCORE: None}
        if where.program is not None:
            names |= {"program": None, "call_id": None, "program_id": None}
        if where.since is not None or where.until is not None:
            names[TIME] = None
        return list(names)

    def _held_rows(self, positions: Positions) -> Rows:
        if self._alive is not None:
            positions = positions[self._alive[positions]]
        return self._rows.values[positions]

    # -- what passes ------------------------------------------------------------------------------

    def _matching(self, where: StepFilter, rated: Sequence[str]) -> Positions:
        """Return the positions that pass the keys; each condition looks at what the last left."""
        found: Positions | None = None
        asked = list(equalities(where))
        for name, values in asked:
            if name != "scope":
                found = self._narrowed(found, name, values)
        if where.since is not None:
            found = _those(found, self._some(TIME, found) >= microseconds(where.since))
        if where.until is not None:
            found = _those(found, self._some(TIME, found) < microseconds(where.until))
        if where.min_score is not None:
            found = _those(found, self._scored(found, where.min_score, rated))
        for name, values in asked:
            if name == "scope":  # last: nearly all steps have the same
                found = self._narrowed(found, name, values)
        if found is None:
            found = np.arange(len(self._rows), dtype=np.int32)
        if where.program is not None:
            found = found[self._in_program(found, where.program)]
        return found

    def _some(self, name: StepKey, found: Positions | None) -> Values:
        """Return a column at some positions; None: all of it."""
        column = self._columns[name].values
        return column if found is None else column[found]

    def _narrowed(
        self, found: Positions | None, name: StepKey, values: Iterable[Value]
    ) -> Positions:
        if (key := metadata_name(name)) is not None:
            having = self._with_metadata(key, *values)
            return having if found is None else found[_marked(having, len(self._rows))[found]]
        numbers = self._numbers.known(name, values)
        if found is None:
            lists = [self._posting(name, number) for number in numbers]
            return lists[0] if len(lists) == 1 else np.sort(np.concatenate([NOWHERE, *lists]))
        if numbers and len(self._numbers.table(name)) == 1:
            return found  # all steps have this value, as is usual of the scope
        return found[one_of(self._columns[name].values[found], numbers)]

    def _with_metadata(self, key: str, value: Value) -> Positions:
        """Return all positions at which a key of metadata has a value."""
        found, sure = self._metadata.positions(key, value)
        if sure or not len(found):
            return found
        rows = self._held_rows(found)
        spans = [(row - 1, row) for row in rows.tolist()]
        if len(spans) > COMPARED_ALONE:
            spans = [(spans[0][0], spans[-1][1])]
        having = [
            row
            for span in spans
            for row, metadata in self._metadata_of(*span)
            if key in metadata and plain_value(metadata[key]) == value
        ]
        return found[np.isin(self._rows.values[found], having)]

    def _scored(self, found: Positions | None, least: float, rated: Sequence[str]) -> Flags:
        """Return which positions have such a score: their own, or else that of their run."""
        own = self._some(SCORE, found)
        of_run = self._numbers.known("run_id", rated)
        if not of_run:
            return own >= least
        return (own >= least) | (np.isnan(own) & one_of(self._some("run_id", found), of_run))

    def _in_program(self, found: Positions, program: str) -> Flags:
        """Return which positions name a program, or stand directly inside a call of it."""
        named = self._numbers.known("program", [program])
        calls = self._columns["call_id"].values[self._narrowed(None, "program", [program])]
        enclosing = {*calls.tolist()} - {self._numbers.number("call_id", None)}
        return one_of(self._columns["program"].values[found], named) | one_of(
            self._columns["program_id"].values[found], list(enclosing)
        )

    def _but_hidden(self, found: Rows, where: StepFilter) -> Rows:
        """Leave out excluded runs, and what is abandoned or revoked."""
        excluded, hidden = where.exclude_run_id or [], self.hidden().under(where.scope)
        if not (excluded or len(hidden)):
            return found
        if len(excluded) > FEW_RUNS:
            self._hold(["run_id"])
            numbers = self._numbers.known("run_id", excluded)
            (places,) = one_of(self._columns["run_id"].values, numbers).nonzero()
            gone = [self._rows.values[places]]
        else:
            gone = self.of_runs(excluded)
        return without(found, np.concatenate([*gone, hidden]))

    def _posting(self, name: StepKey, number: int) -> Positions:
        """Return all positions with a value, ascending."""
        return self._postings.of(name, number, self._columns[name].values)

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
                found = self._metadata_of(*bounds)
                places = np.searchsorted(known, [row for row, _ in found])
                there = zip(places.tolist(), found, strict=True)
                kept = ((place, told) for place, (row, told) in there if known[place] == row)
                self._metadata.extend(len(page), kept)

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


def _those(found: Positions | None, flags: Flags) -> Positions:
    """Return the positions whose flag is set, of some or of all."""
    return flags.nonzero()[0].astype(np.int32) if found is None else found[flags]


def _marked(positions: Positions, count: int) -> Flags:
    """Return of each place whether it is one of some."""
    flags = np.zeros(count, np.bool_)
    flags[positions] = True
    return flags


def _scores(rows: Rows, found: Sequence[tuple[int, float]]) -> Values:
    """Return the column of scores, which not all of some rows have."""
    column = nothing(SCORE, len(rows))
    if found:
        having, values = zip(*found, strict=True)
        places = np.minimum(np.searchsorted(rows, having), len(rows) - 1)
        held = rows[places] == having
        column[places[held]] = np.array(values, np.float64)[held]
    return column
