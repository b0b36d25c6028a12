"""One run while it lives: its identity, its parts, and how others reach it.

Everything that belongs to a run hangs on one `ActiveRun`; nothing of it is on the runner or on the
program, so any number of runs stand side by side. DSPy's settings carry the run to the code inside,
where tools, models and nested agents find it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary

from hybridagi_steps._concurrency import ForkSafeLock
from hybridagi_steps.display.titles import line
from hybridagi_steps.errors import InvalidSettingError, SequenceConflictError
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.recording.call_tree import Labels
from hybridagi_steps.recording.recorder import StepRecorder
from hybridagi_steps.recording_hooks import RunInFlight, tell_of_runs
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType, StepStatus
from hybridagi_steps.records.event import StepEventType
from hybridagi_steps.records.message import MessageRole, Step
from hybridagi_steps.running.hooks import DENIED, Consents, HookCaller, RunInfo
from hybridagi_steps.running.limits import Meter, StepRunnerConfig, ToolRequest
from hybridagi_steps.running.session_writer import LOST, SessionWriter
from hybridagi_steps.running.stopping import RunStopped, Stop, StopSwitch, Threads
from hybridagi_steps.running.stored_consents import (
    ConsentRules,
    OpenQuestions,
    RunInside,
    ask,
    settle,
)
from hybridagi_steps.running.streaming import EventStream, HomeLoop, Piece
from hybridagi_steps.running.tool_results import StoredResult, take_result
from hybridagi_steps.running.turn import ToolTurn, Turn

INSIDE: ContextVar[tuple[ActiveRun, ToolTurn | None] | None] = ContextVar(
    "hybridagi_steps_tool", default=None
)
"""The run whose tool is running, and its call; None of a tool that another one calls."""
_CANCELLED = "it was cancelled."
_registers: WeakKeyDictionary[StepMemory, Register] = WeakKeyDictionary()
_registering = ForkSafeLock()


class ActiveRun:
    """A run in flight, on the event loop that is its home."""

    def __init__(
        self,
        line: SessionWriter,
        user_id: str | None,
        config: StepRunnerConfig,
        hooks: Sequence[object],
        parent: ActiveRun | None,
        home: HomeLoop,
    ) -> None:
        labels = Labels.of(line.session_id, user_id, None, None, config.keep_prompts)
        self.recorder = StepRecorder.handing_to(self._keep, line.memory, labels, line.keep_prompts)
        recorded = self.recorder.run
        assert recorded is not None  # noqa: S101 - handing_to gives one
        self._recorded, self.line, self.config, self.parent = recorded, line, config, parent
        parent_id = None if parent is None else parent.info.run_id
        depth = 1 if parent is None else parent.info.depth + 1
        self.info = RunInfo(recorded.id, line.session_id, user_id, parent_id, depth)
        self.events = EventStream(
            recorded.id, line.session_id, line.memory.redact, self._step_started, home
        )
        self.meter, self.switch = Meter(config), StopSwitch(home.loop)
        self.hooks = HookCaller(hooks, self.info, self.events, self.stop, home)
        of_run = recorded.id, parent_id, user_id
        self.turn = Turn(line, *of_run, self.events, self.meter, self._stored, self._interrupted)
        inherited = None if parent is None else parent.consent
        self.consent = inherited if config.consent is None else config.consent
        """Who says whether its tools may run; an agent inside another one is no way round it."""
        self.consents = Consents(
            line,
            self.consent,
            config.consent_timeout_seconds,
            self.events,
            self.hooks.failed,
            self._lost,
            None if parent is None else parent.denies,
            home,
            self.switch.untimed,
        )
        self.threads = Threads(recorded.id)
        self.error: BaseException | None = None
        """What it failed with, once it has ended."""
        self.when_ended: Callable[[], None]
        """Called before the final event; set by who starts the run."""
        self.spoke = False
        """Whether the reader has seen anything of an answer, or a tool has begun."""
        self.marks: dict[UUID, Callable[[AgentStep], None]] = {}
        """What is noted in the steps of some calls, when the recorder gives them."""
        self.denied: set[UUID] = set()
        """The steps of calls that were not allowed; the program is told and goes on."""
        self.questions = OpenQuestions(line, recorded.id, user_id, self.events, self.stop)
        """What it waits for a person to say."""
        self.answers: Mapping[str, bool | str] | None = None
        """What was said to what the turn waited for that this run resumes; None of a new turn."""
        self.stored_results: list[StoredResult] = []
        """What calls of that turn gave, for a program that begins it anew."""

    @property
    def in_flight(self) -> RunInFlight:
        """What listings show of it."""
        info, asked = self.info, next(iter(self.turn.messages), None)
        title = line(asked.content) if asked is not None and asked.is_user_step() else ""
        labels = Labels(info.session_id, info.user_id)
        return self._recorded.in_flight(labels, None)._replace(title=title)

    @property
    def stopped(self) -> Stop | None:
        """Why it was stopped, or pauses."""
        return self.switch.stop

    def stop(self, stop: Stop) -> bool:
        """Stop the run, from any thread; return whether it was this that stopped it."""
        return not self.line.closed and self.switch.turn(stop)

    @property
    def _inside(self) -> tuple[ActiveRun, ToolTurn | None] | None:
        """What of this run's tools the running code is part of."""
        inside = INSIDE.get()
        return inside if inside is not None and inside[0] is self else None

    def check(self) -> None:
        """Let code of a stopped run go no further; a tool in flight ends first when it pauses."""
        if self.stopped is not None and not (self.stopped.is_pause and self._inside):
            raise RunStopped(self.stopped)

    async def check_at_rest(self) -> None:
        """Do so once a run that pauses has no call in flight: what stops here stops others."""
        if self.switch.is_pausing and not self._inside:
            await asyncio.wait({self.switch.requested})
        self.check()

    def stored_result(self, name: str, arguments: dict[str, Any]) -> StoredResult | None:
        """Return what the same call gave before the turn was resumed, once; None of a new call."""
        # What a model asks for is new: it was shown what came of the others.
        if not self.stored_results or self._inside or self.turn.is_asked_for(name):
            return None
        return take_result(self.stored_results, name, arguments)

    def wait_for_consent(
        self, call: ToolTurn, arguments: dict[str, Any], inside: RunInside | None = None
    ) -> RunStopped:
        """Store that a call waits, itself or for a run inside it; return what pauses; may block."""
        try:
            is_stored = self.consents.open.pop(call.call_id, None) is not None
            request = self.request(call, arguments)
            return self.questions.ask_consent(request, call.step_id, inside, is_stored=is_stored)
        except LOST as error:
            raise self._lost(error) from error
        except Exception as error:
            raise self._cannot_store(error) from error

    def user_answer(self, question: str) -> str:
        """Return what the user has said to a question, asked here or before; else pause."""
        inside = self._inside
        if inside is not None and inside[1] is None:
            raise InvalidSettingError("a tool that another tool calls cannot wait for its user.")
        return self.questions.ask_user(question, None if inside is None else inside[1])

    def store_open_calls(self) -> None:
        """Store of each call that has not begun that it waits; of others it is stored already."""
        for call in self.turn.open_calls():
            if call.step_id not in self.questions.waiting:
                ask(self.line, self.request(call, call.arguments), call.step_id)

    def check_limits(self) -> None:
        """Do so for a run that has spent what it may."""
        self.check()
        over = self.meter.over_limit()
        if over is not None:
            self.stop(over)
            self.check()

    def denies(self, tool: str) -> bool:
        """Whether stored rules deny a tool to this run or one around it; may block."""
        info, rules = self.info, self.consent
        own = isinstance(rules, ConsentRules) and rules.denies(tool, info.session_id, info.user_id)
        return own or (self.parent is not None and self.parent.denies(tool))

    def piece(self, piece: Piece) -> bool:
        """Show what a model has just said; return whether the reader was woken for it."""
        if self.stopped is not None:
            return False
        self.spoke = True
        self.meter.first_token()
        return self.events.grow(piece)

    def tell_now(self, point: str, *args: object) -> None:
        """Tell the hooks from code that cannot wait; a thread left alone tells nobody."""
        if not self.line.closed:
            self.hooks.tell_now(point, *args)

    def begin_tool(self, name: str, arguments: dict[str, Any]) -> ToolTurn:
        """Store a tool call."""
        self.spoke = True
        try:
            return self.turn.begin_call(name, arguments)
        except Exception as error:
            raise self._cannot_store(error) from error

    def request(self, call: ToolTurn, arguments: dict[str, Any]) -> ToolRequest:
        """Return a call as whoever consents to it, and hooks, are told of it."""
        own = (self.info.run_id, self.info.session_id, call.call_id, call.name)
        return ToolRequest(*own, arguments, self.info.user_id)

    def end_tool(self, call: ToolTurn, text: str, seconds: float, note: dict[str, Any]) -> None:
        """Store a tool's result."""
        if self.stopped is not None and self.line.closed:
            return
        try:
            metrics = self.meter.tool(seconds, failed=bool(note.get("is_error")))
            self.turn.end_call(call, text, metrics, note or None)
        except Exception as error:
            raise self._cannot_store(error) from error

    def told_result(self, call: ToolTurn, text: str | None, question: AgentStep | None) -> None:
        """Store what a call gave that an earlier run began, as somebody found out, or its denial.

        `question` is whether it might run; nobody may say yes to that any more.
        """
        try:
            settle(self.line, self.request(call, call.arguments), call.step_id, question)
        except LOST as error:
            raise self._lost(error) from error
        inputs = {"purpose": call.name, "tool": call.name, "arguments": call.arguments}
        if text is None:
            problem = _problem("ToolDenied", DENIED)
            self.add_step(AgentStepType.Action, inputs, problem, "error", call.step_id)
            self.end_tool(call, f"Error: {DENIED}", 0.0, {"is_error": True, "denied": True})
            return
        self.add_step(AgentStepType.Action, inputs, {"result": text}, "ok", call.step_id)
        self.end_tool(call, text, 0.0, {"told": True})

    def add_step(
        self,
        kind: AgentStepType,
        inputs: dict[str, Any],
        outputs: dict[str, Any],
        status: StepStatus,
        step_id: UUID | None = None,
    ) -> AgentStep:
        """Add an AgentStep that the recorder could not write, behind all others."""
        before, root = self.line.last_id, self.line.root_call
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
            return self.line.keep(step)

        self._recorded.commit(store, step_id)
        return made[0]

    def end_for_sure(self, _: object = None) -> None:
        """Leave no reader waiting and no session held, whatever happened."""
        self.when_ended()
        self.events.emit(StepEventType.RUN_FAILED)

    def _interrupted(self, call: ToolTurn) -> None:
        inputs = {"purpose": call.name, "tool": call.name, "arguments": call.arguments}
        problem = _problem("Interrupted", "the tool was cut off; no result is known.")
        self.add_step(AgentStepType.Action, inputs, problem, "cancelled", call.step_id)

    def _cannot_store(self, error: Exception) -> RunStopped:
        stop = Stop("storage", f"{type(error).__name__}: {error}", error)
        self.stop(stop)
        return RunStopped(self.stopped or stop)

    def _lost(self, error: Exception) -> RunStopped:
        """Stop a run whose turn another one has taken up: it stores nothing of that any more."""
        stopped = self._cannot_store(error)
        self.line.lost = error
        self.line.close()
        return stopped

    def _keep(self, step: AgentStep) -> bool:
        """Take a step of the recorder's, with what it cannot know of it."""
        error: Any = (step.outputs or {}).get("error")
        if step.id in self.questions.waiting:
            return False  # its call goes on when it is answered
        if step.id in self.denied:
            # To the recorder the tool gave a text: that it was denied.
            step.status, step.outputs = "error", _problem("ToolDenied", DENIED)
        elif step.status == "cancelled" and isinstance(error, dict):
            # asyncio and anyio write tasks, files and addresses into the message.
            step.outputs = {**(step.outputs or {}), **_problem(error["type"], _CANCELLED)}  # pyright: ignore[reportUnknownArgumentType]
        if isinstance(step.id, UUID) and (mark := self.marks.pop(step.id, None)) is not None:
            mark(step)
        if step.metrics is not None and step.metrics.llm_calls:
            step.metrics.first_token_latency_ms = self.meter.first_token_ms
        return self.line.keep(step)

    def _stored(self, step: Step) -> None:
        if step.role is not MessageRole.ASSISTANT:
            self.events.emit(StepEventType.STEP_COMPLETED, step_id=step.id, snapshot=step)
        self.hooks.tell_soon("on_step_end", step)
        if step.role is not MessageRole.USER:
            data = self.meter.run_metrics().model_dump(mode="json", exclude_none=True)
            self.events.emit(StepEventType.METRICS_SNAPSHOT, data, step_id=step.id)

    def _step_started(self, step_id: str) -> None:
        self.hooks.tell_soon("on_step_start", step_id)


class Register:
    """The runs in flight on one memory."""

    def __init__(self) -> None:
        self._runs: dict[str, ActiveRun] = {}
        self._sessions: dict[str, str] = {}
        self._lock = ForkSafeLock()

    def find(self, run_id: str) -> ActiveRun | None:
        """Return a run in flight."""
        return self._runs.get(run_id)

    def in_session(self, session_id: str) -> ActiveRun | None:
        """Return the run in flight in a session."""
        with self._lock:
            return self._runs.get(self._sessions.get(session_id, ""))

    def sessions(self) -> dict[str, str]:
        """Return the sessions of the runs in flight, by run id."""
        with self._lock:
            return {run_id: run.info.session_id for run_id, run in self._runs.items()}

    def all(self) -> list[ActiveRun]:
        """Return the runs in flight."""
        with self._lock:
            return list(self._runs.values())

    def check_free(self, session_id: str) -> None:
        """Check that a session has no run."""
        if session_id in self._sessions:
            # Not which: it may be another user's.
            raise SequenceConflictError(
                f"session {session_id!r} has a run in flight; wait for its end or cancel it: "
                "the list of runs names it."
            )

    def add(self, run: ActiveRun) -> None:
        """Register a run until it is removed."""
        info = run.info
        with self._lock:
            self.check_free(info.session_id)
            self._sessions[info.session_id] = info.run_id
            self._runs[info.run_id] = run

    def remove(self, run: ActiveRun) -> None:
        """Forget a run that has ended; doing so twice changes nothing."""
        with self._lock:
            if self._runs.pop(run.info.run_id, None) is not None:
                del self._sessions[run.info.session_id]


def register_of(memory: StepMemory) -> Register:
    """Return the register that all runners of a memory share."""
    with _registering:
        return _registers.setdefault(memory, Register())


def _running(memory: object) -> list[RunInFlight]:
    """Return the runs in flight on a memory, with what the user said."""
    with _registering:
        register = _registers.get(memory) if isinstance(memory, StepMemory) else None
    return [] if register is None else [run.in_flight for run in register.all()]


tell_of_runs(_running)


def _problem(kind: str, message: str) -> dict[str, Any]:
    """Return the outputs of a step that failed."""
    return {"error": {"type": kind, "message": message}}
