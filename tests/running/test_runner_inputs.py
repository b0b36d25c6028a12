"""What callers and programs give a runner: answered, or refused with a clear word."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import AsyncIterator, Iterator
from typing import Any

import dspy
import pytest
from runner_cases import (
    SEARCHES,
    answering,
    check_stream,
    collected,
    messages,
    replayed,
    run,
    said,
    search,
)

from hybridagi_steps import RunHook, StepMemory
from hybridagi_steps.errors import InvalidSettingError, MessageError
from hybridagi_steps.records.agent_step import AgentStepType
from hybridagi_steps.records.message import SUMMARY_OF
from hybridagi_steps.running.limits import StepRunnerConfig
from hybridagi_steps.running.runner import StepRunner
from hybridagi_steps.sessions.session_handle import retry_from_sequence
from hybridagi_steps.testing import ScriptedLM


def error_of(events: list[Any]) -> dict[str, str]:
    """The error that a run ended with."""
    assert events[-1].type.value == "run_failed"
    assert events[-1].data["termination_reason"] == "error"
    return events[-1].data["error"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"config": {"max_steps": 1}}, "config is a StepRunnerConfig"),
        ({"config": 5}, "config is a StepRunnerConfig"),
        ({"hooks": [5]}, "5 is no hook"),
        ({"hooks": [RunHook(), object()]}, "is no hook"),
        ({"hooks": 5}, "hooks are a list"),
        ({"output_field": "zz"}, "ReAct has no output 'zz'; it has answer, source."),
    ],
)
def test_settings_that_are_none_are_refused(
    memory: StepMemory, settings: dict[str, Any], words: str
) -> None:
    agent = dspy.ReAct("question -> answer, source", tools=[search])
    with pytest.raises(InvalidSettingError, match=words):
        StepRunner(agent, memory, **settings)
    for field in ("source", "trajectory"):
        StepRunner(agent, memory, output_field=field)


def test_an_output_of_a_module_of_ones_own_need_not_be_known(memory: StepMemory) -> None:
    class Own(dspy.Module):
        signature = dspy.Predict("question -> answer").signature

        async def aforward(self, question: str) -> Any:
            return dspy.Prediction(other=f"{question}!")

    events = run(StepRunner(Own(), memory, output_field="other"), "chat", "Hello")
    assert events[-1].type.value == "run_completed"
    assert said(memory, "chat")[-1] == ("assistant", "Hello!")


def test_a_sync_generator_streams(memory: StepMemory) -> None:
    def pieces(_: Any) -> Iterator[str]:
        yield "a"
        yield "b"

    events = run(StepRunner(pieces, memory), "chat", "Hello")
    check_stream(memory, events)
    assert [each["content"] for each in replayed(events).values()] == ["ab"]
    assert said(memory, "chat") == [("user", "Hello"), ("assistant", "ab")]


async def _numbers(_: Any) -> AsyncIterator[Any]:
    yield 5


async def _nothing(_: Any) -> AsyncIterator[str]:
    for piece in ():
        yield piece


@pytest.mark.parametrize("program", [_numbers, lambda _: 5, lambda _: ["a"], lambda _: iter([5])])
def test_what_is_no_answer_fails_the_run(memory: StepMemory, program: Any) -> None:
    error = error_of(run(StepRunner(program, memory), "chat", "Hello"))
    assert error["type"] == "MessageError"
    assert "of type" in error["message"]


@pytest.mark.parametrize("program", [_nothing, lambda _: "", lambda _: iter(())])
def test_an_empty_answer_fails_the_run(memory: StepMemory, program: Any) -> None:
    error = error_of(run(StepRunner(program, memory), "chat", "Hello"))
    assert "returned nothing" in error["message"]
    assert len(messages(memory, "chat")) == 1


def documented(_: Any) -> str:
    """Say hello.

    In one word.
    """
    return "hello"


def bare(_: Any) -> str:
    return "hello"


@pytest.mark.parametrize(("program", "purpose"), [(documented, "Say hello."), (bare, "bare")])
def test_a_callable_is_recorded_with_its_purpose(
    memory: StepMemory, program: Any, purpose: str
) -> None:
    events = run(StepRunner(program, memory), "chat", "Hello")
    calls = [
        s for s in memory.run(events[0].run_id).steps if s.step_type is AgentStepType.ProgramCall
    ]
    assert [(call.inputs or {})["purpose"] for call in calls] == [purpose]


@pytest.mark.parametrize(
    "setting",
    [
        {"max_steps": "3"},
        {"max_steps": True},
        {"max_steps": 1.5},
        {"consent": 5},
        {"timeout_seconds": "1"},
        {"max_depth": None},
        {"termination_summary": 1},
    ],
)
def test_settings_have_types(setting: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettingError, match=next(iter(setting))):
        StepRunnerConfig(**setting)


@pytest.mark.parametrize("answer", [1, "yes", [True]])
def test_an_unclear_consent_is_a_no(memory: StepMemory, answer: Any) -> None:
    config = StepRunnerConfig(consent=lambda _: answer)
    runner = StepRunner(dspy.ReAct("question -> answer", tools=[search]), memory, config=config)
    events = run(runner, "chat", "Capital?", ScriptedLM(SEARCHES))
    found = [event.data for event in events if event.type.value == "error"]
    assert [repr(answer) in each["message"] for each in found] == [True]
    assert "tool_auth_denied" in [event.type.value for event in events]


BLANK = [" ", "\n\t", [{"type": "text", "text": " "}], [{"type": "text", "text": ""}] * 2]


@pytest.mark.parametrize(
    "message", [None, "", 5, [], ["a"], {"role": "user", "content": "a"}, *BLANK]
)
def test_a_message_that_is_none_is_refused_up_front(memory: StepMemory, message: Any) -> None:
    runner = StepRunner(bare, memory)
    with pytest.raises(MessageError, match="the user's message"):
        asyncio.run(runner.run("chat", message))
    assert runner.active_runs() == {}
    assert asyncio.run(memory.repository().get_last_step("chat")) is None


@pytest.mark.parametrize("sequence", ["1", True, 1.0, None])
def test_a_sequence_is_a_whole_number(memory: StepMemory, sequence: Any) -> None:
    runner = StepRunner(bare, memory)
    run(runner, "chat", "Hello")
    with pytest.raises(InvalidSettingError, match="sequence"):
        asyncio.run(collected(retry_from_sequence("chat", sequence, memory.repository(), runner)))


def test_a_summary_is_no_message_to_retry(memory: StepMemory) -> None:
    step = {"role": "user", "content": "So far.", "metadata": {SUMMARY_OF: [1, 2]}}

    class Repo:
        async def get_step(self, *_: Any) -> Any:
            from hybridagi_steps import Step

            return Step.model_validate({"session_id": "chat", "sequence": 1, **step})

        async def get_steps(self, *_: Any) -> list[Any]:
            return []

    with pytest.raises(MessageError, match="is a summary of earlier messages"):
        asyncio.run(collected(StepRunner(bare, memory).retry("chat", 1, repository=Repo())))


def test_a_deep_copy_has_its_own_program_and_the_same_memory(memory: StepMemory) -> None:
    runner = StepRunner(dspy.Predict("question -> answer"), memory)
    other = copy.deepcopy(runner)
    assert other.program is not runner.program
    assert (other.memory, copy.copy(runner).program) == (memory, runner.program)
    run(other, "chat", "Capital?", answering("Paris"))
    assert said(memory, "chat")[-1] == ("assistant", "Paris")
    with pytest.raises(TypeError, match="make a new StepRunner"):
        pickle.dumps(runner)
