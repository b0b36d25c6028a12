"""The events of one run: what a reader sees, in order, and text before it is known to stand.

The first piece of an answer is shown at once, the others together, fifty times a second at most:
an event that no reader has taken yet takes what follows. Whatever else happens is told at once,
behind all pieces before it.

A draft is what one answer of a model has said so far. When a message is committed, the draft that
it continues becomes that message: the reader has seen its beginning and gets the rest. A draft that
came to nothing (a route that was not taken, an answer asked for again) is called off, so that the
pieces of each step, put together, are exactly what was stored.

With redaction a draft holds its last characters back, since a secret may not be whole yet.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

import orjson

from hybridagi_steps.recording.step_shapes import error_fields
from hybridagi_steps.recording.values import REDACTION_FAILED
from hybridagi_steps.records.event import StepDelta, StepEvent, StepEventType
from hybridagi_steps.records.json_values import json_value, unvalidated
from hybridagi_steps.records.message import Step, new_id, utc_now
from hybridagi_steps.records.redaction import Redact, redacted
from hybridagi_steps.records.step_text import cut

FINAL_EVENTS = (
    StepEventType.RUN_COMPLETED,
    StepEventType.RUN_FAILED,
    StepEventType.RUN_CANCELLED,
    StepEventType.RUN_PAUSED,
)
HELD_BACK = 128
"""Characters that wait when text is redacted: the longest secret that never shows in part."""
_WORTH_REDACTING = 32
PAUSE_SECONDS = 0.02
"""Between pieces that a reader is woken for."""
_LONGEST_MESSAGE = 4000


class Piece(NamedTuple):
    """Something a model said, before its answer was complete."""

    key: tuple[int, int]
    """Who says it, and in which of its answers."""
    content: str | None
    reasoning: str | None
    tool_calls: list[dict[str, Any]] | None


class HomeLoop(NamedTuple):
    """The event loop that a run lives on; what belongs to the run may be made in any thread."""

    loop: asyncio.AbstractEventLoop
    thread: int

    @classmethod
    def running(cls) -> Self:
        """Return the one that is running."""
        return cls(asyncio.get_running_loop(), threading.get_ident())

    @property
    def is_here(self) -> bool:
        """Whether this is its thread."""
        return threading.get_ident() == self.thread

    def call(self, call: Callable[..., object], *values: object) -> None:
        """Call something on the loop, from any thread: at once from its own."""
        if self.is_here:
            call(*values)
        elif not self.loop.is_closed():
            self.loop.call_soon_threadsafe(call, *values)


class EventStream:
    """A queue of events for one reader in one event loop, and the drafts that it was shown.

    Args:
        run_id: The run they belong to.
        session_id: Its session.
        redact: What must not be shown.
        started: Is told the id of each draft that shows its first piece.
        home: The reader's event loop.
    """

    def __init__(
        self,
        run_id: str,
        session_id: str,
        redact: Redact | None,
        started: Callable[[str], None],
        home: HomeLoop,
    ) -> None:
        self._run_id, self._session_id = run_id, session_id
        self._redact, self._started = redact, started
        self._home = home
        self._arrived = asyncio.Event()
        self._arrived.set()  # who comes to read looks once: until then nobody has to be woken
        self._woken_at, self._alarm, self._woken = 0.0, False, True
        self._queue: list[StepEvent] = []
        self._lock = threading.Lock()
        self._number = 0
        self._closed = False
        self._drafts: dict[object, Draft] = {}
        self._done: set[object] = set()
        self._drafting = threading.Lock()

    def emit(
        self,
        kind: StepEventType,
        data: dict[str, Any] | None = None,
        *,
        step_id: str | None = None,
        snapshot: Step | None = None,
    ) -> None:
        """Add an event, its data redacted; after the final one nothing is added."""
        if data is not None and self._redact is not None:
            try:
                data = redacted(data, self._redact)
            except Exception as error:  # what cannot be redacted is not shown
                data = {"redaction_failed": type(error).__name__}
        with self._lock:
            self._add(kind, data, step_id=step_id, snapshot=snapshot)

    def error(self, where: str, error: BaseException, **more: object) -> None:
        """Report something that failed."""
        shown = shown_error(error, self._redact)
        self.emit(StepEventType.ERROR, {"where": where, **shown, **more})

    async def take(self) -> list[StepEvent]:
        """Return the events that nobody has taken yet, once it is time for one."""
        while True:
            await self._arrived.wait()
            with self._lock:
                self._arrived.clear()
                self._woken = False
                if self._queue:
                    taken, self._queue = self._queue, []
                    return taken

    @contextmanager
    def held(self) -> Generator[None]:
        """Wake the reader once for all that a thread tells while this block waits for it."""
        with self._lock:
            self._woken = True
        try:
            yield
        finally:
            self._arrived.set()

    def grow(self, piece: Piece) -> bool:
        """Add a piece to the draft of one answer; return whether the reader was woken for it."""
        key, content, reasoning, tool_calls = piece
        with self._drafting:
            if key in self._done:
                return False
            if (draft := self._drafts.get(key)) is None:
                draft = self._drafts[key] = Draft(self._redact)
            shown = draft.content.grow(content) if content else ""
            thought = draft.reasoning.grow(reasoning) if reasoning else ""
            if not tool_calls or self._redact is not None:
                tool_calls = []
            add_call_pieces(draft.tool_calls, tool_calls)
            return self._show(draft, shown, thought, tool_calls)

    def newest_text(self) -> str:
        """Return what may be kept of the newest draft that has said something."""
        with self._drafting:
            texts = (draft.content.cut_off() for draft in reversed(self._drafts.values()))
            return next(filter(None, texts), "")

    def adopt(self, step: Step) -> Step:
        """Return a message as the newest draft that it continues: with its id and its calls."""
        with self._drafting:
            for draft in reversed(self._drafts.values()):
                if draft.announced and draft.begins(step):
                    return draft.continued(step)
            return step

    def complete(self, step: Step) -> None:
        """Show the rest of a message that is stored, then the message; call other drafts off."""
        with self._drafting:
            drafts = list(self._drafts.values())
            self._done.update(self._drafts)
            self._drafts.clear()
            adopted = next((draft for draft in drafts if draft.step_id == step.id), None)
            for draft in drafts:
                if draft is not adopted and draft.announced:
                    called_off = {"discarded": True}
                    self.emit(StepEventType.STEP_DELTA, called_off, step_id=draft.step_id)
            if adopted is None:
                adopted = Draft(None)
                adopted.step_id = step.id
            rest = _text(step)[len(adopted.content.shown) :]
            thought = (step.reasoning_content or "")[len(adopted.reasoning.shown) :]
            calls = [] if adopted.tool_calls else step.tool_calls or []
            indexed = [{"index": index, **call} for index, call in enumerate(calls)]
            self._show(adopted, rest, thought, indexed)
            self.emit(StepEventType.STEP_COMPLETED, step_id=step.id, snapshot=step)

    def _show(
        self,
        draft: Draft,
        content: str = "",
        reasoning: str = "",
        tool_calls: Sequence[dict[str, Any]] = (),
    ) -> bool:
        """Add a piece, to the last event when that is one of the same draft and nobody took it."""
        if not (content or reasoning or tool_calls):
            return False
        if first := not draft.announced:
            draft.announced = True
            self._started(draft.step_id)
        with self._lock:
            last = self._queue[-1] if self._queue else None
            delta = None if last is None or last.step_id != draft.step_id else last.delta
            if delta is None:
                delta = StepDelta()
                self._add(StepEventType.STEP_DELTA, step_id=draft.step_id, delta=delta)
            if content:
                delta.content = (delta.content or "") + content
            if reasoning:
                delta.reasoning_content = (delta.reasoning_content or "") + reasoning
            if tool_calls:
                delta.tool_calls = [*(delta.tool_calls or ()), *tool_calls]
            return self._wake_in_time(at_once=first)

    def _add(
        self,
        kind: StepEventType,
        data: dict[str, Any] | None = None,
        *,
        step_id: str | None = None,
        delta: StepDelta | None = None,
        snapshot: Step | None = None,
    ) -> None:
        """Put an event at the end; to be called under the lock."""
        if self._closed:
            return
        self._number += 1
        self._closed = kind in FINAL_EVENTS
        fields: dict[str, Any] = {  # all are ours but for values in `data`
            "type": kind,
            "run_id": self._run_id,
            "number": self._number,
            "session_id": self._session_id,
            "step_id": step_id,
            "delta": delta,
            "snapshot": snapshot,
            "data": None if data is None else json_value(data, [], "data"),
            "created_at": utc_now(),
        }
        self._queue.append(unvalidated(StepEvent, fields))
        if delta is None:
            self._wake_reader()

    def _wake_in_time(self, *, at_once: bool) -> bool:
        """Wake the reader for a piece, now or when its turn comes; return whether it is now."""
        wait = self._woken_at + PAUSE_SECONDS - self._home.loop.time()
        if at_once or wait <= 0:
            self._woken_at = self._home.loop.time()
            self._wake_reader()
            return True
        if not self._alarm:
            self._alarm = True
            self._home.call(self._home.loop.call_later, wait, self._wake)
        return False

    def _wake_reader(self) -> None:
        """Wake the reader, once for all that it has not taken yet; to be called under the lock."""
        if not self._woken:
            self._woken = True
            self._home.call(self._arrived.set)

    def _wake(self) -> None:
        with self._lock:
            self._woken_at, self._alarm = self._home.loop.time(), False
            self._arrived.set()


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


def add_call_pieces(calls: list[dict[str, Any]], pieces: Sequence[dict[str, Any]]) -> None:
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


def shown_error(error: BaseException, redact: Redact | None) -> dict[str, str]:
    """Return an error's type and message, redacted, and short enough for an event."""
    fields: dict[str, str] = error_fields(error)["error"]
    message = fields["message"]
    if redact is not None:  # before it is cut, so that nothing is left of a secret's beginning
        try:
            message = redacted(message, redact)
        except Exception:
            message = REDACTION_FAILED
    return {**fields, "message": cut(message, _LONGEST_MESSAGE)}


def _text(step: Step) -> str:
    return step.content if isinstance(step.content, str) else ""
