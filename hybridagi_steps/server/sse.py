"""Event streams over HTTP: server-sent events with ids, heartbeats, and no slow reader in the way.

A response here is one task without a queue: it asks the run what comes after the last event sent.
A reader that takes nothing for a while is dropped; the ids it has seen let it go on later.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from starlette.background import BackgroundTask
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hybridagi_steps.server.live_run import LiveRun
from hybridagi_steps.server.settings import ServerSettings
from hybridagi_steps.server.slots import Slots, gone

log = logging.getLogger("hybridagi_steps.server")

EVENT_STREAM = "text/event-stream"
_HEARTBEAT = b": still here\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # a proxy would hold events back
]


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
        async with self._slots.taken():
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            left = asyncio.ensure_future(gone(receive))
            try:
                await self._send_all(send, left)
            finally:
                left.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await left

    async def _send_all(self, send: Send, left: asyncio.Future[None]) -> None:
        while not left.done():
            batch = self._run.after(self._number)
            if batch.data or batch.last:
                if not await self._sent(send, batch.data, last=batch.last) or batch.last:
                    return
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
