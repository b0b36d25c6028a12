"""Pending calls: what a turn that was cut off waits for, and how it is taken up with the answers.

What a call waits for is on disk before and after it waits: the call, a question about it, its
answer. So a tool that had not begun is told from one of which nobody knows how far it came.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from hybridagi_steps.errors import (
    InvalidSettingError,
    MessageError,
    UnknownRunError,
    UnknownSessionError,
)
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.running.active_run import ActiveRun
from hybridagi_steps.running.answering import Prompt
from hybridagi_steps.running.program_adapter import Agent, inner
from hybridagi_steps.running.session_writer import SessionWriter
from hybridagi_steps.running.starting import Start, last_turn, open_calls
from hybridagi_steps.running.stored_consents import answered, check_answer, questions
from hybridagi_steps.running.turn import ToolTurn


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
    """Return what takes up a turn with what is known by now of its calls.

    Raises:
        InvalidSettingError: A call that waits for no such answer, or an answer of the wrong kind.
    """
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
    """Return the calls of a session's last turn that have no result; may block.

    Raises:
        UnknownSessionError: No such session.
    """
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
