"""Server-sent events: the events of a run in flight, and the response that streams them.

A run is held as frames, ready to be sent, with ids of growing numbers. A response is one task
without a queue: it asks the run what comes after the last frame sent, and shows with heartbeats
that it lives. A reader that takes nothing for a while is dropped, so no slow reader is in the way;
the ids it has seen let it go on later.

Reference: WHATWG HTML, "Server-sent events".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from bisect import bisect_right
from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple

import orjson
from starlette.background import BackgroundTask
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hybridagi_steps.records.event import StepEvent, StepEventType
from hybridagi_steps.running.streaming import FINAL_EVENTS
from hybridagi_steps.server.problems import problems
from hybridagi_steps.server.settings import ServerSettings
from hybridagi_steps.server.slots import Slots, disconnected

log = logging.getLogger("hybridagi_steps.server")

EVENT_STREAM = "text/event-stream"
_HEARTBEAT = b": still here\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # a proxy would hold events back
]
_EVENT = {
    "type": "object",
    "required": ["id", "event", "data"],
    "properties": {
        "id": {"type": "string", "description": "RUN_ID:NUMBER, for Last-Event-ID."},
        "event": {"enum": list(StepEventType)},
        "data": {
            "type": "string",
            "description": "A StepEvent as JSON without nulls.",
            "contentMediaType": "application/json",
            "contentSchema": {"$ref": "#/components/schemas/StepEvent"},
        },
    },
}
_CHUNK_BYTES = 64 * 1024
"""About as much as a reader is sent at once."""
_PIECES = (StepEventType.STEP_DELTA, StepEventType.METRICS_SNAPSHOT)


def streams(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the answers of a route of events as OpenAPI has them, its problems among them."""
    return {
        200: {
            "description": (
                "The run's events. Lines that begin with a colon only show that the stream lives."
            ),
            "content": {EVENT_STREAM: {"itemSchema": _EVENT}},
        },
        **problems(*statuses),
    }


class Frame(NamedTuple):
    """One event, ready to be sent."""

    number: int
    data: bytes
    kind: StepEventType
    step_id: str | None

    @property
    def event(self) -> dict[str, Any]:
        """The event, read again."""
        line = next(each for each in self.data.splitlines() if each.startswith(b"data: "))
        event: dict[str, Any] = orjson.loads(line.removeprefix(b"data: "))
        return event


class Batch(NamedTuple):
    """What a reader is sent next."""

    data: bytes
    number: int
    """The last event in it."""
    last: bool
    """Whether nothing comes after it."""


class KeyedMessage(NamedTuple):
    """The message that began a run, with the idempotency key it came with."""

    key: str
    message: dict[str, Any]
    """As a provider takes it."""
    user_id: str | None = None
    """Who said it: each user has keys of their own."""


class LiveRun:
    """A run's events; of pieces, deltas and metrics, about `most_bytes` are kept."""

    def __init__(self, run_id: str, session_id: str | None, most_bytes: int) -> None:
        self.run_id, self.session_id = run_id, session_id
        self.user_id: str | None = None
        self.ended = False
        self.status = "interrupted"
        """How it ended, once its final event says so."""
        self.begun_by: KeyedMessage | None = None
        self.size = 0
        self._pieces_size = 0
        self._most_bytes = most_bytes
        self._frames: list[Frame] = []
        self._change: asyncio.Future[None] | None = None

    @property
    def last_number(self) -> int:
        """The newest event."""
        return self._frames[-1].number if self._frames else 0

    def publish(self, event: StepEvent) -> None:
        """Add an event and wake the readers."""
        number = event.number if event.number is not None else self.last_number + 1
        data = event.to_sse().encode()
        self._frames.append(Frame(number, data, event.type, event.step_id))
        self.size += len(data)
        self._pieces_size += len(data) if event.type in _PIECES else 0
        if event.type in FINAL_EVENTS:
            self.ended, self.status = True, event.type.removeprefix("run_")
        if self._pieces_size > self._most_bytes:
            self._forget_pieces()
        self._wake()

    def end(self) -> None:
        """Let readers go, whatever the last event was."""
        self.ended = True
        self._wake()

    def after(self, number: int, form: Callable[[Frame], bytes] = attrgetter("data")) -> Batch:
        """Return what comes after an event in a `form`, a chunk of it when it is much."""
        place = bisect_right(self._frames, number, key=lambda frame: frame.number)
        data = bytearray()
        while place < len(self._frames) and len(data) < _CHUNK_BYTES:
            data += form(self._frames[place])
            number = self._frames[place].number
            place += 1
        return Batch(bytes(data), number, self.ended and place == len(self._frames))

    def change(self) -> asyncio.Future[None]:
        """Return what is done with the next event; all readers share it."""
        if self._change is None:
            self._change = asyncio.get_running_loop().create_future()
        return self._change

    def _wake(self) -> None:
        change, self._change = self._change, None
        if change is not None:
            change.set_result(None)

    def _forget_pieces(self) -> None:
        """Drop pieces of complete messages; if that is not enough, the older half of the others."""
        complete = {f.step_id for f in self._frames if f.kind is StepEventType.STEP_COMPLETED}
        self._keep([f for f in self._frames if f.kind not in _PIECES or f.step_id not in complete])
        if self._pieces_size > self._most_bytes:
            pieces = [f.number for f in self._frames if f.kind in _PIECES]
            old = set(pieces[: len(pieces) // 2 + 1])
            self._keep([f for f in self._frames if f.number not in old])

    def _keep(self, frames: list[Frame]) -> None:
        self._frames = frames
        self.size = sum(len(frame.data) for frame in frames)
        self._pieces_size = sum(len(frame.data) for frame in frames if frame.kind in _PIECES)


class EventStream(Response):
    """The events of a run, from the one after `number` on, as a response.

    Closing it does not touch the run.
    """

    media_type = EVENT_STREAM

    def __init__(self, run: LiveRun, number: int, slots: Slots, settings: ServerSettings) -> None:
        """Stream the events of `run` that come after `number`."""
        self.status_code = 200
        self.background: BackgroundTask | None = None
        self.raw_headers = list(_HEADERS)
        self._run, self._number = run, number
        self._slots, self._settings = slots, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send events until the run is over or the reader has gone."""
        async with self._slots.place():
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            left = asyncio.ensure_future(disconnected(receive))
            try:
                await self._send_all(send, left)
            finally:
                left.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await left

    def form(self, frame: Frame) -> bytes:
        """Return an event as it is sent; empty when it is not."""
        return frame.data

    async def _send_all(self, send: Send, left: asyncio.Future[None]) -> None:
        while not left.done():
            batch = self._run.after(self._number, self.form)
            sends = batch.data or batch.last
            if sends and (not await self._sent(send, batch.data, last=batch.last) or batch.last):
                return
            if batch.number != self._number:
                self._number = batch.number  # more may have come meanwhile
            elif not await self._news(left) and not await self._sent(send, _HEARTBEAT):
                return

    async def _sent(self, send: Send, data: bytes, *, last: bool = False) -> bool:
        """Send bytes; return whether the reader took them, or room for them was left."""
        message = {"type": "http.response.body", "body": data, "more_body": not last}
        try:
            async with asyncio.timeout(self._settings.stall_seconds):
                await send(message)
        except TimeoutError:
            log.warning(
                "dropped a reader that took nothing for %g s; it can go on from %s:%d",
                self._settings.stall_seconds,
                self._run.run_id,
                self._number,
            )
            return False
        except OSError:  # the reader has gone meanwhile
            return False
        return True

    async def _news(self, left: asyncio.Future[None]) -> bool:
        """Wait for events; return False when it is time for a sign of life."""
        done, _ = await asyncio.wait(
            {self._run.change(), left},
            timeout=self._settings.heartbeat_seconds,
            return_when=asyncio.FIRST_COMPLETED,
        )
        return bool(done)
