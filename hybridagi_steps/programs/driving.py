"""One engine for sync and async: work is a generator of requests, and two small drivers answer it.

Whatever needs the outside world (a predictor, a tool) is yielded as a `Request`; everything else is
plain code that exists once. An error of the outside world, a cancellation too, is raised where the
request was yielded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    """Something to be done outside, in the two ways it can be done."""

    now: Callable[[], Any]
    later: Callable[[], Awaitable[Any]]


Work = Generator[Request, Any, T]


def driven(work: Work[T]) -> T:
    """Do the work and return its result, answering each request at once."""
    try:
        request = next(work)
        while True:
            try:
                answer = request.now()
            except BaseException as error:  # the work decides what it stands
                request = work.throw(error)
            else:
                request = work.send(answer)
    except StopIteration as done:
        return done.value


async def adriven(work: Work[T]) -> T:
    """Do the work and return its result, awaiting the answer to each request."""
    try:
        request = next(work)
        while True:
            try:
                answer = await request.later()
            except BaseException as error:  # the work decides what it stands
                request = work.throw(error)
            else:
                request = work.send(answer)
    except StopIteration as done:
        return done.value
