"""The ways a run begins: a new message, a message that is there already, a turn that was cut off.

Each finds the user's message that is to be answered, what stands before it (the context) and what
the turn has done since (which the model is shown behind the question).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from hybridagi_steps.context import ContextBuilder
from hybridagi_steps.errors import ContextBudgetError, MessageError
from hybridagi_steps.messages.agent_steps import shown_steps
from hybridagi_steps.records.message import Step
from hybridagi_steps.records.provenance import source_of
from hybridagi_steps.running.active_run import ActiveRun
from hybridagi_steps.running.answering import Prompt, tool_turn
from hybridagi_steps.running.execution import Start
from hybridagi_steps.running.rounds import ToolTurn
from hybridagi_steps.running.session_line import SessionLine
from hybridagi_steps.running.session_prompt import Messages


def with_message(
    content: Any, inputs: Mapping[str, Any], *, message_id: str | None = None, **more: Any
) -> Start:
    """Begin with a new message of the user."""

    def prepare(run: ActiveRun) -> Prompt:
        _close_turn_before(run)
        before = run.line.last
        asked = run.turn.store_user_message(content, message_id)
        run.check()
        return Prompt(asked.content, earlier(run, before), inputs=dict(inputs))

    return Start(prepare, **more)


def _close_turn_before(run: ActiveRun) -> None:
    """Answer calls that an earlier run left open: no provider takes a message between the two."""
    last = run.line.last
    tail = run.line.messages(max(1, last - _PAGE), last)
    calls = open_calls(tail) if tail and not tail[-1].is_user_step() else []
    if calls:
        for call in run.turn.reopen(calls):
            run.turn.interrupt(call)


def where_it_stands(inputs: Mapping[str, Any], **more: Any) -> Start:
    """Begin with the last message of the user and what the turn has done since."""
    return Start(partial(_standing, inputs), **more)


def _standing(inputs: Mapping[str, Any], run: ActiveRun) -> Prompt:
    asked, *since = last_turn(run.line)
    return Prompt(
        asked.content,
        earlier(run, asked.sequence - 1),
        [step.to_message_dict() for step in since],
        dict(inputs),
        open_calls(since),
    )


def open_calls(turn: Sequence[Step]) -> list[ToolTurn]:
    """Return the calls of the last assistant message that no result answers."""
    answered = {step.tool_call_id for step in turn if step.is_tool_step()}
    asking = next((step for step in reversed(turn) if step.has_tool_calls()), None)
    if asking is None:
        return []
    ids: list[Any] = (asking.metadata or {}).get("agent_step_ids") or []
    calls = [tool_turn(call) for call in asking.tool_calls or []]
    for call, step_id in zip(calls, ids, strict=False):
        call.step_id = UUID(str(step_id))
    return [call for call in calls if call.call_id not in answered]


def last_turn(line: SessionLine) -> list[Step]:
    """Return the newest message of a user and all that follows it.

    Raises:
        MessageError: There is none.
    """
    turn: list[Step] = []
    for last in range(line.last, 0, -_PAGE):
        page = line.messages(max(1, last - _PAGE + 1), last)
        turn = page + turn
        for place in reversed(range(len(page))):
            if turn[place].is_user_step():
                return turn[place:]
    raise MessageError(f"session {line.session_id!r} has no message of a user to answer.")


def earlier(run: ActiveRun, last: int) -> Messages:
    """Return what was said before, the newest of it that the budget holds."""
    steps = run.line.messages(max(1, last - run.config.max_history + 1), last)
    if not steps:
        return []
    builder = ContextBuilder(budget=run.config.context_budget or _NO_LIMIT, recent=None, k=0)
    try:
        context = builder.build(steps=steps)
    except ContextBudgetError as error:
        run.error("context", error)
        return []
    # The session's own line is no recall, but for what somebody else's file says of it.
    imported = [step for step in context.steps if source_of(step.metadata) is not None]
    ids = [name for step in imported for name in shown_steps(step) or [step.id]]
    run.recorder.note_recalled(dict.fromkeys(ids))
    return context.messages


_NO_LIMIT = 2**31
_PAGE = 256
"""Messages that are read at once; open calls are looked for in so many at the end."""
