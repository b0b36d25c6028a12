"""Which call a result answers, where agents repeat the ids of calls.

Ids come again from turn to turn, so a result belongs to the newest message that made a call of its
id and waits; and within that message, to the first such call. It knows nothing of providers.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

Call = TypeVar("Call")


class OpenCalls(Generic[Call]):
    """The calls without a result, by id."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[tuple[int, deque[Call]]]] = {}

    def add(self, call_id: str, place: int, call: Call) -> None:
        """Let a call of the message at `place` wait."""
        groups = self._waiting.setdefault(call_id, [])
        if not groups or groups[-1][0] != place:
            groups.append((place, deque()))
        groups[-1][1].append(call)

    def answer(self, call_id: str) -> Call | None:
        """Return the call that a result with this id answers, if one waits; it waits no more."""
        groups = self._waiting.get(call_id)
        if not groups:
            return None
        calls = groups[-1][1]
        call = calls.popleft()
        if not calls:
            groups.pop()
        return call
