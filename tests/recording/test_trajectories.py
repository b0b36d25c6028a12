"""The turns of a ReAct agent are read back from its steps as DSPy wrote them."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dspy
import pytest
from recorder_programs import search

import hybridagi_steps as hs
from hybridagi_steps.errors import InvalidStepError, UnknownRunError
from hybridagi_steps.testing import ToolCall, replay_lm, scripted_lm


def turn(thought: str, tool: str, **arguments: Any) -> dict[str, Any]:
    """What a model answers in one turn."""
    return {"next_thought": thought, "next_tool_name": tool, "next_tool_args": arguments}


def fail(query: str) -> str:
    """Fail."""
    raise ValueError(f"no {query}")


TURNS: list[Any] = [
    turn("first", "search", query="x"),
    turn("second", "fail", query="y"),
    turn("third", "search", query="z"),
    turn("done", "finish"),
    {"reasoning": "read", "answer": "Paris"},
]


@pytest.fixture
def memory() -> Iterator[hs.StepMemory]:
    """An empty memory."""
    with hs.StepMemory(":memory:", embedder="hashing") as opened:
        yield opened


def without_traces(trajectory: dict[str, Any]) -> dict[str, Any]:
    """A trajectory whose errors have no traceback."""
    return {
        key: value.split(":")[0] if isinstance(value, str) else value
        for key, value in trajectory.items()
    }


def test_a_step_gives_back_what_its_predictor_was_shown(memory: hs.StepMemory) -> None:
    agent = dspy.ReAct("question -> answer", tools=[search, fail])
    with dspy.context(lm=scripted_lm(TURNS)), hs.record(memory) as run:
        own = agent(question="?").trajectory
    steps = run.steps.steps
    tools = [step for step in steps if step.tool]
    assert [step.tool for step in tools] == ["search", "fail", "search", "finish"]
    for n, step in enumerate(tools):
        assert {*hs.trajectory_of(step)} == {*list(own)[: 4 * n]}
    extract, end = steps[-2:]
    for step in (extract, end):
        assert without_traces(hs.trajectory_of(step, memory)) == without_traces(own)
    assert hs.trajectory_of(extract)["observation_1"] == "Execution error in fail: ValueError: no y"
    assert hs.trajectory_of(steps[0]) == {}


def test_the_turn_that_ends_a_loop_is_kept_and_not_recalled(memory: hs.StepMemory) -> None:
    agent = dspy.ReAct("question -> answer", tools=[search, fail])
    with dspy.context(lm=scripted_lm(TURNS)), hs.record(memory) as run:
        agent(question="?")
    [finish] = [step for step in run.steps.steps if step.tool == "finish"]
    assert finish.purpose == "done"
    assert finish.predictor == "ReAct.react"
    assert finish.metrics is not None
    assert finish.metrics.llm_calls == 1
    assert not any(step.tool == "finish" for step in memory.find().steps)
    assert not any(hit.step.tool == "finish" for hit in memory.search("done finish", k=50))


def test_calls_of_one_turn_were_not_shown_one_another(memory: hs.StepMemory) -> None:
    both = [
        {"id": n, "function": {"name": "search", "arguments": f'{{"query": "{n}"}}'}} for n in "12"
    ]
    submit = {"id": "3", "function": {"name": "submit", "arguments": '{"answer": "yes"}'}}
    lm = replay_lm(
        [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": "Both", "tool_calls": both},
            {"role": "assistant", "tool_calls": [submit]},
        ]
    )
    agent = dspy.ReActV2("question -> answer", tools=[search])
    adapter = dspy.ChatAdapter(use_native_function_calling=True)
    with dspy.context(lm=lm, adapter=adapter), hs.record(memory) as run:
        agent(question="?")
    shown = [len(hs.trajectory_of(step)) // 4 for step in run.steps.steps if step.tool]
    assert shown == [0, 0, 2]


def test_a_step_whose_run_is_nowhere_open_is_refused(memory: hs.StepMemory) -> None:
    step = hs.AgentStep(step_type="Action", run_id="elsewhere", program_id="call", hop=3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UnknownRunError):
        hs.trajectory_of(step)
    assert hs.trajectory_of(hs.AgentStep(step_type="Action")) == {}  # pyright: ignore[reportArgumentType]
    assert memory.find().steps == []


def test_an_agent_that_says_nothing_has_no_thought(memory: hs.StepMemory) -> None:
    lm = scripted_lm([[ToolCall("search", {"query": "x"})], [ToolCall("submit", {"answer": "y"})]])
    agent = dspy.ReActV2("question -> answer", tools=[search])
    with dspy.context(lm=lm), hs.record(memory) as run:
        agent(question="?")
    shown = hs.trajectory_of(run.steps.steps[-1])
    assert shown["tool_name_0"] == "search"
    assert [value for name, value in shown.items() if name.startswith("thought")] == ["", ""]


def test_what_is_no_step_and_a_closed_memory_are_told_of() -> None:
    agent = dspy.ReAct("question -> answer", tools=[search, fail])
    with hs.StepMemory(":memory:", embedder="hashing") as memory:
        with dspy.context(lm=scripted_lm(TURNS)), hs.record(memory) as run:
            agent(question="?")
        end: Any = run.steps.steps[-1]
    with pytest.raises(UnknownRunError, match="no open memory"):
        hs.trajectory_of(end)
    with pytest.raises(InvalidStepError, match=r"memory\.get"):
        hs.trajectory_of(end.id)


def test_memories_may_open_and_close_while_a_run_is_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = [hs.StepMemory(":memory:", embedder="hashing") for _ in range(3)]
    run_steps = hs.StepMemory.run_steps

    with hs.StepMemory(":memory:", embedder="hashing") as first:
        first.add(
            hs.AgentStep(
                step_type=hs.AgentStepType.Action, inputs={"purpose": "seek"}, run_id="there"
            )
        )

        def closed_just_now(memory: hs.StepMemory, run_id: str) -> list[hs.AgentStep]:
            if memory in others:
                memory.close()
            return run_steps(memory, run_id)

        monkeypatch.setattr(hs.StepMemory, "run_steps", closed_just_now)
        assert "after 1 steps" in hs.trajectory_feedback("there")
        with pytest.raises(UnknownRunError):
            hs.trajectory_feedback("elsewhere")
