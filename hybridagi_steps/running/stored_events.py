"""How a run ended, and its events from what is stored, for who reads it after its end.

Pieces are gone; each message is there as STEP_COMPLETED, and the final event says how the run
ended, as its outermost ProgramEnd recorded it. A run without one was cut off.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from html import escape
from typing import Any, NamedTuple, Self

from hybridagi_steps.errors import RunFailedError, UnknownRunError, UnknownSessionError
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.protocols import SessionStore
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType
from hybridagi_steps.records.event import StepEvent, StepEventType
from hybridagi_steps.records.message import MessageRole, Step
from hybridagi_steps.records.run import RunMetrics
from hybridagi_steps.records.step_text import cut

_PAGE = 200
_SHOWN = 200
_FINAL = {
    "completed": StepEventType.RUN_COMPLETED,
    "failed": StepEventType.RUN_FAILED,
    "cancelled": StepEventType.RUN_CANCELLED,
    "paused": StepEventType.RUN_PAUSED,
}


class RunResult(NamedTuple):
    """How a run ended."""

    run_id: str
    answer: Step | None
    """The last thing the assistant said."""
    data: dict[str, Any]
    """What the final event said."""

    @property
    def status(self) -> str:
        """completed, failed, cancelled, or paused: `runner.resume` goes on with the answers."""
        return str(self.data.get("status"))

    @property
    def waiting(self) -> list[dict[str, Any]]:
        """What a paused run waits for: `call_id`, `tool`, `arguments` and `waits_for` of each."""
        return list(self.data.get("waiting", ()))

    @property
    def reason(self) -> str:
        """Why it ended."""
        return str(self.data.get("termination_reason"))

    @property
    def text(self) -> str:
        """The answer's text."""
        content = self.answer.content if self.answer is not None else None
        return content if isinstance(content, str) else ""

    @property
    def error(self) -> str | None:
        """What went wrong, type and message; None where nothing did."""
        shown = self.data.get("error")
        return f"{shown['type']}: {shown['message']}" if shown else None

    def __repr__(self) -> str:
        """The run, how it ended, what went wrong and the beginning of the answer."""
        why = "" if self.status == "completed" else f" ({self.reason})"
        told = [cut(text, _SHOWN) for text in (self.error, self.text) if text]
        return f"<run {': '.join([f'{self.run_id} {self.status}{why}', *told])}>"

    def _repr_html_(self) -> str:
        """Show how it ended, what went wrong and the answer in a notebook."""
        title = f"{self.status} · {self.reason} · run {self.run_id}"
        error = f"<p>{escape(self.error)}</p>" if self.error else ""
        return f"<p><strong>{escape(title)}</strong></p>{error}<pre>{escape(self.text)}</pre>"

    @classmethod
    async def of(
        cls,
        events: AsyncGenerator[StepEvent],
        look: Callable[[StepEvent], object] | None = None,
        first: StepEvent | None = None,
    ) -> Self:
        """Read a run to its end; `look` is given each event, `first` was read already."""
        answer: Step | None = None
        event = first
        async with aclosing(events):
            async for event in events:
                if look is not None:
                    look(event)
                if event.snapshot is not None and event.snapshot.role is MessageRole.ASSISTANT:
                    answer = event.snapshot
        assert event is not None  # noqa: S101 - a stream has a first event and a last
        return cls(event.run_id, answer, event.data or {})

    @classmethod
    async def of_any(cls, events: AsyncGenerator[StepEvent]) -> Self | None:
        """Read a run to its end; None where there is nothing to do."""
        first = await anext(events, None)
        return None if first is None else await cls.of(events, first=first)

    def checked(self, raised: BaseException | None = None) -> Self:
        """Return the result of a run that completed or paused; else raise RunFailedError."""
        if self.status in ("completed", "paused"):
            return self
        why = f": {self.error}" if self.error else ""
        raise RunFailedError(
            f"run {self.run_id} {self.status} ({self.reason}){why.rstrip('.')}. What it said and "
            "did until then is the `result` of this error.",
            self,
        ) from raised


def stored_events(
    memory: StepMemory, run_id: str, *, after: int = 0, session_id: str | None = None
) -> list[StepEvent]:
    """Return the events of a run that is no longer in flight; may block.

    Args:
        memory: Where it was stored.
        run_id: The run.
        after: The last number the reader has; events are numbered from there on.
        session_id: Its session, where that is known: of a run that was cut off no step may tell.

    Returns:
        RUN_STARTED, its messages in order, and its final event.
    """
    steps: list[AgentStep] = list(memory.run(run_id).steps)
    branch_id, messages = run_messages(memory, run_id, steps, session_id)
    if not steps and not messages:
        raise UnknownRunError(run_id)
    session_id = messages[0].session_id if messages else steps[0].session_id
    events = [
        StepEvent(type=StepEventType.STEP_COMPLETED, run_id=run_id, step_id=m.id, snapshot=m)
        for m in messages
    ]
    if after == 0:
        events.insert(0, StepEvent(type=StepEventType.RUN_STARTED, run_id=run_id))
    events.append(_final(run_id, steps, messages, branch_id))
    for number, event in enumerate(events, after + 1):
        event.number, event.session_id = number, session_id
    return events


def run_messages(
    memory: StepMemory, run_id: str, steps: list[AgentStep], session_id: str | None = None
) -> tuple[int | None, list[Step]]:
    """Return the branch that a run wrote to, as far as it is still there, and its messages."""
    named = next((step.session_id for step in steps if step.session_id), None)
    session_id = named or session_id
    if session_id is None:
        return None, []
    store = memory.repository().store
    try:
        attempts = sorted(store.attempts(session_id), key=lambda a: (a.current, a.branch_id))
    except UnknownSessionError:
        return None, []
    branch_id, most = None, list[Step]()
    for attempt in reversed(attempts):
        last = attempt.forked_at + attempt.messages
        found = _messages_on(store, session_id, run_id, attempt.branch_id, last)
        if found and found[-1].sequence > attempt.forked_at:
            return attempt.branch_id, found
        if len(found) > len(most):  # it only shares them; their own branch may be gone
            branch_id, most = attempt.branch_id, found
    return branch_id, most


def _messages_on(
    store: SessionStore, session_id: str, run_id: str, branch_id: int, last: int
) -> list[Step]:
    """Look for a run's messages from the end of a branch backwards; they stand side by side."""
    found: list[Step] = []
    while last > 0:
        first = max(1, last - _PAGE + 1)
        page: list[Step] = store.messages(session_id, first, last, branch_id=branch_id)
        own = [step for step in page if step.run_id == run_id]
        found = [*own, *found]
        if found and (not own or page[0].run_id != run_id):
            break
        last = first - 1
    return found


def _final(
    run_id: str, steps: list[AgentStep], messages: list[Step], branch_id: int | None
) -> StepEvent:
    how = _recorded_end(steps)
    metrics = RunMetrics.of(*(step.metrics for step in messages if step.metrics is not None))
    data: dict[str, Any] = {
        "status": how["status"],
        "termination_reason": how["reason"],
        "metrics": metrics.model_dump(mode="json", exclude_none=True),
        "branch_id": branch_id,
        "last_sequence": messages[-1].sequence if messages else 0,
    }
    data |= {name: how[name] for name in ("error", "waiting") if name in how}
    return StepEvent(type=_FINAL[how["status"]], run_id=run_id, data=data)


def _recorded_end(steps: list[AgentStep]) -> dict[str, Any]:
    for step in reversed(steps):
        how = (step.metadata or {}).get("run")
        if step.step_type is AgentStepType.ProgramEnd and isinstance(how, dict):
            error = (step.outputs or {}).get("error")
            return {**how, **({"error": error} if error else {})}
    return {"status": "failed", "reason": "interrupted"}
