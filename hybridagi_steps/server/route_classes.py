"""What a route does before its function: take a place among what goes on, read JSON strictly.

The place comes first, before any parameter is looked at, so that a refusal costs little.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class JsonRoute(APIRoute):
    """A route whose body names no key of an object twice."""

    def get_route_handler(self) -> Handler:
        """Return what answers a request."""
        handle = super().get_route_handler()

        async def answered(request: Request) -> Response:
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
        async with request.app.state.services.work.taken(request.receive):
            return await handle(request)


class _JsonRequest(Request):
    """A request that refuses JSON which says two things at once."""

    async def json(self) -> Any:
        """Return the body."""
        return unambiguous_json(await self.body())


class DuplicateKeyError(ValueError):
    """A JSON object that names a key twice: readers differ in which of the two counts."""


def unambiguous_json(text: str | bytes) -> Any:
    """Return what JSON says."""
    return json.loads(text, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise DuplicateKeyError(f"names the key {name[:80]!r} twice")
        found[name] = value
    return found
