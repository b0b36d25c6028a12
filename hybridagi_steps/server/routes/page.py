"""The page, its files, the metrics, the signs of life: what is no session, run or search."""

from __future__ import annotations

import asyncio
import logging
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import FileResponse
from starlette.exceptions import HTTPException

from hybridagi_steps import __version__
from hybridagi_steps._concurrency import in_thread
from hybridagi_steps.errors import NotAllowedError, StorageError
from hybridagi_steps.server import schemas as shapes
from hybridagi_steps.server.problems import problems
from hybridagi_steps.server.schemas import answer
from hybridagi_steps.server.services import Shared, Who
from hybridagi_steps.server.tokens import TokenScope

router = APIRouter(tags=["service"])
log = logging.getLogger("hybridagi_steps.server")

STATIC = Path(str(files("hybridagi_steps.server") / "static"))
"""The page's files."""
_OPEN: dict[str, Any] = {"security": []}
"""What a route adds to its OpenAPI entry when it needs no token."""
_READY_SECONDS = 2.0
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class CallerShape(shapes.Answer):
    """What a token allows."""

    scopes: list[TokenScope]
    """`admin` is all of them."""
    user_id: str | None = None
    """The one user that it acts as; missing: any."""


class ProcessShape(shapes.Answer):
    """A server, or a worker of a queue, that lives."""

    name: str
    host: str
    process: int
    seen_seconds: float
    """How long ago it showed that it lives."""


class QueueShape(shapes.Answer):
    """A queue of runs or of steps of plans."""

    name: str
    queued: int
    running: int
    failed: int
    """What was given up; a run that ended as failed is a run that was done."""
    oldest_wait_seconds: float | None = None
    """Absent while nothing waits."""


class RunInFlight(shapes.Answer):
    """A run that a server has in flight."""

    run_id: str
    session_id: str | None = None
    user_id: str | None = None
    server: str


class Work(shapes.Answer):
    """Who works on a memory, and on what."""

    servers: list[ProcessShape]
    workers: list[ProcessShape]
    queues: list[QueueShape]
    runs: list[RunInFlight]


@router.head("/", include_in_schema=False)
@router.get("/", include_in_schema=False)
async def page() -> FileResponse:
    """Return the page."""
    return FileResponse(STATIC / "index.html", media_type="text/html; charset=utf-8")


@router.head("/healthz", include_in_schema=False)
@router.get("/healthz", response_model=shapes.Health, responses=problems(), openapi_extra=_OPEN)
async def health(shared: Shared) -> Response:
    """Say that the server lives."""
    return answer({"status": "ok", "version": __version__, "program": shared.has_program})


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", response_model=shapes.Health, responses=problems(503), openapi_extra=_OPEN)
async def ready(shared: Shared) -> Response:
    """Say that the server takes work: it is not about to end, and its memory can be read."""
    if shared.hub.draining:
        raise HTTPException(503, "the server is about to end.")
    try:
        async with asyncio.timeout(_READY_SECONDS):
            await in_thread(shared.repository.store.frontier)
    except (TimeoutError, StorageError) as error:
        log.warning("not ready: %s", error)
        raise HTTPException(503, "the memory cannot be read.") from error
    return answer({"status": "ready", "version": __version__, "program": shared.has_program})


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {"description": "Prometheus text.", "content": {"text/plain": {}}},
        **problems(),
    },
)
async def metrics(shared: Shared, caller: Who) -> Response:
    """Return the server's figures for Prometheus; they are of everybody."""
    if caller.only_user is not None:
        raise NotAllowedError("figures are of all users; this token is of one.")
    now = {
        "streams": shared.slots.used,
        "runs_in_flight": shared.hub.in_flight,
        "questions_in_flight": shared.work.used,
        "questions_waiting": shared.work.waiting,
    }
    text = await in_thread(lambda: shared.metrics.text(shared.memory, **now))
    return Response(text, media_type=_METRICS_TYPE)


@router.get("/caller", response_model=CallerShape, responses=problems())
async def who_asks(caller: Who) -> Response:
    """Say what the token allows, and whose it is."""
    return answer({"scopes": sorted(caller.scopes), "user_id": caller.only_user})


@router.get("/work", response_model=Work, responses=problems())
async def work(shared: Shared, caller: Who) -> Response:
    """List living servers and workers, what waits in queues, what servers have in flight."""
    if caller.only_user is not None:
        raise NotAllowedError("work is of all users; this token is of one.")
    return answer(await in_thread(shared.hub.work))
