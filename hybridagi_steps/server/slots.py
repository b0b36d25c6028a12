"""Admission: how much goes on at the same time, how often a user asks, and the routes that wait.

A server that takes in more than it can do answers everybody late, and at last nobody. Here a few of
each kind go on, a short queue waits, and whoever is one too many hears so at once; whoever leaves
while waiting is forgotten. A route takes its place before any parameter is looked at, so that a
refusal costs little.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import anyio
from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from hybridagi_steps.server.metrics import ServerMetrics
from hybridagi_steps.server.schemas import unambiguous_json
from hybridagi_steps.server.tokens import CALLER

_FORGET_FROM = 1_000
"""Users, among whom those are looked for that need not be remembered."""

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class Slots:
    """The places for one kind of thing, as metrics name it.

    As many as `queue` may wait for one, each for so many seconds; who is refused is told when to
    come again.
    """

    def __init__(
        self,
        kind: str,
        most: int,
        metrics: ServerMetrics,
        *,
        queue: int = 0,
        queue_seconds: float = 0.0,
        retry_seconds: int = 5,
    ) -> None:
        self._kind, self._most, self._metrics = kind, most, metrics
        self._queue, self._queue_seconds = queue, queue_seconds
        self._retry = {"Retry-After": str(retry_seconds)}
        self._limiter = anyio.CapacityLimiter(most)
        self.closed = False
        """Whether nobody is taken in any more."""

    @property
    def used(self) -> int:
        """How many are taken."""
        return self._limiter.borrowed_tokens

    @property
    def waiting(self) -> int:
        """How many wait for one."""
        return self._limiter.statistics().tasks_waiting

    def check(self) -> None:
        """Refuse whoever would be one too many."""
        if self.closed:
            raise HTTPException(503, "the server is about to end; try again later.", self._retry)
        if self.used >= self._most and self.waiting >= self._queue:
            raise self._refused()

    @asynccontextmanager
    async def place(self, receive: Receive | None = None) -> AsyncGenerator[None]:
        """Take a place for the length of the block.

        Args:
            receive: The client's, once its body was read: it waits a little for a place if need
                be, and gets none when it leaves meanwhile. Without it nobody waits.
        """
        self.check()
        try:
            self._limiter.acquire_nowait()
        except anyio.WouldBlock:
            if receive is None:
                raise self._refused() from None
            await self._wait(receive)
        try:
            if self.closed:
                self.check()
            yield
        finally:
            self._limiter.release()

    def close(self) -> None:
        """Refuse whoever waits, and whoever comes."""
        self.closed = True
        self._limiter.total_tokens = math.inf  # whoever waits gets a place, and finds it closed

    async def _wait(self, receive: Receive) -> None:
        leaving = asyncio.ensure_future(disconnected(receive))
        patience = anyio.CancelScope(deadline=anyio.current_time() + self._queue_seconds)
        leaving.add_done_callback(lambda _: patience.cancel())
        try:
            with patience:
                await self._limiter.acquire()
                return
            if leaving.done():
                self._metrics.dropped.labels(self._kind).inc()
                raise ClientDisconnect
            raise self._refused()
        finally:
            leaving.cancel()

    def _refused(self) -> HTTPException:
        self._metrics.refused.labels(self._kind).inc()
        return HTTPException(
            429,
            f"the server is busy: {self._most:,} {self._kind} are in progress, the most at a time; "
            f"try again in {self._retry['Retry-After']} s.",
            self._retry,
        )


class RequestRates:
    """How often each user asks one server, where no others share the count.

    A user has a bucket that holds a minute's requests and fills evenly, so what is remembered is
    when it is full again; whose is full is forgotten. Servers of a database have the same in a
    table, `LiveRuns.admit`.
    """

    MINUTE = 60_000_000
    """In microseconds: whole numbers add up to no more than a minute."""

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._full_at = dict[str, int]()
        self._kept = _FORGET_FROM

    def admit(self, user_id: str, per_minute: int) -> float | None:
        """Count a request; return None, or after how many seconds there is room for one."""
        now, each = self._clock() // 1_000, self.MINUTE // per_minute
        full_at = max(self._full_at.get(user_id, now), now) + each
        if full_at > now + self.MINUTE:
            return (full_at - now - self.MINUTE) / 1e6
        self._full_at[user_id] = full_at
        if len(self._full_at) > self._kept:
            self._full_at = {user: full for user, full in self._full_at.items() if full > now}
            self._kept = max(_FORGET_FROM, 2 * len(self._full_at))
        return None


class _JsonRequest(Request):
    """A request that refuses JSON which says two things at once."""

    async def json(self) -> Any:
        """Return the body."""
        return unambiguous_json(await self.body())


class JsonRoute(APIRoute):
    """A route for whoever does not ask too often, whose body names no key of an object twice."""

    def get_route_handler(self) -> Handler:
        """Return what answers a request."""
        handle = super().get_route_handler()

        async def answered(request: Request) -> Response:
            await request.app.state.services.check_rate(request.scope[CALLER].only_user)
            return await self.answer(handle, _JsonRequest(request.scope, request.receive))

        return answered

    async def answer(self, handle: Handler, request: Request) -> Response:
        """Answer a request."""
        return await handle(request)


class WorkRoute(JsonRoute):
    """A route that asks the memory something: a few at a time are answered, a few more wait."""

    async def answer(self, handle: Handler, request: Request) -> Response:
        """Answer a request when it is its turn."""
        if request.method != "GET":
            await request.body()  # what the client sends after it is that it leaves
        async with request.app.state.services.work.place(request.receive):
            return await handle(request)


async def disconnected(receive: Receive) -> None:
    """Wait until the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
