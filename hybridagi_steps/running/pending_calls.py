"""Pending calls: what a turn that was cut off waits for, and how it is taken up with the answers.

What a call waits for is on disk before and after it waits: the call, a question about it, its
answer. So a tool that had not begun is told from one of which nobody knows how far it came. What
a person is asked stands there as well, and whoever has the memory may answer: `UserQuestions`.
"""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple
from uuid import UUID, uuid5

import dspy

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
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType, id_text
from hybridagi_steps.records.event import StepEventType
from hybridagi_steps.records.provenance import source_of
from hybridagi_steps.records.store_values import USER_QUESTIONS
from hybridagi_steps.running.active_run import RUN, ActiveRun
from hybridagi_steps.running.answering import Prompt
from hybridagi_steps.running.program_adapter import Agent, inner
from hybridagi_steps.running.session_writer import SessionWriter
from hybridagi_steps.running.starting import Start, last_turn, open_calls
from hybridagi_steps.running.stored_consents import answered, check_answer, questions
from hybridagi_steps.running.tool_calls import idempotent
from hybridagi_steps.running.turn import ToolTurn

_QUESTIONS, _ANSWERS = (UUID(f"6f1c9a52-43f2-4c0b-9d7e-2f6a8b1c3d{n}") for n in ("0e", "0f"))
"""What ids of questions, and of their answers, follow from."""


class PendingCall(NamedTuple):
    """A tool call of a session's last turn that has no result."""

    call_id: str
    tool: str
    arguments: dict[str, Any]
    waits_for: Literal["consent", "result"]
    """For `consent`: the tool has not begun; for its `result`: nobody knows how far it came."""
    run_id: str | None
    """The run that asked for it; while that is in flight, `answer_consent` answers."""


def taken_up(
    start: Start,
    agent: Agent,
    pending: Sequence[PendingCall],
    consents: Mapping[str, bool],
    results: Mapping[str, str],
) -> Start:
    """Return what takes up a turn with what is known by now of its calls."""
    for allowed in consents.values():
        check_answer(allowed)
    for text in results.values():
        _check_result(text)
    waiting = [call.call_id for call in pending if call.waits_for == "consent"]
    known = {call.call_id for call in pending}
    if unknown := [*(results.keys() - known), *(consents.keys() - set(waiting))]:
        raise InvalidSettingError(
            f"call {unknown[0]!r:.80} waits for no such answer; pending() lists those that do: "
            f"{', '.join(sorted(known)) or 'none'}."
        )
    prepare = start.prepare

    def prepared(run: ActiveRun) -> Prompt:
        prompt = prepare(run)
        prompt.consents, prompt.results = {n: consents.get(n) for n in waiting}, results
        prompt.questions = questions(run.line.memory, run.line.session_id)
        prompt.inputs.update(_place(run, agent, start.data["resumes"]))
        return prompt

    start.prepare = prepared
    return start


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
        return {"resume": stopped_run(run_id, memory=memory)}
    except UnknownRunError:
        return {}  # it had not begun
    except InvalidSettingError as error:
        run.events.error("resume", error)
        return {}


def _check_result(text: object) -> None:
    if not isinstance(text, str):
        raise InvalidSettingError(f"a call's result is a text, not {text!r:.80}.")


def pending_calls(memory: StepMemory, session_id: str) -> list[PendingCall]:
    """Return the calls of a session's last turn that have no result; may block."""
    line = SessionWriter(memory, session_id, None)
    if line.find_end() == 0:
        raise UnknownSessionError(session_id)
    try:
        return _pending(line, open_calls(last_turn(line)))
    except MessageError:
        return []  # no user has said anything yet


def _pending(line: SessionWriter, calls: Sequence[ToolTurn]) -> list[PendingCall]:
    """Return those of some calls of which no step tells the result, with what they wait for."""
    if not calls:
        return []
    ended = {str(step.id) for step in line.memory.get_steps([call.step_id for call in calls])}
    asked = questions(line.memory, line.session_id)
    run_id = line.messages(line.last, line.last)[0].run_id
    return [
        PendingCall(
            call.call_id,
            call.name,
            call.arguments,
            "consent" if question is not None and answered(question) is None else "result",
            run_id,
        )
        for call in calls
        for question in [asked.get(str(call.step_id))]
        if str(call.step_id) not in ended
    ]


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
    may give, whenever it likes. Whoever takes up the turn of a killed one reads it, or waits on.

    Args:
        memory: Where they are kept, and erased with their session or user.
        poll_seconds: How often the memory is looked at for an answer.

    Example:
        `questions = hs.UserQuestions(memory)`; `dspy.ReAct("question -> answer",
        tools=[questions.ask_user])` or `AskUser(questions.ask_user)`.
    """

    def __init__(self, memory: StepMemory, *, poll_seconds: float = 0.5) -> None:
        self._memory, self._poll = memory, poll_seconds

    @idempotent
    def ask_user(self, question: str) -> str:
        """Ask the user something that you cannot find out yourself; returns what they say."""
        run: ActiveRun | None = dspy.settings.get(RUN)
        if run is None:
            raise InvalidSettingError("ask_user waits for the user of a run: use a StepRunner.")
        asked = _question(run, question)
        with suppress(DuplicateStepError):  # it was asked before this process took the turn up
            run.line.store([asked])
        run.events.emit(
            StepEventType.INPUT_REQUIRED, {"question_id": id_text(asked.id), "question": question}
        )
        pause, answer = threading.Event(), uuid5(_ANSWERS, id_text(asked.id))
        while not (found := self._memory.get_steps([answer])):
            run.check()
            pause.wait(self._poll)
        return str((found[0].outputs or {})["answer"])

    def open(
        self, *, session_id: str | None = None, user_id: str | None = None
    ) -> list[UserQuestion]:
        """Return what nobody has answered yet, of a session, of a user, or all, oldest first."""
        # Not by the filter's session: that is its line, where a retry in flight does not stand yet.
        asked = [
            step
            for step in self._memory.iter_steps({"scope": USER_QUESTIONS, "user_id": user_id})
            if step.status == "partial"
            and session_id in (None, step.session_id)
            and source_of(step.metadata) is None
        ]
        ids = {uuid5(_ANSWERS, id_text(step.id)): step for step in asked}
        answered_ids = {step.id for step in self._memory.get_steps([*ids])}
        return [_shown(step) for key, step in ids.items() if key not in answered_ids]

    def answer(self, question_id: str, text: str, *, user_id: str | None = None) -> None:
        """Answer a question, once; the run that waits for it goes on, wherever it is.

        Args:
            question_id: Its id.
            text: What the person says.
            user_id: Refuse questions to another user than this one.

        Raises:
            UnknownStepError: No such question, or one to somebody else.
            SequenceConflictError: It has an answer already.
            InvalidSettingError: No text.
        """
        _check_result(text)
        asked = [s for s in self._memory.get_steps([question_id]) if s.scope == USER_QUESTIONS]
        if not asked or user_id not in (None, asked[0].user_id):
            raise UnknownStepError(question_id)
        said = {"id": uuid5(_ANSWERS, question_id), "outputs": {"answer": text}, "status": "ok"}
        try:
            self._memory.add(asked[0].model_copy(update=said))
        except DuplicateStepError as error:
            raise SequenceConflictError(f"question {question_id} has an answer.") from error


def _question(run: ActiveRun, question: str) -> AgentStep:
    """Return the step of a question: the same one when its turn is taken up and it is asked again.

    After a retry the turn stands in another branch, and the user is asked again.
    """
    try:
        turn = last_turn(run.line)[0].id
    except MessageError:
        turn = run.info.run_id
    return AgentStep(
        id=uuid5(_QUESTIONS, f"{run.line.branch_id}\n{turn}\n{question}"),
        step_type=AgentStepType.Action,
        inputs={"purpose": question, "tool": "ask_user"},
        session_id=run.info.session_id,
        user_id=run.info.user_id,
        scope=USER_QUESTIONS,
        status="partial",
    )


def _shown(step: AgentStep) -> UserQuestion:
    text = str((step.inputs or {}).get("purpose"))
    return UserQuestion(id_text(step.id), text, step.session_id, step.user_id, step.created_at)
