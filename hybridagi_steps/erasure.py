"""What a purge erases: steps, messages, and what files outside of the memory hold of them.

A filter of only a session means everything of it: messages, attempts, AgentSteps, durable runs.
What a fork of another session still reads stays with that fork. A filter of only a user means all
that user said: whole sessions, and of sessions shared with others the turns that only that user's
AgentSteps belong to, in forks, too. Where another session reads on, a message is replaced by a mark
in its place, so that no sequence moves. Any further condition picks single AgentSteps, and sessions
keep their messages.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from hybridagi_steps.errors import UnknownSessionError
from hybridagi_steps.outside_files import QueuedRun, StateFolder, erase_from_queue, plan_runs
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.filters import EVERY_SCOPE, StepFilter
from hybridagi_steps.records.message import SUMMARY_OF, MessageRole, Step, new_id
from hybridagi_steps.records.store_values import Attempt
from hybridagi_steps.validation import in_every_scope

ERASED = "[erased]"
"""What stands in the place of a message that was erased and whose place is still read."""
_WHOLE = ("session_id", "user_id", "run_id")
"""Conditions that, alone, mean all that belongs to somebody or something."""
_PAGE = 500


class Erased(int):
    """How many messages and AgentSteps were erased; compares and counts as that number.

    Attributes:
        unreached: Files that may still hold some of it, which this memory could not open: a queue
            that is gone or held by others, a workspace's folder that is away, statistics of a
            PostgreSQL database that belongs to another user; the database itself when somebody
            reads it: its old pages go with the next `purge` or `vacuum` after that.
    """

    unreached: tuple[str, ...]

    def __new__(cls, count: int = 0, unreached: Iterable[str] = ()) -> Erased:
        """Return a number with the files that were not reached."""
        made = super().__new__(cls, count)
        made.unreached = tuple(unreached)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return Erased, (int(self), self.unreached)


@dataclass
class _Traces:
    """What steps say about where else they left something."""

    plans: dict[str, str | None] = field(default_factory=dict[str, str | None])
    """By the key of a plan's run, the state folder of its workspace."""

    def add(self, steps: Iterable[AgentStep]) -> None:
        """Note what steps say."""
        for step in steps:
            notes = step.metadata or {}
            if isinstance(key := notes.get("plan_run"), str):
                state = notes.get("workspace")
                self.plans[key] = self.plans.get(key) or (str(state) if state else None)


class Doomed(NamedTuple):
    """What a filter means beside the AgentSteps that match it."""

    sessions: list[str]
    """Sessions that go as a whole."""
    messages: list[Step]
    """Messages that go wherever they are read."""


def erase(store: Any, where: StepFilter, namespace: str, beside: Path | None) -> Erased:
    """Delete what a filter means.

    Args:
        store: Where from.
        where: Which steps; some condition of it leaves something out.
        namespace: The memory's, by which queues tell its runs.
        beside: The memory's file; None when it is none.
    """
    asked = where.model_dump(exclude_none=True)
    doomed, unreached, meant = doomed_by(store, where), list[str](), meant_by(store, where)
    if len(asked) == 1 and asked.keys() <= set(_WHOLE):
        traces = _Traces()
        if "session_id" not in asked:  # which would be its lineage, and so other sessions' as well
            traces.add(step for each in meant for step in store.iter_steps(each))
        for name in doomed.sessions:
            traces.add(step for step in _steps_of(store, name) if step.session_id == name)
        unreached = _erase_outside(store, traces, _queued(store, asked, doomed, namespace), beside)
    # First of all, so that a purge that was cut short finds the same when it is repeated.
    count = store.rewrite_messages({message.id: _erased(message) for message in doomed.messages})
    for name in doomed.sessions:
        messages, steps = store.delete_session(name)
        count += steps if doomed.messages else messages + steps
    rest = [id_text(step.id) for each in meant for step in store.iter_steps(each)]
    count += store.delete(rest)
    store.forget_revocations(where)
    return Erased(count, unreached)


def erase_all(store: Any, namespace: str, beside: Path | None) -> Erased:
    """Delete everything of a namespace; what is in queues and states of workspaces, too."""
    traces = _Traces()
    traces.add(store.iter_steps(StepFilter(program="Orchestrator", scope=EVERY_SCOPE)))
    queue = f"session-runs:{namespace}"
    unreached = _erase_outside(store, traces, lambda run: run.queue == queue, beside)
    store.clear()
    return Erased(0, unreached)


def meant_by(store: Any, where: StepFilter) -> list[StepFilter]:
    """Return what AgentSteps a filter means, trial runs included; no step passes two of them.

    The id of a durable run stands for the runs of the memory that carried it out.
    """
    asked, every = where.model_dump(exclude_none=True), in_every_scope(where)
    if where.run_id is None or len(asked) > 1:
        return [every]
    runs = {where.run_id, *_runs_of(store, where.run_id)}
    return [every.model_copy(update={"run_id": run}) for run in sorted(runs)]


def doomed_by(store: Any, where: StepFilter) -> Doomed:
    """Return the sessions that go as a whole, and the messages that go wherever they are read."""
    asked = where.model_dump(exclude_none=True)
    if asked.keys() == {"session_id"}:
        return Doomed([asked["session_id"]], [])
    if asked.keys() != {"user_id"}:
        return Doomed([], [])
    user_id: str = asked["user_id"]
    whole: list[str] = []
    gone: dict[str, Step] = {}
    for session_id in _sessions_near(store, user_id):
        users = {step.user_id for step in _steps_of(store, session_id)} - {None}
        if users == {user_id}:
            whole.append(session_id)
        attempts: list[Attempt] = store.attempts(session_id) if user_id in users else []
        for branch in attempts:
            line = store.messages(session_id, branch_id=branch.branch_id)
            own = line[branch.forked_at :]
            if users != {user_id}:
                own = _own_turns(store, session_id, branch.branch_id, line, user_id)
            gone |= {message.id: message for message in own}
    return Doomed(whole, list(gone.values()))


def _sessions_near(store: Any, user_id: str) -> list[str]:
    """Return the sessions that a user's steps name, and every fork: it may read one of them."""
    steps = store.iter_steps(StepFilter(user_id=user_id, scope=EVERY_SCOPE))
    named = {step.session_id for step in steps}
    return sorted(
        each.session_id
        for each in _summaries(store)
        if each.session_id in named or each.forked_at is not None
    )


def _summaries(store: Any) -> Iterator[Any]:
    start = 0
    while page := store.sessions(limit=_PAGE, offset=start):
        yield from page
        start += len(page)


def _steps_of(store: Any, session_id: str) -> list[AgentStep]:
    """Return the AgentSteps of a session and of its attempts, those that only name it included."""
    found = {
        id_text(step.id): step
        for step in store.iter_steps(StepFilter(session_id=session_id, scope=EVERY_SCOPE))
    }
    attempts: list[Attempt]
    try:
        attempts = store.attempts(session_id)
    except UnknownSessionError:
        attempts = []
    hidden = [
        step_id
        for branch in attempts
        for _, step_id in store.pinned_steps(session_id, branch_id=branch.branch_id)
        if step_id not in found
    ]
    return [*found.values(), *store.get(hidden)]


def _own_turns(
    store: Any, session_id: str, branch_id: int, line: list[Step], user_id: str
) -> list[Step]:
    """Return the messages of a shared line that are this user's alone, and summaries of them.

    A turn is a message of a user and all up to the next one. It belongs to the users of the
    AgentSteps that stand at its messages, or that its messages name as their run. A step may have
    been written before its message, or after: one at the first message of a turn counts for the
    turn before when nothing answered that one and nobody else is known of it.
    """
    pins = store.pinned_steps(session_id, branch_id=branch_id)
    users = {id_text(step.id): step for step in store.get([step_id for _, step_id in pins])}
    at: dict[int, set[str]] = {}
    of_run: dict[str, set[str]] = {}
    for sequence, step_id in pins:
        step = users.get(step_id)
        if step is not None and step.user_id is not None:
            at.setdefault(sequence, set()).add(step.user_id)
            of_run.setdefault(step.run_id or "", set()).add(step.user_id)
    named = store.iter_steps(StepFilter(session_id=session_id, scope=EVERY_SCOPE))
    early = {step.user_id for step in named if id_text(step.id) not in users} - {None}
    at.setdefault(1, set()).update(early)
    own: list[Step] = []
    taken = 0
    for turn in _turns(line):
        places = range(turn[0].sequence, turn[-1].sequence + 1)
        beyond = at.get(places.stop, set())
        owners = {user for place in places if place != taken for user in at.get(place, ())}
        owners |= {user for message in turn for user in of_run.get(message.run_id or "-", ())}
        if places.stop > line[-1].sequence:
            owners |= beyond
        elif len(turn) == 1 and beyond and not owners:
            owners, taken = beyond, places.stop
        if (owners or at.get(places.start)) == {user_id}:
            own += turn
    return own + _summaries_of(line, {message.id for message in own})


def _turns(line: list[Step]) -> list[list[Step]]:
    turns: list[list[Step]] = [[]]
    for message in line:
        if message.is_user_step() and any(each.is_user_step() for each in turns[-1]):
            turns.append([])
        turns[-1].append(message)
    return turns


def _summaries_of(line: list[Step], gone: set[str]) -> list[Step]:
    """Return the summaries that stand for something that goes."""
    return [
        message
        for message in line
        if message.id not in gone
        and not gone.isdisjoint((message.metadata or {}).get(SUMMARY_OF) or ())
    ]


def _erased(message: Step) -> Step:
    """Return what stands in a message's place: a message that any provider takes, of nobody."""
    spoken = (MessageRole.USER, MessageRole.SYSTEM)
    role = message.role if message.role in spoken else MessageRole.ASSISTANT
    return Step(
        id=str(new_id()),
        session_id=message.session_id,
        role=role,
        content=ERASED,
        created_at=message.created_at,
    )


def _queued(
    store: Any, asked: dict[str, Any], doomed: Doomed, namespace: str
) -> Callable[[QueuedRun], bool]:
    """Return what tells the durable runs that a filter means."""
    queue, runs = f"session-runs:{namespace}", asked.get("run_id")

    def gone(run: QueuedRun) -> bool:
        if run.queue != queue:
            return False
        order: dict[str, Any] = json.loads(run.text)
        if runs is not None:
            return runs == run.id or runs in _runs_of(store, run.id)
        mine = "user_id" in asked and order["user_id"] == asked["user_id"]
        return mine or order["session_id"] in doomed.sessions

    return gone


def _runs_of(store: Any, message_id: str) -> set[str]:
    """Return the runs of a durable run: those of the turn that its first message begins.

    A run that was taken up by another worker is several; a retry of the turn is none of them.
    """
    if (place := store.place_of(message_id)) is None:
        return set()
    session_id, first = place
    for branch in store.attempts(session_id):
        if branch.forked_at < first <= branch.forked_at + branch.messages:
            line = store.messages(session_id, first, first + 2 * _PAGE, branch_id=branch.branch_id)
            turn = next(iter(_turns(line)))
            if turn and turn[0].id == message_id and turn[0].is_user_step():
                return {message.run_id for message in turn if message.run_id}
    return set()


def _erase_outside(
    store: Any, traces: _Traces, gone: Callable[[QueuedRun], bool], beside: Path | None
) -> list[str]:
    """Erase from queues and workspace states; return those that could not be reached."""
    planned, unreached = plan_runs(traces.plans), list[str]()
    for place in _queues(store, beside):
        try:
            erase_from_queue(Path(place), lambda run: gone(run) or planned(run))
        except (OSError, sqlite3.Error):
            unreached.append(place)
    for key, state in traces.plans.items():
        try:
            if state is not None:
                StateFolder(Path(state)).forget_run(key)
        except (OSError, ValueError):
            unreached.append(str(state))
    return list(dict.fromkeys(unreached))


def _queues(store: Any, beside: Path | None) -> list[str]:
    """Return the queues that the memory knows of, and the one beside its file."""
    known: list[str] = store.places()
    own = None if beside is None else beside.with_name(f"{beside.name}.runs")
    found = [str(own.absolute())] if own is not None and own.is_file() else []
    return list(dict.fromkeys([*known, *found]))
