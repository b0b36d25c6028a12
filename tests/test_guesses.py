"""What a person types first, without the documentation: it works, or names what does."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import dspy
import pytest

import hybridagi_steps as hs
from tests.runner_cases import answering


def in_terminal(code: Callable[[], Any]) -> Any:
    """Call code where no event loop runs, as a script does."""
    return code()


def in_kernel(code: Callable[[], Any]) -> Any:
    """Call code inside a running event loop, as a cell of a notebook."""

    async def cell() -> Any:
        return code()

    return asyncio.run(cell())


@pytest.fixture(params=[in_terminal, in_kernel], ids=lambda run: run.__name__)
def anywhere(request: pytest.FixtureRequest) -> Callable[[Callable[[], Any]], Any]:
    return request.param


Anywhere = Callable[[Callable[[], Any]], Any]


class TestSessionsWithoutAwait:
    def test_a_runner_is_asked(self, memory: hs.StepMemory, anywhere: Anywhere) -> None:
        runner = hs.StepRunner(dspy.Predict("question -> answer"), memory)

        def code() -> Any:
            with dspy.context(lm=answering("HAT742", "At 9:40.")):
                return runner.ask("trip", "Which flight?"), runner.ask("trip", "When?")

        first, second = anywhere(code)
        assert (first.text, second.text) == ("HAT742", "At 9:40.")
        assert first.status == "completed"

    def test_a_failure_is_raised_with_its_result(
        self, memory: hs.StepMemory, anywhere: Anywhere
    ) -> None:
        def broken(messages: list[dict[str, Any]]) -> str:
            raise ValueError("no fuel")

        runner = hs.StepRunner(broken, memory)
        with pytest.raises(hs.errors.RunFailedError, match="no fuel"):
            anywhere(lambda: runner.ask("trip", "Go"))
        result = anywhere(lambda: runner.ask("trip", "Go", raise_on_failure=False))
        assert result.status == "failed"

    def test_it_joins_the_run_that_is_recorded(
        self, memory: hs.StepMemory, anywhere: Anywhere
    ) -> None:
        """What stands in context variables is there: the model, the user, the callbacks."""
        runner = hs.StepRunner(dspy.Predict("question -> answer"), memory)

        def code() -> None:
            with (
                dspy.context(lm=answering("HAT742")),
                hs.record(memory, user_id="ann"),
            ):
                runner.ask("trip", "Which flight?")

        anywhere(code)
        assert {step.user_id for step in memory.iter_steps()} == {"ann"}

    def test_a_session_is_read_answered_and_branched(
        self, memory: hs.StepMemory, anywhere: Anywhere
    ) -> None:
        runner = hs.StepRunner(dspy.Predict("question -> answer"), memory)

        def code() -> None:
            chat = memory.session("trip", runner)
            with dspy.context(lm=answering("HAT742", "HAT743", "HAT9", "Yes.")):
                assert chat.ask("Which flight?").text == "HAT742"
                assert chat.retry().text == "HAT743"
                assert chat.edit(1, "Which flight to Oslo?").text == "HAT9"
                fork = chat.fork(1)
                assert fork.session_id != "trip"
                assert [step.content for step in fork.messages] == ["Which flight to Oslo?"]
                assert fork.retry().text == "Yes."
            assert [step.content for step in chat.messages] == ["Which flight to Oslo?", "HAT9"]
            assert len(chat.attempts) == 3
            assert chat.context(budget=500).messages[0]["content"] == "Which flight to Oslo?"

        anywhere(code)

    def test_a_program_will_do_and_none_names_what_is_missing(
        self, memory: hs.StepMemory, anywhere: Anywhere
    ) -> None:
        def code() -> None:
            with dspy.context(lm=answering("HAT742")):
                chat = memory.session("trip", dspy.Predict("question -> answer"), user_id="ann")
                assert chat.ask("Which flight?").text == "HAT742"
            assert {step.user_id for step in chat.messages} == {"ann"}
            with pytest.raises(hs.errors.InvalidSettingError, match=r"session\('trip', program\)"):
                memory.session("trip").ask("Which flight?")
            memory.session("notes").append({"role": "user", "content": "Oslo"})
            assert memory.session("notes").messages[0].content == "Oslo"
            assert memory.session("nobody").messages == []

        anywhere(code)

    def test_another_users_session_stays_closed(
        self, memory: hs.StepMemory, anywhere: Anywhere
    ) -> None:
        def code() -> None:
            note = {"role": "user", "content": "It is 1234."}
            memory.session("private", user_id="ann").append(note)
            with pytest.raises(hs.errors.NotAllowedError):
                memory.session("private", user_id="bob").messages  # noqa: B018

        anywhere(code)
