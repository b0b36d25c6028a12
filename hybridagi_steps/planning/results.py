"""Results of a plan, and the events on the way: every step with its status, artifacts and cost.

Plain values that a person reads, a notebook draws and JSON holds. The comparison with other
contexts is counted when it is asked for: it reads every prompt once more. A plan's step that ends
is a `STEP_COMPLETED` event whose snapshot is a message: what was done, as an assistant says it,
with artifacts in the metadata. All else of an event is in `data`. Who listens is no concern of this
module.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape
from typing import Any, Literal

from hybridagi_steps._concurrency import cached_property
from hybridagi_steps.errors import UnknownStepError
from hybridagi_steps.planning.comparison import Comparison, compare
from hybridagi_steps.planning.plan import Plan, PlanStep, drawn
from hybridagi_steps.planning.scheduler import StepState
from hybridagi_steps.planning.settings import Listener
from hybridagi_steps.planning.usage import TokenUsage
from hybridagi_steps.planning.worker import Problem
from hybridagi_steps.protocols import TokenCounter
from hybridagi_steps.recording.usage import Usage
from hybridagi_steps.records.event import StepEvent, StepEventType
from hybridagi_steps.records.message import MessageRole, Step
from hybridagi_steps.running.streaming import FINAL_EVENTS
from hybridagi_steps.token_counters import EstimatingCounter

_MOST_TOLD = 200
_MOST_DRAWN = 300

_log = logging.getLogger("hybridagi_steps")


@dataclass(slots=True)
class StepResult:
    """What became of one step."""

    step: PlanStep
    status: StepState = StepState.WAITING
    attempts: int = 0
    """How often it was tried."""
    summary: str = ""
    """What was done, in words."""
    artifacts: dict[str, Any] = field(default_factory=dict[str, Any])
    """What it handed on."""
    error: BaseException | None = None
    """Why it failed, at the last attempt."""
    because: str | None = None
    """Of a skipped step, the failed step that it waited for."""
    problems: list[Problem] = field(default_factory=list[Problem])
    """What went wrong on the way, of all attempts."""
    changed_files: list[str] = field(default_factory=list[str])
    """Files that it added, changed or deleted."""
    cut: list[str] = field(default_factory=list[str])
    """What was left out of the files that it named."""
    spent: Usage = field(default_factory=Usage)
    """What its language model calls cost."""
    duration_ms: float = 0.0
    """Wall time of all attempts."""
    reused: bool = False
    """Whether artifacts of an earlier run were taken in place of doing the work again."""

    @property
    def id(self) -> str:
        """The step's id."""
        return self.step.id

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON data."""
        return {
            "id": self.id,
            "type": self.step.type.value,
            "title": self.step.title,
            "status": self.status.value,
            "attempts": self.attempts,
            "summary": self.summary,
            "artifacts": self.artifacts,
            "error": None if self.error is None else Problem.of(self.error).model_dump(),
            "because": self.because,
            "problems": [problem.model_dump(exclude_none=True) for problem in self.problems],
            "changed_files": self.changed_files,
            "left_out": self.cut,
            "spent": self.spent.model_dump(),
            "duration_ms": self.duration_ms,
            "reused": self.reused,
        }


@dataclass
class PlanResult:
    """What became of a plan."""

    requirement: str
    """What was asked for."""
    plan: Plan | None
    """The plan as it stood at the end; None when none could be made."""
    steps: list[StepResult]
    """Every step, those that were skipped or replaced too, in the order of the plan."""
    token_usage: TokenUsage
    """What it cost."""
    run_id: str = ""
    """The run in memory."""
    status: Literal["succeeded", "failed", "cancelled"] = "failed"
    error: BaseException | None = None
    """Why there is no plan, or what ended the run."""
    duration_ms: float = 0.0
    """Wall time."""
    replans: int = 0
    """How often the plan was changed after a failure."""
    snapshot: str | None = None
    """The state of the workspace before the plan, for `workspace.rollback`."""
    rolled_back: bool = False
    """Whether the workspace was brought back to that state."""
    counter: TokenCounter = field(default_factory=EstimatingCounter, repr=False)
    """Counts the tokens of the comparison."""
    recording_errors: list[str] = field(default_factory=list[str])
    """What could not be recorded."""

    @property
    def success(self) -> bool:
        """Whether every step of the plan succeeded."""
        return self.status == "succeeded"

    @property
    def artifacts(self) -> dict[str, Any]:
        """All artifacts by name; of two with one name the later step's stands."""
        return {name: value for step in self.steps for name, value in step.artifacts.items()}

    @cached_property
    def comparison(self) -> Comparison:
        """What the same plan with the same answers costs with other contexts."""
        order = [step.id for step in self.steps]
        return compare(self.token_usage.calls, order, self.counter)

    def step(self, step_id: str) -> StepResult:
        """Return the result of one step.

        Raises:
            UnknownStepError: The plan has no such step.
        """
        for step in self.steps:
            if step.id == step_id:
                return step
        raise UnknownStepError(step_id)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON data, without prompts."""
        usage = self.token_usage
        return {
            "requirement": self.requirement,
            "success": self.success,
            "status": self.status,
            "error": None if self.error is None else Problem.of(self.error).model_dump(),
            "run_id": self.run_id,
            "plan": None if self.plan is None else self.plan.to_text(),
            "steps": [step.to_dict() for step in self.steps],
            "artifacts": self.artifacts,
            "token_usage": {
                "total": usage.total.model_dump(),
                "planning": usage.planning.model_dump(),
            },
            "comparison": self.comparison.model_dump(),
            "replans": self.replans,
            "rolled_back": self.rolled_back,
            "duration_ms": self.duration_ms,
        }

    def __str__(self) -> str:
        """How it ended and why, then one line a step."""
        from hybridagi_steps.display.terminal import printable

        first = f"{self.status}: {self.requirement[:100]}"
        why = [f"  {type(self.error).__name__}: {self.error}"] if self.error is not None else []
        return printable("\n".join([first, *why, *map(_line, self.steps)]))

    def _repr_html_(self) -> str:
        """Show the graph of the plan with what became of each step."""
        drawing = drawn([each.step for each in self.steps], [*map(_node, self.steps)], _MOST_DRAWN)
        spent = self.token_usage.total
        title = f"{self.status} · {len(self.steps)} steps · {spent.calls} calls"
        if spent.total_tokens is not None:
            title += f" · {spent.total_tokens:,} tokens"
        error = f"<p>{escape(str(self.error))}</p>" if self.error is not None else ""
        html = f"<div><p><strong>{escape(title)}</strong></p>{error}{drawing}</div>"
        return html.encode("utf-8", "replace").decode()


class EventLine:
    """Numbers the events of one run and hands them to a listener."""

    def __init__(self, run_id: str, session_id: str | None, listeners: list[Listener]) -> None:
        self.run_id, self.session_id = run_id, session_id
        self._listeners = listeners
        self._number = 0

    def tell(self, kind: StepEventType, step_id: str | None = None, **data: object) -> None:
        """Tell that something happened."""
        if self._listeners:
            self._send(StepEvent(type=kind, run_id=self.run_id, step_id=step_id, data=data))

    def planned(self, plan: Plan, states: dict[str, str]) -> None:
        """Tell the plan, when there is one, and whenever it changes."""
        if not self._listeners:
            return
        steps = [
            {"id": step.id, "title": step.title, "depends_on": step.dependencies}
            for step in plan.steps
        ]
        self.tell(StepEventType.STEP_DELTA, plan=plan.to_text(), steps=steps, states=states)

    def ended(self, result: StepResult) -> None:
        """Tell that a step ended, and how."""
        if not self._listeners:
            return
        told = Step(
            session_id=self.session_id or self.run_id,
            run_id=self.run_id,
            role=MessageRole.ASSISTANT,
            content=result.summary or (str(result.error) if result.error else None),
            metadata={"plan_step": result.to_dict()},
            metrics=result.spent.metrics(result.duration_ms),
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
        if event.type in FINAL_EVENTS:
            self._bar.close()


def summed_up(results: Iterable[StepResult]) -> str:
    """Say how many steps did not succeed, and what went wrong first."""
    counted = [each for each in results if each.status is not StepState.REPLACED]
    undone = [each for each in counted if each.status is not StepState.SUCCEEDED]
    told = f"{len(undone)} of {len(counted)} steps did not succeed"
    first = next((each for each in undone if each.error is not None), None)
    return told if first is None else f"{told}; first: {first.id}: {first.error!s:.{_MOST_TOLD}}"


def _node(result: StepResult) -> dict[str, Any]:
    said = str(result.error) if result.error is not None else result.summary
    kind = "skipped"
    if result.status in (StepState.FAILED, StepState.CANCELLED):
        kind = "error"
    elif result.status is StepState.SUCCEEDED:
        kind = result.step.type.value
    return {
        "id": result.id,
        "label": result.step.title,
        "kind": kind,
        "detail": result.status.value,
        "title": said or result.step.goal,
    }


def _line(result: StepResult) -> str:
    told = str(result.error) if result.error is not None else result.summary
    if result.because:
        told = f"waited for {result.because}"
    return f"  {result.status.value:<10} {result.id}" + (f": {told[:160]}" if told else "")
