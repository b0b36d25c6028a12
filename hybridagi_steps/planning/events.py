"""What a running plan tells: StepEvents for programs, a bar for people.

A plan's step that ends is a `STEP_COMPLETED` event whose snapshot is a message: what was done, as
an assistant says it, with artifacts in the metadata. All else is in `data`: the plan, states of
steps, what was spent. Who listens, and how events travel on, is no concern of this module.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from hybridagi_steps.planning.plan import Plan
from hybridagi_steps.planning.results import StepResult
from hybridagi_steps.records.event import StepEvent, StepEventType
from hybridagi_steps.records.message import MessageRole, Step, StepMetrics

_log = logging.getLogger("hybridagi_steps")

Listener = Callable[[StepEvent], Any]


class EventLine:
    """Numbers the events of one run and hands them to a listener.

    Args:
        run_id: The run.
        session_id: The session that it belongs to, if any.
        listeners: Given each event, in order; they must not block.
    """

    def __init__(self, run_id: str, session_id: str | None, listeners: list[Listener]) -> None:
        self.run_id, self.session_id = run_id, session_id
        self._listeners = listeners
        self._number = 0

    def tell(self, kind: StepEventType, step_id: str | None = None, **data: Any) -> None:
        """Tell that something happened."""
        self._send(StepEvent(type=kind, run_id=self.run_id, step_id=step_id, data=data))

    def planned(self, plan: Plan, states: dict[str, str]) -> None:
        """Tell the plan, when there is one, and whenever it changes."""
        steps = [
            {"id": step.id, "title": step.title, "depends_on": step.dependencies}
            for step in plan.steps
        ]
        self.tell(StepEventType.STEP_DELTA, plan=plan.to_text(), steps=steps, states=states)

    def state(self, step_id: str, status: str, **data: Any) -> None:
        """Tell that a step has another state."""
        self.tell(StepEventType.STEP_DELTA, step_id, status=status, **data)

    def ended(self, result: StepResult) -> None:
        """Tell that a step ended, and how."""
        if not self._listeners:
            return
        spent = result.spent
        told = Step(
            session_id=self.session_id or self.run_id,
            run_id=self.run_id,
            role=MessageRole.ASSISTANT,
            content=result.summary or (str(result.error) if result.error else None),
            metadata={"plan_step": result.to_dict()},
            metrics=StepMetrics(
                duration_ms=result.duration_ms,
                input_tokens=spent.input_tokens,
                output_tokens=spent.output_tokens,
                total_tokens=spent.total_tokens,
                cost=spent.cost,
                llm_calls=spent.calls or None,
            ),
        )
        self._send(
            StepEvent(
                type=StepEventType.STEP_COMPLETED,
                run_id=self.run_id,
                step_id=result.id,
                snapshot=told,
                data={"status": result.status.value},
            )
        )

    def _send(self, event: StepEvent) -> None:
        event.number, event.session_id = self._number, self.session_id
        self._number += 1
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:  # a plan does not fail because somebody cannot watch it
                _log.exception("a listener of plan %s failed", self.run_id)


class ProgressBar:
    """Shows on the terminal how many steps have ended."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._seen: set[str] = set()

    def __call__(self, event: StepEvent) -> None:
        """Move on with an event; the first one opens the bar, since a run may be refused."""
        if self._bar is None:
            from tqdm import tqdm

            self._bar = tqdm(total=0, unit="step", desc="plan")
        data = event.data or {}
        if "steps" in data:
            self._bar.total = len(data["steps"])
            self._bar.refresh()
        if event.type is StepEventType.STEP_COMPLETED and event.step_id not in self._seen:
            self._seen.add(str(event.step_id))
            self._bar.set_postfix_str(f"{event.step_id}: {data.get('status')}")
            self._bar.update(1)
        if event.type in _FINAL:
            self._bar.close()


_FINAL = (StepEventType.RUN_COMPLETED, StepEventType.RUN_FAILED, StepEventType.RUN_CANCELLED)
