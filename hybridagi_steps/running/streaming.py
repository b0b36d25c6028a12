"""Messages while they stream: text that a reader sees before it is known whether it will stand.

A draft is what one answer of a model has said so far. When a message is committed, the draft that
it continues becomes that message: the reader has seen its beginning and gets the rest. A draft that
came to nothing (a route that was not taken, an answer asked for again) is called off, so that the
pieces of each step, put together, are exactly what was stored.

With redaction a draft holds its last characters back, since a secret may not be whole yet.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson

from hybridagi_steps.records.event import StepDelta, StepEvent, StepEventType
from hybridagi_steps.records.message import Step, new_id
from hybridagi_steps.records.redaction import Redact, redacted

HELD_BACK = 128
"""Characters that wait when text is redacted: the longest secret that never shows in part."""
_WORTH_REDACTING = 32


class SafeText:
    """Text that is shown as it grows.

    Args:
        redact: What must not be shown; None shows everything at once.
    """

    def __init__(self, redact: Redact | None) -> None:
        self._redact = redact
        self.raw = ""
        self.shown = ""
        self._looked_at = 0

    def grow(self, more: str) -> str:
        """Add text; return what may be shown now."""
        self.raw += more
        if self._redact is None:
            self.shown = self.raw
            return more
        if len(self.raw) - self._looked_at < _WORTH_REDACTING or len(self.raw) <= HELD_BACK:
            return ""
        self._looked_at = len(self.raw)
        safe = redacted(self.raw, self._redact)[:-HELD_BACK]
        if not safe.startswith(self.shown):
            return ""
        added = safe[len(self.shown) :]
        self.shown = safe
        return added

    def cut_off(self) -> str:
        """Return what may be kept of a text that will not go on: its end may be half a secret."""
        return self.raw if self._redact is None else self.shown

    def whole(self) -> str:
        """Return all of it, redacted."""
        return self.raw if self._redact is None else redacted(self.raw, self._redact)


class Draft:
    """One answer while it streams."""

    def __init__(self, redact: Redact | None) -> None:
        self.step_id = str(new_id())
        self.content, self.reasoning = SafeText(redact), SafeText(redact)
        self.tool_calls: list[dict[str, Any]] = []
        """Pieces of tool calls shown so far, put together."""
        self.announced = False

    def begins(self, step: Step) -> bool:
        """Whether a message continues what the reader has seen."""
        same = not self.tool_calls or same_calls(self.tool_calls, step.tool_calls)
        return same and _text(step).startswith(self.content.shown)

    def continued(self, step: Step) -> Step:
        """Return a message with the draft's id, its calls as shown, and what was thought aloud."""
        thought, reasoning = self.reasoning.whole(), step.reasoning_content or ""
        if not reasoning.startswith(thought):
            reasoning = f"{thought}\n\n{reasoning}" if reasoning else thought
        calls = self.tool_calls or step.tool_calls
        shown = {"id": self.step_id, "tool_calls": calls, "reasoning_content": reasoning or None}
        return step.model_copy(update=shown)


class Drafts:
    """The drafts of one run.

    Args:
        line: Where pieces go.
        redact: What must not be shown.
        started: Is told the id of each draft that shows its first piece.
    """

    def __init__(
        self, line: EventLine, redact: Redact | None, started: Callable[[str], None]
    ) -> None:
        self._line, self._redact, self._started = line, redact, started
        self._open: dict[Any, Draft] = {}
        self._done: set[Any] = set()
        self._lock = threading.Lock()

    def grow(
        self,
        key: object,
        content: str | None = None,
        reasoning: str | None = None,
        tool_calls: list[dict[str, Any]] | None = None,
    ) -> None:
        """Add a piece to the draft of one answer and show what may be shown."""
        with self._lock:
            if key not in self._done:
                draft = self._open.setdefault(key, Draft(self._redact))
                self._grow(draft, content, reasoning, tool_calls)

    def _grow(
        self,
        draft: Draft,
        content: str | None,
        reasoning: str | None,
        tool_calls: list[dict[str, Any]] | None,
    ) -> None:
        shown = draft.content.grow(content) if content else ""
        thought = draft.reasoning.grow(reasoning) if reasoning else ""
        calls = tool_calls if tool_calls and self._redact is None else None
        if calls:
            add_call_pieces(draft.tool_calls, calls)
        self._show(draft, StepDelta(content=shown or None, reasoning_content=thought or None))
        if calls:
            self._show(draft, StepDelta(tool_calls=calls))

    def newest_text(self) -> tuple[str | None, str]:
        """Return the id of the newest draft that has said something, and what may be kept."""
        with self._lock:
            for draft in reversed(self._open.values()):
                if text := draft.content.cut_off():
                    return draft.step_id, text
        return None, ""

    def adopt(self, step: Step) -> Step:
        """Return a message as the newest draft that it continues: with its id and its calls."""
        with self._lock:
            for draft in reversed(self._open.values()):
                if draft.announced and draft.begins(step):
                    return draft.continued(step)
            return step

    def complete(self, step: Step) -> None:
        """Show the rest of a message that is stored, then the message; call other drafts off."""
        with self._lock:
            self._complete(step)

    def _complete(self, step: Step) -> None:
        adopted = next((d for d in self._open.values() if d.step_id == step.id), None)
        for draft in self._open.values():
            if draft is not adopted and draft.announced:
                self._line.emit(
                    StepEventType.STEP_DELTA, step_id=draft.step_id, data={"discarded": True}
                )
        self._done.update(self._open)
        self._open.clear()
        draft = adopted or Draft(None)
        draft.step_id = step.id
        text, thought = _text(step), step.reasoning_content or ""
        rest = StepDelta(
            content=text[len(draft.content.shown) :] or None,
            reasoning_content=thought[len(draft.reasoning.shown) :] or None,
            tool_calls=None if draft.tool_calls else _indexed(step.tool_calls),
        )
        self._show(draft, rest)
        self._line.emit(StepEventType.STEP_COMPLETED, step_id=step.id, snapshot=step)

    def _show(self, draft: Draft, delta: StepDelta) -> None:
        if delta == StepDelta():
            return
        if not draft.announced:
            draft.announced = True
            self._started(draft.step_id)
        self._line.emit(StepEventType.STEP_DELTA, step_id=draft.step_id, delta=delta)


def add_call_pieces(calls: list[dict[str, Any]], pieces: list[dict[str, Any]]) -> None:
    """Put pieces of tool calls together, as OpenAI streams them: by index, arguments in parts."""
    for piece in pieces:
        index = int(piece.get("index", len(calls)))
        while len(calls) <= index:
            calls.append({"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        call = calls[index]
        function: dict[str, Any] = piece.get("function") or {}
        call["id"] = piece.get("id") or call["id"]
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""


def same_calls(shown: list[dict[str, Any]], made: list[dict[str, Any]] | None) -> bool:
    """Whether two lists of calls ask for the same, however their arguments are written."""
    return list(map(_meaning, shown)) == list(map(_meaning, made or []))


def _meaning(call: dict[str, Any]) -> tuple[Any, Any, Any]:
    function: dict[str, Any] = call.get("function") or {}
    arguments: Any = function.get("arguments")
    try:
        arguments = orjson.loads(arguments or "{}")
    except orjson.JSONDecodeError:
        return call.get("id"), function.get("name"), arguments
    return call.get("id"), function.get("name"), arguments


def _indexed(calls: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    return [{"index": i, **call} for i, call in enumerate(calls)] if calls else None


def _text(step: Step) -> str:
    return step.content if isinstance(step.content, str) else ""


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
