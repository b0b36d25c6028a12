"""What a recorded program leaves: which steps, with which keys, in which order."""

# DSPy ships no types, and annotates some arguments more narrowly than it takes them.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportUnknownLambdaType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import anyio
import dspy
import pytest
from dspy.lm15 import Message, Request
from dspy.primitives.local_interpreter import LocalInterpreter
from dspy.utils.exceptions import LMUnexpectedError
from recorder_programs import AGENT_REPLIES, Agent, Mood, Pair, Route, outline, search

import hybridagi_steps as hs
from hybridagi_steps.display.view import tree_view
from hybridagi_steps.records.agent_step import shown
from hybridagi_steps.testing import replay_lm, scripted_lm


@pytest.fixture
def memory() -> Iterator[hs.StepMemory]:
    """An empty memory."""
    with hs.StepMemory(":memory:", embedder="hashing") as opened:
        yield opened


def recorded(memory: hs.StepMemory, program: Any, lm: Any, **inputs: Any) -> list[hs.AgentStep]:
    """Run a program under record and return its steps."""
    with dspy.context(lm=lm), hs.record(memory) as run:
        program(**inputs)
    assert run.errors == []
    return run.steps.steps


def test_a_program_with_a_decision_and_a_react_agent(memory: hs.StepMemory) -> None:
    steps = recorded(memory, Agent(), scripted_lm(AGENT_REPLIES), question="capital of France?")
    assert outline(steps) == [
        (0, "ProgramCall Agent", None, None),
        (1, "Decision", 0, 0),
        (2, "ProgramCall ReAct", 1, 0),
        (3, "Action search", 2, 2),
        (4, "Action finish", 3, 2),
        (5, "Action", 3, 2),
        (6, "ProgramEnd ReAct", 5, 2),
        (7, "ProgramEnd Agent", 6, 0),
    ]


def test_the_keys_of_every_kind_of_step(memory: hs.StepMemory) -> None:
    steps = recorded(memory, Agent(), scripted_lm(AGENT_REPLIES), question="capital of France?")
    call, decision, _, tool, finish, extract, end, last = steps
    asked = {"question": "capital of France?"}
    trajectory = {"steps": [str(tool.id), str(finish.id)]}
    assert call.inputs == {
        "program": "Agent",
        "purpose": "Answers questions, with search when it helps.",
        "arguments": asked,
    }
    assert call.outputs is None
    assert decision.inputs == {
        "purpose": "Pick how to answer.",
        "options": ["search", "chat"],
        "arguments": asked,
    }
    assert decision.outputs == {"choice": "search"}
    assert tool.inputs == {"purpose": "I look it up", "tool": "search", "arguments": {"query": "x"}}
    assert tool.outputs == {"result": "result for x"}
    assert extract.arguments == {**asked, "trajectory": trajectory}
    assert extract.outputs == {"reasoning": "found it", "answer": "Paris"}
    assert end.inputs == {"program": "ReAct"}
    assert end.outputs == {"trajectory": trajectory, "reasoning": "found it", "answer": "Paris"}
    assert last.outputs == end.outputs
    assert {step.status for step in steps} == {"ok"}


def test_a_bare_predictor_is_one_action(memory: hs.StepMemory) -> None:
    lm = scripted_lm([{"answer": "Paris"}])
    [step] = recorded(memory, dspy.Predict("question -> answer"), lm, question="?")
    assert step.step_type == "Action"
    assert step.inputs == {
        "purpose": "Given the fields `question`, produce the fields `answer`.",
        "arguments": {"question": "?"},
    }
    assert step.outputs == {"answer": "Paris"}


def test_chain_of_thought_shows_its_reasoning_and_no_level_of_its_own(
    memory: hs.StepMemory,
) -> None:
    lm = scripted_lm([{"reasoning": "because", "answer": "Paris"}])
    steps = recorded(memory, dspy.ChainOfThought("question -> answer"), lm, question="?")
    assert [step.outputs for step in steps] == [{"reasoning": "because", "answer": "Paris"}]


@pytest.mark.parametrize(
    ("kind", "said", "options", "choice"),
    [
        (bool, True, ["True", "False"], "True"),
        (Mood, "bad", ["good", "bad"], "bad"),
    ],
)
def test_bool_and_enum_outputs_are_decisions_even_after_reasoning(
    memory: hs.StepMemory, kind: Any, said: Any, options: list[str], choice: str
) -> None:
    signature = dspy.Signature("question -> verdict").with_updated_fields("verdict", type_=kind)
    lm = scripted_lm([{"reasoning": "because", "verdict": said}])
    [step] = recorded(memory, dspy.ChainOfThought(signature), lm, question="?")
    assert step.step_type == "Decision"
    assert step.inputs is not None
    assert step.inputs["options"] == options
    assert step.outputs == {"choice": choice, "reasoning": "because"}


def test_two_closed_outputs_are_no_decision(memory: hs.StepMemory) -> None:
    predict = dspy.Predict("question -> a: bool, b: bool")
    [step] = recorded(memory, predict, scripted_lm([{"a": True, "b": False}]), question="?")
    assert step.step_type == "Action"
    assert step.outputs == {"a": True, "b": False}


def test_a_decision_that_fails_is_a_decision_with_an_error(memory: hs.StepMemory) -> None:
    lm = scripted_lm(lambda _: {"route": "neither"})
    with dspy.context(lm=lm), hs.record(memory) as run, pytest.raises(Exception, match="route"):
        dspy.Predict(Route)(question="?")
    [step] = run.steps.steps
    assert (step.step_type, step.status) == ("Decision", "error")
    assert step.outputs is not None
    assert set(step.outputs["error"]) == {"type", "message"}


def test_call_options_are_no_arguments(memory: hs.StepMemory) -> None:
    predict = dspy.Predict("question -> answer")
    lm = scripted_lm([{"answer": "1"}])
    demo = dspy.Example(question="a", answer="b")
    inputs: dict[str, Any] = {"question": "?", "config": {"temperature": 1.0}, "demos": [demo]}
    [step] = recorded(memory, predict, lm, **inputs)
    assert step.arguments == {"question": "?"}


def test_positional_arguments_get_their_names(memory: hs.StepMemory) -> None:
    with dspy.context(lm=scripted_lm()), hs.record(memory) as run:
        Pair()("what?")
    assert run.steps.steps[0].arguments == {"question": "what?"}


def test_a_module_may_return_anything(memory: hs.StepMemory) -> None:
    class Odd(dspy.Module):
        def forward(self, value: Any) -> Any:
            return value

    pair = (dspy.Prediction(a=1), "second")
    values: list[tuple[Any, Any]] = [
        (None, {}),
        ([1, 2], {"result": [1, 2]}),
        ({"a": 1}, {"a": 1}),
        (dspy.Prediction(steps=["boil", "serve"]), {"steps": ["boil", "serve"]}),
        (pair, {"result": [{"a": 1}, "second"]}),
        (hs.AgentStepList(), {"result": {"steps": []}}),
    ]
    with hs.record(memory) as run:
        for value, _ in values:
            Odd()(value=value)
    ends = [step for step in run.steps.steps if step.step_type == "ProgramEnd"]
    assert [step.outputs for step in ends] == [expected for _, expected in values]


def test_a_tool_on_its_own_sync_and_async(memory: hs.StepMemory) -> None:
    async def look(query: str) -> list[str]:
        """Look around."""
        return [query]

    with hs.record(memory) as run:
        dspy.Tool(search)(query="a")
        asyncio.run(dspy.Tool(look).acall(query="b"))
    one, two = run.steps.steps
    assert one.inputs == {
        "purpose": "Search the corpus.",
        "tool": "search",
        "arguments": {"query": "a"},
    }
    assert two.tool == "look"
    assert two.outputs == {"result": ["b"]}
    assert two.parent_id == one.id


def test_an_agent_as_a_tool_stands_before_the_tools_own_step(memory: hs.StepMemory) -> None:
    inner = dspy.Predict("question -> answer")

    def ask(question: str) -> str:
        """Ask an expert."""
        return inner(question=question).answer

    with dspy.context(lm=scripted_lm([{"answer": "42"}])), hs.record(memory) as run:
        dspy.Tool(ask)(question="?")
    assert outline(run.steps.steps) == [(0, "Action", None, None), (1, "Action ask", 0, None)]


def test_what_a_tool_calls_stands_inside_it(memory: hs.StepMemory) -> None:
    def consult(question: str) -> str:
        """Consult another agent."""
        return Pair()(question=question).three

    turns: list[Any] = [
        {
            "next_thought": "I ask",
            "next_tool_name": "consult",
            "next_tool_args": {"question": "why"},
        },
        *[{name: "because"} for name in ("one", "two", "three")],
        {"next_thought": "I know", "next_tool_name": "finish", "next_tool_args": {}},
        {"reasoning": "r", "answer": "a"},
    ]
    agent = dspy.ReAct("question -> answer", tools=[consult])
    steps = recorded(memory, agent, scripted_lm(turns), question="?")
    [tool] = [step for step in steps if step.tool == "consult"]
    inside = [step for step in steps if (step.metadata or {}).get("within")]
    assert [step.program for step in inside] == ["Pair"]
    assert (inside[0].metadata or {})["within"] == str(tool.id)
    [root] = tree_view([shown(step) for step in steps])
    [drawn] = [view for view in root.children if view.id == str(tool.id)]
    assert [(view.id, len(view.children)) for view in drawn.children] == [(str(inside[0].id), 4)]


def test_react_v2_thoughts_and_tools(memory: hs.StepMemory) -> None:
    lm = replay_lm(
        [
            {"role": "user", "content": "?"},
            {
                "role": "assistant",
                "content": "Let me look",
                "tool_calls": [
                    {"id": "1", "function": {"name": "search", "arguments": '{"query": "a"}'}},
                    {"id": "2", "function": {"name": "search", "arguments": '{"query": "b"}'}},
                ],
            },
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": "3", "function": {"name": "submit", "arguments": '{"answer": "yes"}'}}
                ],
            },
        ]
    )
    agent = dspy.ReActV2("question -> answer", tools=[search])
    with dspy.context(adapter=dspy.ChatAdapter(use_native_function_calling=True)):
        steps = recorded(memory, agent, lm, question="?")
    assert outline(steps) == [
        (0, "ProgramCall ReActV2", None, None),
        (1, "Action search", 0, 0),
        (2, "Action search", 1, 0),
        (3, "Action submit", 2, 0),
        (4, "ProgramEnd ReActV2", 2, 0),
    ]
    assert [step.purpose for step in steps[1:3]] == ["Let me look"] * 2
    assert [step.metrics.llm_calls for step in steps[1:] if step.metrics] == [1, None, 1, None]
    assert steps[4].outputs == {
        "answer": "yes",
        "history": {"steps": [str(step.id) for step in steps[1:4]]},
        "termination_reason": "submit",
    }


def test_a_thought_without_a_tool_is_kept(memory: hs.StepMemory) -> None:
    calls = {"tool_calls": [{"name": "submit", "args": {"answer": "no"}}]}
    lm = scripted_lm(
        [
            {"next_thought": "I wonder", "tool_calls": {"tool_calls": []}},
            {"next_thought": "enough", "tool_calls": calls},
        ]
    )
    steps = recorded(memory, dspy.ReActV2("question -> answer", tools=[search]), lm, question="?")
    assert [step.purpose for step in steps if step.step_type == "Action"] == [
        "I wonder",
        "enough",
    ]


def test_a_failing_tool_is_an_action_with_an_error(memory: hs.StepMemory) -> None:
    def broken() -> str:
        """Break."""
        raise KeyError("missing")

    replies: list[Any] = [
        {"next_thought": "try", "next_tool_name": "broken", "next_tool_args": {}},
        {"next_thought": "stop", "next_tool_name": "finish", "next_tool_args": {}},
        {"reasoning": "", "answer": "none"},
    ]
    agent = dspy.ReAct("question -> answer", tools=[broken])
    steps = recorded(memory, agent, scripted_lm(replies), question="?")
    assert (steps[1].tool, steps[1].status) == ("broken", "error")
    assert steps[1].outputs == {"error": {"type": "KeyError", "message": "'missing'"}}
    assert steps[-1].status == "ok", "the agent went on"


def test_an_error_stands_on_the_failing_step_and_on_every_program_around_it(
    memory: hs.StepMemory,
) -> None:
    lm = scripted_lm([{"one": "1"}, ValueError("no such city")])
    with dspy.context(lm=lm), hs.record(memory) as run, pytest.raises(Exception, match="no such"):
        Pair()(question="?")
    assert [(s.step_type.value, s.status) for s in run.steps.steps] == [
        ("ProgramCall", "ok"),
        ("Action", "ok"),
        ("Action", "error"),
        ("ProgramEnd", "error"),
    ]
    for step in run.steps.steps[2:]:
        assert step.outputs is not None
        assert "no such city" in step.outputs["error"]["message"]


def test_a_cancelled_step_names_no_task_of_the_loop(memory: hs.StepMemory) -> None:
    class Waiting(dspy.Module):
        async def aforward(self) -> dspy.Prediction:
            await anyio.sleep(5)
            return dspy.Prediction()

    async def cancelled() -> None:
        with hs.record(memory), anyio.move_on_after(0.05):
            await Waiting().acall()

    asyncio.run(cancelled())
    [end] = memory.find({"status": ["cancelled"]}).steps
    assert end.outputs == {"error": {"type": "CancelledError", "message": ""}}


def test_a_cancelled_program_ends_cancelled(memory: hs.StepMemory) -> None:
    async def cancelled() -> hs.AgentStepList:
        with dspy.context(lm=scripted_lm(delay_seconds=5)), hs.record(memory) as run:
            task = asyncio.create_task(Pair().acall(question="?"))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        return run.steps

    steps = asyncio.run(cancelled()).steps
    ends = [(s.step_type.value, s.status) for s in steps]
    assert ends[0] == ("ProgramCall", "ok")
    assert ends[-1] == ("ProgramEnd", "cancelled")
    assert {status for _, status in ends[1:]} == {"cancelled"}
    assert len(steps) == 4


def test_a_keyboard_interrupt_still_closes_every_program(memory: hs.StepMemory) -> None:
    def interrupt() -> str:
        """Stop."""
        raise KeyboardInterrupt

    class Outer(dspy.Module):
        def forward(self) -> Any:
            return dspy.Tool(interrupt)()

    with hs.record(memory) as run, pytest.raises(KeyboardInterrupt):
        Outer()()
    assert [(s.step_type.value, s.status) for s in run.steps.steps] == [
        ("ProgramCall", "ok"),
        ("Action", "cancelled"),
        ("ProgramEnd", "cancelled"),
    ]


def test_what_a_step_cost(memory: hs.StepMemory) -> None:
    lm = scripted_lm([{"answer": "Paris"}], delay_seconds=0.02)
    [step] = recorded(memory, dspy.Predict("question -> answer"), lm, question="?")
    metrics = step.metrics
    assert metrics is not None
    assert metrics.duration_ms is not None
    assert metrics.duration_ms >= 20
    assert metrics.input_tokens
    assert metrics.output_tokens
    assert metrics.total_tokens == metrics.input_tokens + metrics.output_tokens
    assert (metrics.model_name, metrics.provider) == ("scripted/model", "scripted")
    assert (metrics.llm_calls, metrics.cache_hit) == (1, False)


def test_a_format_fallback_adds_up(memory: hs.StepMemory) -> None:
    lm = scripted_lm(["no fields at all", '{"answer": "Paris"}'])
    [step] = recorded(memory, dspy.Predict("question -> answer"), lm, question="?")
    assert step.outputs == {"answer": "Paris"}
    assert step.metrics is not None
    assert step.metrics.llm_calls == 2
    assert step.metrics.input_tokens == sum(entry["usage"]["prompt_tokens"] for entry in lm.history)


def test_an_answer_from_the_cache_is_marked_and_costs_nothing(memory: hs.StepMemory) -> None:
    lm = scripted_lm([{"answer": "Paris"}], cache=True, model="scripted/cached")
    question = f"cached at {time.time_ns()}?"
    with dspy.context(lm=lm), hs.record(memory) as run:
        dspy.Predict("question -> answer")(question=question)
        dspy.Predict("question -> answer")(question=question)
    first, second = (step.metrics for step in run.steps.steps)
    assert first is not None
    assert second is not None
    assert (first.cache_hit, second.cache_hit) == (False, True)
    assert second.total_tokens is None
    assert len(lm.requests) == 1


def test_mcp_tools(memory: hs.StepMemory) -> None:
    types = pytest.importorskip("mcp.types")

    class Session:
        """Answers every tool call with its arguments."""

        async def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
            content = [types.TextContent(type="text", text=f"{name} {arguments['city']}")]
            return types.CallToolResult(content=content)

    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    described = types.Tool.model_validate(
        {"name": "weather", "description": "Tell the weather.", "inputSchema": schema}
    )
    tool = dspy.Tool.from_mcp_tool(Session(), described)
    with hs.record(memory) as run:
        assert asyncio.run(tool.acall(city="Oslo")) == "weather Oslo"
    [step] = run.steps.steps
    assert step.inputs == {
        "purpose": "Tell the weather.",
        "tool": "weather",
        "arguments": {"city": "Oslo"},
    }
    assert step.outputs == {"result": "weather Oslo"}


def test_rlm_and_the_tools_that_its_code_calls(memory: hs.StepMemory) -> None:
    code = "print(search(query='a'))\nSUBMIT(search(query='b'))"
    rlm = dspy.RLM("question -> answer", tools=[search], interpreter_factory=LocalInterpreter)
    lm = scripted_lm([{"reasoning": "run it", "code": code}])
    steps = recorded(memory, rlm, lm, question="?")
    assert outline(steps) == [
        (0, "ProgramCall RLM", None, None),
        (1, "Action", 0, 0),
        (2, "Action search", 1, 0),
        (3, "Action search", 2, 0),
        (4, "Action python", 3, 0),
        (5, "ProgramEnd RLM", 4, 0),
    ]
    assert (steps[4].arguments, steps[4].result) == ({"code": code}, {"answer": "result for b"})
    assert steps[1].arguments["repl_history"] == "<history of 0 entries>"
    assert steps[-1].outputs is not None
    assert steps[-1].outputs["answer"] == "result for b"


def test_code_that_fails_is_an_error_and_the_program_goes_on(memory: hs.StepMemory) -> None:
    rlm = dspy.RLM("count: int -> answer", interpreter_factory=LocalInterpreter)
    replies = [
        {"reasoning": "divide", "code": "print(1 / 0)"},
        {"reasoning": "say so", "code": "SUBMIT(answer=str(count))"},
    ]
    steps = recorded(memory, rlm, scripted_lm(replies), count=7)
    ran = [step for step in steps if step.tool == "python" and "count =" not in str(step.arguments)]
    assert [step.status for step in ran] == ["error", "ok"]
    assert ran[0].outputs is not None
    assert "division by zero" in ran[0].outputs["error"]["message"]
    assert ran[0].arguments["code"] == "print(1 / 0)"
    assert ran[0].metrics is not None
    assert ran[0].metrics.tool_exec_time_ms is not None


def test_code_that_is_run_by_hand_is_a_step(memory: hs.StepMemory) -> None:
    with hs.record(memory), LocalInterpreter() as interpreter:
        assert interpreter.execute("print(sum(values))", {"values": [1, 2]}) == "3"
    [step] = memory.iter_steps()
    assert step.arguments["variables"] == {"values": [1, 2]}
    assert step.outputs == {"result": "3"}


class Frank(dspy.Module):
    """Asks its model without a predictor."""

    def forward(self, question: str) -> dspy.Prediction:
        [answer] = dspy.settings.lm(question)
        return dspy.Prediction(answer=answer)


def test_a_model_that_is_asked_directly_leaves_a_step_with_its_tokens(
    memory: hs.StepMemory,
) -> None:
    lm = scripted_lm(["four", "five"])
    with dspy.context(lm=lm), hs.record(memory):
        Frank()(question="2 + 2?")
        lm(Request(model=lm.model, messages=(Message.user("2 + 3?"),)))
    call, asked, end, again = memory.iter_steps()
    assert (call.step_type, asked.step_type) == ("ProgramCall", "Action")
    assert (asked.purpose, asked.tool) == ("Ask the language model", None)
    assert (asked.arguments, asked.result) == ({"prompt": "2 + 2?"}, "four")
    assert again.result == "five"
    assert again.arguments == {"messages": [{"role": "user", "content": "2 + 3?"}]}
    assert asked.parent_id == call.id
    for step in (asked, again):
        assert step.metrics is not None
        assert (step.metrics.total_tokens or 0) > 0
    assert end.metrics is not None
    assert not end.metrics.total_tokens  # counted once


def test_a_model_that_fails_when_asked_directly_is_an_error(memory: hs.StepMemory) -> None:
    def down(_: Any) -> str:
        raise ConnectionError("the provider is down")

    with dspy.context(lm=scripted_lm(down)), hs.record(memory), pytest.raises(LMUnexpectedError):
        Frank()(question="2 + 2?")
    assert [step.status for step in memory.iter_steps()] == ["ok", "error", "error"]
