"""DatabaseIndex: answers searches from the database, holding no words and no vectors of it.

For each query: the rarest of its words and its vector name candidates, which are read with what the
formula looks at around them; that is ranked like a whole index (partial_index.py). With few rows
that hold the words all are read, and the answer is the whole index's own. Of many the common words
name none, but count in the scores. Filters are the ones an index in the process has: a number for
each row and key.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import ceil
from pathlib import Path

import numpy as np

from hybridagi_steps.embedders.vectors import unit_rows
from hybridagi_steps.errors import StorageBusyError, StorageError
from hybridagi_steps.outside_files import erase_cache
from hybridagi_steps.protocols import StepStore
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.records.step_identity import answer_to
from hybridagi_steps.records.step_text import text_hash
from hybridagi_steps.records.store_values import (
    FloatVector,
    Frontier,
    Level,
    Position,
    Rows,
    StemCounts,
    TextRow,
    VectorRow,
    among,
    distinct,
)
from hybridagi_steps.search.columns.filter_index import FEW_RUNS
from hybridagi_steps.search.columns.row_filter import FilterFile, RowFilter
from hybridagi_steps.search.columns.step_columns import NO_ROW
from hybridagi_steps.search.database.partial_index import (
    Filtered,
    PartialIndex,
    none_of,
    saved_first,
    window_scores,
    with_unsaved,
)
from hybridagi_steps.search.database.planner import levels
from hybridagi_steps.search.database.searched_store import SearchedStore, SearchView
from hybridagi_steps.search.formulas import AIMS, Aim, Mode
from hybridagi_steps.search.indexing import PATIENCE_SECONDS, BackgroundWork, Held
from hybridagi_steps.search.ranking import POOL, RankedRow, SearchQuery, best_rows
from hybridagi_steps.search.score_parts import AROUND, TOOL_STEPS, Scope
from hybridagi_steps.search.vocabulary import AskedText

READ = 1_500
"""Rows that hold a query's rarest words, read at most, but for the last of these words."""
FARTHEST = 6_000
"""Rows that are read at most where a filter lets few pass."""
ENOUGH = 300
"""Rows of a narrow filter with rare words; of fewer up to `FARTHEST` with any are read."""
NARROW = 20_000
"""Rows of a filter up to which the database looks among them alone."""
DEEPEST = 20_000
"""Nearest rows that are looked through for those a wide filter lets pass."""
WORTH_CACHING = 2_000
"""Rows whose keys the next process need not read again."""
MOST_FILTERS = 2
"""Filters whose few rows are remembered until something is stored: those of one search."""
TURNS = 3_000
"""Turns of the candidates' sessions that are read."""

log = logging.getLogger("hybridagi_steps")


class DatabaseIndex:
    """Searches one store in its database. Not thread-safe by itself."""

    def __init__(
        self, store: StepStore, there: SearchedStore, dimension: int, cache: Path | None
    ) -> None:
        """Search `store`, which was prepared for vectors of this length as `there`.

        What filters have read is kept beside `cache`, where an index in the process would be.
        """
        self._store, self.there, self.dimension = store, there, dimension
        self._cache, self._file = cache, FilterFile(store, store.identity().store_id, cache)
        self.filters = RowFilter(store, self._file.read)
        self._frontier: Frontier | None = None
        self._newest: dict[int, VectorRow] = {}
        self._graph = BackgroundWork(lambda: there.make_graph(dimension))
        self._graph_wanted = True
        self._few: dict[str, Rows | None] = {}

    def follow(self) -> int:
        """Take note of what came and went, bring the database's counts along; return the epoch."""
        frontier = self._store.frontier()
        if frontier == self._frontier:
            return frontier.position.epoch
        now, then = frontier.position, self._frontier and self._frontier.position
        self._erase_what_went(now, then or self._file.position())
        if then is None or now.epoch != then.epoch:
            self.filters, self._newest, then = RowFilter(self._store, self._file.read), {}, now
            self._graph_wanted = True
        since = now._replace(tombstone=then.tombstone)
        removed = self._store.changes(since, limit=1).removed if since != now else []
        if now.branch != then.branch:
            self.filters.rescore(then.branch, now.branch)
        self.filters.follow([frontier.row, frontier.message_row], np.array(removed, np.int64))
        gone = {*removed}
        self._newest = {seq: v for seq, v in self._newest.items() if v.row not in gone}
        try:
            with self._store.waiting(PATIENCE_SECONDS):
                self.there.keep_search_up()
        except StorageBusyError as error:
            log.debug("new rows are counted later: %s", error)
        self._frontier = frontier
        self._few.clear()
        return now.epoch

    def worth_saving(self) -> bool:
        """Return whether to write what filters have read, to the next process's use."""
        return self._cache is not None and self.filters.unsaved(WORTH_CACHING)

    def save(self) -> None:
        """Write what filters have read, unless something was erased since this has followed."""
        if self._frontier is not None:
            self._file.save(self.filters, self._frontier.position)
            self._erase_what_went(self._store.frontier().position, self._frontier.position)

    def forget_cache(self) -> None:
        """Delete what is cached, also of an index that a process without a budget has held."""
        self.filters.forget_saved()
        if self._cache is not None:
            erase_cache(self._cache)

    def _erase_what_went(self, now: Position, then: Position | None) -> None:
        """Erase a cache that others could not reach who removed what it holds."""
        if then is not None and (then.epoch, then.tombstone) != (now.epoch, now.tombstone):
            try:
                self.forget_cache()
            except StorageError as error:
                log.warning("%s", error)

    def close(self) -> None:
        """Wait for what goes on in the background."""
        self._graph.stop()

    def with_text(self, said: int, held: Held) -> Rows:
        """Return the rows whose own text, or else whose purpose, has a hash, newest first."""
        with self.there.search_view(self.dimension) as view:
            texts, purposes = view.saying(said)
        unsaved = [text.row for text in held.texts.values() if text.text_hash == said]
        texts = np.concatenate((texts, np.array(unsaved, np.int64)))
        return distinct(texts if len(texts) else purposes)[::-1]

    def newest_vectors(self, view: SearchView) -> Iterable[VectorRow]:
        """Return the embeddings that the database does not search yet; read once, and held."""
        through, fresh = view.newest_vectors(max(self._newest, default=0))
        held = {seq: each for seq, each in self._newest.items() if seq > through}
        self._newest = held | fresh
        return self._newest.values()

    def best(
        self,
        query: SearchQuery,
        k: int,
        where: StepFilter,
        held: Held,
        *,
        mode: Mode,
        aim: Aim | None,
    ) -> list[RankedRow]:
        """Return the k best rows of one query, best first."""
        fences = where.fences
        inside = self._filtered(fences)
        answers = inside if fences is where else self._filtered(where)
        wished = None if fences is where else answers.rows
        pool = max(POOL, k)
        with self.there.search_view(self.dimension) as view:
            while True:
                asked = _Candidates(self, view, query, mode, inside, answers, fences, held)
                index, full = asked.read(pool, aim)
                scope = Scope(index.shards(own_only=where.scope is None), None, wished)
                found = best_rows(index, query, k, scope=scope, mode=mode, aim=aim, pool=pool)
                if len(found) >= k or not full:
                    break
                pool *= 4
        if self._graph_wanted:  # only now: what looks for it would take a connection of the search
            self._graph_wanted = False
            self._graph.start()
        return found

    def _filtered(self, where: StepFilter) -> Filtered:
        """Return the rows that pass a filter."""
        asked = where.model_dump(exclude_none=True)
        excluded = where.exclude_run_id or []
        if asked.keys() <= {"exclude_run_id"} and len(excluded) <= FEW_RUNS:
            hidden = self.filters.hidden().under(None)
            gone = distinct(np.concatenate([hidden, *self.filters.of_runs(excluded)]))
            return Filtered(None, partial(none_of, gone=gone))
        rows = self._rows(where)
        return Filtered(rows, partial(among, known=rows))

    def _rows(self, where: StepFilter) -> Rows:
        """Return the rows that pass a filter; a user's few without reading whose all others are."""
        if not isinstance(user := where.user_id, str) or where.exclude or where.any_of:
            return self.filters.rows(where)
        if (asked := repr(vars(where))) not in self._few:
            few = self.filters.reads_all(where) and self.there.has_few(
                user, NARROW, messages=where.finds("message")
            )
            if len(self._few) == MOST_FILTERS:
                self._few.clear()
            self._few[asked] = self._store.rows(where) if few else None
        return self.filters.rows(where) if (rows := self._few[asked]) is None else rows


class _Candidates:
    """Reads what one query needs."""

    def __init__(
        self,
        whole: DatabaseIndex,
        view: SearchView,
        query: SearchQuery,
        mode: Mode,
        inside: Filtered,
        answers: Filtered,
        fences: StepFilter,
        held: Held,
    ) -> None:
        """Read for `query` only what is inside of `fences`, which `answers` are some of."""
        self.whole, self.view, self.query, self.mode = whole, view, query, mode
        self.inside, self.answers, self.fences, self.held = inside, answers, fences, held
        halves = {"words": mode != "dense", "meaning": mode != "lexical"}
        self.asked = AskedText(query.text, query.vector, **halves)
        self.state = query.state and AskedText(query.state.text, query.state.vector, **halves)

    def read(self, pool: int, aim: Aim | None) -> tuple[PartialIndex, bool]:
        """Return what was read, `pool` of each half, and whether there may be more candidates."""
        held = self.held
        stems = [*self.asked.terms, *(self.state.terms if self.state else ())]
        counts = with_unsaved(held.texts.values(), self.view.counts(stems))
        index = PartialIndex(self.whole.dimension, self.whole.filters, counts, self.inside.passing)
        self.index, self.pool, self.documents = index, pool, counts.documents
        index.add(held.texts.values())
        rows = self._alike(self.asked, counts, self.answers)
        full = len(rows) >= pool
        if self.answers is not self.inside and AIMS[aim].votes:
            rows = self._join(rows, self._alike(self.asked, counts, self.inside))
        rows = self._join(rows, self._same())
        if self.state is not None:
            alike = self._alike(self.state, counts, self.inside)
            rows = self._join(rows, alike, self._under(alike))
            full = full or len(alike) >= pool
        rows = self._with_those_around(rows, links=self.mode == "hybrid" or self.state is not None)
        if self.state is not None:
            self._with_those_around(self._above(rows), links=False)
        self._turns_around(rows)
        if aim == "tool":
            self._of_tools(rows)
        return index, full

    def _with_those_around(self, rows: Rows, *, links: bool) -> Rows:
        """Read rows, what answers them and what is next to all these; return what may be found."""
        held = self.held.texts.values()
        above = np.array([t.parent_row for t in held if t.parent_row is not None], np.int64)
        answers = answer_to(np.array([text.text_hash for text in held], np.int64))
        vectors = self.asked.vector is not None
        asked = self._join(rows, above)
        texts, saved = self.view.around(asked, distinct(answers), links=links, vectors=vectors)
        rows = self._join(rows, self.index.add(texts))
        rows = rows[self.index.holds(rows)]
        self.index.add_vectors(saved_first(saved, self.held, rows))
        return rows

    # -- candidates -------------------------------------------------------------------------------

    def _alike(self, text: AskedText, counts: StemCounts, those: Filtered) -> Rows:
        """Return the best rows of each half, of those that pass."""
        found = [np.empty(0, np.int64)]
        nearest = None if text.vector is None else self._nearest(text.vector, those)
        if text.terms:
            rows, words = self._holding(text.terms, counts, those)
            rows, first = np.unique(rows, return_index=True)
            scores = window_scores(words, counts, text.terms)[first]
            passing = those.passing(rows)
            rows, scores = rows[passing], scores[passing]
            found.append(rows[np.lexsort((rows, -scores))[: self._kept]])
        if nearest is not None:  # sought meanwhile
            found.append(nearest())
        return distinct(np.concatenate(found))

    def _holding(
        self, terms: Sequence[str], counts: StemCounts, those: Filtered
    ) -> tuple[Rows, str]:
        """Return rows that hold one of the rarest terms, or several of the others."""
        share = 1.0 if those.rows is None else len(those.rows) / max(counts.documents, 1)
        ordered = sorted(terms, key=lambda term: counts.holding[term])
        expected = np.cumsum([counts.holding[term] for term in ordered])
        if (narrow := self._narrow(those)) is not None:
            # Several together are looked for in all rows; here there are few with any of them.
            expected = expected * share
            last = int(np.searchsorted(expected, READ, "right"))
            if not last or expected[last - 1] < ENOUGH:
                last = max(int(np.searchsorted(expected, FARTHEST, "right")), 1)
            return self.view.holding([Level([[t] for t in ordered[:last]])], FARTHEST, narrow)
        room = min(READ * self.pool / POOL / max(share, 0.001), max(FARTHEST, READ))
        last = int(np.searchsorted(expected, room, "right"))
        return self.view.holding(levels(ordered, last, int(room), counts), int(room), None)

    def _nearest(self, vector: FloatVector, those: Filtered) -> Callable[[], Rows]:
        """Begin to look for the rows nearest to a vector that pass, `pool` of them if there are."""
        wide = those.rows is not None and self._narrow(those) is None
        share = len(those.rows) / max(self.documents, 1) if wide and those.rows is not None else 1.0
        count = ceil(self._kept / max(share, 0.001))
        begun = self.view.nearest(vector, min(count, DEEPEST), self._narrow(those))
        return partial(self._nearest_passing, vector, those, count, begun)

    def _nearest_passing(
        self, vector: FloatVector, those: Filtered, count: int, begun: Callable[[], Rows]
    ) -> Rows:
        """Wait for the rows nearest to a vector, and look deeper until enough of them pass."""
        newest, found = self._newest(vector, those), begun()
        kept = found[those.passing(found)]
        while len(kept) < self.pool and len(found) >= count and count < DEEPEST:
            count *= 4
            found = self.view.nearest(vector, min(count, DEEPEST), self._narrow(those))()
            kept = found[those.passing(found)]
        return self._join(kept[: self._kept], newest)

    def _newest(self, vector: FloatVector, those: Filtered) -> Rows:
        """Return the nearest of the rows that `nearest` does not know of yet."""
        newest = [*self.whole.newest_vectors(self.view), *self.held.vectors.values()]
        usable = [(each.row, each.vector) for each in newest if each.vector is not None]
        rows = np.array([row for row, _ in usable], np.int64)
        passing = those.passing(rows)
        if not passing.any():
            return rows[:0]
        vectors = np.stack([each for _, each in usable])[passing]
        near = unit_rows(vectors, len(vector), where="vector") @ vector
        return rows[passing][np.argsort(-near, kind="stable")[: self.pool]]

    @property
    def _kept(self) -> int:
        """Candidates of each half that are read: the pool of each shard, and some for rounding."""
        return self.pool * (1 if self.fences.scope is None else 2) + 10

    def _narrow(self, those: Filtered) -> Rows | None:
        """Return the rows, if they are so few that the database looks among them alone."""
        return None if those.rows is None or len(those.rows) > NARROW else those.rows

    def _same(self) -> Rows:
        """Return the rows that say what the query says: their texts, or else their purposes."""
        said = self.view.saying(text_hash(self.query.whole or self.query.text))
        texts, purposes = (distinct(rows[self.answers.passing(rows)])[-POOL:] for rows in said)
        itself = [] if self.query.itself is None else [self.query.itself]
        return self._join(texts, purposes, np.array(itself, np.int64))

    # -- what is around them ----------------------------------------------------------------------

    def _join(self, *rows: Rows) -> Rows:
        return distinct(np.concatenate(rows))

    def _above(self, rows: Rows) -> Rows:
        parents = self.index.columns.parents(rows)
        return self.index.missing(distinct(parents[parents != NO_ROW]))

    def _under(self, rows: Rows) -> Rows:
        return self.index.add(self.view.under(rows))

    def _turns_around(self, rows: Rows) -> None:
        """Read the turns before and after turns, and those of their sessions."""
        turns = self.index.turns
        rows = rows[turns.places(rows) >= 0]
        if not len(rows) or self.mode == "dense":
            return
        edge = rows
        for _ in range(AROUND):
            before = self.view.texts(self._above(edge))
            after = self.view.under(edge)
            self.index.add([*before, *after])
            edge = distinct(np.array([t.row for t in (*before, *after)], np.int64))
        self.index.add(self.view.talks(turns.session_hashes(rows), TURNS))

    def _of_tools(self, rows: Rows) -> None:
        """Read the first steps of the tools of some rows."""
        filters = self.whole.filters
        numbers, shown = distinct(filters.numbers("tool", rows)), filters.rows(self.fences)
        for number in numbers[numbers >= 0].tolist():
            first = partial(among, known=shown)
            self.index.add(self._missing(filters.first_rows("tool", number, TOOL_STEPS, first)))

    def _missing(self, rows: Rows) -> list[TextRow]:
        """Return the words of those of some rows that were not read yet."""
        return self.view.texts(self.index.missing(rows))
