"""What callers give a runner, looked at before anything is stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from hybridagi_steps.errors import InvalidSettingError, MessageError
from hybridagi_steps.records.message import SUMMARY_OF, Step
from hybridagi_steps.running.config import AgentSession, StepRunnerConfig
from hybridagi_steps.running.hooks import RunHook
from hybridagi_steps.sessions import check_sequence


def session_of(session: Any) -> AgentSession:
    """Return the session that is named.

    Raises:
        InvalidSettingError: It is neither an id nor a session.
    """
    if isinstance(session, AgentSession):
        return session
    if isinstance(session, str):
        return AgentSession(session)
    given = getattr(session, "session_id", None)
    if isinstance(given, str):
        return AgentSession(given, getattr(session, "user_id", None))
    raise InvalidSettingError(f"a session is an id or an AgentSession, not {session!r:.80}.")


def check_message(message: Any) -> None:
    """Check what a user says.

    Raises:
        MessageError: It is neither a text nor content parts, or says nothing.
    """
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
    """Return a runner's limits, the usual ones for None.

    Raises:
        InvalidSettingError: They are of another type.
    """
    if config is None:
        return StepRunnerConfig()
    if isinstance(config, StepRunnerConfig):
        return config
    raise InvalidSettingError(f"config is a StepRunnerConfig, not {config!r:.80}.")


def hooks_of(hooks: Any) -> tuple[Any, ...]:
    """Return hooks that can be called.

    Raises:
        InvalidSettingError: They are no list, or one of them has no method of a hook.
    """
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
    """Check that there is something to answer after a message.

    Raises:
        InvalidSettingError: It is no Step.
        MessageError: It is an answer.
    """
    if not isinstance(step, Step):
        raise InvalidSettingError(f"the last step is a Step, not {step!r:.80}.")
    if step.is_assistant_step() and not step.has_tool_calls():
        raise MessageError(
            f"message {step.sequence} of session {step.session_id!r} is an answer; retry() a "
            "message of the user to have another one."
        )


async def check_user_message(repo: Any, session_id: str, sequence: Any) -> None:
    """Check that a session has a message of its user at a sequence.

    Raises:
        InvalidSettingError: The sequence is no whole number.
        MessageError: Someone else's message stands there.
    """
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
