"""Runs, calls and control paths: who called whom, and which step comes next after which.

A `Run` numbers steps and commits them; a `Path` knows the last steps at one level of calls; a
`Call` is one call in flight; a `CallTree` finds calls by id and forgets them when they end. Nothing
here knows DSPy or how a step looks, so the order of steps can be tested without either.

Order within a path is decided at the start of a call: on the path's own strand it follows
everything that has ended (branches join there), on another strand it is a branch and follows what
that branch did before, or the last step on the path's own strand.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple, ParamSpec, TypeVar
from uuid import UUID
from weakref import WeakSet

from hybridagi_steps._concurrency import ForkSafeLock
from hybridagi_steps.errors import InvalidSettingError, InvalidStepError
from hybridagi_steps.recording_hooks import Recalled, RunInFlight
from hybridagi_steps.records.message import new_id
from hybridagi_steps.validation import check_id

P = ParamSpec("P")
R = TypeVar("R")

_HOME: ContextVar[object | None] = ContextVar("hybridagi_steps_strand", default=None)


class Strand(NamedTuple):
    """A line of execution. `home` alone tells tasks and threads apart."""

    home: object
    unit: object
    """What differs between two units of work that one pool thread serves in turn."""

    @property
    def key(self) -> tuple[int, int]:
        """Identity of the strand, valid while the strand is referenced."""
        return id(self.home), id(self.unit)


def current_strand(unit: object = None) -> Strand:
    """Return the strand of the running code.

    A pool thread serves one `unit` of work after the other; they are compared by identity.
    """
    task = _task()
    if task is not None:
        if _HOME.get() is not task:
            _HOME.set(task)
        return Strand(task, unit)
    return Strand(_HOME.get() or threading.current_thread(), unit)


def settle() -> None:
    """Make contexts copied from this one continue its strand."""
    if _task() is None and _HOME.get() is None:
        _HOME.set(threading.current_thread())


def on_own_strand(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function as a branch of its own."""
    _HOME.set(object())
    return function(*args, **kwargs)


def _task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


_BRANCHES_KEPT = 256

# One lock for all paths: it is held for less than a microsecond, and a lock per call costs more.
_paths = ForkSafeLock()


class Tail(NamedTuple):
    """A stored step that the next one may follow; the greatest has the highest hop."""

    hop: int
    step_id: UUID
    recalled: tuple[str, ...] = ()
    """What it says that it recalled: what follows it may hold the same."""


Tails = tuple[Tail, ...]


class Path:
    """The control path through one call on a strand; its first step follows those in `start`.

    Nothing in a `detached` one follows anything: trial runs stand alone.
    """

    __slots__ = ("_branches", "_detached", "_home", "_last", "_open")

    def __init__(self, strand: Strand, start: Tails = (), *, detached: bool = False) -> None:
        self._home = strand.home
        self._detached = detached
        self._last: Tails = start
        self._open: list[Tail] = list(start)
        self._branches: dict[tuple[int, int], tuple[Strand, Tails]] = {}

    def enter(self, strand: Strand) -> Tails:
        """Return the steps that a call starting now on `strand` follows."""
        if self._detached:
            return ()
        with _paths:
            if strand.home is self._home:
                self._last = tuple(self._open)
                return self._last
            branch = self._branches.get(strand.key)
            return self._last if branch is None else branch[1]

    def leave(self, strand: Strand, followed: Tails, tail: Tail) -> None:
        """Note that a call which followed `followed` has ended with the step `tail`."""
        if self._detached:
            return
        with _paths:
            self._open = [known for known in self._open if known not in followed]
            self._open.append(tail)
            if strand.home is self._home:
                self._last = (tail,)
                return
            self._branches[strand.key] = (strand, (tail,))
            if len(self._branches) > _BRANCHES_KEPT:
                del self._branches[next(iter(self._branches))]

    @property
    def branches_known(self) -> int:
        """How many branches it remembers the last step of."""
        return len(self._branches)

    def tails(self) -> Tails:
        """Return the last steps: those that nothing has followed yet."""
        with _paths:
            return tuple(self._open)


def parent_and_joins(tails: Tails) -> tuple[UUID | None, list[str]]:
    """Return the id of the step with the highest hop, and the ids of the others by hop."""
    if not tails:
        return None, []
    *others, last = sorted(tails)
    return last.step_id, [str(tail.step_id) for tail in others]


class Maker(NamedTuple):
    """The predictor that makes a step, as `AgentStep` names it."""

    predictor: str | None
    signature: str | None


NO_PREDICTOR = Maker(None, None)


@dataclass(frozen=True, slots=True)
class Labels:
    """What every step of a recording carries."""

    session_id: str | None = None
    user_id: str | None = None
    scope: str | None = None
    tags: Mapping[str, Any] = field(default_factory=dict[str, Any])
    keep_prompts: bool = False

    @classmethod
    def of(
        cls,
        session_id: str | None,
        user_id: str | None,
        tags: Mapping[str, Any] | None,
        scope: str | None,
        keep_prompts: bool = False,
    ) -> Labels:
        """Return labels that every step can carry: a step that is refused would be lost."""
        if not isinstance(keep_prompts, bool):  # pyright: ignore[reportUnnecessaryIsInstance] - callers err
            raise InvalidSettingError(f"keep_prompts is True or False, not {keep_prompts!r:.80}.")
        names = {"session_id": session_id, "user_id": user_id, "scope": scope}
        for name, value in names.items():
            if value is not None:
                check_id(name, value)
        if tags is not None and not isinstance(tags, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - callers err
            raise InvalidStepError(f"tags are a mapping, not {type(tags).__name__}.")
        return cls(session_id, user_id, scope, dict(tags or {}), keep_prompts)

    def over(self, outer: Labels) -> Labels:
        """Return these labels where they say something, else those of `outer`."""
        return Labels(
            session_id=self.session_id if self.session_id is not None else outer.session_id,
            user_id=self.user_id if self.user_id is not None else outer.user_id,
            scope=self.scope if self.scope is not None else outer.scope,
            tags={**outer.tags, **self.tags},
            keep_prompts=self.keep_prompts or outer.keep_prompts,
        )


class Tried(NamedTuple):
    """What the outermost call of a trial run tries."""

    call_id: str
    example: str
    notes: Mapping[str, Any]
    """What the metadata of the run's last step says of the candidate."""


class Run:
    """One query → response cycle: numbers its steps in the order they are stored.

    It `tries` something if it is no part of the user's own history, maybe in an `outer` recorded
    block; `problems` receives what recording failed at. `notes` are kept in the metadata of all its
    steps; `tried` is, once its outermost call has begun, what that tries.
    """

    __slots__ = (
        *("__weakref__", "_hop", "_lock", "id", "notes", "outer", "path", "problems"),
        *("recalled", "tried", "tries"),
    )

    def __init__(
        self, strand: Strand, problems: list[Any], tries: Any = None, outer: Run | None = None
    ) -> None:
        self.id = str(new_id())
        self.problems = problems
        self.path = Path(strand)
        self.outer = outer
        self.recalled: dict[str, None] = {} if outer is None else dict(outer.recalled)
        self.tries = tries
        self.tried: Tried | None = None
        self.notes: Mapping[str, Any] = {}
        self._hop = 0
        # Held while a step is stored, so that hops have no gap and parents precede children on
        # disk; reentrant, because storing may run a redaction that is itself a program.
        self._lock = threading.RLock()
        _runs.add(self)

    def in_flight(self, labels: Labels, scope: str | None) -> RunInFlight:
        """Return what listings show of it."""
        return RunInFlight.of(self.id, labels.session_id, labels.user_id, scope, labels.tags)

    def unlock_in_child(self) -> None:
        """Forget who held the lock: that thread stayed behind in the parent process."""
        self._lock = threading.RLock()

    def commit(self, store: Callable[[int, UUID], Any], step_id: UUID | None = None) -> Tail:
        """Call `store(hop, step_id)`; the hop is used up unless it raises or answers False."""
        with self._lock:
            tail = Tail(self._hop, step_id or new_id())
            if store(tail.hop, tail.step_id) is not False:
                self._hop += 1
            return tail


_runs: WeakSet[Run] = WeakSet()


def _unlock_runs() -> None:
    for run in list(_runs):
        run.unlock_in_child()


if hasattr(os, "register_at_fork"):  # absent on Windows, which cannot fork
    os.register_at_fork(after_in_child=_unlock_runs)


@dataclass(slots=True, eq=False)
class Call:
    """One call in flight that leaves steps, or a level that only sets its steps apart."""

    call_id: str
    subject: Any
    inputs: Mapping[str, Any]
    parent: Call | None
    run: Run | None
    strand: Strand
    path: Path
    outer_path: Path | None
    followed: Tails
    program_id: str | None
    scope: str | None
    labels: Labels
    state: Any = None
    """Whatever the recorder needs to know about this kind of call."""
    step_id: UUID | None = None
    """The id of its step, when somebody spoke of that step before it was written."""
    maker: Maker = NO_PREDICTOR
    """The predictor it is a call of, or that led to it."""
    notes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Kept in the metadata of its steps."""
    cuts: list[str] = field(default_factory=list[str])
    """What of its inputs was not kept whole, when they were copied before it ran."""
    recalled: dict[str, None] = field(default_factory=dict[str, None])
    """Ids of the steps and messages that came into its prompts or into its hands."""
    watch: Callable[[Any, bool], None] | None = None
    """Is given each of its steps as it was written, and whether that could be stored."""
    within: str | None = None
    """Id of the tool's step that it stands directly inside."""
    attempt: list[Any] | None = None
    """Receives the steps of the attempt that it is, or stands in."""
    started: float = field(default_factory=time.perf_counter)

    def note_recalled(self, recalled: Recalled) -> None:
        """Note what it was given of other runs."""
        if not recalled:
            return
        own = self.run.id if self.run is not None else None
        self.recalled.update(
            (name, None) for name, run in recalled.items() if run != own or not run
        )

    @property
    def elapsed_ms(self) -> float:
        """Milliseconds since the call started."""
        return (time.perf_counter() - self.started) * 1000

    def end_with(self, tail: Tail) -> None:
        """Note the call's last step on the path it stands on."""
        if self.outer_path is not None:
            self.outer_path.leave(self.strand, self.followed, tail)


class CallTree(dict[str | None, Call]):
    """The calls in flight, by id. A call that adds no level stands for its parent: is that call."""

    def open(
        self,
        call_id: str,
        subject: object,
        inputs: Mapping[str, Any],
        *,
        parent: Call | None,
        run: Run,
        strand: Strand,
        labels: Labels,
        scope: str | None,
    ) -> Call:
        """Add a call below `parent`, or at the top of `run`."""
        outer = parent.path if parent is not None and parent.run is run else run.path
        followed = outer.enter(strand)
        call = Call(
            call_id=call_id,
            subject=subject,
            inputs=inputs,
            parent=parent,
            run=run,
            strand=strand,
            path=Path(strand, followed),
            outer_path=outer,
            followed=followed,
            program_id=parent.program_id if parent is not None else None,
            scope=scope,
            labels=labels,
            attempt=parent.attempt if parent is not None else None,
        )
        self[call_id] = call
        return call

    def set_apart(
        self, call_id: str, *, parent: Call | None, run: Run | None, strand: Strand, scope: str
    ) -> Call:
        """Add a level whose steps follow nothing outside it: an evaluation, a compilation."""
        call = Call(
            call_id=call_id,
            subject=None,
            inputs={},
            parent=parent,
            run=run,
            strand=strand,
            path=Path(strand, detached=True),
            outer_path=None,
            followed=(),
            program_id=parent.program_id if parent is not None else None,
            scope=scope,
            labels=Labels(),
        )
        self[call_id] = call
        return call

    def close(self, call_id: str) -> Call | None:
        """Forget a call and return it; None when it added no level, or has ended before."""
        call = self.pop(call_id, None)
        return call if call is not None and call.call_id == call_id else None
