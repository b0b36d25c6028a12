"""Routes that let the program speak: chat, retry, resume, and completions for OpenAI's clients.

The run goes on when the reader leaves; only `POST /runs/{id}/cancel` stops it.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
    Sequence,
)
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any
from uuid import NAMESPACE_URL, uuid5
from weakref import WeakValueDictionary

from fastapi import APIRouter, Header, Request, Response
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from hybridagi_steps._concurrency import in_thread
from hybridagi_steps.errors import SequenceConflictError, UnknownProgramError, UnknownSessionError
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.records.event import StepEvent
from hybridagi_steps.records.message import MessageRole, Step, new_id, utc_now
from hybridagi_steps.records.provenance import SOURCE
from hybridagi_steps.records.store_values import BranchPosition
from hybridagi_steps.server import openai_form
from hybridagi_steps.server import schemas as shapes
from hybridagi_steps.server.openai_form import CompletionAsked, End, Reading
from hybridagi_steps.server.schemas import SESSION, SessionId, answer
from hybridagi_steps.server.services import Services, Shared, Who
from hybridagi_steps.server.slots import JsonRoute, disconnected
from hybridagi_steps.server.sse import EventStream, Frame, KeyedMessage, LiveRun, streams
from hybridagi_steps.server.tokens import Caller
from hybridagi_steps.server.views import filled
from hybridagi_steps.validation import admitted_messages

if TYPE_CHECKING:
    from hybridagi_steps.running.limits import AgentSession

router = APIRouter(tags=["chat"], route_class=JsonRoute)

_RUN_FAILED = 500
_CLIENT: dict[str, Any] = {SOURCE: {"kind": "client"}}
"""Of messages that nobody here said or heard: a client says that they were said."""
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


@router.get("/v1/models", response_model=openai_form.ModelList, responses=openai_form.refusals())
async def list_models(shared: Shared) -> Response:
    """List the program that is served, if there is one."""
    return answer({"object": "list", "data": _models(shared)})


@router.get(
    "/v1/models/{model}", response_model=openai_form.Model, responses=openai_form.refusals(404)
)
async def get_model(shared: Shared, model: str) -> Response:
    """Describe the program that is served."""
    models = {each["id"]: each for each in _models(shared)}
    if model not in models:
        raise UnknownProgramError(model, list(models))
    return answer(models[model])


def _models(shared: Services) -> list[dict[str, Any]]:
    created, name = int(shared.conversations.began_at.timestamp()), shared.hub.program_name
    about = {"object": "model", "created": created, "owned_by": "hybridagi_steps"}
    return [] if name is None else [{"id": name, **about}]


@router.post(
    "/v1/chat/completions",
    response_model=openai_form.Completion,
    responses={200: openai_form.chunks(), **openai_form.refusals(404, 409, 415, 500)},
)
async def complete(
    shared: Shared, caller: Who, request: Request, asked: CompletionAsked
) -> Response:
    """Answer the last message of a conversation."""
    run, user_id = await start_run(shared, caller, asked)
    stream = CompletionStream(run, shared, asked, user_id)
    if asked.stream:
        return stream
    async with shared.slots.place():
        await run_end(run, request)
    return stream.whole()


async def start_run(
    shared: Services, caller: Caller, asked: CompletionAsked
) -> tuple[LiveRun, str | None]:
    """Begin the run that answers a conversation; return it with the user it is for."""
    runner, name = shared.hub.runner, shared.hub.program_name
    if asked.model != name:
        raise UnknownProgramError(asked.model, [] if name is None else [name])
    shared.slots.check()
    shared.hub.check()
    from hybridagi_steps.running.limits import AgentSession

    user_id = caller.acts_as(asked.user)
    if caller.only_user is None:  # else it is counted already
        await shared.check_rate(user_id)
    session_id, earlier = await _session_of(shared, caller, asked, user_id)
    session = AgentSession(session_id, user_id, as_any_user=caller.only_user is None)
    await shared.hub.check_idle(session_id)
    said: Any = asked.messages[-1].content
    events = runner.run_stream(session, said)
    if earlier:
        events = _after(partial(_append_new, shared, session, earlier), events)
    run = await shared.hub.start(events, user_id)
    assert run is not None  # noqa: S101 - a new message always begins one
    return run, user_id


class CompletionStream(EventStream):
    """A run's text as chunks of a chat completion."""

    def __init__(
        self, run: LiveRun, shared: Services, asked: CompletionAsked, user_id: str | None
    ) -> None:
        """Answer `asked` with the events of `run`."""
        super().__init__(run, 0, shared.slots, shared.settings)
        self._shared, self._asked, self._user_id = shared, asked, user_id
        self._read = Reading()
        self._about = {
            "id": f"chatcmpl-{run.run_id}",
            "created": int(utc_now().timestamp()),
            "model": asked.model,
            "session_id": run.session_id,
        }

    def form(self, frame: Frame) -> bytes:
        """Return the chunks that an event becomes."""
        begins = frame.number == 1
        piece = self._read.read(frame)
        bodies = [self._chunk({"role": "assistant", "content": ""})] if begins else []
        bodies += [self._chunk({"content": piece})] if piece else []
        if self._read.ending is None:
            return openai_form.frames(bodies)
        if not self._read.completed:
            return openai_form.frames([*bodies, self._fault()])
        self._keep(self._read.text)
        bodies.append(self._chunk({}, "stop"))
        options = self._asked.stream_options
        if options is not None and options.include_usage:
            cost = openai_form.usage(self._read.ending)
            bodies.append({**self._chunk({}), "choices": [], "usage": cost})
        return openai_form.frames(bodies) + b"data: [DONE]\n\n"

    def whole(self) -> Response:
        """Return the completion of a run that is over."""
        self._run.after(0, self._taken)
        if self._read.ending is None or not self._read.completed:
            return JSONResponse(self._fault(), _RUN_FAILED, openai_form.NO_RETRY)
        text = self._read.answer
        self._keep(text)
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        cost = openai_form.usage(self._read.ending)
        about = {**self._about, "object": "chat.completion", "choices": [choice]}
        return answer(filled(**about, usage=cost))

    def _taken(self, frame: Frame) -> bytes:
        self._read.read(frame)
        return b""

    def _chunk(self, delta: Mapping[str, str], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return {**self._about, "object": "chat.completion.chunk", "choices": [choice]}

    def _fault(self) -> dict[str, Any]:
        """Say how a run ended that did not complete."""
        ending = self._read.ending or {"termination_reason": "the server's end"}
        error: dict[str, str] = ending.get("error", {})
        why = error.get("message") or str(ending.get("termination_reason"))
        about = f"run {self._run.run_id} did not complete: {why}"
        return openai_form.fault(about, _RUN_FAILED, error.get("type"))

    def _keep(self, text: str) -> None:
        """Note what the client was given, so that it can go on from there."""
        ending, session_id = self._read.ending or {}, self._run.session_id
        if session_id is not None:
            position = BranchPosition(ending["branch_id"], ending["last_sequence"])
            said = [*self._asked.transcript, ("assistant", text)]
            self._shared.conversations.keep(self._user_id, said, End(session_id, position))


async def _session_of(
    shared: Services, caller: Caller, asked: CompletionAsked, user_id: str | None
) -> tuple[str, list[Step]]:
    """Return the session that a request goes on with: the named, the continued, else a new one.

    A new one begins with the messages before the last, which are returned, too.
    """
    session_id, *before = asked.session_id, *asked.transcript[:-1]
    end_of = partial(_end_of, shared)
    if session_id is not None:
        check = partial(shared.sessions_of(caller).check_allowed, session_id, new=True)
        await in_thread(check)
        if await in_thread(partial(end_of, session_id)) is not None:
            return session_id, []
    else:
        known = shared.conversations.take(user_id, before)
        if known and await in_thread(partial(end_of, known.session_id)) == known.position:
            return known.session_id, []
    session_id = session_id or str(new_id())
    return session_id, [_stored_form(*each, session_id) for each in before if each[1]]


async def _append_new(shared: Services, session: AgentSession, steps: Sequence[Step]) -> None:
    """Begin a session with messages."""
    sessions = shared.memory.repository(user_id=session.user_id)
    await sessions.append(session.session_id, steps, expect_last=0)


async def _after(
    first: Callable[[], Awaitable[None]], events: AsyncIterator[StepEvent]
) -> AsyncGenerator[StepEvent]:
    """Yield events once something is done, which a run that gets no place never does."""
    await first()
    async for event in events:
        yield event


def _end_of(shared: Services, session_id: str) -> BranchPosition | None:
    """Return where a session ends, None when it is not there; may block."""
    try:
        return shared.repository.store.session_end(session_id)
    except UnknownSessionError:
        return None


def _stored_form(role: str, content: Any, session_id: str) -> Step:
    """Return a client's earlier message as it is kept."""
    known = MessageRole.SYSTEM if role == "developer" else MessageRole(role)
    return Step(session_id=session_id, role=known, content=content, metadata=_CLIENT)


async def run_end(run: LiveRun, request: Request) -> None:
    """Wait for a run's end as long as the client does."""
    left = asyncio.ensure_future(disconnected(request.receive))
    try:
        while not run.ended:
            await asyncio.wait({run.change(), left}, return_when=asyncio.FIRST_COMPLETED)
            if left.done():
                raise ClientDisconnect
    finally:
        left.cancel()
