"""Routes that let the program speak: chat, retry, resume. Each answers with the run's events.

The run goes on when the reader leaves; only `POST /runs/{id}/cancel` stops it.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Response

from hybridagi_steps.records.ids import new_id
from hybridagi_steps.server import schemas as shapes
from hybridagi_steps.server.chat import said_once
from hybridagi_steps.server.ids import SESSION, SessionId
from hybridagi_steps.server.openapi import streams
from hybridagi_steps.server.route_classes import JsonRoute
from hybridagi_steps.server.services import Shared
from hybridagi_steps.server.sse import EventStream

router = APIRouter(tags=["chat"], route_class=JsonRoute)

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
    shared: Shared, asked: shapes.ChatAsked, idempotency_key: IdempotencyKey = None
) -> Response:
    """Say something in a session and read what the program does."""
    from hybridagi_steps.running.limits import AgentSession

    runner = shared.hub.runner
    shared.slots.check()
    session = AgentSession(asked.session_id or str(new_id()), asked.user_id)
    if idempotency_key is not None:
        run = await said_once(shared, session, asked.message, idempotency_key)
    else:
        run = await shared.hub.start(runner.run_stream(session, asked.message))
    return _stream(shared, run)


@router.post(
    SESSION + "/retry",
    response_class=Response,
    responses=streams(404, 409, 415),
)
async def retry(shared: Shared, session_id: SessionId, asked: shapes.RetryAsked) -> Response:
    """Answer a message of the user once more, as it is or changed; the old answer is kept.

    The session takes the new answer over when the run has completed.
    """
    runner = shared.hub.runner
    shared.slots.check()
    if asked.message is None:
        events = runner.retry(session_id, asked.sequence)
    else:
        events = runner.edit(session_id, asked.sequence, asked.message)
    run = await shared.hub.start(events)
    shared.metrics.retries.inc()
    return _stream(shared, run)


@router.post(
    SESSION + "/resume",
    response_class=Response,
    responses={204: {"description": "No turn was cut off."}, **streams(404, 409)},
)
async def resume(shared: Shared, session_id: SessionId) -> Response:
    """Take up a turn that was cut off, as after a crash."""
    runner = shared.hub.runner
    shared.slots.check()
    return _stream(shared, await shared.hub.start(runner.resume(session_id)))


def _stream(shared: Shared, run: Any) -> Response:
    if run is None:
        return Response(status_code=204)
    return EventStream(run, 0, shared.slots, shared.settings)
