"""record_step and tools: what they were given is kept as it was, and each call is told once."""

# DSPy ships no types, and annotates some arguments more narrowly than it takes them.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportUnknownLambdaType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import asyncio
from typing import Any, Literal

import dspy
import pytest
from recorder_programs import outline

import hybridagi_steps as hs
from hybridagi_steps.testing import scripted_lm


def take_all(xs: Any) -> list[Any]:
    """Take everything."""
    taken = list(xs)
    xs.clear()
    return taken


async def atake_all(xs: Any) -> list[Any]:
    """Take everything, in time."""
    return take_all(xs)


@hs.record_step
def look(city: str) -> str:
    """Look up a train."""
    return f"9:40 to {city}"


@hs.record_step
async def alook(city: str) -> str:
    """Look up a train, in time."""
    return f"9:40 to {city}"


@hs.record_step(kind="decision")
def urgent(text: str) -> Literal["yes", "no"]:
    """Is it urgent?"""
    return "yes" if "!" in text else "no"


@hs.record_step(kind="program", name="Trip")
def trip(city: str) -> str:
    """Plan a trip."""
    return look(city)


def test_a_function_may_change_what_it_was_given(memory: hs.StepMemory) -> None:
    @hs.record_step(kind="decision")
    def empties(xs: dict[str, Any]) -> bool:
        xs.clear()
        return True

    with hs.record(memory) as run:
        assert hs.record_step(take_all)([1, {"deep": [2]}]) == [1, {"deep": [2]}]
        asyncio.run(hs.record_step(atake_all)([3]))
        empties({"key": [4]})
    assert [step.arguments for step in run.steps.steps] == [
        {"xs": [1, {"deep": [2]}]},
        {"xs": [3]},
        {"xs": {"key": [4]}},
    ]
    assert run.steps.steps[0].result == [1, {"deep": [2]}]


@pytest.mark.parametrize("kind", [Any, list, None])
def test_a_tool_may_change_what_it_was_given(memory: hs.StepMemory, kind: Any) -> None:
    def take(xs: Any) -> list[Any]:
        return take_all(xs)

    take.__annotations__ = {} if kind is None else {"xs": kind}
    with hs.record(memory) as run:
        dspy.Tool(take)(xs=[1, 2])
        asyncio.run(dspy.Tool(take).acall(xs=[3]))
    assert [step.arguments for step in run.steps.steps] == [{"xs": [1, 2]}, {"xs": [3]}]


def test_what_is_left_out_of_a_copy_is_named_once(memory: hs.StepMemory) -> None:
    vector = [0.5] * 300
    with hs.record(memory) as run:
        hs.record_step(take_all)([vector])
        dspy.Tool(take_all)(xs=[vector])
    for step in run.steps.steps:
        assert step.arguments == {"xs": ["<300 numbers>"]}
        assert step.metadata is not None
        assert "inputs: 300 numbers left out" in step.metadata["truncated"]
        assert len(step.metadata["truncated"]) == len(set(step.metadata["truncated"]))


def test_a_copy_keeps_no_bytes_from_redaction() -> None:
    def hidden(text: str) -> str:
        return text.replace("secret", "[hidden]")

    with hs.StepMemory(":memory:", embedder="hashing", redact=hidden) as memory:
        with hs.record(memory) as run:
            hs.record_step(take_all)([b"secret", "a secret"])
        assert run.steps.steps[0].arguments == {"xs": ["<6 bytes>", "a [hidden]"]}


def test_a_recorded_function_as_a_tool_is_told_once(memory: hs.StepMemory) -> None:
    with hs.record(memory) as run:
        assert dspy.Tool(look)(city="Rome") == "9:40 to Rome"
        assert asyncio.run(dspy.Tool(alook).acall(city="Oslo")) == "9:40 to Oslo"
        look("Bern")
    assert [(s.tool, s.purpose, s.arguments, s.result) for s in run.steps.steps] == [
        ("look", "Look up a train.", {"city": "Rome"}, "9:40 to Rome"),
        ("alook", "Look up a train, in time.", {"city": "Oslo"}, "9:40 to Oslo"),
        ("look", "Look up a train.", {"city": "Bern"}, "9:40 to Bern"),
    ]


def test_a_tool_that_is_a_decision_reads_as_one(memory: hs.StepMemory) -> None:
    with hs.record(memory) as run:
        dspy.Tool(urgent)(text="help!")
    [step] = run.steps.steps
    assert step.step_type == "Decision"
    assert step.inputs == {
        "purpose": "Is it urgent?",
        "options": ["yes", "no"],
        "arguments": {"text": "help!"},
    }
    assert step.outputs == {"choice": "yes"}


def test_a_purpose_given_by_hand_stays(memory: hs.StepMemory) -> None:
    def find(city: str) -> str:
        """Find."""
        return city

    with hs.record(memory) as run:
        dspy.Tool(hs.record_step(purpose="who is on call")(find), name="lookup")(city="Rome")
        dspy.Tool(hs.record_step(lambda city: city), name="other", desc="Other.")(city="Rome")
    assert [(step.tool, step.purpose) for step in run.steps.steps] == [
        ("lookup", "who is on call"),
        ("other", "Other."),
    ]


def test_a_program_as_a_tool_stands_in_the_tools_call(memory: hs.StepMemory) -> None:
    with hs.record(memory) as run:
        dspy.Tool(trip)(city="Rome")
    assert outline(run.steps.steps) == [
        (0, "ProgramCall Trip", None, None),
        (1, "Action look", 0, 0),
        (2, "ProgramEnd Trip", 1, 0),
        (3, "Action trip", 2, None),
    ]


def test_what_a_tool_calls_besides_is_told_too(memory: hs.StepMemory) -> None:
    @hs.record_step
    def twice(number: int) -> int:
        """Call itself once more."""
        look("Rome")
        return number if number > 1 else twice(number + 1)

    with hs.record(memory) as run:
        assert dspy.Tool(twice)(number=1) == 2
        dspy.Tool(lambda city: look(city), name="around")(city="Bern")
    assert [(step.tool, step.arguments) for step in run.steps.steps] == [
        ("look", {"city": "Rome"}),
        ("look", {"city": "Rome"}),
        ("twice", {"number": 2}),
        ("twice", {"number": 1}),
        ("look", {"city": "Bern"}),
        ("around", {"city": "Bern"}),
    ]


def test_a_method_as_a_tool_is_told_once(memory: hs.StepMemory) -> None:
    class Desk:
        @hs.record_step
        def find(self, city: str) -> str:
            """Find."""
            return city

    with hs.record(memory) as run:
        dspy.Tool(Desk().find)(city="Rome")
    assert [(step.tool, step.arguments) for step in run.steps.steps] == [("find", {"city": "Rome"})]


def test_a_tool_that_fails_is_told_once(memory: hs.StepMemory) -> None:
    @hs.record_step
    def fail() -> None:
        """Fail."""
        raise KeyError("gone")

    with hs.record(memory) as run, pytest.raises(KeyError):
        dspy.Tool(fail)()
    [step] = run.steps.steps
    assert (step.status, step.tool) == ("error", "fail")


def test_an_agents_tool_is_told_once_with_its_thought(memory: hs.StepMemory) -> None:
    thinks = {
        "next_thought": "I look",
        "next_tool_name": "look",
        "next_tool_args": {"city": "Rome"},
    }
    ends = {"next_thought": "Done", "next_tool_name": "finish", "next_tool_args": {}}
    lm = scripted_lm([thinks, ends, {"reasoning": "r", "answer": "9:40"}])
    with dspy.context(lm=lm), hs.record(memory) as run:
        dspy.ReAct("question -> answer", tools=[look])(question="?")
    tools = [step for step in run.steps.steps if step.tool]
    assert [(step.tool, step.purpose) for step in tools] == [("look", "I look"), ("finish", "Done")]


def test_on_two_memories_each_tells_it_once(memory: hs.StepMemory) -> None:
    with (
        hs.StepMemory(":memory:", embedder="hashing") as other,
        hs.record(memory) as one,
        hs.record(other) as two,
    ):
        dspy.Tool(look)(city="Rome")
        assert len(one.steps.steps) == len(two.steps.steps) == 1


def test_in_a_session_a_recorded_function_leaves_one_step_as_well(memory: hs.StepMemory) -> None:
    @hs.record_step
    def look(city: str) -> str:
        """Look."""
        return f"rain in {city}"

    def model(messages: list[dict[str, Any]]) -> Any:
        if messages[-1]["role"] == "tool":
            return messages[-1]["content"]
        function = {"name": "look", "arguments": '{"city": "Oslo"}'}
        call = {"id": "c1", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    runner = hs.StepRunner(model, memory, tools=[look])
    result = asyncio.run(runner.run("s", "Weather in Oslo?"))
    assert result.answer is not None
    assert result.answer.content == "rain in Oslo"
    [told] = memory.find({"tools": ["look"]}).steps
    assert (told.arguments, told.result) == ({"city": "Oslo"}, "rain in Oslo")
