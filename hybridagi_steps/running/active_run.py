"""One run while it lives: its identity, its parts, and how others reach it.

Everything that belongs to a run hangs on one `ActiveRun`; nothing of it is on the runner or on the
program, so any number of runs stand side by side. DSPy's settings carry the run to the code inside,
where tools, models and nested agents find it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from hybridagi_steps.recording.call_tree import Labels
from hybridagi_steps.recording.recorder import StepRecorder
from hybridagi_steps.recording.step_shapes import error_fields
from hybridagi_steps.recording.values import REDACTION_FAILED
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType, StepStatus
from hybridagi_steps.records.event import StepEventType
from hybridagi_steps.records.message import Step
from hybridagi_steps.records.redaction import Redact, redacted
from hybridagi_steps.records.step_text import cut
from hybridagi_steps.running.consent import DENIED, Consents
from hybridagi_steps.running.hooks import HookCaller, RunInfo
from hybridagi_steps.running.limits import AgentSession, Meter, StepRunnerConfig
from hybridagi_steps.running.stopping import ProgramExitError, RunStopped, RunVetoed, Stop, Threads
from hybridagi_steps.running.streaming import Drafts, EventLine
from hybridagi_steps.running.token_stream import Piece
from hybridagi_steps.running.turn import SessionLine, ToolTurn, Turn

RUN = "hybridagi_steps_run"
"""The DSPy setting that carries the run of the running code."""
_CANCELLED = "it was cancelled."
_LONGEST_MESSAGE = 4000


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


class ActiveRun:
    """A run in flight; made on the event loop that it lives on.

    Args:
        session: Whose conversation it is.
        line: Where its messages go.
        config: What it may do.
        hooks: Who is told of it.
        parent: The run around it.
    """

    def __init__(
        self,
        session: AgentSession,
        line: SessionLine,
        config: StepRunnerConfig,
        hooks: Sequence[Any],
        parent: ActiveRun | None,
    ) -> None:
        labels = Labels.of(session.session_id, session.user_id, None, None)
        self.recorder = StepRecorder.handing_to(self._keep, line.memory, labels)
        run = self.recorder.run
        assert run is not None  # noqa: S101 - handing_to gives one
        self.session, self.line, self.config, self.parent = session, line, config, parent
        self.info = RunInfo(
            run.id,
            session.session_id,
            session.user_id,
            None if parent is None else parent.info.run_id,
            1 if parent is None else parent.info.depth + 1,
        )
        inherited = None if parent is None else parent.consent
        self.consent = inherited if config.consent is None else config.consent
        """Who says whether its tools may run; an agent inside another one is no way round it."""
        self._redact = line.memory.redact
        self.events = EventLine(run.id, session.session_id)
        self.meter = Meter(config)
        self.hooks = HookCaller(hooks, self.info, self._hook_failed, self._vetoed)
        self.drafts = Drafts(self.events, self._redact, self._step_started)
        self.turn = Turn(
            line,
            run.id,
            self.info.parent_run_id,
            self.drafts,
            self.meter,
            told=self._stored,
            interrupted=self._interrupted,
        )
        self.consents = Consents(
            run.id,
            session.session_id,
            self.consent,
            config.consent_timeout_seconds,
            self.emit,
            self._hook_failed,
        )
        self.threads = Threads(run.id)
        self.stopped: Stop | None = None
        self.stop_requested = asyncio.Event()
        self.when_ended: Callable[[], None] | None = None
        """Called once, before the final event."""
        self.spoke = False
        """Whether the reader has seen anything of an answer, or a tool has begun."""
        self._denied: set[UUID] = set()
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()

    @property
    def tool_timeout_seconds(self) -> float | None:
        """Longest a tool may take."""
        return self.config.tool_timeout_seconds

    def emit(self, kind: StepEventType, **fields: Any) -> None:
        """Add an event, without what redaction takes out."""
        data = fields.get("data")
        if data is not None and self._redact is not None:
            try:
                fields["data"] = redacted(data, self._redact)
            except Exception as error:  # what cannot be redacted is not shown
                fields["data"] = {"redaction_failed": type(error).__name__}
        self.events.emit(kind, **fields)

    def error(self, where: str, error: BaseException, **more: Any) -> None:
        """Report something that failed."""
        self.emit(
            StepEventType.ERROR, data={"where": where, **shown_error(error, self._redact), **more}
        )

    def stop(self, stop: Stop) -> bool:
        """Stop the run, from any thread; return whether it was this that stopped it."""
        with self._lock:
            if self.stopped is not None or self.turn.closed:
                return False
            self.stopped = stop
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.stop_requested.set)
        return True

    def check(self) -> None:
        """Let code of a stopped run go no further."""
        if self.stopped is not None:
            raise RunStopped(self.stopped)

    def check_limits(self) -> None:
        """Do so for a run that has spent what it may."""
        self.check()
        over = self.meter.over_limit()
        if over is not None:
            self.stop(over)
            self.check()

    def piece(self, piece: Piece) -> None:
        """Show what a model has just said."""
        if self.stopped is not None:
            return
        self.spoke = True
        self.meter.first_token()
        self.drafts.grow(piece.key, piece.content, piece.reasoning, piece.tool_calls)

    async def tell(self, point: str, *args: Any) -> None:
        """Tell the hooks."""
        await self.hooks.tell(point, *args)

    def tell_now(self, point: str, *args: Any) -> None:
        """Tell the hooks from code that cannot wait; a thread left alone tells nobody."""
        if not self.turn.closed:
            self.hooks.tell_now(point, *args)

    def begin_tool(self, name: str, arguments: dict[str, Any]) -> ToolTurn:
        """Store a tool call."""
        self.spoke = True
        try:
            return self.turn.begin_call(name, arguments)
        except Exception as error:
            raise self._cannot_store(error) from error

    def end_tool(self, call: ToolTurn, text: str, seconds: float, note: dict[str, Any]) -> None:
        """Store a tool's result."""
        if self.stopped is not None and self.turn.closed:
            return
        try:
            self.turn.end_call(call, text, self.meter.tool(seconds), note or None)
        except Exception as error:
            raise self._cannot_store(error) from error

    def tool_failed(self, call: ToolTurn, error: BaseException) -> None:
        """Report a tool's error; the program goes on."""
        self.error("tool", error, tool=call.name, call_id=call.call_id)
        self.hooks.tell_soon("on_error", error)

    def tool_denied(self, call: ToolTurn) -> None:
        """Let the step of a call say that it was not allowed; the program is told and goes on."""
        self._denied.add(call.step_id)

    def add_step(
        self,
        kind: AgentStepType,
        inputs: dict[str, Any],
        outputs: dict[str, Any],
        status: StepStatus,
        step_id: UUID | None = None,
    ) -> AgentStep:
        """Add an AgentStep that the recorder could not write, behind all others."""
        before, root = self.turn.steps.last_id, self.turn.steps.root_call
        made: list[AgentStep] = []

        def store(hop: int, step_id: UUID) -> bool:
            step = AgentStep(
                id=step_id,
                parent_id=before,
                hop=hop,
                step_type=kind,
                inputs=inputs,
                outputs=outputs,
                session_id=self.info.session_id,
                user_id=self.info.user_id,
                run_id=self.info.run_id,
                program_id=None if root is None else str(root.id),
                status=status,
            )
            made.append(step)
            return self.turn.keep(step)

        recorded = self.recorder.run
        assert recorded is not None  # noqa: S101 - handing_to gives one
        recorded.commit(store, step_id)
        return made[0]

    def _interrupted(self, call: ToolTurn) -> None:
        inputs = {"purpose": call.name, "tool": call.name, "arguments": call.arguments}
        problem = _problem("Interrupted", "the tool was cut off; no result is known.")
        self.add_step(AgentStepType.Action, inputs, problem, "cancelled", call.step_id)

    def _cannot_store(self, error: Exception) -> RunStopped:
        stop = Stop("storage", f"{type(error).__name__}: {error}", error)
        self.stop(stop)
        return RunStopped(self.stopped or stop)

    def _keep(self, step: AgentStep) -> bool:
        error: Any = (step.outputs or {}).get("error")
        if step.id in self._denied:
            # To the recorder the tool gave a text: that it was denied.
            step.status, step.outputs = "error", _problem("ToolDenied", DENIED)
        elif step.status == "cancelled" and isinstance(error, dict):
            # asyncio and anyio write tasks, files and addresses into the message.
            step.outputs = {**(step.outputs or {}), **_problem(error["type"], _CANCELLED)}  # pyright: ignore[reportUnknownArgumentType]
        return self.turn.keep(step)

    def _stored(self, step: Step) -> None:
        if not step.is_assistant_step():
            self.events.emit(StepEventType.STEP_COMPLETED, step_id=step.id, snapshot=step)
        self.hooks.tell_soon("on_step_end", step)
        if not step.is_user_step():
            data = self.meter.run_metrics().model_dump(mode="json", exclude_none=True)
            self.emit(StepEventType.METRICS_SNAPSHOT, step_id=step.id, data=data)

    def _step_started(self, step_id: str) -> None:
        self.hooks.tell_soon("on_step_start", step_id)

    def _hook_failed(self, point: str, error: BaseException) -> None:
        self.error("hook", error, hook=point)
        if isinstance(error, ProgramExitError):
            self.stop(Stop("error", str(error), error))

    def _vetoed(self, veto: RunVetoed) -> None:
        self.stop(Stop("vetoed", str(veto) or "a hook has vetoed the run.", veto))


def _problem(kind: str, message: str) -> dict[str, Any]:
    """Return the outputs of a step that failed."""
    return {"error": {"type": kind, "message": message}}
