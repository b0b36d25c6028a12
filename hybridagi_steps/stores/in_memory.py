"""InMemoryStepStore: the whole contract in plain dictionaries, gone when the process ends.

The readable twin of the SQLite store: same rows, same order, same errors, kept equal by the
conformance tests. Steps are kept as JSON bodies, too, so what is read is always a copy and nobody
can change a stored step from outside. Filters look at every step; that is fine for what fits here.
"""

from __future__ import annotations

import sys
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, NamedTuple, NoReturn, ParamSpec, TypeVar
from uuid import uuid4

import numpy as np

from hybridagi_steps.errors import (
    DuplicateStepError,
    MemoryClosedError,
    MemoryNotPicklableError,
    UnknownRunError,
)
from hybridagi_steps.protocols import (
    Changes,
    FloatVector,
    PendingText,
    Position,
    Rows,
    RunSummary,
    StoreIdentity,
    TextRow,
    VectorRow,
)
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.records.step_text import own_text, text_hash
from hybridagi_steps.stores.body import decode_body, encode_body
from hybridagi_steps.stores.fork_safety import rest_at_fork
from hybridagi_steps.stores.matching import matches, program_called

_PAGE = 500


class _Stored(NamedTuple):
    """A step as it is kept."""

    row: int
    id: str
    body: str
    step: AgentStep


class _Text(NamedTuple):
    seq: int
    text: TextRow


class _Embedding(NamedTuple):
    seq: int
    vector: VectorRow


@dataclass
class _RunScore:
    """What was said about a run."""

    score: float
    feedback: str | None


@dataclass
class _State:
    """Everything a namespace holds; `clear` makes a new one of the next epoch."""

    epoch: int = 1
    steps: dict[int, _Stored] = field(default_factory=dict[int, _Stored])
    rows: dict[str, int] = field(default_factory=dict[str, int])
    run_scores: dict[str, _RunScore] = field(default_factory=dict[str, _RunScore])
    texts: dict[int, _Text] = field(default_factory=dict[int, _Text])
    embeddings: dict[int, _Embedding] = field(default_factory=dict[int, _Embedding])
    stale: set[int] = field(default_factory=set[int])
    tombstones: list[int] = field(default_factory=list[int])


P = ParamSpec("P")
R = TypeVar("R")


def _locked(
    method: Callable[Concatenate[InMemoryStepStore, P], R],
) -> Callable[Concatenate[InMemoryStepStore, P], R]:
    """Run a method under the store's lock, while the store is open."""

    @wraps(method)
    def held(self: InMemoryStepStore, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock:
            self._refuse_closed()
            return method(self, *args, **kwargs)

    return held


class InMemoryStepStore:
    """Implements `StepStore`; see protocols.py for the contract. Safe for any number of threads."""

    def __init__(
        self,
        address: str = ":memory:",  # noqa: ARG002 - every back-end is called alike
        *,
        namespace: str = "default",  # noqa: ARG002 - each store is a world of its own
        durability: str = "full",
    ) -> None:
        """Make an empty store; it survives nothing, whatever the durability."""
        self._durability = durability
        self._store_id = uuid4().hex
        self._embedder: tuple[str, int] | None = None
        self._last_row = self._last_seq = 0
        self._state = _State()
        self._closed = False
        self._lock = threading.RLock()
        rest_at_fork(self)

    # Steps and runs

    @_locked
    def append(self, steps: Sequence[AgentStep], *, replace: bool = False) -> list[int]:
        """Store steps, all or none."""
        encoded = [(id_text(step.id), encode_body(step), step) for step in steps]
        known: set[str] = set() if replace else set(self._state.rows)
        for step_id, _, _ in encoded:
            if step_id in known:
                raise DuplicateStepError(step_id)
            known.add(step_id)
        old = [
            self._state.rows[step_id] for step_id, _, _ in encoded if step_id in self._state.rows
        ]
        runs = self._forget(old)
        rows = [self._store(*entry) for entry in encoded]
        self._forget_empty_runs(runs)
        return rows

    @_locked
    def get(self, ids: Sequence[str], *, vectors: bool = False) -> list[AgentStep]:
        """Return the steps with these ids in the order asked."""
        rows = (self._state.rows.get(id_text(step_id)) for step_id in ids)
        return [self._copy(row, vectors=vectors) for row in rows if row is not None]

    @_locked
    def find(
        self, where: StepFilter, *, limit: int, offset: int = 0, newest_first: bool = False
    ) -> list[AgentStep]:
        """Return one page of the steps that match."""
        found = self._matching(where)
        if where.run_id is not None:
            found.sort(key=_place)
        if newest_first:
            found.reverse()
        return [self._copy(stored.row) for stored in found[offset : offset + limit]]

    @_locked
    def rows(self, where: StepFilter) -> Rows:
        """Return the rows that match, ascending."""
        return np.array([stored.row for stored in self._matching(where)], dtype=np.int64)

    @_locked
    def read(self, rows: Sequence[int]) -> dict[int, AgentStep]:
        """Return the steps in these rows."""
        return {int(row): self._copy(int(row)) for row in rows if int(row) in self._state.steps}

    @_locked
    def children(self, ids: Sequence[str]) -> list[AgentStep]:
        """Return the steps whose parent is one of `ids`, by row."""
        parents = {id_text(step_id) for step_id in ids}
        return [
            self._copy(stored.row)
            for stored in self._state.steps.values()
            if stored.step.parent_id is not None and id_text(stored.step.parent_id) in parents
        ]

    def iter_steps(self, where: StepFilter) -> Iterator[AgentStep]:
        """Yield all matching steps by row; those deleted meanwhile are left out."""
        rows = self.rows(where).tolist()
        for start in range(0, len(rows), _PAGE):
            yield from self.read(rows[start : start + _PAGE]).values()

    @_locked
    def runs(self, *, limit: int, offset: int = 0) -> list[RunSummary]:
        """Return runs, the one begun last first."""
        runs: dict[str, list[_Stored]] = {}
        for stored in self._state.steps.values():
            if stored.step.run_id is not None:
                runs.setdefault(stored.step.run_id, []).append(stored)
        newest = sorted(runs.values(), key=lambda run: run[0].row, reverse=True)
        return [self._summary(run) for run in newest[offset : offset + limit]]

    @_locked
    def score_run(self, run_id: str, value: float, feedback: str | None) -> None:
        """Set a run's score."""
        if all(stored.step.run_id != run_id for stored in self._state.steps.values()):
            raise UnknownRunError(run_id)
        self._state.run_scores[run_id] = _RunScore(value, feedback)

    # Words and embeddings

    @_locked
    def pending_texts(self, limit: int) -> list[PendingText]:
        """Return the next steps without words, or with stale ones."""
        state = self._state
        rows = [row for row in state.steps if row not in state.texts or row in state.stale][:limit]
        return [self._pending(row, self._parent(row)) for row in rows]

    @_locked
    def save_texts(self, texts: Sequence[TextRow]) -> None:
        """Save words, and note whose words went stale by that."""
        state = self._state
        saved: list[int] = []
        for text in texts:
            if (stored := state.steps.get(int(text.row))) is None:
                continue
            fresh = text._replace(row=stored.row, scoped=stored.step.scope is not None)
            state.texts[stored.row] = _Text(self._next_seq(), fresh)
            state.stale.discard(stored.row)
            saved.append(stored.row)
        state.stale.update(self._stale(saved))

    @_locked
    def pending_vectors(self, limit: int) -> list[tuple[int, AgentStep]]:
        """Return the next steps without an embedding."""
        rows = [row for row in self._state.steps if row not in self._state.embeddings][:limit]
        return [(row, self._copy(row)) for row in rows]

    @_locked
    def save_vectors(self, vectors: Sequence[VectorRow]) -> None:
        """Save embeddings of steps that have none."""
        for saved in vectors:
            stored = self._state.steps.get(int(saved.row))
            if stored is not None and stored.row not in self._state.embeddings:
                self._embed(stored, saved.text_hash, saved.vector)

    @_locked
    def position(self) -> Position:
        """Return the newest position."""
        state = self._state
        return Position(
            state.epoch,
            max((text.seq for text in state.texts.values()), default=0),
            max((embedding.seq for embedding in state.embeddings.values()), default=0),
            len(state.tombstones),
        )

    @_locked
    def changes(self, since: Position, *, limit: int = 100_000) -> Changes:
        """Return what happened after `since`."""
        state, newest = self._state, self.position()
        if since.epoch != newest.epoch:
            since = Position(newest.epoch, 0, 0, newest.tombstone)
        texts = sorted(text for text in state.texts.values() if text.seq > since.text)[:limit]
        vectors = sorted(
            (held for held in state.embeddings.values() if held.seq > since.vector),
            key=lambda held: held.seq,
        )[:limit]
        reached = newest._replace(
            text=texts[-1].seq if len(texts) == limit else newest.text,
            vector=vectors[-1].seq if len(vectors) == limit else newest.vector,
        )
        return Changes(
            reached,
            [held.text for held in texts],
            [held.vector for held in vectors],
            state.tombstones[since.tombstone :],
        )

    # Order

    @_locked
    def identity(self) -> StoreIdentity:
        """Return the store's id and embedder."""
        return StoreIdentity(self._store_id, *(self._embedder or (None, None)))

    @_locked
    def set_embedder(self, model_id: str, dimension: int) -> None:
        """Remember the embedder; another than before drops all embeddings."""
        if self._embedder not in (None, (model_id, dimension)):
            self._state.embeddings.clear()
            self._state.epoch += 1
        self._embedder = (model_id, dimension)

    @_locked
    def delete(self, ids: Sequence[str]) -> int:
        """Delete steps with text and embedding."""
        asked = {id_text(step_id) for step_id in ids}
        rows = [row for step_id, row in self._state.rows.items() if step_id in asked]
        self._forget_empty_runs(self._forget(rows))
        return len(rows)

    @_locked
    def clear(self) -> None:
        """Delete everything."""
        self._state = _State(epoch=self._state.epoch + 1)

    def vacuum(self) -> None:
        """Do nothing: deleted steps are gone already."""

    @_locked
    def verify(self) -> list[str]:
        """Return what does not hold together."""
        state = self._state
        derived = {*state.texts, *state.embeddings, *state.stale, *state.rows.values()}
        return [f"row {row}: derived data without a step" for row in derived - state.steps.keys()]

    @_locked
    def stats(self) -> dict[str, Any]:
        """Return counts and sizes."""
        state = self._state
        steps = [stored.step for stored in state.steps.values()]
        embedded = sum(held.vector.vector is not None for held in state.embeddings.values())
        return {
            "steps": len(steps),
            "runs": len({step.run_id for step in steps} - {None}),
            "sessions": len({step.session_id for step in steps} - {None}),
            "embedded": embedded,
            "text_only": len(state.embeddings) - embedded,
            "pending_texts": len(state.steps) - len(state.texts) + len(state.stale),
            "pending_vectors": len(state.steps) - len(state.embeddings),
            "bytes": sum(sys.getsizeof(stored.body) for stored in state.steps.values()),
            "backend": "in_memory",
            "durability": self._durability,
        }

    def close(self) -> None:
        """Forget everything."""
        with self._lock:
            self._closed = True
            self._state = _State()

    def before_fork(self) -> None:
        """Wait for whoever is at work."""
        self._lock.acquire()

    def after_fork(self) -> None:
        """Go on."""
        self._lock.release()

    def __reduce__(self) -> NoReturn:
        raise MemoryNotPicklableError(
            "an in-memory store lives in one process only; use a file to share steps."
        )

    def _refuse_closed(self) -> None:
        if self._closed:
            raise MemoryClosedError("this in-memory store was closed; its steps are gone.")

    def _next_seq(self) -> int:
        self._last_seq += 1
        return self._last_seq

    def _store(self, step_id: str, body: str, step: AgentStep) -> int:
        self._last_row += 1
        stored = _Stored(self._last_row, step_id, body, decode_body(body))
        self._state.steps[stored.row] = stored
        self._state.rows[step_id] = stored.row
        if step.vector is not None:
            vector = np.asarray(step.vector, dtype=np.float32)
            self._embed(stored, text_hash(own_text(step)), vector)
        return stored.row

    def _embed(self, stored: _Stored, words: int, vector: FloatVector | None) -> None:
        kept = None if vector is None else np.array(vector, dtype=np.float32)
        scoped = stored.step.scope is not None
        row = VectorRow(stored.row, words, kept, scoped)
        self._state.embeddings[stored.row] = _Embedding(self._next_seq(), row)

    def _forget(self, rows: Iterable[int]) -> set[str]:
        """Remove rows and what was derived from them; return the runs they belonged to."""
        state, runs = self._state, set[str]()
        for row in rows:
            stored = state.steps.pop(row)
            del state.rows[stored.id]
            state.texts.pop(row, None)
            state.embeddings.pop(row, None)
            state.stale.discard(row)
            state.tombstones.append(row)
            if stored.step.run_id is not None:
                runs.add(stored.step.run_id)
        return runs

    def _forget_empty_runs(self, runs: set[str]) -> None:
        for run_id in runs - {stored.step.run_id for stored in self._state.steps.values()}:
            self._state.run_scores.pop(run_id, None)

    def _copy(self, row: int, *, vectors: bool = False) -> AgentStep:
        """Return a step as readers see it: with its run's score when it has none."""
        step = decode_body(self._state.steps[row].body)
        step.score = self._score(step)
        held = self._state.embeddings.get(row)
        if vectors and held is not None and held.vector.vector is not None:
            step.vector = held.vector.vector.tolist()
        return step

    def _score(self, step: AgentStep) -> float | None:
        run = self._state.run_scores.get(step.run_id or "")
        return run.score if run is not None and step.score is None else step.score

    def _matching(self, where: StepFilter) -> list[_Stored]:
        everything = self._state.steps.values()
        calls = {
            stored.id
            for stored in everything
            if where.program is not None
            and stored.step.step_type == "ProgramCall"
            and program_called(stored.step) == where.program
        }
        return [
            stored
            for stored in everything
            if matches(stored.step, where, score=self._score(stored.step), calls=calls)
        ]

    def _run(self, run_id: str | None) -> list[_Stored]:
        """Return a run's steps by (hop, row)."""
        steps = (s for s in self._state.steps.values() if run_id and s.step.run_id == run_id)
        return sorted(steps, key=_place)

    def _parent(self, row: int) -> int | None:
        """Return the row of the step named by parent_id, else of the one before in the run."""
        step = self._state.steps[row].step
        if step.parent_id is not None:
            named = self._state.rows.get(id_text(step.parent_id))
            if named is not None and named != row:
                return named
        before = [other.row for other in self._run(step.run_id) if _place(other) < (step.hop, row)]
        return before[-1] if before else None

    def _pending(self, row: int, parent: int | None) -> PendingText:
        shown = None if parent is None else self._copy(parent)
        return PendingText(row, self._copy(row), parent, shown)

    def _stale(self, saved: Sequence[int]) -> list[int]:
        """Return rows whose words show another parent than they have by now.

        Only a parent stored after its child can do that: earlier ones were there when the child's
        words were made. Looked at are the saved rows, their children and their followers.
        """
        state = self._state
        looked_at = {*saved, *(after for row in saved for after in self._followers(row))}
        parents = {row: self._parent(row) for row in looked_at if row in state.texts}
        return [
            row
            for row, parent in parents.items()
            if parent is not None and parent > row and state.texts[row].text.parent_row != parent
        ]

    def _followers(self, row: int) -> list[int]:
        stored = self._state.steps[row]
        children = [
            other.row
            for other in self._state.steps.values()
            if other.step.parent_id is not None and id_text(other.step.parent_id) == stored.id
        ]
        run = self._run(stored.step.run_id)
        after = run[bisect_right(run, _place(stored), key=_place) :][:1]
        return [*children, *(other.row for other in after)]

    def _summary(self, run: list[_Stored]) -> RunSummary:
        first = min(run, key=_place)
        steps = [stored.step for stored in run]
        times = sorted(step.created_at.isoformat() for step in steps)
        said = self._state.run_scores.get(first.step.run_id or "")
        return RunSummary(
            run_id=first.step.run_id or "",
            session_id=max((s.session_id for s in steps if s.session_id is not None), default=None),
            scope=max((s.scope for s in steps if s.scope is not None), default=None),
            steps=len(steps),
            errors=sum(step.status == "error" for step in steps),
            first_step=first.id,
            started_at=times[0],
            ended_at=times[-1],
            score=said.score if said else None,
            feedback=said.feedback if said else None,
        )


def _place(stored: _Stored) -> tuple[int, int]:
    return stored.step.hop, stored.row
