"""Routes that let the program speak: chat, retry and resume.

The run goes on when the reader leaves; only `POST /runs/{id}/cancel` stops it.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any
from uuid import NAMESPACE_URL, uuid5
from weakref import WeakValueDictionary

from fastapi import APIRouter, Header, Response

from hybridagi_steps._concurrency import in_thread
from hybridagi_steps.errors import SequenceConflictError, UnknownSessionError
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.records.message import Step, new_id
from hybridagi_steps.server import schemas as shapes
from hybridagi_steps.server.schemas import SESSION, SessionId
from hybridagi_steps.server.services import Services, Shared, Who
from hybridagi_steps.server.slots import JsonRoute
from hybridagi_steps.server.sse import EventStream, KeyedMessage, LiveRun, streams
from hybridagi_steps.server.tokens import Caller
from hybridagi_steps.validation import admitted_messages

if TYPE_CHECKING:
    from hybridagi_steps.running.limits import AgentSession

router = APIRouter(tags=["chat"], route_class=JsonRoute)

_CLAIM_SECONDS = 0.1
_locks: WeakValueDictionary[tuple[int, str], asyncio.Lock] = WeakValueDictionary()
"""One for each session of a hub that a keyed message is being said in."""

IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=200,
        description="Sent again with the same message, it gives the same run's events.",
    ),
]


@router.post("/chat/stream/v2", response_class=Response, responses=streams(404, 409, 415))
async def chat(
    shared: Shared, caller: Who, asked: shapes.ChatAsked, idempotency_key: IdempotencyKey = None
) -> Response:
    """Say something in a session and read what the program does."""
    from hybridagi_steps.running.limits import AgentSession

    runner = shared.hub.runner
    shared.slots.check()
    user_id, any_user = caller.acts_as(asked.user_id), caller.only_user is None
    if any_user:  # else it is counted already
        await shared.check_rate(user_id)
    key = idempotency_key  # without a session it names one, too: what is sent again goes there
    new = str(new_id()) if key is None else message_id_of("", key, user_id)
    session = AgentSession(asked.session_id or new, user_id, as_any_user=any_user)
    if not any_user and (session.session_id != new or key is not None):
        await in_thread(partial(shared.check_new, caller, session.session_id))
    if idempotency_key is not None:
        run = await _keyed_run(shared, session, asked.message, idempotency_key)
    else:
        await shared.hub.check_idle(session.session_id)
        run = await shared.hub.start(runner.run_stream(session, asked.message), user_id)
    return _stream(shared, run)


@router.post(SESSION + "/retry", response_class=Response, responses=streams(404, 409, 415))
async def retry(
    shared: Shared, caller: Who, session_id: SessionId, asked: shapes.RetryAsked
) -> Response:
    """Answer a message of the user once more, as it is or changed; the old answer is kept.

    The session takes the new answer over when the run has completed.
    """
    runner = shared.hub.runner
    shared.slots.check()
    session = _session(session_id, caller)
    await shared.hub.check_idle(session_id)
    if asked.message is None:
        events = runner.retry(session, asked.sequence)
    else:
        events = runner.edit(session, asked.sequence, asked.message)
    run = await shared.hub.start(events, caller.only_user)
    shared.metrics.retries.inc()
    return _stream(shared, run)


@router.post(
    SESSION + "/resume",
    response_class=Response,
    responses={204: {"description": "No turn was cut off."}, **streams(404, 409, 415)},
)
async def resume(
    shared: Shared, caller: Who, session_id: SessionId, asked: shapes.ResumeAsked | None = None
) -> Response:
    """Go on with a run that paused, given the answers, or that was cut off, as after a crash."""
    runner = shared.hub.runner
    shared.slots.check()
    await shared.hub.check_idle(session_id)
    answers = None if asked is None else asked.answers
    events = runner.resume(_session(session_id, caller), answers=answers)
    return _stream(shared, await shared.hub.start(events, caller.only_user))


def _session(session_id: str, caller: Caller) -> AgentSession:
    """Return a session with the user for whom it goes on."""
    from hybridagi_steps.running.limits import AgentSession

    return AgentSession(session_id, caller.only_user, as_any_user=caller.only_user is None)


def _stream(shared: Shared, run: LiveRun | None) -> Response:
    if run is None:
        return Response(status_code=204)
    return EventStream(run, 0, shared.slots, shared.settings)


async def _keyed_run(
    shared: Services, session: AgentSession, message: shapes.Message, key: str
) -> LiveRun | None:
    """Begin a run unless this key began one before; return the run of the key."""
    admitted = partial(_admitted, shared.memory, session.session_id, message)
    begun_by = KeyedMessage(key, await in_thread(admitted), session.user_id)
    # One at a time for each session: of two equal requests the second has to find the first's run.
    lock = _locks.setdefault((id(shared.hub), session.session_id), asyncio.Lock())
    async with lock:
        await shared.hub.follow_erasures()
        known = shared.hub.run_that_answers(session.session_id, session.user_id, key)
        if known is not None and known.begun_by is not None:
            _check_same(session.session_id, known.begun_by, begun_by)
            if shared.hub.is_live(known.run_id):
                return known
        message_id = message_id_of(session.session_id, key, session.user_id)
        look, claimed = partial(_stored, shared.memory, session.session_id, message_id), False
        while (stored := await in_thread(look)) is None and not claimed:
            # Of two servers that are asked at once the second finds what the first stores.
            claimed = await shared.hub.claim(message_id)
            await asyncio.sleep(0 if claimed else _CLAIM_SECONDS)
        if stored is not None and stored.run_id is not None:
            before = KeyedMessage(key, stored.to_message_dict())
            _check_same(session.session_id, before, begun_by)
            found = shared.hub.find(stored.run_id) or await shared.hub.elsewhere(stored.run_id)
            return found or await shared.hub.stored(stored.run_id, 0, message=stored)
        if known is not None:  # it failed before anything was stored
            return known
        await shared.hub.check_idle(session.session_id)
        events = shared.hub.runner.run_stream(session, message, message_id=message_id)
        run = await shared.hub.start(events, session.user_id)
        if run is not None:
            run.begun_by = begun_by
        return run


def message_id_of(session_id: str, key: str, user_id: str | None = None) -> str:
    """Return the id of the message that a user says with a key: each has keys of their own."""
    of_user = "" if user_id is None else f"\n{user_id}"
    return str(uuid5(NAMESPACE_URL, f"idempotency-key\n{session_id}\n{key}{of_user}"))


def _admitted(memory: StepMemory, session_id: str, message: shapes.Message) -> dict[str, Any]:
    """Return a message as the store would give it back."""
    said = {"role": "user", "content": message}
    return admitted_messages([said], session_id, memory.redact)[0].to_message_dict()


def _check_same(session_id: str, before: KeyedMessage, now: KeyedMessage) -> None:
    if before.message != now.message:
        raise SequenceConflictError(
            f"session {session_id!r}: the key {now.key!r} came with another message before. "
            "Use a new key for each message."
        )


def _stored(memory: StepMemory, session_id: str, message_id: str) -> Step | None:
    """Return the message that a key has stored; may block."""
    store = memory.repository().store
    if (place := store.place_of(message_id)) is not None:
        return store.messages(place[0], place[1], place[1])[0]
    try:
        attempts = store.attempts(session_id)
    except UnknownSessionError:
        return None
    for attempt in attempts:
        if attempt.current:
            continue
        first, last = attempt.forked_at + 1, attempt.forked_at + attempt.messages
        own = store.messages(session_id, first, last, branch_id=attempt.branch_id)
        if any(step.id == message_id for step in own):
            raise SequenceConflictError(
                f"session {session_id!r}: what this key said was deleted or edited since. Use a "
                "new key to say it again."
            )
    return None
