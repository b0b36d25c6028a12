"""What a purge erases: steps, messages, and what files outside of the memory hold of them.

A filter of only a session means all of it; what a fork of it still reads stays with that fork. A
filter of only a user means whole sessions, and of shared ones the messages that name that user or
nobody, where that user's steps are alone. Any other picks AgentSteps, and sessions that all match.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

from hybridagi_steps.errors import InvalidFilterError, UnknownSessionError
from hybridagi_steps.outside_files import (
    QueuedRun,
    Whose,
    queue_of_jobs,
    queue_of_plans,
    queues_of_runs,
)
from hybridagi_steps.protocols import MessageIndex, StoreBackend
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.filters import EVERY_SCOPE, StepFilter
from hybridagi_steps.records.message import ERASED, SUMMARY_OF, MessageRole, Step, new_id
from hybridagi_steps.records.store_values import DENIALS, RULES, Erased, details_id
from hybridagi_steps.stores.outside_work import erase_outside, texts_of
from hybridagi_steps.stores.prompts import forget_prompts_beyond
from hybridagi_steps.validation import Where, in_every_scope

_WHOLE = ({"session_id"}, {"user_id"}, {"run_id"})
"""Conditions that, alone, mean all that belongs to somebody or something."""
_LONGEST_TURN = 1_000
_EVERY_SESSION = 2**62


class Doomed(NamedTuple):
    """What a filter means beside the AgentSteps that match it."""

    sessions: list[str]
    """Sessions that go as a whole."""
    messages: list[Step]
    """Messages that go wherever they are read."""


def purge_filter(where: Where) -> StepFilter:
    """Return a filter to erase by.

    Raises:
        InvalidFilterError: No condition of it picks anything.
    """
    if (criteria := StepFilter.of(where)).picks_nothing:
        needs = "purge needs a condition that picks something, besides any `exclude`"
        raise InvalidFilterError(f"{needs}; clear() deletes all.")
    return criteria


def erase(
    store: StoreBackend, where: StepFilter, namespace: str, address: str, by: str | None
) -> Erased:
    """Delete what a filter means, some condition of which leaves something out.

    By `namespace` queues tell the memory's runs; its own queue is found by its `address`.
    AgentSteps of others than the user who asks (`by`) stay; None: they go.
    """
    count, unreached, left = 0, dict[str, None](), set[int]()
    for each in _one_by_one(where):
        gone, places, staying = _erase(store, each, namespace, address, by)
        count, unreached, left = count + gone, unreached | dict.fromkeys(places), left | staying
    left = left & _matching_messages(store, StepFilter()) if left else left
    return Erased(count, unreached, len(left), _sessions_of(store, left))


def _one_by_one(where: StepFilter) -> list[StepFilter]:
    """Return filters of one user or run each, where a filter names only several of them."""
    if where.conditions == {"user_id"}:
        return [where.model_copy(update={"user_id": user}) for user in where.users]
    if where.conditions == {"run_id"}:
        return [where.model_copy(update={"run_id": run}) for run in where.runs]
    return [where]


def _erase(
    store: StoreBackend, where: StepFilter, namespace: str, address: str, by: str | None
) -> tuple[int, list[str], set[int]]:
    """Delete what a filter means; return how much, what was not reached, and matching messages."""
    doomed, meant = doomed_by(store, where), meant_by(store, where)
    matching = _matching_messages(store, where)
    rewritten = _rows_of(store, [message.id for message in doomed.messages])
    unreached: list[str] = []
    steps = [step for name in doomed.sessions for step in _steps_of(store, name)]
    own = [*_of_user((step for step in steps if step.session_id in doomed.sessions), by)]
    # Of a session it would be its lineage, and so other sessions' as well.
    each_meant = meant if where.conditions != {"session_id"} else []
    steps = [*_of_user((step for each in each_meant for step in store.iter_steps(each)), by)]
    if where.conditions in _WHOLE or doomed.sessions:
        whole = own + steps if where.conditions in _WHOLE else own
        queued = _queued_runs(store, where, doomed, namespace)
        whose = Whose(namespace, str(where.user_id) if where.conditions == {"user_id"} else None)
        unreached = erase_outside(store, whole, queued, address, whose)
    # In this order a purge that was cut short finds the same when it is repeated.
    forget_prompts_beyond(store, own + steps, doomed.messages, doomed.sessions)
    count = store.rewrite_messages({message.id: _erased(message) for message in doomed.messages})
    for name in doomed.sessions:
        count += store.delete([id_text(s.id) for s in _of_user(_steps_beside(store, name), by)])
        messages, steps_gone = store.delete_session(name, by=by)
        count += steps_gone if doomed.messages else messages + steps_gone
    count += store.delete([id_text(step.id) for step in steps])
    store.delete([details_id(name) for name in doomed.sessions])
    store.forget_revocations(where)
    return count, unreached, matching - rewritten


def _of_user(steps: Iterable[AgentStep], by: str | None) -> Iterable[AgentStep]:
    return (step for step in steps if by in (None, step.user_id or by))


def is_stored(store: StoreBackend, where: StepFilter) -> bool:
    """Whether anything is stored that a filter means."""
    doomed = doomed_by(store, where)
    steps = any(len(store.rows(each)) for each in meant_by(store, where))
    return bool(steps or doomed.sessions or doomed.messages or _matching_messages(store, where))


def erase_all(store: StoreBackend, namespace: str, address: str) -> Erased:
    """Delete everything of a namespace; what is in queues and states of workspaces, too."""
    plans = store.iter_steps(StepFilter(program="Orchestrator", scope=EVERY_SCOPE))
    queues = {*queues_of_runs(namespace), queue_of_jobs(namespace), queue_of_plans(namespace)}
    whose = Whose(namespace, everybody=True)
    unreached = erase_outside(store, plans, lambda run: run.queue in queues, address, whose)
    store.clear()
    return Erased(0, unreached)


def meant_by(store: StoreBackend, where: StepFilter) -> list[StepFilter]:
    """Return what AgentSteps a filter means, trial runs included; no step passes two of them.

    The id of a durable run stands for the runs of the memory that carried it out.
    """
    every = in_every_scope(where)
    if where.conditions != {"run_id"}:
        return [every]
    runs = {*where.runs}.union(*(_runs_of(store, run) for run in where.runs))
    return [every.model_copy(update={"run_id": run}) for run in sorted(runs)]


def doomed_by(store: StoreBackend, where: StepFilter) -> Doomed:
    """Return the sessions that go as a whole, and the messages that go wherever they are read."""
    if len(several := _one_by_one(where)) > 1:
        sessions, messages = zip(*(doomed_by(store, each) for each in several), strict=True)
        return Doomed([*chain(*sessions)], [*chain(*messages)])
    asked = where.conditions
    if where.session_id is not None and asked == {"session_id"}:
        return Doomed([where.session_id], [])
    if asked == {"run_id"}:
        return Doomed([], [])
    if not isinstance(user_id := where.user_id, str) or asked != {"user_id"}:
        return Doomed(_whole_sessions(store, where), [])
    whole: list[str] = []
    gone: dict[str, Step] = {}
    # Those that only the runs of their messages say whose they are.
    of_runs = set(_whole_sessions(store, where))
    for session_id in sorted({*_sessions_near(store, user_id), *of_runs}):
        users = {*map(_speaker, _steps_of(store, session_id))}
        with suppress(UnknownSessionError):
            users |= {message.user_id for message in _messages_of(store, session_id)}
        users -= {None}
        if session_id in of_runs:
            users = {user_id}
        if users == {user_id}:
            whole.append(session_id)
        for branch in store.attempts(session_id) if user_id in users else []:
            line = store.messages(session_id, branch_id=branch.branch_id)
            own = line[branch.forked_at :]
            if users != {user_id}:
                own = _own_turns(store, session_id, branch.branch_id, line, user_id)
            gone |= {message.id: message for message in own}
    return Doomed(whole, list(gone.values()))


def _whole_sessions(store: StoreBackend, where: StepFilter) -> list[str]:
    """Return the sessions of which every message matches, and every AgentStep."""
    if not (matching := _matching_messages(store, where)):
        return []
    steps = {id_text(step.id) for step in store.iter_steps(in_every_scope(where))}
    whole: list[str] = []
    for name in _with_forks(store, _sessions_of(store, matching)):
        with suppress(UnknownSessionError):  # a message that no session reads is named after one
            said = {message.id for message in _messages_of(store, name)}
            every = len(rows := _rows_of(store, said)) == len(said) and rows <= matching
            if every and steps.issuperset(id_text(step.id) for step in _steps_of(store, name)):
                whole.append(name)
    return whole


def _with_forks(store: StoreBackend, names: Iterable[str]) -> list[str]:
    """Return sessions with their forks, and those of these."""
    found = {*names}
    forks = [each for each in store.sessions(limit=_EVERY_SESSION) if each.forked_at]
    while new := {each.session_id for each in forks if each.forked_from in found} - found:
        found |= new
    return sorted(found)


def _matching_messages(store: StoreBackend, where: StepFilter) -> set[int]:
    """Return the rows of the messages that match, whatever their scope."""
    if not isinstance(store, MessageIndex):
        return set()
    return {*store.message_rows(in_every_scope(where)).tolist()}


def _rows_of(store: StoreBackend, message_ids: Iterable[str]) -> set[int]:
    if not isinstance(store, MessageIndex):
        return set()
    return {*store.rows_of_messages([*message_ids]).values()}


def _sessions_of(store: StoreBackend, rows: Set[int]) -> list[str]:
    """Return the sessions that read messages: of each message one."""
    found: set[str] = set()
    known: set[int] = set()
    for row in sorted(rows):
        if row not in known and isinstance(store, MessageIndex):
            for place in store.message_places([row]).values():
                found.add(place.session_id)
                known |= _matching_messages(store, StepFilter(session_id=place.session_id))
    return sorted(found)


def _sessions_near(store: StoreBackend, user_id: str) -> list[str]:
    """Return the sessions that a user's steps name, and every fork: it may read one of them."""
    steps = store.iter_steps(StepFilter(user_id=user_id, scope=EVERY_SCOPE))
    named = {step.session_id for step in steps}
    named |= {*_sessions_of(store, _matching_messages(store, StepFilter(user_id=user_id)))}
    return sorted(
        each.session_id
        for each in store.sessions(limit=_EVERY_SESSION)
        if each.session_id in named or each.forked_at is not None
    )


def _messages_of(store: StoreBackend, session_id: str) -> Iterator[Step]:
    """Yield the messages of a session and of its attempts; shared ones come several times."""
    for branch in store.attempts(session_id):
        yield from store.messages(session_id, branch_id=branch.branch_id)


def _steps_of(store: StoreBackend, session_id: str) -> list[AgentStep]:
    """Return the AgentSteps of a session and of its attempts, those that only name it included."""
    pinned: dict[str, None] = {}
    with suppress(UnknownSessionError):
        for branch in store.attempts(session_id):
            pins = store.pinned_steps(session_id, branch_id=branch.branch_id)
            pinned |= dict.fromkeys(step_id for _, step_id in pins)
    return [*_steps_beside(store, session_id), *store.get([*pinned])]


def _steps_beside(store: StoreBackend, session_id: str) -> list[AgentStep]:
    """Return the AgentSteps that name a session and stand at no message, as before its first."""
    pinned = {step_id for _, step_id in store.pinned_steps(session_id)}
    named = store.iter_steps(StepFilter(session_id=session_id, scope=EVERY_SCOPE))
    return [step for step in named if id_text(step.id) not in pinned]


def _speaker(step: AgentStep) -> str | None:
    """Return whose a step says the words around it are; a rule is only about whom it names."""
    return None if step.scope in (RULES, DENIALS) else step.user_id


class _Turn(NamedTuple):
    """A message of a user and all up to the next one, with the users that may own it."""

    messages: list[Step]
    at_first: set[str]
    """Users of the AgentSteps that stand at its first message."""
    others: set[str]
    """Those that its messages name, and users of the AgentSteps at its other messages and of the
    runs that its messages name."""


def _own_turns(
    store: StoreBackend, session_id: str, branch_id: int, line: list[Step], user_id: str
) -> list[Step]:
    """Return the messages of a shared line that are this user's alone, and summaries of them.

    A message that names a user is that user's; of the others it is the turn that says whose.
    """
    pins = store.pinned_steps(session_id, branch_id=branch_id)
    pinned = {id_text(step.id): step for step in store.get([step_id for _, step_id in pins])}
    at: dict[int, set[str]] = defaultdict(set)
    of_run: dict[str, set[str]] = defaultdict(set)
    for sequence, step_id in pins:
        step = pinned.get(step_id)
        if step is not None and (user := _speaker(step)) is not None:
            at[sequence].add(user)
            of_run[step.run_id or ""].add(user)
    at[1] |= {user for user in map(_speaker, _steps_beside(store, session_id)) if user is not None}
    turns: list[_Turn] = []
    for messages in _turns(line):
        first, *rest = (at[message.sequence] for message in messages)
        runs = (of_run[message.run_id] for message in messages if message.run_id)
        authors = {message.user_id for message in messages if message.user_id is not None}
        turns.append(_Turn(messages, first, authors.union(*rest, *runs)))
    after_all = at[line[-1].sequence + 1] if line else set[str]()
    own: list[Step] = []
    for turn, users in zip(turns, _owners(turns, after_all), strict=True):
        alone = users == {user_id}
        own += [m for m in turn.messages if m.user_id == user_id or (alone and m.user_id is None)]
    return own + _summaries_of(line, {message.id for message in own})


def _owners(turns: Sequence[_Turn], after_all: set[str]) -> list[set[str]]:
    """Return whose each turn of a line is; `after_all` are users of steps behind the last message.

    A step may have been written before its message, or after: then it stands at the first message
    of the next turn. So that one counts for a turn that nothing answered and nobody else is known
    of, and for the next turn only when nobody else is known of that either.
    """
    found: list[set[str]] = []
    first_counts = True
    for number, turn in enumerate(turns, 1):
        owners = turn.others | turn.at_first if first_counts else turn.others
        first_counts = True
        if number == len(turns):
            owners = owners | after_all
        elif len(turn.messages) == 1 and not owners and turns[number].at_first:
            owners, first_counts = turns[number].at_first, False
        found.append(owners or turn.at_first)
    return found


def _turns(line: list[Step]) -> list[list[Step]]:
    turns: list[list[Step]] = []
    for message in line:
        before = turns[-1] if turns else []
        if not before or (message.is_user_step() and any(map(Step.is_user_step, before))):
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
    session, at = message.session_id, message.created_at
    return Step(id=str(new_id()), session_id=session, role=role, content=ERASED, created_at=at)


def _queued_runs(
    store: StoreBackend, where: StepFilter, doomed: Doomed, namespace: str
) -> Callable[[QueuedRun], bool]:
    """Return what tells the durable runs that a filter means, and jobs about whom it erases."""
    queues, alone = (
        queues_of_runs(namespace),
        where.users if where.conditions == {"user_id"} else [],
    )

    def gone(run: QueuedRun) -> bool:
        if run.queue == queue_of_jobs(namespace):
            named = texts_of(json.loads(run.text)["arguments"])
            return not named.isdisjoint([*alone, *doomed.sessions])
        if run.queue not in queues:
            return False
        if where.conditions == {"run_id"}:
            return not {run.id, *_runs_of(store, run.id)}.isdisjoint(where.runs)
        order: dict[str, Any] = json.loads(run.text)
        return order["user_id"] in alone or order["session_id"] in doomed.sessions

    return gone


def _runs_of(store: StoreBackend, message_id: str) -> set[str]:
    """Return the runs of a durable run: those of the turn that its first message begins.

    A run that was taken up by another worker is several; a retry of the turn is none of them.
    """
    if (place := store.place_of(message_id)) is None:
        return set()
    session_id, first = place
    for branch in store.attempts(session_id):
        if branch.forked_at < first <= branch.forked_at + branch.messages:
            last = first + _LONGEST_TURN
            line = store.messages(session_id, first, last, branch_id=branch.branch_id)
            if line and line[0].id == message_id and line[0].is_user_step():
                return {message.run_id for message in _turns(line)[0] if message.run_id}
    return set()
