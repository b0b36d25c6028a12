"""For whom a run acts: whoever is named, whose turn is made again, or the session's only user."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from runner_cases import collected, messages, run

import hybridagi_steps as hs
from hybridagi_steps import AgentSession, AgentStep, AgentStepType, StepMemory, StepRunner, errors
from hybridagi_steps.recording_hooks import active_user_id
from hybridagi_steps.sessions.session_handle import edit_from_sequence, retry_from_sequence

Again = Callable[[StepRunner, Any], Any]


def retry(runner: StepRunner, session: Any) -> Any:
    return retry_from_sequence(session, 1, runner.repository, runner)


def edit(runner: StepRunner, session: Any) -> Any:
    return edit_from_sequence(session, 1, "Changed?", runner.repository, runner)


def resume_from(runner: StepRunner, session: Any) -> Any:
    name = session if isinstance(session, str) else session.session_id
    asyncio.run(runner.repository.delete_steps(name, 2))
    return runner.resume_from_user_step(session, messages(runner.memory, name)[-1])


def resume(runner: StepRunner, session: Any) -> Any:
    name = session if isinstance(session, str) else session.session_id
    asyncio.run(runner.repository.delete_steps(name, 2))
    return runner.resume(session)


WAYS: list[Again] = [retry, edit, resume_from, resume]


class Talker:
    """A runner whose program notes for whom it is asked."""

    def __init__(self, memory: StepMemory) -> None:
        self.asked: list[str | None] = []
        self.runner = StepRunner(self.answer, memory)

    async def answer(self, said: list[dict[str, Any]]) -> str:
        self.asked.append(active_user_id(self.runner.memory))
        return "yes"

    def say(self, session: Any) -> str | None:
        """Say something; return for whom the program was asked."""
        run(self.runner, session, "Hello?")
        return self.asked[-1]

    def again(self, way: Again, session: Any) -> str | None:
        """Make a turn again; return for whom the program was asked."""
        events = asyncio.run(collected(way(self.runner, session)))
        assert events[-1].type == "run_completed"
        users = {
            step.user_id for step in self.runner.memory.iter_steps({"run_id": events[0].run_id})
        }
        assert users == {self.asked[-1]}, "what is recorded is recorded for the same"
        return self.asked[-1]


@pytest.fixture
def talker(memory: StepMemory) -> Talker:
    return Talker(memory)


@pytest.mark.parametrize("way", WAYS)
def test_a_turn_is_made_again_for_its_user(talker: Talker, way: Again) -> None:
    talker.say(AgentSession("a", "ann"))
    assert talker.again(way, "a") == "ann"


@pytest.mark.parametrize("way", WAYS)
def test_in_a_shared_session_that_is_the_user_of_the_turn(talker: Talker, way: Again) -> None:
    talker.say(AgentSession("a", "ann"))
    talker.runner.memory.add(
        AgentStep(step_type=AgentStepType.Action, session_id="a", user_id="bob")
    )
    assert talker.again(way, "a") == "ann"


def test_of_two_turns_each_has_its_own(talker: Talker) -> None:
    talker.say(AgentSession("a", "ann"))
    talker.say(AgentSession("a", "bob", as_any_user=True))

    def retry_the_second(runner: StepRunner, session: Any) -> Any:
        return runner.retry(session, 3)

    assert talker.again(retry_the_second, "a") == "bob"
    assert talker.again(retry, "a") == "ann"


@pytest.mark.parametrize("way", WAYS)
def test_a_session_with_a_user_says_otherwise(talker: Talker, way: Again) -> None:
    talker.say(AgentSession("a", "ann"))
    with pytest.raises(errors.NotAllowedError):
        talker.again(way, AgentSession("a", "bob"))
    assert talker.again(way, AgentSession("a", "bob", as_any_user=True)) == "bob"


@pytest.mark.parametrize("way", WAYS)
def test_so_does_a_recording_around_it(talker: Talker, way: Again) -> None:
    talker.say(AgentSession("a", "ann"))
    with hs.record(talker.runner.memory, user_id="eve"):
        assert talker.again(way, "a") == "eve"


@pytest.mark.parametrize("way", [retry, edit])
def test_a_turn_of_nobody_is_for_the_only_user_of_the_session(talker: Talker, way: Again) -> None:
    talker.say("a")
    talker.runner.memory.add(
        AgentStep(step_type=AgentStepType.Action, session_id="a", user_id="ann")
    )
    assert talker.again(way, "a") == "ann"


def test_messages_of_no_run_belong_to_the_steps_they_show(talker: Talker) -> None:
    steps = [AgentStep(step_type=AgentStepType.Action, user_id=user) for user in ("ann", "bob")]
    talker.runner.memory.add(steps)
    asyncio.run(
        talker.runner.repository.append(
            "a",
            [
                {"role": "user", "content": "Hello?"},
                {"role": "assistant", "content": "yes", "agent_step_id": str(steps[0].id)},
                {"role": "user", "content": "And?"},
                {"role": "assistant", "content": "no", "agent_step_id": str(steps[1].id)},
            ],
        )
    )
    assert talker.again(retry, "a") == "ann"


def test_a_plain_id_is_for_the_only_user_that_the_session_names(talker: Talker) -> None:
    assert talker.say("a") is None
    talker.say(AgentSession("a", "ann"))
    assert talker.say("a") == "ann"
    assert talker.say(AgentSession("a")) == "ann"
    assert talker.say("b") is None
    talker.say(AgentSession("a", "bob", as_any_user=True))
    assert talker.say("a") is None


def test_what_a_retry_wrote_is_purged_with_its_user(talker: Talker) -> None:
    talker.say(AgentSession("a", "ann"))
    talker.again(retry, "a")
    memory = talker.runner.memory
    assert memory.purge({"user_id": "ann"})
    assert list(memory.iter_steps({"session_id": "a"})) == []
    assert memory.repository().store.sessions(limit=10) == []
