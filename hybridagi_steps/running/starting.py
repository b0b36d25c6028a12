"""The ways a run begins: a new message, a message that is there already, a turn that was cut off.

Each finds the user's message that is to be answered, what stands before it (the context) and what
the turn has done since (which the model is shown behind the question).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast
from uuid import UUID

from hybridagi_steps.context import ContextBuilder
from hybridagi_steps.context.sources import only_user
from hybridagi_steps.errors import ContextBudgetError, InvalidSettingError, MessageError
from hybridagi_steps.messages.agent_steps import shown_steps
from hybridagi_steps.recording_hooks import active_user_id
from hybridagi_steps.records.message import SUMMARY_OF, Step
from hybridagi_steps.records.provenance import source_of
from hybridagi_steps.running.active_run import ActiveRun
from hybridagi_steps.running.answering import Messages, Prompt, tool_turn
from hybridagi_steps.running.execution import Start
from hybridagi_steps.running.hooks import RunHook
from hybridagi_steps.running.limits import AgentSession, StepRunnerConfig
from hybridagi_steps.running.turn import SessionLine, ToolTurn
from hybridagi_steps.sessions.repository import check_sequence
from hybridagi_steps.validation import in_every_scope


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
    """Return the newest message of a user and all that follows it."""
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


def session_of(session: Any) -> AgentSession:
    """Return the session that is named."""
    if isinstance(session, AgentSession):
        return session
    if isinstance(session, str):
        return AgentSession(session)
    given = getattr(session, "session_id", None)
    if isinstance(given, str):
        return AgentSession(given, getattr(session, "user_id", None))
    raise InvalidSettingError(f"a session is an id or an AgentSession, not {session!r:.80}.")


def with_user(memory: Any, session: AgentSession, again: int | None) -> AgentSession:
    """Return a session with the user that a run in it acts for; may block.

    That is the one it comes with, else whom the running code is recorded for, else the only one
    that the steps of a turn name which is made again, else the only one of the session's steps.

    Args:
        memory: Where the session is kept.
        session: The session.
        again: The sequence of a message of that turn, None for a new turn.
    """
    user = session.user_id or active_user_id(memory)
    if user is None:
        store = memory.repository().store
        if again is not None:
            user = only_user(_users_of_turn(store, session.session_id, again))
        user = user or only_user(_users(store, {"session_id": session.session_id}))
    return replace(session, user_id=user)


def _users_of_turn(store: Any, session_id: str, start: int) -> Iterable[str | None]:
    """Yield whom the steps of a turn name: those of its runs, and those its messages show."""
    turn: list[Step] = []
    for message in store.messages(session_id, start, start + _LONGEST_TURN):
        if turn and message.is_user_step():
            break
        turn.append(message)
    for run_id in dict.fromkeys(message.run_id for message in turn if message.run_id):
        yield from _users(store, {"run_id": run_id})
    for step in store.get([step_id for message in turn for step_id in shown_steps(message)]):
        yield step.user_id


def _users(store: Any, where: dict[str, str]) -> Iterable[str | None]:
    return (step.user_id for step in store.iter_steps(in_every_scope(where)))


def check_message(message: Any) -> None:
    """Check what a user says."""
    if isinstance(message, str) and message:
        return
    if isinstance(message, list) and message:
        parts = cast("list[Any]", message)
        if all(isinstance(part, Mapping) for part in parts):
            return
    raise MessageError(
        f"the user's message is a text or a list of content parts, and not empty; got "
        f"{message!r:.80}."
    )


def config_of(config: Any) -> StepRunnerConfig:
    """Return a runner's limits, the usual ones for None."""
    if config is None:
        return StepRunnerConfig()
    if isinstance(config, StepRunnerConfig):
        return config
    raise InvalidSettingError(f"config is a StepRunnerConfig, not {config!r:.80}.")


def hooks_of(hooks: Any) -> tuple[Any, ...]:
    """Return hooks that can be called."""
    if hooks is None:
        return ()
    if not isinstance(hooks, Iterable):
        raise InvalidSettingError(f"hooks are a list of objects, not {hooks!r:.80}.")
    points = [name for name in vars(RunHook) if name.startswith("on_")]
    given = tuple(cast("Iterable[Any]", hooks))
    for hook in given:
        if not any(callable(getattr(hook, point, None)) for point in points):
            raise InvalidSettingError(
                f"{hook!r:.80} is no hook: it has none of {', '.join(points)}."
            )
    return given


def check_unanswered(step: Any) -> None:
    """Check that there is something to answer after a message."""
    if not isinstance(step, Step):
        raise InvalidSettingError(f"the last step is a Step, not {step!r:.80}.")
    if step.is_assistant_step() and not step.has_tool_calls():
        raise MessageError(
            f"message {step.sequence} of session {step.session_id!r} is an answer; retry() a "
            "message of the user to have another one."
        )


async def check_user_message(repo: Any, session_id: str, sequence: Any) -> None:
    """Check that a session has a message of its user at a sequence."""
    check_sequence(sequence)
    step: Step = await repo.get_step(session_id, sequence)
    if step.is_user_step():
        return
    before = await repo.get_steps(session_id, None, sequence)
    asked = [str(each.sequence) for each in before if each.is_user_step()]
    summary = SUMMARY_OF in (step.metadata or {})
    what = "a summary of earlier messages" if summary else f"of role {step.role.value}"
    raise MessageError(
        f"message {sequence} of session {session_id!r} is {what}; name a message of the user, such "
        f"as {asked[-1] if asked else 'none, there is none'}."
    )


_LONGEST_TURN = 512
"""Messages of a turn that are asked for its user."""
