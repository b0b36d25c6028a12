"""What filters look at, in memory: which rows pass is answered without asking the database.

A step's keys never change, and a row number is never used again, so what was read once stays true:
new rows are read on from the highest one seen, again from where all were there; removed ones are
marked, and dropped when they are many, so that what is listed by place outlives them. A key is read
when a filter first names it. Texts are numbered, one small integer per row; the rows of a value
asked for again are kept as a posting list. The store is asked each time for what can change without
a new row (where branches stand, which runs have a score), and for what its indexes answer at once:
one run, one session. What was read is kept in a file beside the index. Not thread-safe by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridagi_steps.protocols import IndexedStore, ValuedStore
from hybridagi_steps.records.filter_fields import StepKey
from hybridagi_steps.records.filters import EVERY_SCOPE, StepFilter
from hybridagi_steps.records.store_values import ABANDONED, REVOKED, Hidden, Rows
from hybridagi_steps.search.key_columns import (
    ABSENT,
    NOWHERE,
    SCORE,
    TIME,
    Answers,
    Column,
    Flags,
    Numbers,
    Positions,
    PostingLists,
    Value,
    Values,
    equalities,
    is_valued,
    metadata_key,
    metadata_name,
    microseconds,
    nothing,
    one_of,
    without,
)
from hybridagi_steps.stores.sql.tables import is_storable

PAGE = 100_000
"""Rows whose keys are read at once."""
METADATA_KEYS = 16
"""Metadata keys that get a column, those asked for first; filters by others ask the store."""
_LOOKED_AT = 1_000
_FEW_DEAD = 64
FEW_RUNS = 32
"""So many excluded runs are asked for one by one; of more the column is looked through once."""
DEAD_SHARE = 0.1
"""Share of removed rows from which columns are made without them."""


class FilterColumns:
    """Answers filters like `store.rows`, for rows up to the newest it was told of."""

    _kind = 0  # which of the rows of `Frontier.settled` is theirs

    def __init__(self, store: IndexedStore, restore: Callable[[], object] = bool) -> None:
        """Read from `store`, when first asked; `restore` lets `revive` come before that."""
        self._store, self._restore = store, restore
        self._newest = 0
        self._values = store if isinstance(store, ValuedStore) else None
        self._saved: set[StepKey] = set()
        self._saved_rows = 0
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
        for column in (self._rows, *self._columns.values()):
            column.cut(count)
        self._alive = None if self._alive is None else self._alive[:count]
        self._postings.cut(count)

    def _drop_removed(self) -> None:
        if self._alive is not None:
            for column in (self._rows, *self._columns.values()):
                column.keep(self._alive)
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
        found = self._but_hidden(self._held_rows(self._matching(where, rated)), where)
        return self._answers.kept(asked, found, len(self._rows.values))

    def numbers(self, name: StepKey, rows: Rows) -> npt.NDArray[Any]:
        """Return the number of each row's value of a key, -1 where it has none."""
        self._hold([name])
        places = self._places(rows)
        if not len(self._rows.values):
            return np.full(len(rows), ABSENT, np.int32)
        values = np.where(places == ABSENT, ABSENT, self._columns[name].values[places])
        return np.where(values == self._numbers.of(name).get(None, ABSENT), ABSENT, values)

    def first_rows(
        self, name: StepKey, number: int, most: int, passing: Callable[[Rows], Flags]
    ) -> Rows:
        """Return the first rows with a value, given by its number, that pass."""
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
        fresh = len(self._rows.values) > (1 + DEAD_SHARE) * self._saved_rows
        return len(self._rows.values) >= least and (fresh or self._columns.keys() > self._saved)

    def to_arrays(self) -> dict[str, Values | bytes]:
        """Return the columns, of no row newer than those it was told of, or that is not settled."""
        self._drop_removed()
        newest = min(self._newest, self._settled)
        count = int(np.searchsorted(self._rows.values, newest, side="right"))
        columns = {name: Column(column.values[:count]) for name, column in self._columns.items()}
        self._saved, self._saved_rows = {*columns}, count
        rows, through = self._rows.values[:count], np.array([min(self._through, newest)])
        return {"rows": rows, "through": through, **self._numbers.to_arrays(columns)}

    def revive(self, arrays: Mapping[str, Values], removed: Rows) -> None:
        """Take over what `to_arrays` gave, without rows removed since."""
        self._columns = self._numbers.take_over(arrays)
        self._rows, self._through = Column(arrays["rows"]), int(arrays["through"][0])
        self._saved, self._saved_rows = {*self._columns}, len(self._rows.values)
        self._settled = self._through
        self.follow(removed[:0], removed)

    def forget_saved(self) -> None:
        """Take note that nothing is saved any more."""
        self._saved, self._saved_rows = set(), 0

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

    def _values_of(self, name: StepKey, after: int, through: int) -> Sequence[tuple[int, Any]]:
        """Return the rows within bounds that have a score, or a value of a metadata key."""
        if self._values is None:
            return []
        if (key := metadata_name(name)) is None:
            return self._values.scored_rows(after=after, through=through)
        return self._values.metadata_values(key, after=after, through=through)

    def _is_for_the_store(self, where: StepFilter) -> bool:
        """Tell whether the database knows better: by an index, or because it may change."""
        return where.run_id is not None or self._may_change(where)

    def _may_change(self, where: StepFilter) -> bool:
        """Tell whether what is found may change without a new row, or is in no column."""
        if where.session_id is not None or where.scope in (ABANDONED, REVOKED):
            return True
        if self._values is None and (where.min_score is not None or where.metadata):
            return True
        asked = {metadata_key(key) for key in where.metadata or ()} - self._columns.keys()
        held = sum(metadata_name(name) is not None for name in self._columns)
        return not all(map(is_storable, asked)) or len(asked) > max(0, METADATA_KEYS - held)

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
        for name, values in equalities(where):
            found = self._narrowed(found, name, values)
        if found is None:
            found = np.arange(len(self._rows.values), dtype=np.int32)
        if where.program is not None:
            found = found[self._in_program(found, where.program)]
        if where.since is not None:
            found = found[self._columns[TIME].values[found] >= microseconds(where.since)]
        if where.until is not None:
            found = found[self._columns[TIME].values[found] < microseconds(where.until)]
        if where.min_score is not None:
            found = found[self._scored(found, where.min_score, rated)]
        return found

    def _narrowed(
        self, found: Positions | None, name: StepKey, values: Iterable[Value]
    ) -> Positions:
        numbers = self._numbers.known(name, values)
        if found is None:
            lists = [self._posting(name, number) for number in numbers]
            return lists[0] if len(lists) == 1 else np.sort(np.concatenate([NOWHERE, *lists]))
        if numbers and len(self._numbers.of(name)) == 1 and metadata_name(name) is None:
            return found  # all steps have this value, as is usual of the scope
        return found[one_of(self._columns[name].values[found], numbers)]

    def _scored(self, found: Positions, least: float, rated: Sequence[str]) -> Flags:
        """Return which positions have such a score: their own, or else that of their run."""
        own = self._columns[SCORE].values[found]
        runs = self._columns["run_id"].values[found]
        of_run = one_of(runs, self._numbers.known("run_id", rated))
        return (own >= least) | (np.isnan(own) & of_run)

    def _in_program(self, found: Positions, program: str) -> Flags:
        """Return which positions name a program, or stand directly inside a call of it."""
        named = self._numbers.known("program", [program])
        calls = self._columns["call_id"].values[self._narrowed(None, "program", [program])]
        enclosing = {*calls.tolist()} - {self._numbers.of("call_id")[None]}
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
        self._columns: dict[StepKey, Column] = {}
        self._numbers = Numbers()
        self.forget_saved()
        self._postings, self._through, self._settled = PostingLists(), -1, 0

    def _hold(self, names: Sequence[StepKey]) -> None:
        """Read on from the last row seen, and all of the keys that were never asked for before."""
        if self._through < 0:
            self._restore()
        missing: list[StepKey] = [name for name in names if name not in self._columns]
        if self._newest <= self._through and not missing:
            return
        try:
            if self._through < 0:
                self._columns = {name: Column.of(name) for name in missing}
                missing = []
            self._read_on()
            self._fill(missing)
        except BaseException:
            self.forget()  # half of a page is worse than none
            raise

    def _read_on(self) -> None:
        self._settled = max(self._settled, self._store.frontier().settled[self._kind])
        for rows, columns in self._pages(list(self._columns), self._through):
            self._rows.extend(rows)
            if self._alive is not None:
                fresh = np.ones(len(rows), np.bool_)
                self._alive = np.concatenate((self._alive, fresh))
            for name, values in columns.items():
                self._columns[name].extend(values)
        self._through = max([self._newest, *self._rows.values[-1:].tolist()])

    def _fill(self, names: Sequence[StepKey]) -> None:
        """Read keys of the rows held already; of later ones all is read when their turn comes."""
        if not names:
            return
        known = self._rows.values
        columns = {name: Column.of(name, len(known)) for name in names}
        keys = [name for name in names if not is_valued(name)]
        for rows, found in self._pages(keys, after=-1) if keys else ():
            held = (places := self._places(rows)) != ABSENT
            for name, values in found.items():
                columns[name].values[places[held]] = values[held]
        for start in range(0, len(known), PAGE):
            page = known[start : start + PAGE]
            for name in filter(is_valued, names):
                column = columns[name].values[start : start + PAGE]
                column[:] = self._valued(name, page, int(page[0]) - 1)
        self._columns.update(columns)

    def _pages(
        self, names: Sequence[StepKey], after: int
    ) -> Iterator[tuple[Rows, dict[StepKey, Values]]]:
        """Yield the rows above `after`, with what is to stand in their columns."""
        stored = [name for name in names if not is_valued(name)]
        full = True
        while full:
            rows, keys = self._keys_above(stored, after)
            full = len(rows) == PAGE
            if len(rows):
                yield (
                    rows,
                    {
                        name: self._numbers.encoded(name, keys[name])
                        if name in keys
                        else self._valued(name, rows, after)
                        for name in names
                    },
                )
                after = int(rows[-1])

    def _valued(self, name: StepKey, rows: Rows, after: int) -> Values:
        """Return the column of a score or a metadata key, which not all of some rows have."""
        column = nothing(name, len(rows))
        if found := self._values_of(name, after, int(rows[-1])):
            having, values = zip(*found, strict=True)
            places = np.minimum(np.searchsorted(rows, having), len(rows) - 1)
            held = rows[places] == having
            column[places[held]] = self._numbers.encoded(name, values)[held]
        return column

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
