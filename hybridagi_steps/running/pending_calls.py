"""Pending calls: what a turn that paused or was cut off waits for, and how the answers take it up.

What a call waits for is on disk before and after it waits: the call, a question about it, its
answer. So a tool that had not begun is told from one of which nobody knows how far it came. What
a person is asked stands there as well, and whoever has the memory may answer: `UserQuestions`.
"""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Literal, NamedTuple
from uuid import UUID, uuid5

import dspy

from hybridagi_steps._concurrency import in_thread
from hybridagi_steps.errors import (
    DuplicateStepError,
    InvalidSettingError,
    MessageError,
    SequenceConflictError,
    UnknownRunError,
    UnknownSessionError,
    UnknownStepError,
)
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.recording.scopes import RUN
from hybridagi_steps.records.agent_step import AgentStep, id_text
from hybridagi_steps.records.event import StepEvent, StepEventType
from hybridagi_steps.records.message import new_id
from hybridagi_steps.records.provenance import source_of
from hybridagi_steps.records.run import RunResult
from hybridagi_steps.records.store_values import CALL_STEP, USER_QUESTIONS
from hybridagi_steps.running.active_run import INSIDE, ActiveRun
from hybridagi_steps.running.answering import Prompt
from hybridagi_steps.running.limits import AgentSession
from hybridagi_steps.running.program_adapter import Agent, inner
from hybridagi_steps.running.session_writer import SessionWriter
from hybridagi_steps.running.starting import Start, open_calls
from hybridagi_steps.running.stored_consents import (
    BRANCH,
    NESTED,
    TURN,
    RunInside,
    answered,
    check_answer,
    questions,
    user_answer_id,
)
from hybridagi_steps.running.stored_events import stored_events
from hybridagi_steps.running.tool_calls import idempotent
from hybridagi_steps.running.turn import ToolTurn

_INSIDE = UUID("6f1c9a52-43f2-4c0b-9d7e-2f6a8b1c3d11")
"""What the sessions of agents inside tool calls follow from."""
_PASSED_ON = (
    StepEventType.TOOL_AUTH_REQUIRED,
    StepEventType.TOOL_AUTH_DENIED,
    StepEventType.INPUT_REQUIRED,
)


class PendingCall(NamedTuple):
    """What a session's last turn waits for: a tool call that has no result, or a question."""

    call_id: str
    """The call's id; of a question that no tool call asks, the question's."""
    tool: str
    arguments: dict[str, Any]
    waits_for: Literal["consent", "answer", "result"]
    """For `consent`: the tool has not begun; for an `answer`: its user's; for its `result`: nobody
    knows how far it came."""
    run_id: str | None
    """The run that asked for it."""
    question_id: str | None = None
    """The question to the user, by which it may be answered, too."""


def resume_with_answers(
    start: Start, agent: Agent, memory: StepMemory, answers: Mapping[str, bool | str]
) -> Start:
    """Return what takes up a turn with what is known by now of its calls; may block."""
    pending = _pending_of(memory, start.session.session_id)
    names = answer_names(pending.waiting)
    for name, answer in answers.items():
        is_late = name not in names or (
            isinstance(answer, bool) and names[name].waits_for == "result"
        )
        if name in pending.taken and is_late:
            raise answered_meanwhile(start.session.session_id, [name])
        _check_answer(name, answer, names)
    prepare = start.prepare

    def prepared(run: ActiveRun) -> Prompt:
        prompt = prepare(run)
        run.answers, own = answers, _pending(run.line)
        for name, answer in answers.items():
            if (question_id := names[name].question_id) and question_id in own.questions:
                UserQuestions(memory).answer(question_id, str(answer))
        texts = {name: text for name, text in answers.items() if isinstance(text, str)}
        prompt.results = {name: text for name, text in texts.items() if name in own.calls}
        prompt.consents = {name: _allowed(answers.get(name)) for name in own.consents}
        prompt.consents |= dict.fromkeys(own.again, True)
        prompt.questions = questions(memory, run.line.session_id)
        prompt.inputs.update(_place(run, agent, start.data["resumes"]))
        return prompt

    start.prepare = prepared
    return start


def answered_meanwhile(session_id: str, names: Iterable[str]) -> SequenceConflictError:
    """Return the error that answers come too late, or to what never waited for one."""
    return SequenceConflictError(
        f"session {session_id!r}: nothing waits for an answer to "
        f"{', '.join(f'{name!r:.80}' for name in names)}; somebody else has answered meanwhile if "
        "something did."
    )


def answer_names(pending: Sequence[PendingCall]) -> dict[str, PendingCall]:
    """Return what is waited for by the ids that an answer may name."""
    return {name: call for call in pending for name in (call.call_id, call.question_id) if name}


def _check_answer(name: str, answer: object, names: Mapping[str, PendingCall]) -> None:
    """Check that somebody may say this to what waits; a text such as "no" is no consent."""
    if (call := names.get(name)) is None:
        raise InvalidSettingError(
            f"call {name!r:.80} waits for no answer; those that do: "
            f"{', '.join(sorted(names)) or 'none'}."
        )
    if call.waits_for != "consent":
        if not isinstance(answer, str):
            raise InvalidSettingError(
                f"{name!r:.80} waits for its {call.waits_for}, a text, not {answer!r:.80}: "
                f'answers={{{name!r:.80}: "text"}}, or --answer {name:.80}=TEXT.'
            )
    elif not isinstance(answer, str):
        check_answer(answer)


def _allowed(answer: bool | str | None) -> bool | None:
    return answer if isinstance(answer, bool) else None


def _place(run: ActiveRun, agent: Agent, run_id: str | None) -> dict[str, Any]:
    """Return the input that takes an agent of graph programs up at its node, if it is one."""
    stopped_run = getattr(inner(agent.program), "stopped_run", None)
    if stopped_run is None or run_id is None:
        return {}
    memory, seen = run.line.memory, list[str]()
    while run_id not in seen:
        seen.append(run_id)
        where = {"session_id": run.line.session_id, "metadata": {"resumes": run_id}, "scope": "*"}
        later = memory.find(where, limit=1, newest_first=True).steps
        run_id = str(later[0].run_id) if later else run_id
    try:
        ending = stored_events(memory, run_id, session_id=run.line.session_id)[-1]
        waiting = (ending.data or {}).get("waiting", [])
        asked = [each["call_id"] for each in waiting if each["waits_for"] == "answer"]
        run.questions.earlier = list(memory.get_steps(asked))
        return {"resume": stopped_run(run_id, memory=memory)}
    except UnknownRunError:
        return {}  # it had not begun
    except InvalidSettingError as error:
        run.events.error("resume", error)
        return {}


def pending_calls(memory: StepMemory, session_id: str) -> list[PendingCall]:
    """Return what a session's last turn waits for; may block."""
    return _pending_of(memory, session_id).waiting


def _pending_of(memory: StepMemory, session_id: str) -> _Pending:
    line = SessionWriter(memory, session_id, None)
    if line.find_end() == 0:
        raise UnknownSessionError(session_id)
    return _pending(line)


@dataclass(slots=True)
class _Pending:
    """What a turn waits for, and how its calls are gone on with."""

    waiting: list[PendingCall] = field(default_factory=list[PendingCall])
    calls: set[str] = field(default_factory=set[str])
    """Calls whose result may be told."""
    consents: set[str] = field(default_factory=set[str])
    """Calls whose tools have not begun."""
    again: set[str] = field(default_factory=set[str])
    """Calls whose tools are called again, allowed: they find what was answered."""
    questions: set[str] = field(default_factory=set[str])
    """Questions to the user."""
    taken: set[str] = field(default_factory=set[str])
    """Calls of which nobody asks any more whether they may run."""


def _pending(line: SessionWriter) -> _Pending:
    found = _Pending()
    try:
        turn = line.last_turn()
    except MessageError:
        return found  # no user has said anything yet
    if turn[-1].is_assistant_step() and not turn[-1].has_tool_calls():
        return found
    calls = open_calls(turn)
    ended = {str(step.id) for step in line.memory.get_steps([call.step_id for call in calls])}
    asked = questions(line.memory, line.session_id) if calls else {}
    to_user = _unanswered(line.memory, {"session_id": line.session_id})
    to_user = [step for step in to_user if _is_awaited(step, line)]
    by_call = {(step.metadata or {}).get(CALL_STEP): step for step in to_user}
    found.taken = {str(call.get("id")) for step in turn for call in step.tool_calls or ()}
    for call in calls:
        if (step_id := str(call.step_id)) not in ended:
            question = by_call.pop(step_id, None) or asked.get(step_id)
            _add(found, line, call, question, turn[-1].run_id)
    for question in to_user:
        if question in by_call.values():
            found.questions.add(id_text(question.id))
            found.waiting.append(_to_user(question, id_text(question.id), turn[-1].run_id))
    return found


def _add(
    found: _Pending,
    line: SessionWriter,
    call: ToolTurn,
    question: AgentStep | None,
    run_id: str | None,
) -> None:
    """Add an open call, with the newest question about it."""
    waits_for: Literal["consent", "result"] = "result"
    if question is not None and question.scope == USER_QUESTIONS:
        found.again.add(call.call_id)
        found.questions.add(id_text(question.id))
        found.waiting.append(_to_user(question, call.call_id, run_id))
        return
    if question is not None and (nested := (question.metadata or {}).get(NESTED)):
        found.again.add(call.call_id)
        with suppress(UnknownSessionError):  # its run was erased
            inside = _pending_of(line.memory, str(nested))
            found.taken |= inside.taken
            if inside.waiting:
                found.waiting += inside.waiting
                return
    elif question is None:
        found.taken.discard(call.call_id)  # nobody was asked about it
    elif answered(question) is None:
        waits_for = "consent"
        found.consents.add(call.call_id)
    found.calls.add(call.call_id)
    about = PendingCall(call.call_id, call.name, call.arguments, waits_for, run_id)
    found.waiting.append(about)


def _to_user(question: AgentStep, call_id: str, run_id: str | None) -> PendingCall:
    arguments = {"question": (question.inputs or {}).get("purpose")}
    return PendingCall(call_id, "ask_user", arguments, "answer", run_id, id_text(question.id))


def _unanswered(memory: StepMemory, where: Mapping[str, Any]) -> list[AgentStep]:
    """Return the questions to users that have no answer, oldest first."""
    asked = [
        step
        for step in memory.iter_steps({"scope": USER_QUESTIONS, **where})
        if step.status == "partial" and source_of(step.metadata) is None
    ]
    answers = {step.id for step in memory.get_steps([user_answer_id(step) for step in asked])}
    return [step for step in asked if user_answer_id(step) not in answers]


def _is_awaited(question: AgentStep, line: SessionWriter) -> bool:
    about = question.metadata or {}
    return line.awaits(about.get(TURN), about.get(BRANCH))


async def ask_inside(runner: Any, parent: ActiveRun, message: str) -> str:
    """Return what a runner's agent answers inside a tool call of a run; pause that run with it."""

    def pass_on(event: StepEvent) -> None:
        if event.type in _PASSED_ON:
            data = {"nested_run_id": event.run_id, **(event.data or {})}
            parent.events.emit(event.type, data)

    inside = INSIDE.get()
    call = None if inside is None or inside[0] is not parent else inside[1]
    session_id = str(new_id() if call is None else uuid5(_INSIDE, str(call.step_id)))
    session = AgentSession(session_id, parent.info.user_id)
    events, first = runner.run_stream(session, message), None
    if parent.answers is not None and call is not None:
        with suppress(UnknownSessionError):  # it had not begun
            names = answer_names(await runner.pending(session))
            answers = {name: value for name, value in parent.answers.items() if name in names}
            events = runner.resume(session, answers=answers)
            if (first := await anext(events, None)) is None:  # it has ended
                last = await runner.repository.get_last_step(session.session_id)
                return str(last.content)
    result = await RunResult.of(events, pass_on, first)
    if result.status != "paused":
        return result.checked().text
    if call is None:
        raise InvalidSettingError("an agent that a tool's tool asks cannot wait for an answer.")
    waiting = RunInside(session.session_id, result.waiting)
    raise await in_thread(partial(parent.wait_for_consent, call, call.arguments, waiting))


@dataclass(frozen=True, slots=True)
class UserQuestion:
    """What a run waits for a person to say."""

    id: str
    """Of the step that it is."""
    text: str
    session_id: str | None
    user_id: str | None
    asked_at: datetime


class UserQuestions:
    """Questions of runs to people, which outlive the process that asks.

    A question is a step of its session, and so is its answer, which any process with the memory
    may give, whenever it likes. The run that asks pauses; `runner.resume` goes on with the answer.

    Args:
        memory: Where they are kept, and erased with their session or user.

    Example:
        `questions = hs.UserQuestions(memory)`; `dspy.ReAct("question -> answer",
        tools=[questions.ask_user])`; then `runner.resume(session, answers={call_id: "by train"})`,
        from anywhere.
    """

    def __init__(self, memory: StepMemory) -> None:
        self._memory = memory

    @idempotent
    def ask_user(self, question: str) -> str:
        """Ask the user something that you cannot find out yourself; returns what they say."""
        run: ActiveRun | None = dspy.settings.get(RUN)
        if run is None:
            raise InvalidSettingError("ask_user waits for the user of a run: use a StepRunner.")
        return run.user_answer(question)

    def open(
        self, *, session_id: str | None = None, user_id: str | None = None
    ) -> list[UserQuestion]:
        """Return what nobody has answered yet, of a session, of a user, or all, oldest first."""
        # Not by the filter's session: that is its line, where a retry in flight does not stand yet.
        found = _unanswered(self._memory, {"user_id": user_id})
        found = [step for step in found if session_id in (None, step.session_id)]
        return [_shown(step) for step in found if self._is_open(step)]

    def _is_open(self, question: AgentStep) -> bool:
        """Whether neither another message nor a retry has passed a question over."""
        line = SessionWriter(self._memory, str(question.session_id), None)
        return line.find_end() == 0 or _is_awaited(question, line)

    def answer(self, question_id: str, text: str, *, user_id: str | None = None) -> None:
        """Answer a question, once; whoever resumes its run goes on with that.

        Args:
            question_id: Its id.
            text: What the person says.
            user_id: Refuse questions to another user than this one.

        Raises:
            UnknownStepError: No such question, or one to somebody else.
            SequenceConflictError: It has an answer already, or was passed over.
            InvalidSettingError: No text.
        """
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers err
            raise InvalidSettingError(f"a question's answer is a text, not {text!r:.80}.")
        asked = [s for s in self._memory.get_steps([question_id]) if s.scope == USER_QUESTIONS]
        if not asked or user_id not in (None, asked[0].user_id):
            raise UnknownStepError(question_id)
        if not self._is_open(asked[0]):
            raise SequenceConflictError(f"question {question_id} was passed over, or answered.")
        said = {"id": user_answer_id(asked[0]), "outputs": {"answer": text}, "status": "ok"}
        try:
            self._memory.add(asked[0].model_copy(update=said))
        except DuplicateStepError as error:
            raise SequenceConflictError(f"question {question_id} has an answer.") from error


def _shown(step: AgentStep) -> UserQuestion:
    text = str((step.inputs or {}).get("purpose"))
    return UserQuestion(id_text(step.id), text, step.session_id, step.user_id, step.created_at)
