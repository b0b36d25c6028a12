"""Which rows pass a filter, of steps and of messages: each kind has its own numbers and keys.

A message has few of the keys that a step has: a run, a time, a source, the session whose line it
stands in. Its user is that of the steps of its run or session (`owner`), which may be stored after
it, so that is looked up in the columns of steps each time something changed. What was read is kept
in a file beside the index. Not thread-safe by itself.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from hybridagi_steps.errors import DamagedFileError
from hybridagi_steps.outside_files import columns_path
from hybridagi_steps.protocols import IndexedStore, MessageIndex
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.filter_fields import KEY_FIELDS, StepKey
from hybridagi_steps.records.filters import EVERY_SCOPE, StepFilter
from hybridagi_steps.records.store_values import (
    ABANDONED,
    MESSAGE_ROWS,
    REVOKED,
    Hidden,
    Metadata,
    Position,
    Rows,
)
from hybridagi_steps.search.columns.filter_index import FilterColumns
from hybridagi_steps.search.columns.held_columns import PAGE
from hybridagi_steps.search.columns.key_columns import (
    ABSENT,
    ANSWERS_KEPT,
    NOWHERE,
    SCORE,
    TIME,
    Column,
    Positions,
    Value,
    Values,
    without,
)
from hybridagi_steps.search.index_cache import CacheFile, DamagedCacheError, load_cache, save_cache

FILTER_FORMAT = 6
"""Layout of the file of columns; another one is not read."""
Flags = npt.NDArray[np.bool_]
_NONE = np.empty(0, np.int64)
NOBODY, SEVERAL = -1, -2
"""Stand for no user, and for more than one."""
Owners = npt.NDArray[np.int32]
"""The number of a user, `NOBODY` or `SEVERAL`."""
_UNKNOWN = -3
_NO_LEAST = np.iinfo(np.int32).max
_LONG_LINE = 1_000
"""A line of so many messages has its keys in columns."""
_STEP_KEYS = (
    *(field.key for field in KEY_FIELDS if field.key),
    *("scope", "program", "call_id", TIME, SCORE),
)
"""The keys that filters look at."""
_WHOSE = ("run_id", "sessions", "author", "asked_by")
"""The keys that say whose a message is."""
_MOST_JOINED = 100_000
"""Rows of both kinds that answers may have which are remembered."""
_SPREAD = 4
"""A cache knows its store again by the newest row of each kind, the 4th from the end, the 16th and
so on: some may be gone by then, and a whole run of the newest."""

log = logging.getLogger("hybridagi_steps")


def _nothing_saved() -> None:
    return None


@runtime_checkable
class _Readable(Protocol):
    """A store that gives back what stands in its rows."""

    def read(self, rows: Sequence[int]) -> dict[int, AgentStep]: ...


def stood_at(store: IndexedStore, position: Position, rows: Rows) -> dict[str, Any]:
    """Return what a cache of some rows, ascending, notes of the store it was made of."""
    steps = int(np.searchsorted(rows, MESSAGE_ROWS))
    marked = [row for kind in (rows[:steps], rows[steps:]) for row in _spread(kind)]
    held = {"position": list(position), "steps": len(rows)}
    return {**held, "marks": _marks(store, marked)}


def _spread(rows: Rows) -> list[int]:
    back = np.array([_SPREAD**n for n in range(32) if _SPREAD**n <= len(rows)], np.int64)
    return rows[-back].tolist()


def is_past_of(store: IndexedStore, header: Mapping[str, Any], now: Position) -> bool:
    """Tell whether a store at `now` has gone on from where a cache with this header was written.

    Counters alone do not tell: an older file that was put back, or a copy that went on by itself,
    comes to the same ones with other steps.
    """
    known: dict[str, str] = header["marks"]
    if not Position(*header["position"]).may_be_past_of(now):
        return False
    there = _marks(store, [*map(int, known)])
    same = there.items() <= known.items()
    return same and (bool(there) or not isinstance(store, _Readable))


def _marks(store: IndexedStore, rows: Sequence[int]) -> dict[str, str]:
    """Return a digest of what never changes of those rows that are there and whole, by row."""
    found: dict[str, str] = {}
    for row, step in _whole(store, rows).items() if isinstance(store, _Readable) else ():
        if row < MESSAGE_ROWS:
            said = step.model_dump_json(exclude={"score", "feedback"})
        else:  # what else is told of it depends on the messages around
            said = f"{step.id} {step.created_at}"
        found[str(row)] = blake2b(said.encode(), digest_size=12).hexdigest()
    return found


def _whole(store: _Readable, rows: Sequence[int]) -> dict[int, AgentStep]:
    """Return what stands in rows; who shows one that is damaged, and `verify`, name it."""
    try:
        return store.read(rows)
    except DamagedFileError:
        each = (_whole(store, [row]) for row in rows) if len(rows) > 1 else ()
        return {row: step for found in each for row, step in found.items()}


class SavedColumns(NamedTuple):
    """The columns of a file."""

    file: CacheFile
    removed: Rows
    """Rows that are gone since it was written, perhaps others too."""
    rescored: bool
    """Whether scores may be others since."""


class FilterFile:
    """The file of cached columns; many an index, in its own file, is not worth writing for one."""

    def __init__(self, store: IndexedStore, store_id: str, cache: Path | None) -> None:
        """Keep it beside `cache`, the file of the index; None: nothing is kept."""
        self._store, self._identity = store, {"format": FILTER_FORMAT, "store": store_id}
        self.path = cache and columns_path(cache)

    def read(self) -> SavedColumns | None:
        """Return what filters of an earlier process have read of this store's past."""
        file = self._opened()
        if file is None:
            return None
        since, now = Position(*file.header["position"]), self._store.frontier().position
        if not is_past_of(self._store, file.header, now):
            return None
        found = self._store.changes(since._replace(text=now.text, vector=now.vector), limit=1)
        removed, rescored = np.array(found.removed, np.int64), since.branch != now.branch
        same = found.position.epoch == since.epoch
        return SavedColumns(file, removed, rescored) if same else None

    def position(self) -> Position | None:
        """Return where the store stood when it was written; None where there is none."""
        file = self._opened()
        return None if file is None else Position(*file.header["position"])

    def save(self, filters: RowFilter, position: Position, *, every: bool = False) -> None:
        """Write the columns of filters, which have followed the store up to a position.

        Args:
            filters: What has them.
            position: Where the store stood then.
            every: Read all keys first, also those that no filter has named yet.
        """
        if self.path is not None:
            filters.read_on(every=every)
            arrays = filters.to_arrays()
            rows = np.concatenate([np.asarray(arrays[n]) for n in arrays if n.endswith("/rows")])
            header = {**self._identity, **stood_at(self._store, position, rows)}
            save_cache(self.path, header, arrays)

    def _opened(self) -> CacheFile | None:
        return None if self.path is None else load_cache(self.path, self._identity)


class RowFilter:
    """Answers filters for both kinds of rows."""

    def __init__(
        self, store: IndexedStore, saved: Callable[[], SavedColumns | None] = _nothing_saved
    ) -> None:
        """Read from `store`; one that indexes no messages has steps only.

        Args:
            store: What is asked.
            saved: Returns the columns that an earlier process saved; called once, by a filter.
        """
        self._saved = saved
        self._steps = _StepColumns(store, self._restore)
        self._messages = (
            _MessageColumns(store, store, self._steps, self._restore)
            if isinstance(store, MessageIndex)
            else None
        )
        self._hidden: Hidden | None = None
        self._joined: dict[tuple[object, ...], tuple[tuple[Rows, ...], Rows]] = {}

    def follow(self, rows: Sequence[int], removed: Rows) -> None:
        """Take note of new rows and that branches may have moved; drop removed ones."""
        self._hidden = None
        self._joined.clear()
        there = np.array(rows, np.int64)
        self._steps.follow(there[there < MESSAGE_ROWS], removed[removed < MESSAGE_ROWS])
        if self._messages is not None:
            messages = there[there >= MESSAGE_ROWS], removed[removed >= MESSAGE_ROWS]
            self._messages.follow(*messages)

    def rescore(self, since: int, through: int) -> None:
        """Take note that steps may have been scored while `Position.branch` went on so far."""
        self._steps.rescore(since, through)

    def rows(self, where: StepFilter) -> Rows:
        """Return the rows that match, ascending; asked again, the same read-only array."""
        return self._rows(where, excluding=False)

    def _rows(self, where: StepFilter, *, excluding: bool) -> Rows:
        """Return the rows that match; excluding, also what its users may have said."""
        if where.exclude or where.any_of:
            plain = where.model_copy(update={"exclude": None, "any_of": None})
            found = self._rows(plain, excluding=excluding)
            if where.any_of:
                either = (self._rows(each, excluding=excluding) for each in where.alternatives())
                found = self._made(np.intersect1d, found, reduce(self._united, either))
            gone = [self._rows(each, excluding=True) for each in where.excluded()]
            return self._made(_all_but, found, *gone) if gone else found
        steps = self._steps.rows(where) if where.finds("step") else _NONE
        asked = self._messages is not None and where.finds("message")
        messages = self._messages.rows(where) if asked and self._messages else _NONE
        if excluding and asked and where.users and self._messages is not None:
            whoever = {"user_id": None, "trust": "team" if where.trust == "own" else where.trust}
            anybodys = self._messages.rows(where.model_copy(update=whoever))
            perhaps = (self._messages.perhaps_of(user, anybodys) for user in where.users)
            messages = reduce(self._united, perhaps, messages)
        if not len(messages):
            return steps
        if not len(steps):
            return messages
        return self._made(_joined, steps, messages)

    def _united(self, one: Rows, other: Rows) -> Rows:
        return self._made(np.union1d, one, other)

    def _made(self, make: Callable[..., Rows], *answers: Rows) -> Rows:
        """Return what is made of some answers; of the same ones asked again, the same."""
        asked = make, *map(id, answers)
        if (known := self._joined.get(asked)) is None:
            made = make(*answers)
            made.flags.writeable = False
            held = sum(len(each) for _, each in self._joined.values())
            if held > _MOST_JOINED or len(self._joined) == ANSWERS_KEPT:
                self._joined.clear()
            known = self._joined[asked] = answers, made
        return known[1]

    def reads_all(self, where: StepFilter) -> bool:
        """Tell whether `rows` would first read a key of all steps."""
        return where.finds("step") and self._steps.reads_all(where)

    def unsaved(self, least: int) -> bool:
        """Tell whether to save columns, if they have so many rows."""
        return any(columns.unsaved(least) for columns in self._kinds().values())

    def read_on(self, *, every: bool = False) -> None:
        """Bring all columns that were ever asked for up to date; of `every` key, if asked so."""
        for columns in self._kinds().values():
            columns.read_on(every=every)

    def to_arrays(self) -> dict[str, Values | bytes]:
        """Return the columns as arrays for a cache file."""
        return {
            f"{kind}/{name}": array
            for kind, columns in self._kinds().items()
            for name, array in columns.to_arrays().items()
        }

    def forget_saved(self) -> None:
        """Take note that nothing is saved any more."""
        for columns in self._kinds().values():
            columns.forget_saved()

    def _kinds(self) -> dict[str, FilterColumns]:
        kinds: dict[str, FilterColumns] = {"steps": self._steps}
        return kinds if self._messages is None else kinds | {"messages": self._messages}

    def _restore(self) -> None:
        """Start from what an earlier process read, if that is there."""
        saved, self._saved = self._saved(), _nothing_saved
        if saved is None:
            return
        if saved.rescored:
            self._steps.forget_scores()
        try:
            for kind, columns in self._kinds().items():
                steps = saved.removed < MESSAGE_ROWS
                removed = saved.removed[steps if kind == "steps" else ~steps]
                columns.revive(saved.file.part(f"{kind}/"), removed)
        except (KeyError, DamagedCacheError) as error:
            log.info("the columns of filters are not used, but read again: %s", error)
            for columns in self._kinds().values():
                columns.forget()

    def of_runs(self, run_ids: Sequence[str]) -> list[Rows]:
        """Return the rows of some runs, of every scope."""
        found = self._steps.of_runs(run_ids)
        return found if self._messages is None else [*found, *self._messages.of_runs(run_ids)]

    def hidden(self) -> Hidden:
        """Return the rows that recall leaves out, as the store last said; until then the same."""
        if self._messages is None:
            return self._steps.hidden()
        if self._hidden is None:
            pairs = zip(self._steps.hidden(), self._messages.hidden(), strict=True)
            self._hidden = Hidden(*map(np.concatenate, pairs))
        return self._hidden

    def numbers(self, name: StepKey, rows: Rows) -> npt.NDArray[Any]:
        """Return the number of each row's value of a key, -1 where it has none, as messages."""
        return self._steps.numbers(name, rows)

    def first_rows(
        self,
        name: StepKey,
        number: int,
        most: int,
        passing: Callable[[Rows], Flags],
    ) -> Rows:
        """Return the first steps with a value, given by its number, that pass."""
        return self._steps.first_rows(name, number, most, passing)


class _StepColumns(FilterColumns):
    """Filters of steps, which also say whose the messages of their runs and sessions are."""

    _every = _STEP_KEYS
    _rescored = False

    def forget_scores(self) -> None:
        """Take note that steps were scored: what is held, or was saved, may be others now."""
        self._rescored = True
        self._answers.clear()
        self._columns[SCORE] = Column.of(SCORE)

    def rescore(self, since: int, through: int) -> None:
        """Change the scores that are held, if the store knows which; else forget them."""
        held = self._values if SCORE in self._columns else None
        scores = None if held is None else held.rescored(since, through)
        if scores is None:
            self.forget_scores()
            return
        self._answers.clear()
        places = self._places(np.array([*scores], np.int64))
        here = (places != ABSENT) & (places < len(self._columns[SCORE]))
        self._columns[SCORE].put(places[here], np.array([*scores.values()], np.float64)[here])

    def reads_all(self, where: StepFilter) -> bool:
        """Tell whether `rows` would first read a key of all rows."""
        return not self._is_for_the_store(where) and self._reads_first(self._names(where))

    def revive(self, arrays: Mapping[str, Values], removed: Rows) -> None:
        super().revive(arrays, removed)
        if self._rescored:
            self.forget_scores()

    def follow(self, rows: Rows, removed: Rows) -> None:
        super().follow(rows, removed)
        if len(removed):
            self._owners.clear()

    def _cut(self, count: int) -> None:
        super()._cut(count)
        self._owners.clear()

    def forget(self) -> None:
        super().forget()
        self._owners: dict[StepKey, tuple[Owners, int]] = {}

    def owners_by(self, name: StepKey) -> Owners:
        """Return the one user of the steps with each value of a key, by the number of the value.

        `NOBODY` where no step names a user, `SEVERAL` where they name more than one. Read on from
        the last row looked at; only a removal makes it anew.
        """
        self._hold([name, "user_id"])
        users, count = self.value_numbers("user_id"), len(self.value_numbers(name))
        before, through = self._owners.get(name, (np.empty(0, np.int32), 0))
        owners = np.full(count, NOBODY, np.int32)
        owners[: len(before)] = before
        if through < len(self._rows.values):
            of_value = self._columns[name].values[through:].astype(np.int64)
            pairs = of_value * len(users) + self._columns["user_id"].values[through:]
            known = of_value != ABSENT
            pairs = pairs[known if self._alive is None else known & self._alive[through:]]
            if len(pairs):  # runs stand together: most of what would be sorted goes here
                pairs = np.unique(pairs[np.append(True, pairs[1:] != pairs[:-1])])
            values, named = np.divmod(pairs, len(users))
            whose = named != users.get(None, ABSENT)
            _add_owners(owners, values[whose], named[whose].astype(np.int32))
        self._owners[name] = owners, len(self._rows.values)
        return owners

    def values_of(self, name: StepKey, user: str) -> set[int]:
        self._hold([name, "user_id"])
        own = self._columns["user_id"].values == self.value_numbers("user_id").get(user, _UNKNOWN)
        if self._alive is not None:
            own &= self._alive
        return set(np.unique(self._columns[name].values[own]).tolist())


class _MessageColumns(FilterColumns):
    """Filters of messages: fewer keys, runs among them, users as the steps of runs say."""

    _kind = 1
    _every = (*_WHOSE, *(key for key in _STEP_KEYS if key not in ("user_id", "run_id", SCORE)))

    def __init__(
        self,
        store: IndexedStore,
        index: MessageIndex,
        steps: _StepColumns,
        restore: Callable[[], None],
    ) -> None:
        super().__init__(store, restore)
        self._index, self._steps = index, steps
        self._perhaps: dict[tuple[str, int], tuple[Rows, Rows]] = {}

    def forget(self) -> None:
        super().forget()
        self._sessions: list[list[str]] = []

    def follow(self, rows: Rows, removed: Rows) -> None:
        super().follow(rows, removed)
        self._perhaps.clear()

    def _hidden_rows(self) -> Hidden:
        return self._index.hidden_messages()

    def _rows_of(self, where: StepFilter) -> Rows:
        return self._index.message_rows(where)

    def of_runs(self, run_ids: Sequence[str]) -> list[Rows]:
        self._hold(["run_id"])
        return [self._held_rows(self._narrowed(None, "run_id", run_ids))] if run_ids else []

    def _keys_above(
        self, names: Sequence[StepKey], after: int
    ) -> tuple[Rows, dict[StepKey, list[str | None]]]:
        return self._index.message_keys(names, after=after, limit=PAGE)

    def rows(self, where: StepFilter) -> Rows:
        if where.session_id is not None:
            return self._of_session(where)
        if where.scope not in (ABANDONED, REVOKED):
            return super().rows(where)
        found = super().rows(where.model_copy(update={"scope": EVERY_SCOPE}))
        abandoned, revoked = self.hidden()
        asked = revoked if where.scope == REVOKED else without(abandoned, revoked)
        return found[np.isin(found, asked)]

    def _of_session(self, where: StepFilter) -> Rows:
        """Return the rows in a session's line that match: only the store knows the line."""
        rest = where.model_copy(update={"session_id": None, "scope": EVERY_SCOPE})
        if rest.conditions <= {"kinds"}:
            return self._rows_of(where)
        line = self._rows_of(StepFilter(session_id=where.session_id, scope=where.scope))
        if len(line) < _LONG_LINE and self._reads_first(self._names(rest)):
            return self._rows_of(where)  # rather than read keys of all messages
        return line[np.isin(line, self.rows(rest))]

    def _is_for_the_store(self, where: StepFilter) -> bool:
        return self._may_change(where)

    def _metadata_of(self, after: int, through: int) -> Metadata:
        return self._index.message_metadata(after=after, through=through)

    def _scores_of(self, after: int, through: int) -> Sequence[tuple[int, float]]:  # noqa: ARG002
        return []  # messages have the scores of their runs

    def _names(self, where: StepFilter) -> list[StepKey]:
        names = dict.fromkeys(super()._names(where))
        if "user_id" in names:
            del names["user_id"]
            names |= dict.fromkeys(_WHOSE)
        return list(names | {"run_id": None} if where.exclude_run_id else names)

    def _matching(self, where: StepFilter, rated: Sequence[str]) -> Positions:
        # Most memories have no messages.
        return super()._matching(where, rated) if len(self._rows.values) else NOWHERE

    def _narrowed(
        self, found: Positions | None, name: StepKey, values: Iterable[Value]
    ) -> Positions:
        if name != "user_id":
            return super()._narrowed(found, name, values)
        if found is None:
            found = np.arange(len(self._rows.values), dtype=np.int32)
        if not len(found):  # else two keys of all steps would be read to learn whose these are
            return found
        owners = self._owner_of(found)
        users, wanted = self._steps.value_numbers("user_id"), list(values)  # known by now
        numbers = [NOBODY if user is None else users.get(user, _UNKNOWN) for user in wanted]
        named, known = self._columns["author"].values[found], self.value_numbers("author")
        authors = [known.get(user, _UNKNOWN) for user in wanted if user is not None]
        said = named != known.get(None, ABSENT)
        return found[np.where(said, np.isin(named, authors), np.isin(owners, numbers))]

    def perhaps_of(self, user: str, rows: Rows) -> Rows:
        """Return those of some rows that any of several users may have said, one of them this."""
        asked = user, id(rows)
        if asked not in self._perhaps:
            self._perhaps[asked] = rows, self._of_several(user, rows) if len(rows) else rows
        return self._perhaps[asked][1]

    def _of_several(self, user: str, rows: Rows) -> Rows:
        self._hold(_WHOSE)
        places = self._places(rows).astype(np.int32)
        rows, found = rows[places != ABSENT], places[places != ABSENT]
        run, line, author, asked_by = (self._columns[name].values[found] for name in _WHOSE)
        unsaid = author == self.value_numbers("author").get(None, ABSENT)
        several = np.flatnonzero(unsaid & (self._owner_of(found) == SEVERAL))
        if not len(several):
            return _NONE
        runs = self._runs_of(user)
        numbers = self._steps.value_numbers("session_id")
        having = self._steps.values_of("session_id", user)
        of_lines = [any(numbers.get(name) in having for name in names) for names in self._sessions]
        of_user = runs[run] | np.append(np.array(of_lines, np.bool_), False)[line]
        of_user |= asked_by == self.value_numbers("asked_by").get(user, _UNKNOWN)
        return rows[several[of_user[several]]]

    def _runs_of(self, user: str) -> Flags:
        """Return which runs have steps of a user, by their numbers here; the last is none."""
        known, having = self._steps.value_numbers("run_id"), self._steps.values_of("run_id", user)
        flags = [bool(run) and known.get(run) in having for run in self.value_numbers("run_id")]
        return np.array([*flags, False], np.bool_)

    def _owner_of(self, found: Positions) -> Owners:
        run, line = self._columns["run_id"].values[found], self._columns["sessions"].values[found]
        asked = self._columns["asked_by"].values[found]
        known = self.value_numbers("sessions")
        fresh = islice(known, len(self._sessions), None)
        self._sessions += [json.loads(str(listed or "[]")) for listed in fresh]
        names = self._sessions
        of_line = np.repeat(np.arange(len(names)), list(map(len, names)))
        sessions = self._of_steps("session_id", chain.from_iterable(names))
        one, other = np.full(len(names), NOBODY), np.full(len(names), _NO_LEAST)
        np.maximum.at(one, of_line, sessions)
        np.minimum.at(other, of_line[sessions != NOBODY], sessions[sessions != NOBODY])
        of_lines = np.where((one == other) | (other == _NO_LEAST), one, SEVERAL)
        of_runs = self._of_steps("run_id", self.value_numbers("run_id"))
        # A row that is gone from the store already has no number: -1, the last.
        of_lines, of_runs = np.append(of_lines, NOBODY)[line], np.append(of_runs, NOBODY)[run]
        several = np.where((of_runs == NOBODY) & (of_lines == NOBODY), NOBODY, SEVERAL)
        of_lines = np.where(of_lines >= 0, of_lines, several)
        by_somebody = asked != self.value_numbers("asked_by").get(None, ABSENT)
        of_lines = np.where(by_somebody, SEVERAL, of_lines)
        return np.where(of_runs >= 0, of_runs, of_lines)

    def _of_steps(self, name: StepKey, values: Iterable[Value]) -> Owners:
        """Return the one user of the steps with each value; what is empty is nobody's."""
        owners = np.append(self._steps.owners_by(name), np.int32(NOBODY))
        known = self._steps.value_numbers(name)
        return owners[[known.get(value, -1) if value else -1 for value in values]]


def _joined(steps: Rows, messages: Rows) -> Rows:
    return np.concatenate((steps, messages))


def _all_but(found: Rows, *gone: Rows) -> Rows:
    return without(found, np.concatenate(gone))


def _add_owners(owners: Owners, values: Rows, users: Owners) -> None:
    """Note users of values, each pair once and ascending: a second one makes them several."""
    met = np.bincount(values, minlength=len(owners))
    found = np.full(len(owners), NOBODY, np.int32)
    found[values] = users
    found[met > 1] = SEVERAL
    joined = np.where((owners == NOBODY) | (owners == found), found, SEVERAL)
    owners[:] = np.where(found == NOBODY, owners, joined)
