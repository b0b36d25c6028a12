"""Routes of sessions: list, read, compare, preview, fork, hide. Each is one call of the store."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Response
from starlette.exceptions import HTTPException

from hybridagi_steps._concurrency import in_thread
from hybridagi_steps.context import ContextBuilder, Receipt
from hybridagi_steps.erasure import erase, is_stored, purge_filter
from hybridagi_steps.errors import UnknownSequenceError, UnknownSessionError
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.records.message import Step
from hybridagi_steps.records.run import RunMetrics
from hybridagi_steps.records.store_values import Erased
from hybridagi_steps.search.formulas import Aim
from hybridagi_steps.server import schemas as shapes
from hybridagi_steps.server.problems import problems
from hybridagi_steps.server.schemas import SESSION, SessionId, answer
from hybridagi_steps.server.security import PURGE
from hybridagi_steps.server.services import Shared, Who
from hybridagi_steps.server.slots import WorkRoute
from hybridagi_steps.server.tokens import Caller
from hybridagi_steps.server.views import filled
from hybridagi_steps.sessions.branch_compare import BranchSide, compare
from hybridagi_steps.sessions.session_details import (
    SessionDetails,
    describe_session,
    session_details,
)

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

router = APIRouter(tags=["sessions"], route_class=WorkRoute)

LARGEST_PAGE = 1000
Limit = Annotated[int, Query(ge=1, le=LARGEST_PAGE, description="Most entries wanted.")]
Offset = Annotated[int, Query(ge=0, le=shapes.LARGEST_SEQUENCE, description="Entries passed over.")]
At = Annotated[int, Path(ge=1, le=shapes.LARGEST_SEQUENCE, description="Place in the session.")]
From = Annotated[int, Query(ge=1, le=shapes.LARGEST_SEQUENCE, description="First sequence.")]
To = Annotated[int, Query(ge=1, le=shapes.LARGEST_SEQUENCE, description="Last, included.")]
Recall = Literal["session", "all"]
_BUDGET = (
    "Most tokens. The system prompt and the newest message have to fit: with less than they need, "
    "which differs from session to session, the answer is 422 and says how much."
)
_AIM = (
    "What older steps are searched for: what was done after a step like this session's newest one, "
    "the run that did this, or which tool can do this."
)
_UNREACHED = "a file of the server"
"""What a user hears instead of paths."""
_OF_RUNS = {"session_id", "run_id", "user_id"}
"""Conditions that mean runs as a whole, those in flight too."""
Branch = Annotated[int, Query(ge=0, le=shapes.LARGEST_SEQUENCE, description="One of `attempts`.")]


@router.get("/sessions", response_model=shapes.SessionPage, responses=problems())
async def list_sessions(
    shared: Shared,
    caller: Who,
    limit: Limit = 50,
    offset: Offset = 0,
    user_id: Annotated[shapes.Id | None, Query(description="Whose.")] = None,
) -> Response:
    """List sessions, the one written last first; one without messages has only recorded `runs`."""
    page = {"limit": limit + 1, "offset": offset}
    whose = caller.acts_as(user_id)
    found = await shared.asked("sessions", shared.memory.sessions, **page, user_id=whose)
    more = offset + limit if len(found) > limit else None
    listed = [filled(**asdict(summary)) for summary in found[:limit]]
    return answer(filled(sessions=listed, next_offset=more))


@router.get("/sessions/{session_id}", response_model=SessionDetails, responses=problems(404))
async def read_details(shared: Shared, caller: Who, session_id: SessionId) -> Response:
    """Return the title and metadata of a session."""
    return answer(await session_details(shared.sessions_of(caller), session_id))


@router.patch("/sessions/{session_id}", response_model=SessionDetails, responses=problems(404, 415))
async def change_details(
    shared: Shared, caller: Who, session_id: SessionId, asked: SessionDetails
) -> Response:
    """Give a session a title, metadata or both, and return what it has; what is absent stays."""
    made = await describe_session(
        shared.sessions_of(caller), session_id, title=asked.title, metadata=asked.metadata
    )
    return answer(made)


@router.get(SESSION + "/steps", response_model=shapes.StepPage, responses=problems(404))
async def list_steps(
    shared: Shared,
    session_id: SessionId,
    start_seq: From = 1,
    end_seq: To | None = None,
    limit: Annotated[int, Query(ge=1, le=100_000, description="Most messages; all.")] | None = None,
    markdown: Annotated[bool, Query(description="Whether answers are wanted as HTML.")] = False,
) -> Response:
    """Return a session's messages in order."""
    store = shared.repository.store
    ends_at = (end_seq, None if limit is None else start_seq + limit - 1)
    last = min((end for end in ends_at if end is not None), default=None)

    def read() -> tuple[list[Step], bool]:
        steps = store.messages(session_id, start_seq, last)
        ends = store.session_end(session_id).sequence if limit is not None else 0
        return steps, last is not None and last < min(ends, end_seq or ends)

    steps, more = await shared.asked("steps", read)
    next_seq = steps[-1].sequence + 1 if steps and more else None
    html = await in_thread(partial(answers_html, steps)) if markdown else None
    return answer(filled(steps=steps, next_seq=next_seq, html=html))


@router.get(SESSION + "/steps/{sequence}", response_model=Step, responses=problems(404))
async def read_step(shared: Shared, session_id: SessionId, sequence: At) -> Response:
    """Return one message."""
    store = shared.repository.store

    def read() -> Step:
        if found := store.messages(session_id, sequence, sequence):
            return found[0]
        raise UnknownSequenceError(session_id, sequence, store.session_end(session_id).sequence)

    return answer(await shared.asked("step", read))


@router.delete(SESSION + "/steps", response_model=shapes.Deleted, responses=problems(404, 409))
async def delete_steps(
    shared: Shared, caller: Who, session_id: SessionId, start_seq: From
) -> Response:
    """Hide the messages from one on; they stay in `attempts` until the memory is vacuumed."""
    _check_idle(shared, caller, session_id)
    store = shared.repository.store
    hidden = await shared.asked("delete", store.hide_from, session_id, start_seq)
    shared.hub.forget(StepFilter(session_id=session_id))
    return answer({"deleted": hidden})


@router.post(SESSION + "/fork", response_model=shapes.ForkShape, responses=problems(404, 409, 415))
async def fork(
    shared: Shared, caller: Who, session_id: SessionId, asked: shapes.ForkAsked
) -> Response:
    """Start a session that shares this one's messages up to one; nothing is copied."""
    with shared.metrics.queries.labels("fork").time():
        if asked.new_session_id is not None:
            await in_thread(partial(shared.check_new, caller, asked.new_session_id))
        sessions = shared.sessions_of(caller)
        made = await sessions.fork(session_id, asked.sequence, asked.new_session_id)
    shared.metrics.forks.inc()
    return answer({"new_session_id": made.session_id, "sequence": made.sequence})


@router.get(SESSION + "/attempts", response_model=shapes.AttemptList, responses=problems(404))
async def list_attempts(shared: Shared, session_id: SessionId) -> Response:
    """Return all branches of a session, oldest first, abandoned ones too."""
    found = await shared.asked("attempts", shared.repository.store.attempts, session_id)
    return answer({"attempts": found})


@router.get(SESSION + "/compare", response_model=shapes.Comparison, responses=problems(404))
async def compare_branches(
    shared: Shared, session_id: SessionId, branch_a: Branch, branch_b: Branch
) -> Response:
    """Return what two branches have after the point where they part."""
    asked = (shared.repository.store, session_id, branch_a, branch_b)
    found = await shared.asked("compare", compare, *asked)
    sides = {"a": _side(found.left), "b": _side(found.right)}
    return answer({"shared": found.shared, **sides})


@router.get(SESSION + "/context", response_model=shapes.ContextShape, responses=problems(404))
async def preview_context(
    shared: Shared,
    caller: Who,
    session_id: SessionId,
    budget: Annotated[int, Query(ge=1, le=10_000_000, description=_BUDGET)] = 4000,
    recent: Annotated[int, Query(ge=1, le=10_000, description="Newest units, as they are.")] = 6,
    k: Annotated[int, Query(ge=0, le=100, description="Older steps recalled.")] = 5,
    query: Annotated[str, Query(min_length=1, max_length=4_000)] | None = None,
    recall: Annotated[Recall, Query(description="Where older steps come from.")] = "session",
    aim: Annotated[Aim | None, Query(description=_AIM)] = None,
) -> Response:
    """Return the session's messages under a budget, and the receipt of what was left out.

    Older steps are recalled from this session; with `recall=all` from the whole memory.
    """
    of_session = session_id if recall == "session" else None
    where = filled(session_id=of_session, user_id=caller.only_user) or None
    builder = ContextBuilder(shared.memory, budget=budget, recent=recent, k=k, where=where, aim=aim)
    with shared.metrics.contexts.time():
        made = await shared.asked("context", builder.build, session_id=session_id, query=query)
    return answer({"messages": made.messages, "receipt": _receipt(made.receipt)})


@router.delete(
    "/sessions/{session_id}", response_model=shapes.Erasure, responses=problems(404, 409)
)
async def purge_session(shared: Shared, caller: Who, session_id: SessionId) -> Response:
    """Erase a session for good: messages, attempts, AgentSteps; what a fork reads stays with it.

    One with a slash in its id is erased by `/purge`: here that could be another route's path.
    """
    _check_idle(shared, caller, session_id)
    where = StepFilter(session_id=session_id)

    def purge_now() -> Erased:
        known = shared.is_there(session_id)
        erased = shared.memory.purge(where, by=caller.only_user)
        if erased or known:  # where a fork reads all of it nothing counts as erased
            return erased
        raise UnknownSessionError(session_id)

    return await _purged(shared, caller, where, purge_now)


@router.post(PURGE, response_model=shapes.Erasure, responses=problems(409, 415))
async def purge(shared: Shared, caller: Who, asked: shapes.PurgeAsked) -> Response:
    """Erase what a filter means, for good, as `StepMemory.purge` does; needs the scope `delete`."""
    where = purge_filter(asked.where)  # refused, if it is, before any run is ended
    where = caller.may_know(where)
    session_id = where.session_id
    if session_id is not None and await in_thread(partial(shared.is_allowed, caller, session_id)):
        _check_idle(shared, caller, session_id)
    if where.conditions <= _OF_RUNS and not await shared.hub.end(where):
        raise HTTPException(409, "a run of these is still in flight, though cancelled; ask again.")

    def purge_own() -> Erased:
        store, memory = shared.repository.store, shared.memory
        if caller.only_user is None or is_stored(store, where):
            return memory.purge(where)
        # What all users share is left alone; runs of theirs may wait in a queue.
        return erase(store, where, memory.namespace, memory.whole_address, caller.only_user)

    return await _purged(shared, caller, where, purge_own)


async def _purged(
    shared: Shared, caller: Caller, where: StepFilter, purge_now: Callable[[], Erased]
) -> Response:
    """Erase, from what the hub keeps of runs too, and say what was."""
    erased = await shared.asked("purge", purge_now)
    if erased or where.conditions <= _OF_RUNS:
        shared.hub.forget(where)
    said = {"erased": int(erased), **vars(erased)}
    if erased.unreached and caller.only_user is not None:
        said["unreached"] = [_UNREACHED]
    if caller.only_user is not None:  # of others' sessions it is counted only
        known = partial(filter, partial(shared.is_allowed, caller), erased.sessions_left)
        said["sessions_left"] = await in_thread(lambda: [*known()])
    return answer(said)


def _check_idle(shared: Shared, caller: Caller, session_id: str) -> None:
    """Check that no run is in flight in a session that the caller may know."""
    if (run := shared.hub.active_in(session_id)) is not None:
        own = caller.only_user in (None, run.user_id)
        which = f", {run.run_id}; cancel it first." if own else "; it has to end first."
        raise HTTPException(409, f"session {session_id!r} has a run in flight{which}")


def _side(side: BranchSide) -> dict[str, Any]:
    metrics = RunMetrics.of(*(step.metrics for step in side.steps if step.metrics is not None))
    parts = [count for count in (side.input_tokens, side.output_tokens) if count is not None]
    return filled(
        messages=side.steps,
        tokens=sum(parts) if parts else None,
        cost=side.cost,
        score=side.score,
        duration_ms=metrics.duration_ms,
    )


def _receipt(receipt: Receipt) -> dict[str, Any]:
    return {
        "kept": [entry._asdict() for entry in receipt.kept],
        "dropped": [entry._asdict() for entry in receipt.dropped],
        **{name: getattr(receipt, name) for name in ("tokens", "budget", "counter_id", "notes")},
    }


LONGEST = 50_000
"""Characters; a longer text stays as it is."""
_LEADS_OUT = re.compile("https?://|mailto:", re.IGNORECASE)


def answers_html(steps: Iterable[Step]) -> dict[str, str]:
    """Return as HTML, by id, what the assistant says in these messages."""
    texts = {step.id: step.content for step in steps if step.is_assistant_step()}
    return {
        step_id: as_html(text)
        for step_id, text in texts.items()
        if isinstance(text, str) and 0 < len(text) <= LONGEST
    }


def as_html(text: str) -> str:
    """Return Markdown as HTML that may stand in the page.

    HTML in a text is shown as text, and only what leads to another page or to a mail is a link:
    images are links, and no style is written, which the page's content policy forbids.
    """
    parser = _parser()
    tokens = parser.parse(text)
    for token in tokens:
        token.attrs.pop("style", None)
        for part in token.children or ():
            if part.type == "link_open":
                part.attrs |= {"rel": "noopener noreferrer nofollow", "target": "_blank"}
    return parser.renderer.render(tokens, parser.options, {})


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False})
    parser.validateLink = lambda url: _LEADS_OUT.match(url) is not None
    return parser.enable(["table", "strikethrough"]).disable("image")
