"""Stored consents: questions that wait for an answer, and rules that answer them.

They are Decisions in scopes of their own, which no search shows unless one is named. Nothing else
keeps them: they are erased with their session and their user, copied with the memory, and the same
in every store. A question names its call and holds no argument: that stands in the call. What comes
from a file or over MCP consents to nothing; what a file says is denied, is.

A rule that allows stands in its session's line, and ends where that is taken back. One that denies
stands beside the line, under an id made of what it denies, and is looked up by that: neither a
retry, nor `revoke`, nor `forget`, nor any number of other rules comes between.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID, uuid5

from hybridagi_steps._concurrency import in_thread
from hybridagi_steps.errors import (
    DuplicateStepError,
    InvalidSettingError,
    MessageError,
    SequenceConflictError,
)
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType, id_text
from hybridagi_steps.records.event import StepEventType
from hybridagi_steps.records.json_reading import as_object
from hybridagi_steps.records.provenance import SOURCE, source_of
from hybridagi_steps.records.store_values import (
    CALL_STEP,
    DENIALS,
    QUESTIONS,
    REVOKED,
    RULES,
    USER_QUESTIONS,
    answer_ids,
    denial_id,
    tool_id,
)
from hybridagi_steps.running.limits import Answer, Consent, ToolRequest
from hybridagi_steps.running.session_writer import SessionWriter
from hybridagi_steps.running.stopping import RunStopped, Stop
from hybridagi_steps.running.streaming import EventStream
from hybridagi_steps.running.turn import ToolTurn
from hybridagi_steps.stores.hygiene import PINNED

_ALLOW, _DENY = "allow", "deny"
NESTED = "nested_session_id"
"""Metadata key: the session of the agent inside a call whose question it is."""
TURN = "turn"
"""Metadata key: the user's message whose turn a question to the user belongs to."""
BRANCH = "branch_id"
"""Metadata key: the branch of its session that a question to the user was asked in."""
_ASKED, _SAID = (UUID(f"6f1c9a52-43f2-4c0b-9d7e-2f6a8b1c3d{n}") for n in ("0e", "0f"))
"""What ids of questions to users, and of their answers, follow from."""
_MOST = 1_000


class ConsentRule(NamedTuple):
    """Whether a tool may always run in a session, for a user, or for a user in a session."""

    id: str
    tool: str
    allowed: bool
    session_id: str | None
    user_id: str | None


class ConsentRules:
    """Rules about tools that are stored in a memory; itself a consent for `StepRunnerConfig`.

    A rule that denies stands above one that allows, and holds for agents used as tools, too. What
    is allowed in a session stands in its line as a message does: a fork made after it has it, one
    made before it is asked again. What is denied holds whatever is retried or deleted, and in every
    fork made since.

    Args:
        memory: Where the rules are kept, and erased with their session or user.
        otherwise: Asked where no rule says anything; by default the run pauses.

    Example:
        `rules.add("search", user_id="ann")`; `StepRunnerConfig(consent=hs.ConsentRules(memory))`
    """

    def __init__(self, memory: StepMemory, otherwise: Consent | None = None) -> None:
        self._memory, self._otherwise = memory, otherwise

    async def __call__(self, request: ToolRequest) -> Answer:
        """Return what the rules say of a tool call."""
        if (known := await in_thread(partial(self._said_of, request))) is not None:
            return known
        answer = None if self._otherwise is None else self._otherwise(request)
        return await answer if inspect.isawaitable(answer) else answer

    def add(
        self,
        tool: str,
        *,
        allowed: bool = True,
        session_id: str | None = None,
        user_id: str | None = None,
    ) -> ConsentRule:
        """Store a rule about a tool in a session, for a user, or for a user in a session.

        One that denies is one however often it is stored; `forget` leaves it.

        Raises:
            InvalidSettingError: No tool, neither True nor False, or neither a session nor a user:
                that is for the program.
        """
        if not isinstance(tool, str) or not tool:  # pyright: ignore[reportUnnecessaryIsInstance] - callers err
            raise InvalidSettingError(f"a rule names a tool, not {tool!r:.80}.")
        check_answer(allowed)
        if session_id is None and user_id is None:
            raise InvalidSettingError(
                "a rule is for a session_id, a user_id or both; what every run may do is said by "
                "a consent of the program's own."
            )
        scope = RULES if allowed else DENIALS
        step = _decision(tool, "always", session_id, user_id, scope)
        step.outputs, step.status = {"choice": _ALLOW if allowed else _DENY}, "ok"
        if not allowed:
            step.program_id, step.metadata = tool_id(tool), {PINNED: True}
            step.id = denial_id(step.program_id, session_id, user_id)
        self._memory.update(step)
        return _rule(step)

    def list(
        self, *, session_id: str | None = None, user_id: str | None = None
    ) -> list[ConsentRule]:
        """Return the rules of a session, of a user, or all, oldest first."""
        asked = {"session_id": session_id, "user_id": user_id}
        found = self._found(RULES, **asked) + self._found(DENIALS, **asked)
        # Denials hold though they are revoked, so that they are shown.
        found += [step for step in self._found(REVOKED, **asked) if step.scope == DENIALS]
        return [_rule(step) for step in sorted(found, key=lambda step: step.created_at)]

    def revoke(self, rule_id: str) -> bool:
        """Delete a rule; return whether it was there."""
        [*steps] = self._memory.get_steps([rule_id])
        known = any(step.scope in (RULES, DENIALS) for step in steps)
        return known and self._memory.delete(rule_id) > 0

    def denies(self, tool: str, session_id: str, user_id: str | None) -> bool:
        """Whether a tool is denied for good in a session, or to a user; may block."""
        asked = {(session_id, None), (session_id, user_id), (None, user_id)} - {(None, None)}
        name = tool_id(tool)
        found = self._memory.get_steps([denial_id(name, *each) for each in asked])
        return any(step.scope == DENIALS and _counts(step) for step in found)

    def _said_of(self, request: ToolRequest) -> bool | None:
        """Return what the rules say; None when they say nothing."""
        if self.denies(request.tool, request.session_id, request.user_id):
            return False
        named = self._found(RULES, tools=[request.tool], session_id=request.session_id)
        found = [step for step in named if step.user_id in (None, request.user_id)]
        if request.user_id is not None:
            users = self._found(RULES, tools=[request.tool], user_id=request.user_id)
            found += [step for step in users if step.session_id is None]
        return all(map(answered, found)) if found else None

    def _found(self, scope: str, **where: Any) -> list[AgentStep]:
        return [*filter(_counts, self._memory.iter_steps({"scope": scope, **where}))]


def check_answer(allowed: object) -> None:
    """Check what somebody answers to a question: a text such as "no" would be true."""
    if not isinstance(allowed, bool):
        raise InvalidSettingError(f"consent is True or False, not {allowed!r:.80}.")


def ask(
    line: SessionWriter, request: ToolRequest, step_id: UUID, session_id: str | None = None
) -> AgentStep:
    """Store that a tool call waits for consent, or for an agent's in `session_id`; may block.

    It is found by the AgentStep that will tell the call: providers use ids of calls again.
    """
    question = _question(request, step_id)
    if session_id is not None:
        question.metadata = {**(question.metadata or {}), NESTED: session_id}
    line.store([question])
    return question


def settle(
    line: SessionWriter, request: ToolRequest, step_id: UUID, question: AgentStep | None
) -> None:
    """Store that nobody may allow a call any more, since its result is about to be told.

    Raises:
        SequenceConflictError: Somebody has allowed it since its question was read.
    """
    if question is None:
        answer(line, _question(request, step_id), allowed=False, stored=False)
    elif answered(question) is None:
        answer(line, question, allowed=False)


def answer(line: SessionWriter, question: AgentStep, *, allowed: bool, stored: bool = True) -> None:
    """Store the answer to a question, before its tool begins; may block.

    Of several processes that answer about one call one does: the answer is a step whose id follows
    from the call's, and no store takes an id twice.

    Raises:
        SequenceConflictError: Somebody else has answered it.
        UnknownSessionError: The session was erased meanwhile, and the question with it.
    """
    said = {"outputs": {"choice": _ALLOW if allowed else _DENY}, "status": "ok"}
    settled = question.model_copy(update=said)
    own = settled.model_copy(update={"id": answer_ids(question)[0], "metadata": {}})
    try:
        line.store([own] if stored else [own, settled])
    except DuplicateStepError as error:
        raise SequenceConflictError(
            f"session {question.session_id!r}: somebody else has answered meanwhile whether "
            f"{question.tool} may run, and has taken the turn up; read the session again."
        ) from error


def questions(memory: StepMemory, session_id: str) -> dict[str, AgentStep]:
    """Return the newest question about each call of a session, by its AgentStep's id."""
    where = {"scope": QUESTIONS, "session_id": session_id}
    found = memory.find(where, limit=_MOST, newest_first=True).steps
    own = [step for step in reversed(found) if source_of(step.metadata) is None]
    asked = [step for step in own if CALL_STEP in (step.metadata or {})]
    ids = [each for step in asked for each in answer_ids(step)]
    known = {step.id: step.outputs for step in memory.get_steps(ids)}
    newest: dict[str, AgentStep] = {}
    for step in asked:
        said = [known[each] for each in answer_ids(step) if each in known]
        told = {"outputs": said[0] if said else step.outputs}
        newest[str((step.metadata or {})[CALL_STEP])] = step.model_copy(update=told)
    return newest


def answered(question: AgentStep) -> bool | None:
    """Return what was answered to a question; None when nothing was yet."""
    choice = (question.outputs or {}).get("choice")
    return None if choice is None else choice == _ALLOW


class RunInside(NamedTuple):
    """A run inside a tool call, which has paused."""

    session_id: str
    waiting: Sequence[dict[str, Any]]
    """What it waits for."""


class OpenQuestions:
    """What a run waits for a person to say: each stored, then the run pauses.

    Args:
        line: Where questions are stored.
        run_id: The run.
        user_id: Whom it acts for.
        events: Takes the events that ask the user.
        stop: Pauses the run.
    """

    def __init__(
        self,
        line: SessionWriter,
        run_id: str,
        user_id: str | None,
        events: EventStream,
        stop: Callable[[Stop], object],
    ) -> None:
        self._line, self._run_id, self._user_id = line, run_id, user_id
        self._events, self._stop = events, stop
        self.waiting: dict[UUID | str, list[dict[str, Any]]] = {}
        """What is waited for, by the ids of the steps that will tell of it."""
        self.earlier: list[AgentStep] = []
        """Questions of no call that the attempt waited for which is resumed."""

    def ask_consent(
        self, request: ToolRequest, step_id: UUID, inside: RunInside | None, *, is_stored: bool
    ) -> RunStopped:
        """Store that a call waits, and pause; return what ends the program; may block."""
        if not is_stored:
            ask(self._line, request, step_id, None if inside is None else inside.session_id)
        own = {"call_id": request.call_id, "tool": request.tool, "arguments": request.arguments}
        waits = [{**own, "waits_for": "consent"}] if inside is None else inside.waiting
        return self._paused(step_id, waits)

    def ask_user(self, question: str, call: ToolTurn | None) -> str:
        """Return what the user has said; else store the question, of a call or none, and pause."""
        asked = _user_question(self._line, self._run_id, self._user_id, question, call)
        if call is None and self.earlier:  # a model may put it in other words now
            known = (each for each in self.earlier if each.id == asked.id)
            asked = next(known, self.earlier[0])
            self.earlier.remove(asked)
            question = str((asked.inputs or {})["purpose"])
        if answers := self._line.memory.get_steps([user_answer_id(asked)]):
            return str((answers[0].outputs or {})["answer"])
        with suppress(DuplicateStepError):  # it was asked before this process took the turn up
            self._line.store([asked])
        name = id_text(asked.id)
        data = {"question_id": name, "question": question}
        self._events.emit(StepEventType.INPUT_REQUIRED, data)
        about = {"call_id": name if call is None else call.call_id, "tool": "ask_user"}
        about |= {"arguments": {"question": question}, "waits_for": "answer"}
        raise self._paused(asked.id if call is None else call.step_id, [about])

    def arrange(self, step_ids: Iterable[UUID]) -> None:
        """Bring what is waited for into the order of the calls, which ask side by side."""
        ordered = {each: self.waiting[each] for each in step_ids if each in self.waiting}
        self.waiting = ordered | self.waiting

    def all(self) -> list[dict[str, Any]]:
        """Return all that is waited for."""
        return [each for waits in self.waiting.values() for each in waits]

    def _paused(self, step_id: UUID | str, waits: Sequence[dict[str, Any]]) -> RunStopped:
        self.waiting[step_id] = list(waits)
        stop = Stop("paused", "the run waits for an answer.")
        self._stop(stop)
        return RunStopped(stop)


def _user_question(
    line: SessionWriter, run_id: str, user_id: str | None, question: str, call: ToolTurn | None
) -> AgentStep:
    """Return the step of a question to the user; may block.

    It is the same step when its turn is taken up and it is asked again. After a retry the turn
    stands in another branch, and the user is asked again.
    """
    try:
        turn = line.last_turn()[0].id
    except MessageError:
        turn = run_id
    step = AgentStep(
        id=uuid5(_ASKED, f"{line.branch_id}\n{turn}\n{question}"),
        step_type=AgentStepType.Action,
        inputs={"purpose": question, "tool": "ask_user"},
        session_id=line.session_id,
        user_id=user_id,
        scope=USER_QUESTIONS,
        status="partial",
    )
    about = {} if call is None else {"call_id": call.call_id, CALL_STEP: str(call.step_id)}
    step.metadata = {TURN: turn, BRANCH: line.branch_id, **about}
    return step


def user_answer_id(question: AgentStep) -> UUID:
    """Return the id of the answer to a question to the user."""
    return uuid5(_SAID, id_text(question.id))


def is_waiting(question: AgentStep) -> bool:
    """Whether a call has not begun, since nobody has answered whether it may run."""
    return answered(question) is None and NESTED not in (question.metadata or {})


def _question(request: ToolRequest, step_id: UUID) -> AgentStep:
    question = _decision(request.tool, "now", request.session_id, request.user_id, QUESTIONS)
    question.metadata = {"call_id": request.call_id, CALL_STEP: str(step_id)}
    return question


def _decision(
    tool: str, when: str, session_id: str | None, user_id: str | None, scope: str
) -> AgentStep:
    return AgentStep(
        step_type=AgentStepType.Decision,
        inputs={"purpose": f"May {tool} run {when}?", "tool": tool, "options": [_ALLOW, _DENY]},
        session_id=session_id,
        user_id=user_id,
        scope=scope,
        status="partial",
    )


def _counts(step: AgentStep) -> bool:
    """Whether a rule is one of this memory's, or denies something and was in an imported file."""
    if source_of(step.metadata) is None:
        return True
    source = as_object((step.metadata or {}).get(SOURCE))
    return answered(step) is False and source.get("kind") == "import"


def _rule(step: AgentStep) -> ConsentRule:
    allowed = answered(step) is True
    return ConsentRule(id_text(step.id), step.tool or "", allowed, step.session_id, step.user_id)
