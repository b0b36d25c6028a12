"""Which rows pass a filter: answered from columns in memory, without asking the database.

Texts are numbered, one small integer per row; the rows of a value asked for again are kept as a
posting list. The store is asked each time for what can change without a new row (where branches
stand, which runs have a score), and for what its indexes answer at once: one run, one session. Not
thread-safe by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridagi_steps.protocols import IndexedStore
from hybridagi_steps.records.filter_fields import StepKey, operators_asked
from hybridagi_steps.records.filters import EVERY_SCOPE, StepFilter
from hybridagi_steps.records.store_values import ABANDONED, REVOKED, Hidden, Rows
from hybridagi_steps.search.columns.held_columns import HeldColumns
from hybridagi_steps.search.columns.key_columns import (
    ABSENT,
    NOWHERE,
    SCORE,
    TIME,
    Answers,
    Flags,
    Positions,
    Value,
    Values,
    equalities,
    metadata_name,
    microseconds,
    one_of,
    plain_value,
    without,
)
from hybridagi_steps.search.columns.metadata_columns import by_key
from hybridagi_steps.stores.sql.tables import is_storable

COMPARED_ALONE = 256
"""Rows of which the metadata are compared one by one; those of more are read from first to last."""
_LOOKED_AT = 1_000
FEW_RUNS = 32
"""So many excluded runs are asked for one by one; of more the column is looked through once."""


class FilterColumns(HeldColumns):
    """Answers filters like `store.rows`, for rows up to the newest it was told of."""

    def __init__(self, store: IndexedStore, restore: Callable[[], object] = bool) -> None:
        """Read from `store`, when first asked; `restore` lets `revive` come before that."""
        self._hidden: Hidden | None = None
        self._answers = Answers()
        super().__init__(store, restore)

    def follow(self, rows: Rows, removed: Rows) -> None:
        """Take note of rows there are and that branches may have moved; drop removed."""
        self._hidden = None
        self._answers.clear()
        super().follow(rows, removed)

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
        if not run_ids:
            return []
        return [self._rows_of(StepFilter(run_id=run_ids, scope=EVERY_SCOPE))]

    # -- what the store says ----------------------------------------------------------------------

    def _hidden_rows(self) -> Hidden:
        return self._store.hidden_rows()

    def _rows_of(self, where: StepFilter) -> Rows:
        """Return the rows that match, as the store says."""
        return self._store.rows(where)

    def _is_for_the_store(self, where: StepFilter) -> bool:
        """Tell whether the database knows better: by an index, or because it may change."""
        return where.run_id is not None or self._may_change(where)

    def _may_change(self, where: StepFilter) -> bool:
        """Tell whether what is found may change without a new row, or is in no column."""
        if where.session_id is not None or where.scope in (ABANDONED, REVOKED):
            return True
        if operators_asked(where.metadata):
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
            lists = [self._with_metadata(key, value) for value in dict.fromkeys(values)]
            having = lists[0] if len(lists) == 1 else np.sort(np.concatenate(lists))
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
            if (held := by_key(self._metadata_of(*span)).get(key)) is not None
            for row, number in zip(held.rows.tolist(), held.numbers.tolist(), strict=True)
            if plain_value(held.values[number]) == value
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


def _those(found: Positions | None, flags: Flags) -> Positions:
    """Return the positions whose flag is set, of some or of all."""
    return flags.nonzero()[0].astype(np.int32) if found is None else found[flags]


def _marked(positions: Positions, count: int) -> Flags:
    """Return of each place whether it is one of some."""
    flags = np.zeros(count, np.bool_)
    flags[positions] = True
    return flags
