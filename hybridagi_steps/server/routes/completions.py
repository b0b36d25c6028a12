"""`/v1/models` and `/v1/chat/completions`: the program for clients of OpenAI's chat completions.

What the answers look like, `openai_form` says; newer clients ask at `/v1/responses`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from hybridagi_steps._concurrency import in_thread
from hybridagi_steps.errors import UnknownProgramError, UnknownSessionError
from hybridagi_steps.records.event import StepEvent
from hybridagi_steps.records.message import MessageRole, Step, new_id, utc_now
from hybridagi_steps.records.provenance import SOURCE
from hybridagi_steps.records.store_values import BranchPosition
from hybridagi_steps.server import openai_form
from hybridagi_steps.server.openai_form import CompletionAsked, Reading
from hybridagi_steps.server.schemas import answer
from hybridagi_steps.server.services import End, Services, Shared, Who
from hybridagi_steps.server.slots import JsonRoute, disconnected
from hybridagi_steps.server.sse import EventStream, Frame, LiveRun
from hybridagi_steps.server.tokens import Caller
from hybridagi_steps.server.views import filled

if TYPE_CHECKING:
    from hybridagi_steps.running.limits import AgentSession

router = APIRouter(tags=["chat"], route_class=JsonRoute)

_RUN_FAILED = 500
_CLIENT: dict[str, Any] = {SOURCE: {"kind": "client"}}
"""Of messages that nobody here said or heard: a client says that they were said."""


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
            transcript = [*self._asked.transcript, ("assistant", text)]
            self._shared.conversations.keep(self._user_id, transcript, End(session_id, position))


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
        end = shared.conversations.take(user_id, before)
        if end and await in_thread(partial(end_of, end.session_id)) == end.position:
            return end.session_id, []
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
    stored_role = MessageRole.SYSTEM if role == "developer" else MessageRole(role)
    return Step(session_id=session_id, role=stored_role, content=content, metadata=_CLIENT)


async def run_end(run: LiveRun, request: Request) -> None:
    """Wait for a run's end as long as the client does."""
    departure = asyncio.ensure_future(disconnected(request.receive))
    try:
        while not run.ended:
            await asyncio.wait({run.change(), departure}, return_when=asyncio.FIRST_COMPLETED)
            if departure.done():
                raise ClientDisconnect
    finally:
        departure.cancel()
