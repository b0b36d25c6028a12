"""Stored consents: questions that wait for an answer, and rules that answer them.

Both are Decisions in a scope of their own, which no search shows unless it is named. Nothing else
keeps them: they are erased with their session and their user, copied with the memory, and the same
in every store. A question names its call and holds no argument: that stands in the call. What comes
from somebody else's file or over MCP consents to nothing.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID, uuid5

from hybridagi_steps._concurrency import in_thread
from hybridagi_steps.errors import DuplicateStepError, InvalidSettingError, SequenceConflictError
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType, id_text
from hybridagi_steps.records.provenance import source_of
from hybridagi_steps.running.limits import Answer, Consent, ToolRequest

QUESTIONS, RULES = "consent", "consent_rule"
"""The scopes of questions and of rules."""
_STEP = "call_step_id"
_ALLOW, _DENY = "allow", "deny"
_MOST = 1_000
_ANSWERS = UUID("2f4a7c1e-6d0b-5b8e-9c37-8f1d5e2a4b60")
"""The namespace of answers' ids."""


class ConsentRule(NamedTuple):
    """Whether a tool may always run in a session, for a user, or for a user in a session."""

    id: str
    tool: str
    allowed: bool
    session_id: str | None
    user_id: str | None


class ConsentRules:
    """Rules about tools that are stored in a memory; itself a consent for `StepRunnerConfig`.

    A rule that denies stands above one that allows. A session's rule stands in its line as a
    message does: a fork made after it has it, one made before it is asked again.

    Args:
        memory: Where the rules are kept, and erased with their session or user.
        otherwise: Asked where no rule says anything; by default `runner.answer_consent` decides.

    Example:
        `rules.add("search", user_id="ann")`; `StepRunnerConfig(consent=hs.ConsentRules(memory))`
    """

    def __init__(self, memory: StepMemory, otherwise: Consent | None = None) -> None:
        self._memory, self._otherwise = memory, otherwise

    async def __call__(self, request: ToolRequest) -> Answer:
        """Return what the rules say of a tool call."""
        found = await in_thread(partial(self._about, request))
        if found:
            return all(rule.allowed for rule in found)
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

        Raises:
            InvalidSettingError: No tool, or neither a session nor a user: that is for the program.
        """
        if not isinstance(tool, str) or not tool:  # pyright: ignore[reportUnnecessaryIsInstance] - callers err
            raise InvalidSettingError(f"a rule names a tool, not {tool!r:.80}.")
        if session_id is None and user_id is None:
            raise InvalidSettingError(
                "a rule is for a session_id, a user_id or both; what every run may do is said by "
                "a consent of the program's own."
            )
        step = _decision(tool, "always", session_id, user_id, RULES)
        step.outputs, step.status = {"choice": _ALLOW if allowed else _DENY}, "ok"
        self._memory.add(step)
        return _rule(step)

    def list(
        self, *, session_id: str | None = None, user_id: str | None = None
    ) -> list[ConsentRule]:
        """Return the rules of a session, of a user, or all, oldest first."""
        return self._found(session_id=session_id, user_id=user_id)

    def revoke(self, rule_id: str) -> bool:
        """Delete a rule; return whether it was there."""
        [*steps] = self._memory.get_steps([rule_id])
        return any(step.scope == RULES for step in steps) and self._memory.delete(rule_id) > 0

    def _about(self, request: ToolRequest) -> list[ConsentRule]:
        named = self._found(tools=[request.tool], session_id=request.session_id)
        found = [rule for rule in named if rule.user_id in (None, request.user_id)]
        if request.user_id is not None:
            users = self._found(tools=[request.tool], user_id=request.user_id)
            found += [rule for rule in users if rule.session_id is None]
        return found

    def _found(self, **where: Any) -> list[ConsentRule]:
        found = self._memory.find({"scope": RULES, **where}, limit=_MOST).steps
        return [_rule(step) for step in found if source_of(step.metadata) is None]


def check_answer(allowed: object) -> None:
    """Check what somebody answers to a question: a text such as "no" would be true.

    Raises:
        InvalidSettingError: Neither True nor False.
    """
    if not isinstance(allowed, bool):
        raise InvalidSettingError(f"consent is True or False, not {allowed!r:.80}.")


def ask(memory: StepMemory, request: ToolRequest, step_id: UUID) -> AgentStep:
    """Store that a tool call waits for consent; may block.

    It is found by the AgentStep that will tell the call: providers use ids of calls again.
    """
    own = (request.session_id, request.user_id)
    question = _decision(request.tool, "now", *own, QUESTIONS)
    question.metadata = {"call_id": request.call_id, _STEP: str(step_id)}
    memory.add(question)
    return question


def answer(memory: StepMemory, question: AgentStep, *, allowed: bool) -> None:
    """Store the answer to a question, before its tool begins; may block.

    Of several processes that answer one question one does: the answer is a step whose id follows
    from the question's, and no store takes an id twice.

    Raises:
        SequenceConflictError: Somebody else has answered it.
    """
    said = {"outputs": {"choice": _ALLOW if allowed else _DENY}, "status": "ok"}
    try:
        memory.add(question.model_copy(update={**said, "id": _answer_id(question), "metadata": {}}))
    except DuplicateStepError as error:
        raise SequenceConflictError(
            f"session {question.session_id!r}: another run has answered whether {question.tool} "
            "may run, and has taken the turn up; read the session again."
        ) from error
    memory.update(question.model_copy(update=said))


def questions(memory: StepMemory, session_id: str) -> dict[str, AgentStep]:
    """Return the newest question about each call of a session, by its AgentStep's id."""
    where = {"scope": QUESTIONS, "session_id": session_id}
    found = memory.find(where, limit=_MOST, newest_first=True).steps
    own = [step for step in reversed(found) if source_of(step.metadata) is None]
    asked = [step for step in own if _STEP in (step.metadata or {})]
    # A kill may come between an answer and its note in the question.
    known = {step.id: step for step in memory.get_steps([_answer_id(step) for step in asked])}
    newest: dict[str, AgentStep] = {}
    for step in asked:
        said = known.get(_answer_id(step), step).outputs
        newest[str((step.metadata or {})[_STEP])] = step.model_copy(update={"outputs": said})
    return newest


def answered(question: AgentStep) -> bool | None:
    """Return what was answered to a question; None when nothing was yet."""
    choice = (question.outputs or {}).get("choice")
    return None if choice is None else choice == _ALLOW


def _answer_id(question: AgentStep) -> UUID:
    return uuid5(_ANSWERS, id_text(question.id))


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


def _rule(step: AgentStep) -> ConsentRule:
    allowed = answered(step) is True
    return ConsentRule(id_text(step.id), step.tool or "", allowed, step.session_id, step.user_id)
