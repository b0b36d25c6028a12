"""The ways a run begins: a new message, a message that is there already, a turn that was cut off.

Each finds the user's message that is to be answered, what stands before it (the context) and what
the turn has done since (which the model is shown behind the question).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, cast
from uuid import UUID

from hybridagi_steps._concurrency import in_thread
from hybridagi_steps.context import ContextBuilder
from hybridagi_steps.context.sources import Source, UserProfiles, profile_note, with_user
from hybridagi_steps.errors import (
    ContextBudgetError,
    InvalidSettingError,
    MessageError,
    SequenceConflictError,
    UnknownSessionError,
)
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.messages.agent_steps import shown_steps
from hybridagi_steps.messages.provider_out import is_blank, openai_messages
from hybridagi_steps.protocols import SessionStore
from hybridagi_steps.recording.recorder import user_recorded_for
from hybridagi_steps.records.event import StepEventType
from hybridagi_steps.records.filters import EVERY_SCOPE, StepFilter
from hybridagi_steps.records.message import SUMMARY_OF, Step
from hybridagi_steps.records.provenance import source_of
from hybridagi_steps.running.active_run import ActiveRun, register_of
from hybridagi_steps.running.answering import Messages, Prompt
from hybridagi_steps.running.hooks import RunHook
from hybridagi_steps.running.limits import AgentSession, StepRunnerConfig
from hybridagi_steps.running.program_adapter import Agent
from hybridagi_steps.running.session_writer import SessionWriter
from hybridagi_steps.running.stored_consents import is_waiting, questions
from hybridagi_steps.running.turn import ToolTurn
from hybridagi_steps.sessions.lines import History
from hybridagi_steps.sessions.repository import SessionRepository
from hybridagi_steps.sessions.session_checks import check_owner, check_sequence, fork_point

_NO_LIMIT = 2**31
_PAGE = 256
"""Messages that are read at once; open calls are looked for in so many at the end."""
_LONGEST_TURN = 512
"""Messages of a turn that are asked for its user."""


@dataclass(slots=True, kw_only=True)
class Start:
    """What a run begins with."""

    session: AgentSession
    """The session, with the user if that was named."""
    prepare: Callable[[ActiveRun], Prompt]
    """Stores the user's message if it is new and returns what the program is given; may block."""
    prepared: Prompt | BaseException | None = None
    """What came of it, once it was called."""
    finish: Callable[[], None] | None = None
    """Called once the answer is stored, such as to adopt its branch; may block."""
    data: dict[str, Any] = field(default_factory=dict[str, Any])
    """Said with RUN_STARTED."""
    branch_id: int | None = None
    """Where to write; by default the branch that the session points at."""
    expect_last: int | None = None
    """Where the session must end."""
    again: int | None = None
    """A message of the turn that is made again; None for a new turn."""


def with_message(
    content: object, inputs: Mapping[str, Any], *, message_id: str | None = None, **more: Any
) -> Start:
    """Begin with a new message of the user."""

    def prepare(run: ActiveRun) -> Prompt:
        wanted = run.config.max_history
        before = run.line.history(run.line.last, max(wanted, _PAGE))
        if before is not None and before.calls and not before.messages[-1].is_user_step():
            _close_calls(run, open_calls(before.messages[-_PAGE:]))
        if wanted < _PAGE or run.turn.messages:
            before = run.line.history(run.line.last, wanted)
        asked = run.turn.store_user_message(content, message_id)
        run.check()
        return Prompt(asked.content, _history(run, before), inputs=dict(inputs))

    return Start(prepare=prepare, **more)


def _close_calls(run: ActiveRun, calls: list[ToolTurn]) -> None:
    """Answer calls that an earlier run left open: no provider takes a message between the two.

    One that waits for consent is denied: whoever says something else has not allowed it.
    """
    asked = questions(run.line.memory, run.line.session_id) if calls else {}
    for call in run.turn.reopen(calls) if calls else ():
        question = asked.get(str(call.step_id))
        if question is not None and is_waiting(question):
            run.told_result(call, None, question)
        else:
            run.turn.interrupt(call)


def where_it_stands(inputs: Mapping[str, Any], **more: Any) -> Start:
    """Begin with the last message of the user and what the turn has done since."""
    return Start(prepare=partial(_standing, inputs), **more)


def end_of_session(
    session: AgentSession, last: Step, inputs: Mapping[str, Any], **data: str | None
) -> Start:
    """Begin with the turn that ends a session, as long as `last` is its last message."""
    at = last.sequence
    shown = {"resumed_at": at, **data}
    return where_it_stands(inputs, session=session, expect_last=at, again=at, data=shown)


async def new_attempt(
    memory: StepMemory,
    repo: SessionRepository,
    session: str | AgentSession,
    sequence: int,
    reason: str,
    check_free: Callable[[str], None],
) -> dict[str, Any]:
    """Begin a branch for a retry or an edit; return what a Start says of it.

    The session takes the branch over when the answer is stored.
    """
    named = await own_session(memory, session)
    session_id = named.session_id
    kept = await _last_kept(repo, session_id, sequence, reason)
    check_free(session_id)
    current = repo.store.session_end(session_id).branch_id
    branch = await repo.branch_at(session_id, kept, reason)
    return {
        "session": named,
        "finish": partial(repo.store.adopt, session_id, branch, expect_branch=current),
        "data": {f"{reason}_of": sequence, "branch_id": branch, "kept": kept},
        "branch_id": branch,
        "again": sequence,
    }


def _standing(inputs: Mapping[str, Any], run: ActiveRun) -> Prompt:
    asked, *since = run.line.last_turn()
    before = run.line.history(asked.sequence - 1, run.config.max_history)
    return Prompt(
        asked.content,
        _history(run, before),
        [step.to_message_dict() for step in since],
        dict(inputs),
        since,
        open_calls(since),
    )


def open_calls(turn: Sequence[Step]) -> list[ToolTurn]:
    """Return the calls of the last assistant message that no result answers."""
    place = next((n for n in reversed(range(len(turn))) if turn[n].has_tool_calls()), None)
    if place is None:
        return []
    asking = turn[place]
    answered = {step.tool_call_id for step in turn[place:] if step.is_tool_step()}
    ids: list[Any] = (asking.metadata or {}).get("agent_step_ids") or []
    calls = [ToolTurn.of(copy.deepcopy(call)) for call in asking.tool_calls or []]
    for call, step_id in zip(calls, ids, strict=False):
        call.step_id = UUID(str(step_id))
    return [call for call in calls if call.call_id not in answered]


def _history(run: ActiveRun, before: History | None) -> Callable[[], Messages]:
    """Return what makes the earlier messages, once a program takes them.

    Imported ones are taken in advance: every step of the run has to name them, the first one too.
    """
    history = cache(partial(earlier, run, before, _profile(run)))
    if before is not None and before.imported:
        history()
    return history


def _profile(run: ActiveRun) -> str | None:
    """Return what a program is told about its user: in his own sessions, nobody else may read."""
    line, user_id = run.line, run.info.user_id
    if not run.config.user_profile or user_id is None:
        return None
    if line.repository.store.session_owner(line.session_id) != user_id:
        return None
    return profile_note(UserProfiles(line.memory).get(user_id))


def earlier(run: ActiveRun, before: History | None, profile: str | None = None) -> Messages:
    """Return what was said before, the newest of it that the budget holds, after a profile."""
    if before is None:
        return openai_messages(profile, [])
    builder = ContextBuilder(
        budget=run.config.context_budget or _NO_LIMIT,
        recent=None,
        k=0,
        message_times=run.config.message_times,
    )
    try:
        system, shown = builder.history(with_user(Source.of_history(before, run.line.session_id)))
    except ContextBudgetError as error:
        run.events.error("context", error)
        return openai_messages(profile, [])
    # The session's own line is no recall, but for what somebody else's file says of it.
    imported = [step for step in shown if source_of(step.metadata) is not None]
    ids = [name for step in imported for name in shown_steps(step) or [step.id]]
    run.recorder.note_recalled(dict.fromkeys(ids))
    # The program may change what it is given, and lines are shared.
    system = "\n\n".join(text for text in (system, profile) if text)
    return [_own(message) for message in openai_messages(system, shown)]


def _own(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message that shares nothing that can be changed."""
    nested = "tool_calls" in message or isinstance(message["content"], list)
    return copy.deepcopy(message) if nested else message


async def own_session(memory: StepMemory, session: object) -> AgentSession:
    """Return the session that is named and has to be there, if it is not another user's."""
    named = session_of(session)
    await in_thread(partial(_check_owner, memory, named))
    return named


def _check_owner(memory: StepMemory, session: AgentSession, *, new: bool = False) -> None:
    """Check that a session is not another's than the user whom it names; may block."""
    user_id = None if session.as_any_user else session.user_id
    if user_id is not None:
        store = memory.repository().store
        check_owner(store, session.session_id, user_id, new=new, nobodys=True)


def open_session(memory: StepMemory, start: Start) -> tuple[SessionWriter, str | None]:
    """Return where a run reads and writes, and the user that it acts for; may block.

    That is whom the session names, else whom the running code is recorded for, else the only one
    that the steps of a turn name which is made again, else the only one of the session's steps.
    """
    session_id, expected = start.session.session_id, start.expect_last
    _check_owner(memory, start.session, new=True)
    line = SessionWriter(memory, session_id, start.branch_id)
    last = line.find_end()
    user_id = start.session.user_id or user_recorded_for(memory) or _only_user(line, start)
    if expected is not None and last != expected:
        if last == 0:
            raise UnknownSessionError(session_id)
        raise SequenceConflictError(
            f"session {session_id!r} ends at {last}, not at {expected}; read its last message "
            "again."
        )
    return line, user_id


def begin_run(
    memory: StepMemory, agent: Agent, start: Start, how: tuple[Any, ...], made: list[ActiveRun]
) -> None:
    """Open a session and begin a run in it, an `ActiveRun` made with `how`; may block.

    It is prepared unless a hook has to hear of it before. What goes wrong once `made` has it is its
    own affair.
    """
    run, register = ActiveRun(*open_session(memory, start), *how), register_of(memory)
    register.add(run)
    # Free before the reader hears of the end: it may go on at once.
    run.when_ended = partial(register.remove, run)
    made.append(run)
    run.events.emit(StepEventType.RUN_STARTED, {"depth": run.info.depth, **start.data})
    if not run.hooks:
        try:
            start.prepared = prompt = start.prepare(run)
            if not agent.is_module:
                prompt.history()  # while nobody else waits for it
        except BaseException as error:
            start.prepared = error


def _only_user(line: SessionWriter, start: Start) -> str | None:
    store: Any = line.repository.store  # it keeps the steps, too
    session_id = line.session_id
    if start.again is not None:
        users = _users_of_turn(store, session_id, start.again)
        if len(users) == 1:
            return users.pop()
    return line.only_user()


def _users_of_turn(store: Any, session_id: str, start: int) -> set[str]:
    """Return whom the steps of a turn name: those of its runs, and those its messages show."""
    turn: list[Step] = []
    for message in store.messages(session_id, start, start + _LONGEST_TURN):
        if turn and message.is_user_step():
            break
        turn.append(message)
    shown = store.get([step_id for message in turn for step_id in shown_steps(message)])
    users = {step.user_id for step in shown if step.user_id is not None}
    for run_id in dict.fromkeys(message.run_id for message in turn if message.run_id):
        users.update(store.users(StepFilter(run_id=run_id, scope=EVERY_SCOPE), limit=2))
    return users


def session_of(session: object) -> AgentSession:
    """Return the session that is named."""
    if isinstance(session, AgentSession):
        return session
    if isinstance(session, str):
        return AgentSession(session)
    given = getattr(session, "session_id", None)
    if isinstance(given, str):
        return AgentSession(given, getattr(session, "user_id", None))
    raise InvalidSettingError(f"a session is an id or an AgentSession, not {session!r:.80}.")


def check_message(message: object) -> None:
    """Check what a user says."""
    given = [{"type": "text", "text": message}] if isinstance(message, str) else message
    parts = cast("list[Any]", given) if isinstance(given, list) else []
    mappings = all(isinstance(part, Mapping) for part in parts)
    if mappings and not all(is_blank(part) for part in parts):
        return
    raise MessageError(
        "the user's message is a text or a list of content parts, and neither empty nor blank; got "
        f"{message!r:.80}."
    )


def config_of(config: object, keep_prompts: bool) -> StepRunnerConfig:
    """Return a runner's limits, the usual ones for None."""
    config = StepRunnerConfig() if config is None else config
    if isinstance(config, StepRunnerConfig):
        return replace(config, keep_prompts=keep_prompts) if keep_prompts else config
    raise InvalidSettingError(f"config is a StepRunnerConfig, not {config!r:.80}.")


def hooks_of(hooks: object) -> tuple[object, ...]:
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


def check_unanswered(step: object) -> None:
    """Check that there is something to answer after a message."""
    if not isinstance(step, Step):
        raise InvalidSettingError(f"the last step is a Step, not {step!r:.80}.")
    if step.is_assistant_step() and not step.has_tool_calls():
        raise MessageError(
            f"message {step.sequence} of session {step.session_id!r} is an answer; retry() a "
            "message of the user to have another one."
        )


async def _last_kept(repo: SessionRepository, session_id: str, sequence: int, reason: str) -> int:
    """Return the last message that is not made again; refuse what cannot be."""
    check_sequence(sequence)
    step: Step = await repo.get_step(session_id, sequence)
    if step.is_user_step():
        return sequence - (reason == "edit")
    is_summary = SUMMARY_OF in (step.metadata or {})
    if reason == "retry" and not is_summary and (step.is_assistant_step() or step.is_tool_step()):
        kept = await in_thread(partial(fork_point, repo.store, session_id, sequence - 1))
        if await in_thread(partial(_was_asked, repo.store, session_id, kept)):
            return kept
    before = await repo.get_steps(session_id, None, sequence)
    asked = [str(each.sequence) for each in before if each.is_user_step()]
    what = "a summary of earlier messages" if is_summary else f"of role {step.role.value}"
    raise MessageError(
        f"message {sequence} of session {session_id!r} is {what}; name a message of the user, such "
        f"as {asked[-1] if asked else 'none, there is none'}."
    )


def _was_asked(store: SessionStore, session_id: str, last: int) -> bool:
    """Whether a user has said anything up to a message; may block."""
    return any(
        step.is_user_step()
        for end in range(last, 0, -_PAGE)
        for step in store.messages(session_id, max(1, end - _PAGE + 1), end)
    )
