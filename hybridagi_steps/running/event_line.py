"""The events of one run on their way to its reader: numbered, in order, from any thread.

A reader that falls behind loses nothing and slows nobody: pieces of the same step that it has not
taken yet become one event, so what waits is never more than what the run has said.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from hybridagi_steps.records.event import StepDelta, StepEvent, StepEventType

FINAL_EVENTS = (
    StepEventType.RUN_COMPLETED,
    StepEventType.RUN_FAILED,
    StepEventType.RUN_CANCELLED,
)


class EventLine:
    """A queue of events for one reader in one event loop.

    Args:
        run_id: The run they belong to.
        session_id: Its session.
    """

    def __init__(self, run_id: str, session_id: str) -> None:
        self._run_id, self._session_id = run_id, session_id
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        self._waiting: deque[StepEvent] = deque()
        self._lock = threading.Lock()
        self._number = 0
        self._closed = False

    def emit(
        self,
        kind: StepEventType,
        *,
        step_id: str | None = None,
        delta: StepDelta | None = None,
        snapshot: Any = None,
        data: dict[str, Any] | None = None,
    ) -> None:
        """Add an event; after the final one nothing is added."""
        with self._lock:
            if self._closed:
                return
            last = self._waiting[-1] if self._waiting else None
            if delta is not None and data is None and _continues(last, step_id, delta):
                _add(last, delta)
                return
            self._number += 1
            self._closed = kind in FINAL_EVENTS
            self._waiting.append(
                StepEvent(
                    type=kind,
                    run_id=self._run_id,
                    number=self._number,
                    session_id=self._session_id,
                    step_id=step_id,
                    delta=delta,
                    snapshot=snapshot,
                    data=data,
                )
            )
        self._wake()

    async def events(self) -> AsyncIterator[StepEvent]:
        """Yield events as they come, the final one last."""
        while True:
            await self._arrived.wait()
            while (event := self._next()) is not None:
                yield event
                if event.type in FINAL_EVENTS:
                    return

    def _next(self) -> StepEvent | None:
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._arrived.clear()
            return None

    def _wake(self) -> None:
        try:
            inside = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            inside = False
        if inside:
            self._arrived.set()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._arrived.set)


def _continues(last: StepEvent | None, step_id: str | None, delta: StepDelta) -> bool:
    """Whether a piece of text can join the last event that nobody has taken yet."""
    return (
        last is not None
        and last.delta is not None
        and last.data is None
        and last.step_id == step_id
        and delta.tool_calls is None
        and last.delta.tool_calls is None
    )


def _add(event: StepEvent | None, more: StepDelta) -> None:
    delta = event.delta if event is not None else None
    if delta is None:
        return
    for name in ("content", "reasoning_content"):
        if (text := getattr(more, name)) is not None:
            setattr(delta, name, (getattr(delta, name) or "") + text)
