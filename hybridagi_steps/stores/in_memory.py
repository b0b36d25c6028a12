"""InMemoryStepStore: the whole contract in plain dictionaries, gone when the process ends.

The readable twin of the SQLite store: same rows, same order, same errors, kept equal by the
conformance tests. Steps are kept as JSON bodies, too, so what is read is always a copy and nobody
can change a stored step from outside. Filters look at every step; that is fine for what fits here.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import takewhile
from typing import Any, NoReturn
from uuid import uuid4

import numpy as np

from hybridagi_steps._concurrency import rest_at_fork
from hybridagi_steps.errors import (
    DuplicateStepError,
    EmbedderMismatchError,
    MemoryClosedError,
    MemoryNotPicklableError,
    UnknownRunError,
)
from hybridagi_steps.protocols import (
    NEWEST,
    Changes,
    Frontier,
    Hidden,
    PendingText,
    Position,
    Rows,
    RunSummary,
    StepKey,
    StoreIdentity,
    TextRow,
    VectorRow,
)
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.records.provenance import source_of
from hybridagi_steps.stores.body import decode_body, encode_body
from hybridagi_steps.stores.commits import check_score, refuse_twice
from hybridagi_steps.stores.in_memory_revocations import InMemoryRevocations, mark_late
from hybridagi_steps.stores.in_memory_sessions import InMemorySessions
from hybridagi_steps.stores.in_memory_state import RunScore, State, Stored
from hybridagi_steps.stores.matching import Standing, matches, program_called, tool_used

_PAGE = 500


class InMemoryStepStore(InMemorySessions, InMemoryRevocations):
    """Implements `StepStore`; see protocols.py for the contract. Safe for any number of threads."""

    def __init__(
        self,
        address: str = ":memory:",  # noqa: ARG002 - every back-end is called alike
        *,
        namespace: str = "default",  # noqa: ARG002 - each store is a world of its own
        durability: str = "full",
        timeout_seconds: float = 0.0,  # noqa: ARG002 - nobody else has it
    ) -> None:
        """Make an empty store; it survives nothing, whatever the durability."""
        self._durability = durability
        self._store_id = uuid4().hex
        self._embedder: tuple[str, int] | None = None
        self._state, self._places = State(), list[str]()
        self._closed = False
        self._lock = threading.RLock()
        rest_at_fork(self)

    def append(self, steps: Sequence[AgentStep], *, replace: bool = False) -> list[int]:
        """Store steps, all or none."""
        encoded = [(id_text(step.id), encode_body(step), step) for step in steps]
        ids = [step_id for step_id, _, _ in encoded]
        refuse_twice(ids)
        with self._opened() as state:
            old = {step_id: state.rows[step_id] for step_id in ids if step_id in state.rows}
            if old and not replace:
                raise DuplicateStepError(next(iter(old)))
            pins = {step_id: state.steps[row].pin for step_id, row in old.items()}
            state.remove(sorted(old.values()))
            rows = [state.add_step(*entry, pin=pins.get(entry[0])) for entry in encoded]
            if old:
                state.remove_empty_runs()
            return rows

    def get(self, ids: Sequence[str], *, vectors: bool = False) -> list[AgentStep]:
        """Return the steps with these ids in the order asked."""
        with self._opened() as state:
            rows = [state.rows.get(id_text(step_id)) for step_id in ids]
            return [_shown(state, row, vectors=vectors) for row in rows if row is not None]

    def find(
        self, where: StepFilter, *, limit: int, offset: int = 0, newest_first: bool = False
    ) -> list[AgentStep]:
        """Return one page of the steps that match."""
        with self._opened() as state:
            found = self._matching(state, where)
            if where.run_id is not None:
                found.sort(key=lambda stored: stored.place)
            if newest_first:
                found.reverse()
            return [_shown(state, stored.row) for stored in found[offset : offset + limit]]

    def rows(self, where: StepFilter) -> Rows:
        """Return the rows that match, ascending."""
        with self._opened() as state:
            return np.array([stored.row for stored in self._matching(state, where)], dtype=np.int64)

    def users(self, where: StepFilter, *, limit: int) -> list[str]:
        """Return users that the steps name which match, each once."""
        with self._opened() as state:
            users = {stored.step.user_id: None for stored in self._matching(state, where)}
            return [user for user in users if user is not None][:limit]

    def hidden_rows(self) -> Hidden:
        """Return the rows that recall leaves out."""
        with self._opened() as state:
            hides = state.sessions.hides
            abandoned = [row for row, stored in state.steps.items() if hides(stored.pin)]
            revoked = sorted(state.rows[step_id] for step_id in _revoked(state))
            return Hidden(np.array(abandoned, np.int64), np.array(revoked, np.int64))

    def step_keys(
        self, names: Sequence[StepKey], *, after: int, limit: int
    ) -> tuple[Rows, dict[StepKey, list[str | None]]]:
        """Return the next rows above `after` with their keys."""
        with self._opened() as state:
            newer = list(takewhile(lambda row: row > after, reversed(state.steps)))
            rows = newer[::-1][:limit]
            page = [state.steps[row] for row in rows]
        return np.array(rows, np.int64), {name: list(map(_KEYS[name], page)) for name in names}

    def read(self, rows: Sequence[int]) -> dict[int, AgentStep]:
        """Return the steps in these rows."""
        with self._opened() as state:
            return {int(row): _shown(state, int(row)) for row in rows if int(row) in state.steps}

    def children(self, ids: Sequence[str]) -> list[AgentStep]:
        """Return the steps whose parent is one of `ids`, by row."""
        with self._opened() as state:
            parents = {id_text(step_id) for step_id in ids}
            rows = [row for parent in parents for row in state.children.get(parent, [])]
            return [_shown(state, row) for row in sorted(rows)]

    def iter_steps(self, where: StepFilter) -> Iterator[AgentStep]:
        """Yield all matching steps by row; those deleted meanwhile are left out."""
        rows = self.rows(where).tolist()
        for start in range(0, len(rows), _PAGE):
            yield from self.read(rows[start : start + _PAGE]).values()

    def runs(self, *, limit: int, offset: int = 0) -> list[RunSummary]:
        """Return runs, the one begun last first."""
        with self._opened() as state:
            begun = {run_id: min(s.row for s in run) for run_id, run in state.runs.items()}
            newest = sorted(begun, key=lambda run_id: begun[run_id], reverse=True)
            return [_summary(state, run_id) for run_id in newest[offset : offset + limit]]

    def score_run(self, run_id: str, value: float, feedback: str | None) -> None:
        """Set a run's score."""
        check_score(run_id, value, feedback)
        with self._opened() as state:
            if run_id not in state.runs:
                raise UnknownRunError(run_id)
            state.run_scores[run_id] = RunScore(value, feedback)

    def waiting(self, seconds: float) -> AbstractContextManager[None]:  # noqa: ARG002 - no writer holds it for long
        """Change nothing."""
        return nullcontext()

    def frontier(self) -> Frontier:
        """Return the newest position and the newest row."""
        with self._opened() as state:
            return Frontier(state.position(), state.last_row)

    def pending_texts(
        self, limit: int, *, after: int = 0, through: int = NEWEST
    ) -> list[PendingText]:
        """Return the next steps without words, or with stale ones."""
        with self._opened() as state:
            if len(state.texts) == len(state.steps) and not state.stale:
                return []  # known at once, and so asked before every search
            rows = (row for row in state.steps if after < row <= through)
            pending = (row for row in rows if row not in state.texts or row in state.stale)
            return [_pending(state, row) for row, _ in zip(pending, range(limit), strict=False)]

    def save_texts(self, texts: Sequence[TextRow]) -> None:
        """Save words, and note whose words went stale by that."""
        self.save_derived(texts, [])

    def pending_vectors(
        self, limit: int, *, after: int = 0, through: int = NEWEST
    ) -> list[tuple[int, AgentStep]]:
        """Return the next steps without an embedding."""
        with self._opened() as state:
            if len(state.vectors) == len(state.steps):
                return []
            within = (row for row in state.steps if after < row <= through)
            pending = (row for row in within if row not in state.vectors)
            rows = [row for row, _ in zip(pending, range(limit), strict=False)]
            return [(row, decode_body(state.steps[row].body)) for row in rows]

    def save_vectors(self, vectors: Sequence[VectorRow], *, model_id: str | None = None) -> None:
        """Save embeddings of steps that have none."""
        self.save_derived([], vectors, model_id=model_id)

    def save_derived(
        self, texts: Sequence[TextRow], vectors: Sequence[VectorRow], *, model_id: str | None = None
    ) -> int:
        """Save words and embeddings; return how many windows went stale."""
        with self._opened() as state:
            stored = self._embedder[0] if self._embedder else None
            if model_id not in (None, stored):
                raise EmbedderMismatchError(str(stored), str(model_id))
            for saved in vectors:
                state.save_vector(int(saved.row), saved.text_hash, saved.vector)
            return state.mark_stale([int(text.row) for text in texts if state.save_text(text)])

    def position(self) -> Position:
        """Return the newest position."""
        return self.frontier().position

    def changes(self, since: Position, *, limit: int = 100_000) -> Changes:
        """Return what happened after `since`."""
        with self._opened() as state:
            newest = state.position()
            if since.epoch != newest.epoch:
                since = newest._replace(text=0, vector=0)
            new_texts = (saved for saved in state.texts.values() if saved.seq > since.text)
            new_vectors = (saved for saved in state.vectors.values() if saved.seq > since.vector)
            texts = sorted(new_texts, key=lambda saved: saved.seq)[:limit]
            vectors = sorted(new_vectors, key=lambda saved: saved.seq)[:limit]
            reached = newest._replace(
                text=texts[-1].seq if len(texts) == limit else newest.text,
                vector=vectors[-1].seq if len(vectors) == limit else newest.vector,
            )
            return Changes(
                reached,
                [saved.text for saved in texts],
                [saved.vector for saved in vectors],
                state.tombstones[since.tombstone :],
            )

    def identity(self) -> StoreIdentity:
        """Return the store's id and embedder."""
        with self._opened():
            return StoreIdentity(self._store_id, *(self._embedder or (None, None)))

    def set_embedder(self, model_id: str, dimension: int) -> None:
        """Remember the embedder; another than before drops all embeddings."""
        with self._opened() as state:
            if self._embedder not in (None, (model_id, dimension)):
                state.vectors.clear()
                state.epoch += 1
            self._embedder = (model_id, dimension)

    def delete(self, ids: Sequence[str]) -> int:
        """Delete steps with text and embedding."""
        with self._opened() as state:
            asked = {id_text(step_id) for step_id in ids}
            rows = [state.rows[step_id] for step_id in asked if step_id in state.rows]
            state.remove(sorted(rows))
            state.remove_empty_runs()
            state.remove_marks()
            return len(rows)

    def clear(self) -> None:
        """Delete everything."""
        with self._opened() as state:
            self._state = state.cleared()

    def vacuum(self) -> None:
        """Delete what no session reads."""
        self.sweep()

    def places(self) -> list[str]:
        """Return what was noted."""
        return list(self._places)

    def note_place(self, place: str) -> None:
        """Note another file of texts of this store."""
        self._places = sorted({*self._places, place})

    def compact(self) -> tuple[str, ...]:
        """Do nothing: what was deleted is gone already."""
        return ()

    def verify(self) -> list[str]:
        """Return what does not hold together; no checksums, since nothing lies on a disk."""
        with self._opened() as state:
            derived = {*state.texts, *state.vectors, *state.stale, *state.rows.values()}
            windows = (saved.text.parent_row for saved in state.texts.values())
            derived.update(row for row in windows if row is not None)
            lost = sorted(derived - state.steps.keys())
            return [f"row {row}: derived data without a step" for row in lost]

    def stats(self) -> dict[str, Any]:
        """Return counts and sizes."""
        with self._opened() as state:
            embedded = sum(saved.vector.vector is not None for saved in state.vectors.values())
            named = {stored.step.session_id for stored in state.steps.values()} - {None}
            return {
                "steps": len(state.steps),
                "runs": len(state.runs),
                "sessions": len(named | state.sessions.sessions.keys()),
                "messages": len(state.sessions.messages),
                "embedded": embedded,
                "text_only": len(state.vectors) - embedded,
                "pending_texts": len(state.steps) - len(state.texts) + len(state.stale),
                "pending_vectors": len(state.steps) - len(state.vectors),
                "dangling_parents": sum(
                    stored.parent_id is not None and stored.parent_id not in state.rows
                    for stored in state.steps.values()
                ),
                "bytes": sum(sys.getsizeof(stored.body) for stored in state.steps.values()),
                "backend": "in_memory",
                "durability": self._durability,
            }

    def close(self) -> None:
        """Forget everything."""
        with self._lock:
            self._closed = True
            self._state = State()

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

    def _matching(self, state: State, where: StepFilter) -> list[Stored]:
        everything = state.steps.values()
        calls = {
            stored.id
            for stored in everything
            if where.program is not None
            and stored.step.step_type == "ProgramCall"
            and program_called(stored.step) == where.program
        }
        lineage = {} if where.session_id is None else state.sessions.lineage(where.session_id)
        revoked = _revoked(state)
        gone, tools = frozenset(where.exclude_run_id or ()), frozenset(where.tools or ())
        any_tool = where.tools is None
        where = where.model_copy(update={"exclude_run_id": None, "tools": None})  # sets are quicker
        return [
            stored
            for stored in everything
            if stored.step.run_id not in gone
            and (any_tool or tool_used(stored.step) in tools)
            and matches(
                stored.step,
                where,
                _standing(state, stored, where, lineage)._replace(revoked=stored.id in revoked),
                score=state.score(stored),
                calls=calls,
            )
        ]

    @contextmanager
    def _opened(self) -> Generator[State]:
        """Give the state while nobody else has it."""
        with self._lock:
            if self._closed:
                raise MemoryClosedError("this in-memory store was closed; its steps are gone.")
            yield self._state


_KEYS: dict[StepKey, Callable[[Stored], str | None]] = {
    "user_id": lambda stored: stored.step.user_id,
    "program_id": lambda stored: stored.step.program_id,
    "program": lambda stored: program_called(stored.step),
    "call_id": lambda stored: stored.id if stored.step.step_type == "ProgramCall" else None,
    "tool": lambda stored: tool_used(stored.step),
    "step_type": lambda stored: str(stored.step.step_type),
    "scope": lambda stored: stored.step.scope,
    "status": lambda stored: stored.step.status,
    "created_at": lambda stored: stored.step.created_at.isoformat(),
    "source": lambda stored: source_of(stored.step.metadata),
}


def _shown(state: State, row: int, *, vectors: bool = False) -> AgentStep:
    """Return a copy of a step as readers see it: with its run's score when it has none."""
    stored = state.steps[row]
    step = decode_body(stored.body)
    step.score = state.score(stored)
    saved = state.vectors.get(row)
    if vectors and saved is not None and saved.vector.vector is not None:
        step.vector = saved.vector.vector.tolist()
    return step


def _pending(state: State, row: int) -> PendingText:
    parent = state.parent(row)
    shown = None if parent is None else decode_body(state.steps[parent].body)
    return PendingText(row, decode_body(state.steps[row].body), parent, shown)


def _revoked(state: State) -> set[str]:
    """Return the ids of all steps that are revoked."""
    mark_late(state)
    return {step_id for marks in state.marks.values() for step_id in marks}


def _standing(state: State, stored: Stored, where: StepFilter, lineage: dict[int, int]) -> Standing:
    pin = stored.pin
    if where.session_id is None:
        in_session = True
    elif pin is None:
        in_session = stored.step.session_id == where.session_id
    else:
        in_session = pin.sequence <= lineage.get(pin.branch_id, 0)
    return Standing(in_session, state.sessions.hides(pin))


def _summary(state: State, run_id: str) -> RunSummary:
    run, said = state.runs[run_id], state.run_scores.get(run_id)
    steps = [stored.step for stored in run]
    times = sorted(step.created_at.isoformat() for step in steps)
    return RunSummary(
        run_id=run_id,
        session_id=max((s.session_id for s in steps if s.session_id is not None), default=None),
        scope=max((s.scope for s in steps if s.scope is not None), default=None),
        steps=len(steps),
        errors=sum(step.status == "error" for step in steps),
        first_step=run[0].id,
        started_at=times[0],
        ended_at=times[-1],
        score=said.score if said else None,
        feedback=said.feedback if said else None,
    )
