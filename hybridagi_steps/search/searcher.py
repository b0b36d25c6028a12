"""Searcher: answers a memory's searches.

It computes what is pending, follows the store, asks the retrieval pipeline, and turns rows back
into steps with reasons. One lock around the index keeps threads apart; the store has its own.

A search looks at what was stored when it began and waits for no writer: it ends while others write,
and while somebody holds the store.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

import numpy as np

from hybridagi_steps.embedders import checked_vectors
from hybridagi_steps.embedders.vectors import embed_documents
from hybridagi_steps.errors import (
    EmbedderError,
    InvalidQueryError,
    ReadOnlyStorageError,
    StepsError,
    StorageError,
)
from hybridagi_steps.protocols import CachedApart, Embedder, MessageIndex, StepStore
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.filters import StepFilter, StepHit
from hybridagi_steps.records.json_values import unvalidated
from hybridagi_steps.records.redaction import Redact, redacted
from hybridagi_steps.records.step_identity import (
    is_end,
    may_repeat_a_call,
    same_owner,
    says,
    with_question,
)
from hybridagi_steps.records.step_text import own_text, text_hash
from hybridagi_steps.records.store_values import (
    MESSAGE_ROWS,
    UNREVOKED,
    FloatVector,
    Hidden,
    MessagePlace,
    Rows,
    without,
)
from hybridagi_steps.search.columns.filter_index import FEW_RUNS
from hybridagi_steps.search.database.database_index import DatabaseIndex
from hybridagi_steps.search.database.planner import fits
from hybridagi_steps.search.database.searched_store import SearchedStore
from hybridagi_steps.search.formulas import Aim, Mode
from hybridagi_steps.search.indexing import (
    PATIENCE_SECONDS,
    SLICE,
    BackgroundWork,
    Deriver,
    Held,
    own_stems,
    words_by_place,
)
from hybridagi_steps.search.lineage import (
    NOTHING_HIDDEN,
    Expand,
    HiddenIds,
    context_of,
    context_of_message,
)
from hybridagi_steps.search.ranking import RankedRow, SearchQuery, State, merged, search
from hybridagi_steps.search.score_parts import Scope
from hybridagi_steps.search.step_index import StepIndex
from hybridagi_steps.stores.waiting import DEFAULT_TIMEOUT_SECONDS, Patience, taken
from hybridagi_steps.validation import admitted, is_number

MAX_QUERY_LENGTH = 20_000
"""Characters of a query that are looked at."""

_TEMPLATE = re.compile(r"--- Step \d+ ---\n[\w ]+: (?P<purpose>.*?)\n[\w ]+: ", re.DOTALL)
_READ_AT_ONCE = 200
_BACKGROUND_SECONDS = 0.25
"""How long indexing in the background waits for other writers: closing waits for it."""

log = logging.getLogger("hybridagi_steps")


class Found(NamedTuple):
    """A row of an answer and what stands in it."""

    hit: RankedRow
    step: AgentStep
    place: MessagePlace | None
    """Where a message is read; None of a step."""

    def why(self) -> str:
        """Return what matched, in words."""
        return self.hit.why(own_stems(self.step, self.hit.glimpsed_words))


def reason(hit: RankedRow, step: AgentStep) -> str:
    """Return why a step was found, in words, and where those stand that its row does not show."""
    return hit.why(own_stems(step, hit.glimpsed_words), partial(words_by_place, step))


class Searcher:
    """Searches one store."""

    def __init__(
        self,
        store: StepStore,
        embedder: Callable[[int | None], Embedder],
        cache: Path | None,
        redact: Redact | None = None,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        budget: int | None = None,
    ) -> None:
        """Search `store`; `embedder` is called when vectors are needed, see `_embedder`.

        What `redact` takes out of steps it takes out of queries: they go to the same embedder.
        A search waits for other threads no longer than `timeout_seconds`, all its waits together.
        An index of more than `budget` bytes is not built: the store is searched where it is.
        """
        self._budget, self._cache = budget, cache
        self._database: DatabaseIndex | None = None
        self._store, self._redact = store, redact
        self._patience = Patience(timeout_seconds)
        self._ask_embedder = embedder
        self._unbound, self._lock = ("", 0), threading.Lock()
        self._index = StepIndex(store, store.identity().store_id, cache)
        self.deriver = Deriver(store, self._embedder, self._patience)
        self._hidden_ids: tuple[Hidden | None, HiddenIds] = (None, NOTHING_HIDDEN)
        self._backlog: Iterator[int] = iter(())
        self._background = BackgroundWork(self._background_batch)

    def search(
        self,
        query: object,
        k: int,
        where: StepFilter,
        *,
        mode: Mode,
        expand: Expand | None,
        min_score: float | None,
        aim: Aim | None = None,
    ) -> list[StepHit]:
        """Do what `StepMemory.search` says."""
        if expand is not None and expand not in get_args(Expand):
            raise InvalidQueryError(
                f"expand is one of {', '.join(get_args(Expand))}; got {expand!r}."
            )
        ranked, hidden = self._ranked(query, k, where, mode, min_score, aim, bool(expand))
        return self._hits(ranked, expand, where, hidden)

    def exactly(self) -> AbstractContextManager[None]:
        """Let searches look at every vector, inside a `with`, once there is an index."""
        return self._index.exactly()

    def ranked(
        self, query: object, k: int, where: StepFilter, *, mode: Mode, aim: Aim | None
    ) -> list[RankedRow]:
        """Return what a search finds before it is read: `read` says what stands in these rows."""
        return self._ranked(query, k, where, mode, None, aim)[0]

    def read(
        self, ranked: Sequence[RankedRow], session_id: str | None = None, user_id: str | None = None
    ) -> list[Found]:
        """Return the steps of rows, those that are gone left out.

        Messages are read in a session that has them, and for a user forks of others are not named.
        """
        read = self._store.read([hit.row for hit in ranked])
        steps = dict(zip(read, self._with_questions(list(read.values())), strict=True))
        places = self._places([row for row in steps if row >= MESSAGE_ROWS], session_id, user_id)
        return [
            Found(hit, step, places.get(hit.row))
            for hit in ranked
            if (step := steps.get(hit.row)) is not None
            and (hit.row in places or hit.row < MESSAGE_ROWS)
        ]

    def _ranked(
        self,
        query: object,
        k: int,
        where: StepFilter,
        mode: Mode,
        min_score: float | None,
        aim: Aim | None,
        and_hidden: bool = False,
    ) -> tuple[list[RankedRow], Hidden | None]:
        asked = [self._redacted(item) for item in _checked(query, k, mode, min_score, aim)]
        state = self._redacted(_state(query, aim)) if aim == "next" else None

        def looked(*, in_any_epoch: bool = False) -> tuple[list[RankedRow], Hidden | None] | None:
            held = self._caught_up(vectors=mode != "lexical")
            told = self._told(asked)
            texts = [own_text(item) if isinstance(item, AgentStep) else item for item in told]
            said = [*texts, own_text(state)] if isinstance(state, AgentStep) else texts
            # A hosted embedder takes its time; nobody else has to wait for it.
            vectors = [None] * len(said) if mode == "lexical" else self._embedded(said, held)

            def queries(with_text: Callable[[int], Rows]) -> list[SearchQuery]:
                made = [self._query(*q, with_text) for q in zip(told, texts, vectors, strict=False)]
                here = State(said[-1], vectors[-1]) if len(said) > len(texts) else None
                return [replace(query, state=here) for query in made]

            def ranked() -> tuple[list[RankedRow], Hidden | None] | None:
                self._follow_with(held)
                if not in_any_epoch and self._index.position.epoch != held.frontier.position.epoch:
                    return None
                made, scope = queries(self._index.columns.with_text), self._scope(where)
                how: dict[str, Any] = {"mode": mode, "aim": aim, "min_score": min_score}
                found = search(self._index, made, k, scope=scope, **how)
                return found, self._index.filters.hidden() if and_hidden else None

            with self._indexed():
                if (there := self._in_database()) is None:
                    return self._index.trusted(ranked)
                if there.follow() != held.frontier.position.epoch and not in_any_epoch:
                    return None
                made = queries(partial(there.with_text, held=held))
                found = [there.best(one, k, where, held, mode=mode, aim=aim) for one in made]
                return merged(found, k, min_score), there.filters.hidden()

        with self._patience.shared():
            # The second time where another thread emptied it, or changed its embedder, meanwhile.
            return looked() or looked(in_any_epoch=True) or ([], None)

    def _in_database(self) -> DatabaseIndex | None:
        """Return what searches the store where it is, if the index does not fit the budget."""
        if self._budget is None or not isinstance(self._store, SearchedStore):
            return None
        dimension = self._model()[1]
        if self._database is not None and self._database.dimension == dimension:
            return self._database
        rows = len(self._index.columns) or self._store.indexed_rows()
        if fits(rows, dimension, self._budget):
            return None
        if (why_not := self._store.prepare_search(dimension)) is not None:
            log.warning("%s, so memory_budget has no effect: the index is kept here", why_not)
            self._budget = None
            return None
        if self._database is not None:
            self._database.close()
        self._index.close()
        self._index = StepIndex(self._store, self._store.identity().store_id, None)
        self._database = DatabaseIndex(self._store, self._store, dimension, self._cache)
        return self._database

    def catch_up(self) -> Iterator[int]:
        """Index and save all that is pending now; yield how many steps each batch had."""
        self._background.stop()  # two would do the same work twice
        self.deriver.mend()
        return self.deriver.save_all(vectors=True, settle=self._store.sync)

    def with_vectors(self, ids: Sequence[str]) -> list[AgentStep]:
        """Return steps with their vectors, whether the store could save them yet or not."""
        with self._patience.shared():
            held = self._caught_up(vectors=True)
        steps = self._store.get(ids, vectors=True)
        without = [step for step in steps if step.vector is None] if held.vectors else []
        if without:
            texts = [own_text(step) for step in self._with_questions(without)]
            made, usable, _ = embed_documents(self._embedder(), texts)
            for step, vector, good in zip(without, made, usable, strict=True):
                step.vector = vector.tolist() if good else None
        return steps

    def work_off(self) -> None:
        """Begin to index what is pending, before somebody waits for it."""
        self._backlog = self.deriver.save_all(vectors=True, size=SLICE)
        self._background.start()

    def _caught_up(self, *, vectors: bool) -> Held:
        """Index what is pending; what others keep this from saving is saved in the background."""
        held = self.deriver.catch_up(vectors=vectors)
        if held.busy:
            self.work_off()
        return held

    def _background_batch(self) -> bool:
        with self._store.waiting(_BACKGROUND_SECONDS):
            return next(self._backlog, None) is not None

    def close(self) -> None:
        """End what goes on in the background; keep the index that searches have built."""
        self._background.stop()
        if self._database is not None:
            self._save_filters(self._database)
            self._database.close()
        if self._index.in_use:
            self.save()
        self._index.close()

    def save(self) -> None:
        """Bring the index up to date and write its cache, when that is worth it."""
        with self._indexed():
            if (there := self._in_database()) is not None:
                there.follow()
            elif not self._index.worth_following(self._model):
                return
        if there is not None:
            there.there.make_graph(there.dimension)  # may take minutes: others search meanwhile
            self._save_filters(there)
            return
        with self._indexed():
            (index := self._index).trusted(self._follow)
            worth_saving, filters_too = index.worth_saving(), index.filters_worth_saving()
        if worth_saving:
            self._index.finish_builds()  # may take seconds: others search meanwhile
        if (worth_saving or filters_too) and self._noted() and self._synced():
            with self._indexed():
                self._index.trusted(self._index.save)

    def _save_filters(self, there: DatabaseIndex) -> None:
        if there.worth_saving() and self._noted(there) and self._synced():
            with self._indexed():
                there.save()

    def _noted(self, there: DatabaseIndex | None = None) -> bool:
        """Whether who erases on another machine will know of the cache, or need not."""
        if isinstance(self._store, CachedApart):
            try:
                with self._store.waiting(_BACKGROUND_SECONDS):
                    self._store.note_cache()
            except StorageError as error:
                log.debug("the index is not written to its cache now: %s", error)
                return False
            with self._indexed():
                # What was erased before it was noted must not be in it.
                there.follow() if there else self._index.trusted(self._follow)
        return True

    def _synced(self) -> bool:
        """Whether no power loss can take back by now what a cache would say is in the store."""
        try:
            with self._store.waiting(_BACKGROUND_SECONDS), suppress(ReadOnlyStorageError):
                self._store.sync()
        except StorageError as error:
            log.debug("the index is not written to its cache now: %s", error)
            return False
        return True

    def forget_cache(self, *, if_outdated: bool = False) -> None:
        """Delete the cache, or one that may hold what was deleted; closing makes it anew."""
        with self._indexed():
            if self._database or not if_outdated or self._index.removed_in_files():
                try:
                    self._index.read_cache(*self._model())
                finally:
                    (self._database or self._index).forget_cache()

    def _indexed(self) -> AbstractContextManager[float]:
        """Hold the index; other threads' searches wait."""
        return taken(self._lock, self._patience.seconds, "the index of this memory")

    def _embedder(self, epoch: int | None = None) -> Embedder:
        """Return the embedder, of an epoch; the store is told of it now or, if busy, later."""
        with self._store.waiting(PATIENCE_SECONDS):
            embedder = self._ask_embedder(epoch)
        self._unbound = (embedder.model_id, embedder.dimension)
        return embedder

    def _redacted(self, item: str | AgentStep) -> str | AgentStep:
        if self._redact is None:
            return item
        if isinstance(item, AgentStep):
            return admitted(item, self._redact)[0]
        return redacted(item, self._redact)

    def _model(self) -> tuple[str, int]:
        """Return the name of the embedder, and how long its vectors are."""
        _, embedder, dimension = self._store.identity()
        return self._unbound if embedder is None else (embedder, dimension or 0)

    def _follow(self) -> None:
        self._index.follow(*self._model())

    def _follow_with(self, held: Held) -> None:
        """Follow the store, and take in what it has not saved."""
        if held.settled and held.empty and self._index.position == held.frontier.position:
            return
        self._follow()
        since = held.frontier.position
        # Of another epoch: the store was emptied since, or is embedded anew.
        if self._index.position.epoch == since.epoch and self._index.take_in(
            held.texts, held.vectors, since
        ):
            self._follow()

    def _scope(self, where: StepFilter) -> Scope:
        filters, fences = self._index.filters, where.fences
        asked = {name for name, value in vars(fences).items() if value is not None}
        excluded = where.exclude_run_id or []
        few = asked <= {"exclude_run_id"} and len(excluded) <= FEW_RUNS
        rows = self._all_but(excluded) if few else filters.rows(fences)
        answers = None if fences is where else filters.rows(where)
        return Scope(self._index.shards(own_only=where.scope is None), rows, answers)

    def _all_but(self, run_ids: Sequence[str]) -> Rows | None:
        """Return all rows but those of some runs and hidden ones; None when all may be found.

        Those are few rows to ask for, instead of nearly all.
        """
        hidden = self._index.filters.hidden().under(None)
        gone = np.concatenate([hidden, *self._index.filters.of_runs(run_ids)])
        if not len(gone):
            return None
        return without(self._index.columns.held(), gone)

    def _query(
        self,
        item: str | AgentStep,
        text: str,
        vector: FloatVector | None,
        with_text: Callable[[int], Rows],
    ) -> SearchQuery:
        whole = self._says(item) if isinstance(item, AgentStep) else None
        return SearchQuery(text, vector, whole, self._row_of(item, with_text))

    def _told(self, asked: list[str | AgentStep]) -> list[str | AgentStep]:
        """Return queries, the end of a program with its question, as such steps are indexed."""
        steps = iter(self._with_questions([q for q in asked if isinstance(q, AgentStep)]))
        return [next(steps) if isinstance(item, AgentStep) else item for item in asked]

    def _says(self, step: AgentStep) -> str:
        """Return what a stored step would be compared by that says the same."""
        return says(step, self._call_of(step) if may_repeat_a_call(step) else None)

    def _call_of(self, step: AgentStep) -> AgentStep | None:
        found = self._store.get([str(step.program_id)])
        return found[0] if found and same_owner(found[0], step) else None

    def _with_questions(self, steps: Sequence[AgentStep]) -> list[AgentStep]:
        """Return steps, ends of programs with what their programs were asked."""
        ends = {step.program_id for step in steps if is_end(step)} - {None}
        calls = {id_text(call.id): call for call in self._store.get(sorted(map(str, ends)))}
        told: list[AgentStep] = []
        for step in steps:
            call = calls.get(step.program_id or "") if is_end(step) else None
            asked = call is not None and same_owner(call, step)
            told.append(with_question(step, call) if asked and call is not None else step)
        return told

    def _embedded(self, texts: Sequence[str], held: Held) -> list[FloatVector | None]:
        embedder = self._embedder(held.frontier.position.epoch)
        try:
            found = embedder.embed_queries(texts)
        except StepsError:
            raise
        except Exception as error:
            raise EmbedderError(
                f"embedder {embedder.model_id} failed on the query: {error}. "
                'mode="lexical" searches without it.'
            ) from error
        vectors, usable = checked_vectors(found, len(texts), embedder.dimension)
        return [v if good else None for v, good in zip(vectors, usable, strict=True)]

    def _row_of(self, item: str | AgentStep, with_text: Callable[[int], Rows]) -> int | None:
        """Return the row of the stored step that a query is: itself, or its prompt text."""
        if isinstance(item, AgentStep):
            text = self._says(item)
        elif found := _TEMPLATE.match(item):
            text = found["purpose"]
        else:
            return None
        asked = id_text(item.id) if isinstance(item, AgentStep) else item
        rows = with_text(text_hash(text)).tolist()
        for start in range(0, len(rows), _READ_AT_ONCE):
            steps = self._store.read(rows[start : start + _READ_AT_ONCE])
            for row, step in steps.items():
                if asked == (id_text(step.id) if isinstance(item, AgentStep) else str(step)):
                    return row
        return None

    def _ids_of(self, hidden: Hidden) -> HiddenIds:
        """Return the ids of hidden steps; read again only when others are hidden than before."""
        known = self._hidden_ids  # read once: another thread may ask for those of another time
        if known[0] is not hidden:
            ids = (
                {id_text(step.id) for step in self._store.read(rows.tolist()).values()}
                for rows in hidden
            )
            self._hidden_ids = known = hidden, HiddenIds(*ids)
        return known[1]

    def _hits(
        self, rows: list[RankedRow], expand: Expand | None, where: StepFilter, hidden: Hidden | None
    ) -> list[StepHit]:
        around = self._around(expand, where, hidden)
        user_id = where.user_id if isinstance(where.user_id, str) else None
        return [
            unvalidated(
                StepHit,
                {
                    "step": step,
                    "score": hit.score,
                    "dense_score": hit.dense,
                    "lexical_score": hit.lexical,
                    "why": reason(hit, step),
                    "parts": hit.parts,
                    "feedback": None,
                    "context": around(hit.row, step, place),
                    "kind": "step" if place is None else "message",
                    "session_id": step.session_id if place is None else place.session_id or None,
                    "sequence": None if place is None else place.sequence,
                },
            )
            for hit, step, place in self.read(rows, where.session_id, user_id)
        ]

    def _around(
        self, expand: Expand | None, where: StepFilter, hidden: Hidden | None
    ) -> Callable[[int, AgentStep, MessagePlace | None], list[AgentStep]]:
        """Return what finds the steps around a hit."""
        if expand is None or hidden is None:
            return lambda _row, _step, _place: []
        known, revoked = self._ids_of(hidden), {*hidden.under(UNREVOKED).tolist()}

        def around(row: int, step: AgentStep, place: MessagePlace | None) -> list[AgentStep]:
            if place is None:
                return context_of(self._store, step, expand, where, self._rows_of, known)
            index = cast("MessageIndex", self._store)
            return context_of_message(index, row, place.session_id, expand, where, revoked)

        return around

    def _rows_of(self, where: StepFilter) -> Rows:
        """Return the rows that match, by columns; the store may have to look at all steps."""
        with self._indexed():
            return (self._database or self._index).filters.rows(where)

    def _places(
        self, rows: list[int], session_id: str | None, user_id: str | None
    ) -> dict[int, MessagePlace]:
        """Return where messages are read."""
        if not rows or not isinstance(self._store, MessageIndex):
            return {}
        return self._store.message_places(rows, session_id, user_id)


def _checked(
    query: object, k: int, mode: str, min_score: float | None, aim: str | None = None
) -> list[str | AgentStep]:
    """Return the queries one by one, or say what is wrong with the call."""
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidQueryError(f"k is the number of hits wanted, at least 1; got {k!r}.")
    if mode not in get_args(Mode):
        raise InvalidQueryError(f"mode is one of {', '.join(get_args(Mode))}; got {mode!r}.")
    if aim is not None and aim not in get_args(Aim):
        raise InvalidQueryError(f"aim is one of {', '.join(get_args(Aim))}, or None; got {aim!r}.")
    if min_score is not None and not is_number(min_score):
        raise InvalidQueryError(f"min_score is a number, such as 0.5; got {min_score!r}.")
    asked = list(_flat(query))
    if not asked or any(isinstance(item, str) and not item.strip() for item in asked):
        raise InvalidQueryError("the query is empty; say what to look for.")
    return asked


def _state(query: Any, aim: Aim) -> AgentStep:
    """Return the step after which is asked what comes next: the query, or the last step in it."""
    steps: Any = getattr(query, "steps", None)
    given = list[Any](steps or _flat(query))
    for last in reversed(given):
        if isinstance(last, AgentStep):
            return last
    raise InvalidQueryError(
        f"aim={aim!r} asks what was done after a step like the one at hand, and the query names "
        "none. Search like that step (memory.search(step, aim='next'); `like` on the command line "
        "and over HTTP), or with a text and the steps so far, [step, text] or "
        "hs.QueryWithSteps(queries=text, steps=[…]); a text alone is searched for without this aim."
    )


def _flat(query: Any) -> Iterable[str | AgentStep]:
    """Yield the texts and steps in a query of any accepted form."""
    if isinstance(query, AgentStep):
        yield query
    elif isinstance(query, str):
        yield query[:MAX_QUERY_LENGTH]
    elif hasattr(query, "queries"):
        yield from _flat(query.queries)
    elif hasattr(query, "query"):
        yield from _flat(query.query)
    elif isinstance(query, list | tuple):
        for item in cast("Sequence[Any]", query):
            yield from _flat(item)
    else:
        raise InvalidQueryError(
            "a query is a text, a Query, a QueryWithSteps, an AgentStep (of a hit its `step`), or "
            f"a list of them, not {type(query).__name__}."
        )
