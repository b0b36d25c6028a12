"""The tools of graph programs: talking, recalling, functions, other programs, foreign tools."""

from __future__ import annotations

import asyncio
import functools
import json
import pickle
import threading
from enum import Enum
from typing import Any

import dspy
import pytest
from agent_programs import async_call, both, chain, say, sync_call
from pydantic import BaseModel

import hybridagi_steps as hs
from hybridagi_steps import errors
from hybridagi_steps.graph.interpreter import GraphInterpreter
from hybridagi_steps.graph.program_memory import ProgramMemory
from hybridagi_steps.graph.run_state import AgentOutput
from hybridagi_steps.programs import Action, GraphProgram, Program
from hybridagi_steps.programs.tools import (
    AddGraphProgram,
    AskUser,
    CallGraphProgram,
    ChainOfThought,
    FunctionTool,
    GraphProgramSearch,
    PastActionSearch,
    Predict,
    ReadGraphProgram,
    Speak,
    ToolBox,
    UpdateObjective,
)
from hybridagi_steps.records.step_text import whole_text
from hybridagi_steps.testing import request_text, scripted_lm


def use(tool: str, prompt: str = "", node_id: str = "use", **options: Any) -> Action:
    """An Action that gives its prompt to a tool as it is."""
    options.setdefault("var_out", "got")
    return Action(node_id, tool, f"Use {tool}", prompt, disable_inference=True, **options)


def error_of(out: AgentOutput) -> tuple[str, str]:
    """Type and message of the error that ended a run, as its failing step tells it."""
    [failing, *_] = [step for step in out.program_trace.steps if step.status == "error"]
    error = (failing.outputs or {})["error"]
    assert out.finish_reason == "error"
    assert out.error is not None
    assert (out.error.type, out.error.message) == (error["type"], error["message"])
    return error["type"], error["message"]


class TestPredictAndChainOfThought:
    @pytest.mark.parametrize("tool", [Predict(), ChainOfThought()])
    def test_answer(self, tool: Any) -> None:
        program = chain(Action("think", tool.name, "Think", "Why {{ query }}?", var_out="why"))
        with dspy.context(lm=scripted_lm([{"reasoning": "well", "answer": "because"}])):
            out = GraphInterpreter(program, [tool])(query="so")
        assert out.session.variables == {"why": "because"}
        step = out.program_trace.steps[1]
        assert step.arguments == {"prompt": "Why so?"}
        assert step.outputs == {"result": "because"}

    def test_have_a_model_of_their_own(self) -> None:
        own = scripted_lm([{"answer": "from my own"}])
        program = chain(Action("think", "Predict", "Think", "Go"))
        assert GraphInterpreter(program, [Predict(lm=own)])(query="q").final_answer == "from my own"

    def test_take_whatever_a_weak_model_says_for_the_answer(self) -> None:
        program = chain(Action("think", "Predict", "Think", "Go"))
        with dspy.context(lm=scripted_lm(lambda _: "Paris, of course")):
            out = GraphInterpreter(program, [Predict()])(query="q")
        assert out.final_answer == "Paris, of course"


class TestSpeak:
    def test_calls_back_in_order(self) -> None:
        heard: list[str] = []
        agent = GraphInterpreter(chain(say("one", "a"), say("two", "b")), [Speak(heard.append)])
        assert agent(query="q").final_answer == "two"
        assert heard == ["one", "two"]

    @both
    def test_awaits_a_coroutine(self, call: Any) -> None:
        heard: list[str] = []

        async def hear(message: str) -> None:
            await asyncio.sleep(0)
            heard.append(message)

        call(GraphInterpreter(chain(say("hello")), [Speak(hear)]), query="q")
        assert heard == ["hello"]

    def test_is_heard_by_the_same_listener_after_a_copy(self) -> None:
        class Screen:
            def __init__(self) -> None:
                self.shown: list[str] = []

            def show(self, text: str) -> None:
                self.shown.append(text)

        screen = Screen()
        GraphInterpreter(chain(say("hello")), [Speak(screen.show)]).deepcopy()(query="q")
        assert screen.shown == ["hello"]

    def test_called_back_asynchronously_inside_a_loop_says_what_to_do(self) -> None:
        async def hear(message: str) -> None: ...

        agent = GraphInterpreter(chain(say("hello")), [Speak(hear)])

        async def sync_inside_a_loop() -> AgentOutput:
            return agent(query="q")

        kind, message = error_of(asyncio.run(sync_inside_a_loop()))
        assert kind == "ToolInputError"
        assert "acall" in message


class TestAskUser:
    @both
    @pytest.mark.parametrize("asynchronous", [False, True])
    def test_asks_a_person(self, call: Any, asynchronous: bool) -> None:
        async def answer(question: str) -> str:
            return f"answer to {question}"

        def answer_at_once(question: str) -> str:
            return f"answer to {question}"

        asked = AskUser(answer if asynchronous else answer_at_once)
        out = call(GraphInterpreter(chain(use("AskUser", "Who?")), [asked]), query="q")
        assert out.session.variables["got"] == "answer to Who?"

    @both
    def test_asks_a_model_that_plays_the_user(self, call: Any, memory: hs.StepMemory) -> None:
        user = scripted_lm([{"answer": "the blue one"}])
        tool = AskUser(persona="A customer who wants the blue one.", user_lm=user)
        agent = GraphInterpreter(chain(use("AskUser", "Which one?")), [tool], memory)
        out = call(agent, query="I want to buy one")
        assert out.session.variables["got"] == "the blue one"
        asked = request_text(user.requests[0])
        assert "A customer who wants the blue one." in asked
        assert "I want to buy one" in asked
        assert len(list(memory.iter_steps())) == 3
        metrics = out.program_trace.steps[1].metrics
        assert metrics is not None
        assert metrics.llm_calls == 1


class TestUpdateObjective:
    def test_changes_the_run_and_no_other(self) -> None:
        program = chain(
            use("UpdateObjective", "find {{ query }}"),
            Action("think", "Predict", "Think", "Go"),
        )
        model = scripted_lm(lambda _: {"answer": "ok"})
        agent = GraphInterpreter(program, [UpdateObjective(), Predict()])
        with dspy.context(lm=model):
            outs = [agent(query=query) for query in ("a", "b")]
        assert [out.session.objective for out in outs] == ["find a", "find b"]
        assert [out.session.query for out in outs] == ["a", "b"]
        assert "find b" in request_text(model.requests[-1])


class TestPastActionSearch:
    def agent(self, memory: hs.StepMemory) -> GraphInterpreter:
        program = chain(
            use("Predict", "refund the flight of {{ query }}", "work", var_out=None),
            use("PastActionSearch", "refund the flight", "recall", var_out="past"),
            say("Remembered: {{ past }}", var_in=["past"]),
        )
        return GraphInterpreter(program, [Predict(), PastActionSearch(k=3), Speak()], memory)

    def found(self, out: AgentOutput) -> list[str]:
        [recall] = [s for s in out.program_trace.steps if s.tool == "PastActionSearch"]
        return recall.result["steps"]

    @both
    def test_never_finds_its_own_run(self, call: Any, memory: hs.StepMemory) -> None:
        agent = self.agent(memory)
        first = call(agent, query="Ann")
        assert self.found(first) == []
        second = call(agent, query="Bob")
        ids = {str(step.id) for step in first.program_trace.steps}
        assert self.found(second)
        assert set(self.found(second)) <= ids

    def test_never_finds_its_own_run_inside_a_recorded_block(self, memory: hs.StepMemory) -> None:
        with hs.record(memory):
            memory_less = GraphInterpreter(
                chain(use("Predict", "refund the flight"), use("PastActionSearch", "refund", "r")),
                [Predict(), PastActionSearch(memory)],
            )
            assert self.found(memory_less(query="q")) == []

    def test_never_stores_what_it_recalled_again(self, memory: hs.StepMemory) -> None:
        memory.add(
            hs.AgentStep(
                step_type=hs.AgentStepType.Action,
                inputs={"purpose": "refund the flight", "tool": "refund", "arguments": {}},
                outputs={"result": "NEEDLE paid back"},
            )
        )
        for _ in range(3):
            out = self.agent(memory)(query="Ann")
            assert "NEEDLE" in out.final_answer
        holding = [step for step in memory.iter_steps() if "NEEDLE" in whole_text(step)]
        assert len(holding) == 1

    def test_does_not_find_earlier_searches(self, memory: hs.StepMemory) -> None:
        for _ in range(4):
            out = self.agent(memory)(query="Ann")
        found = memory.get(self.found(out)).steps  # pyright: ignore[reportPossiblyUnboundVariable]
        assert found
        assert "PastActionSearch" not in {step.tool for step in found}

    @both
    def test_finds_only_the_steps_of_the_run_s_user(self, call: Any, memory: hs.StepMemory) -> None:
        with hs.record(memory, user_id="bob"):
            call(self.agent(memory), query="Bob")
        with hs.record(memory, user_id="ana"):
            assert self.found(call(self.agent(memory), query="Ana")) == []
        with hs.record(memory, user_id="bob"):
            assert self.found(call(self.agent(memory), query="Bob"))

    def test_stores_what_was_said_as_a_text_with_the_ids_of_what_it_recalled(
        self, memory: hs.StepMemory
    ) -> None:
        self.agent(memory)(query="Ann")
        out = self.agent(memory)(query="Bob")
        ids = self.found(out)
        count = f"{len(ids)} recalled step{'' if len(ids) == 1 else 's'}"
        said = f"Remembered: [{count}: {', '.join(ids)}]"
        speaking, end = out.program_trace.steps[-2:]
        assert speaking.result == said
        assert speaking.arguments == {"message": said}
        assert end.outputs == {"final_answer": said}
        assert memory.run(str(end.run_id)).steps == out.program_trace.steps
        assert out.final_answer.startswith("Remembered: ")

    @pytest.mark.parametrize(
        "template",
        [
            "{{ past|upper }}",
            "{{ past ~ '!' }}",
            "{{ past|join }}",
            "{{ past if past else '' }}",
            "{{ past|replace('a', 'a') }}",
            "{% for step in past %}{{ step }}{% endfor %}",
            "{{ past|length }}{{ past|string|trim }}",
        ],
    )
    def test_is_not_stored_again_whatever_a_prompt_does_with_it(
        self, memory: hs.StepMemory, template: str
    ) -> None:
        step = hs.AgentStep(
            step_type=hs.AgentStepType.Action,
            inputs={"purpose": "refund"},
            outputs={"r": "NEEDLE"},
        )
        memory.add(step)
        search = use("PastActionSearch", "refund", "recall", var_out="past")
        program = chain(search, say(template, var_in=["past"]))
        out = GraphInterpreter(program, [PastActionSearch(), Speak()], memory)(query="q")
        assert "NEEDLE" in out.final_answer
        assert str(step.id) in out.program_trace.steps[-2].result.lower()
        assert not any("NEEDLE" in whole_text(each) for each in out.program_trace.steps)

    def test_ends_a_program_with_a_text_when_it_comes_last(self, memory: hs.StepMemory) -> None:
        agent = GraphInterpreter(chain(use("PastActionSearch", "q")), [PastActionSearch()], memory)
        end = agent(query="q").program_trace.steps[-1]
        assert end.outputs == {"final_answer": "[no recalled steps]"}

    def test_shows_later_prompts_what_it_found(self, memory: hs.StepMemory) -> None:
        memory.add(
            hs.AgentStep(
                step_type=hs.AgentStepType.Action,
                inputs={"purpose": "refund"},
                outputs={"r": "NEEDLE"},
            )
        )
        program = chain(
            use("PastActionSearch", "refund"), Action("think", "Predict", "Think", "Go")
        )
        model = scripted_lm([{"answer": "ok"}])
        with dspy.context(lm=model):
            GraphInterpreter(program, [PastActionSearch(), Predict()], memory)(query="q")
        assert "NEEDLE" in request_text(model.requests[0])
        assert "data to learn from" in request_text(model.requests[0])

    def test_takes_a_filter_and_a_retriever(self, memory: hs.StepMemory) -> None:
        for user in ("ann", "bob"):
            memory.add(
                hs.AgentStep(
                    step_type=hs.AgentStepType.Action, inputs={"purpose": "refund"}, user_id=user
                )
            )
        program = chain(use("PastActionSearch", "refund"))
        for tool in (
            PastActionSearch(memory, where={"user_id": "bob"}),
            PastActionSearch(retriever=hs.StepRetriever(memory, where={"user_id": "bob"})),
        ):
            out = GraphInterpreter(program, [tool])(query="q")
            assert [step.user_id for step in out.session.variables["got"].steps] == ["bob"]

    @pytest.mark.parametrize(
        "said",
        [
            "refund a flight\nbook a hotel",
            "1. refund a flight\n2. book a hotel",
            "refund a flight; book a hotel",
            '["refund a flight", "book a hotel"]',
            '- "refund a flight"\n\n- "book a hotel"\n- refund a flight',
        ],
    )
    def test_asks_several_queries_one_by_one(self, memory: hs.StepMemory, said: str) -> None:
        for purpose in ("refund a flight", "book a hotel", "rent a car"):
            memory.add(hs.AgentStep(step_type=hs.AgentStepType.Action, inputs={"purpose": purpose}))
        program = chain(Action("look", "PastActionSearch", "Recall", "Recall", [], "got"))
        with dspy.context(lm=scripted_lm([{"query": said}])):
            out = GraphInterpreter(program, [PastActionSearch(k=2)], memory)(query="q")
        found = out.session.variables["got"]
        assert {step.purpose for step in found.steps} == {"refund a flight", "book a hotel"}
        assert [query.query for query in found.queries.queries] == [
            "refund a flight",
            "book a hotel",
        ]
        assert out.program_trace.steps[1].arguments == {
            "query": ["refund a flight", "book a hotel"]
        }

    @pytest.mark.parametrize(
        ("prompt", "queries"),
        [
            ("- refund\n- rebook", ["refund", "rebook"]),
            ('["refund", "rebook"]', ["refund", "rebook"]),
            ("Please refund;\nI could not fly", ["Please refund;\nI could not fly"]),
            ("3. refund", ["refund"]),
            ("[1]", ["[1]"]),
        ],
    )
    def test_takes_a_prompt_apart_only_if_it_is_a_list(
        self, memory: hs.StepMemory, prompt: str, queries: list[str]
    ) -> None:
        out = GraphInterpreter(
            chain(use("PastActionSearch", prompt)), [PastActionSearch()], memory
        )(query="q")
        assert [query.query for query in out.session.variables["got"].queries.queries] == queries

    def test_needs_a_memory(self) -> None:
        with pytest.raises(errors.InvalidMemoryError):
            GraphInterpreter(chain(use("PastActionSearch", "q")), [PastActionSearch()])


class TestProgramTools:
    def library(self) -> list[GraphProgram]:
        main = chain(
            use("GraphProgramSearch", "{{ query }}", "search", var_out="found"),
            Action("pick", "CallGraphProgram", "Pick", "Pick one of {{ found }}", ["found"]),
            Program("inner", "Inner", "inner"),
        )
        refund = chain(say("refunded", "pay"), name="refund")
        refund.description = "Refund a flight"
        return [main, refund, chain(say("inner"), name="inner")]

    def tools(self) -> list[Any]:
        return [GraphProgramSearch(), CallGraphProgram(), ReadGraphProgram(), Speak()]

    @both
    def test_find_and_call_a_program(self, call: Any) -> None:
        with dspy.context(lm=scripted_lm([{"program": "`refund`"}])):
            out = call(GraphInterpreter(self.library(), self.tools()), query="refund this")
        assert out.session.variables["found"] == [
            {"program": "refund", "description": "Refund a flight"}
        ]
        assert out.error is None
        steps = out.program_trace.steps
        shown = [(step.step_type.value, step.tool or step.program) for step in steps]
        assert shown[1:6] == [
            ("Action", "GraphProgramSearch"),
            ("ProgramCall", "refund"),
            ("Action", "Speak"),
            ("ProgramEnd", "refund"),
            ("Action", "CallGraphProgram"),
        ]
        assert steps[5].outputs == {"result": "refunded"}

    @pytest.mark.parametrize("name", ["main", "inner"])
    @pytest.mark.parametrize("tool", ["CallGraphProgram", "ReadGraphProgram"])
    def test_leave_the_entry_and_its_parts_alone(self, tool: str, name: str) -> None:
        programs = [chain(use(tool, name), Program("p", "P", "inner")), *self.library()[1:]]
        out = GraphInterpreter(programs, self.tools())(query="q")
        assert error_of(out)[0] == "ProtectedProgramError"

    def test_read_a_program(self) -> None:
        programs = [chain(use("ReadGraphProgram", "refund")), self.library()[1]]
        out = GraphInterpreter(programs, self.tools())(query="q")
        text = out.session.variables["got"]
        assert GraphProgram.from_cypher(text, "refund") == programs[1]

    def test_say_which_program_is_unknown(self) -> None:
        programs = [chain(use("CallGraphProgram", "nothing")), *self.library()[1:]]
        out = GraphInterpreter(programs, self.tools())(query="q")
        assert (out.finish_reason, out.final_answer) == ("finished", "")
        assert out.session.variables["got"] == (
            "Error: UnknownProgramError: no program is named 'nothing'; known are inner, refund."
        )
        assert [step.status for step in out.program_trace.steps] == ["ok", "error", "ok"]

    def test_work_on_a_program_memory(self, memory: hs.StepMemory) -> None:
        with ProgramMemory(memory, protected=[]) as programs:
            programs.add(self.library())
            agent = GraphInterpreter(programs, self.tools(), memory)
            assert [name for name, _ in agent.named_predictors()] == ["nodes['main.pick']"]
            later = chain(Action("think", "Speak", "Say", "Say it"), name="greet")
            later.description = "Greet somebody"
            programs.add(later)
            replies: list[Any] = [{"program": "greet"}, {"message": "hello"}]
            with dspy.context(lm=scripted_lm(replies)):
                assert agent(query="greet me").error is None
            with dspy.context(lm=scripted_lm([{"program": "main"}])):
                assert error_of(agent(query="greet me"))[0] == "ProtectedProgramError"

    def test_find_an_unknown_program_in_a_program_met_later(self, memory: hs.StepMemory) -> None:
        with ProgramMemory(memory) as programs:
            programs.add(chain(use("CallGraphProgram", "odd")))
            programs.add(chain(Program("p", "Call", "nowhere"), name="odd"))
            out = GraphInterpreter(programs, self.tools(), memory)(query="q")
        assert error_of(out)[0] == "UnknownProgramError"
        ends = [s for s in out.program_trace.steps if s.step_type == "ProgramEnd"]
        assert [(end.program, end.status) for end in ends] == [
            ("nowhere", "error"),
            ("odd", "error"),
            ("main", "error"),
        ]

    def test_find_an_unknown_tool_in_a_program_met_later(self, memory: hs.StepMemory) -> None:
        with ProgramMemory(memory) as programs:
            programs.add(chain(use("CallGraphProgram", "odd")))
            programs.add(chain(use("Nothing", "x"), name="odd"))
            out = GraphInterpreter(programs, self.tools(), memory)(query="q")
        assert error_of(out)[0] == "UnknownToolError"


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


class Order(BaseModel):
    id: str
    count: int = 1


def book(order: Order, size: Size, when: list[int], note: str | None = None) -> dict[str, Any]:
    """Book an order."""
    return {"order": order, "size": size, "when": when, "note": note}


class TestAddGraphProgram:
    GREETING = chain(say("hi", "hello"), name="greet").to_cypher()
    ENTRY = chain(Action("write", "AddGraphProgram", "Keep how to greet", "Write", [], "got"))
    TOOLS = (AddGraphProgram(), Speak())

    def added(self, *replies: dict[str, Any]) -> tuple[AgentOutput, list[str], Any]:
        """What an agent did whose model answered so, the programs it left, and its model."""
        model = scripted_lm(list(replies))
        with ProgramMemory(embedder="hashing") as programs, dspy.context(lm=model):
            programs.add(self.ENTRY)
            out = GraphInterpreter(programs, self.TOOLS)(query="q")
            return out, programs.names(), model

    def test_keeps_what_a_later_run_calls(self) -> None:
        written = {"name": "greet", "program": f"```cypher\n{self.GREETING}```"}
        caller = chain(use("CallGraphProgram", "greet"))
        with ProgramMemory(embedder="hashing") as programs:
            programs.add(self.ENTRY)
            with dspy.context(lm=scripted_lm([written])):
                out = GraphInterpreter(programs, self.TOOLS)(query="q")
            assert out.final_answer == "greet"
            programs.update(caller)
            again = GraphInterpreter(programs, [CallGraphProgram(), Speak()])(query="q")
        assert again.final_answer == "hi"

    def test_asks_again_for_a_program_that_is_not_sound(self) -> None:
        broken = {
            "name": "greet",
            "program": self.GREETING.replace("(start)-[:NEXT]->(hello),", ""),
        }
        out, names, model = self.added(broken, {"name": "greet", "program": self.GREETING})
        assert out.error is None
        assert names == ["greet", "main"]
        assert "'start' is a dead end" in request_text(model.requests[1])

    def test_tells_of_tools_that_the_agent_does_not_have(self) -> None:
        foreign = self.GREETING.replace('"Speak"', '"Telephone"')
        out, names, _ = self.added({"name": "greet", "program": foreign})
        assert out.finish_reason == "finished"
        assert "Telephone" in str(out.session.variables["got"])
        assert names == ["main"]

    def test_leaves_entry_programs_alone(self) -> None:
        out, names, _ = self.added({"name": "main", "program": self.GREETING})
        assert "agents may not replace it" in str(out.session.variables["got"])
        assert names == ["main"]

    def test_takes_json_without_a_model(self) -> None:
        given = json.dumps({"name": "greet", "program": self.GREETING})
        with ProgramMemory(embedder="hashing") as programs:
            programs.add(
                chain(Action("w", "AddGraphProgram", "Keep", given, disable_inference=True))
            )
            out = GraphInterpreter(programs, self.TOOLS)(query="q")
            assert (out.error, programs.names()) == (None, ["greet", "main"])
            programs.update(chain(use("AddGraphProgram", "greet")))
            kind, message = error_of(GraphInterpreter(programs, self.TOOLS)(query="q"))
        assert kind == "ToolInputError"
        assert "JSON object" in message

    def test_needs_a_memory_of_programs(self) -> None:
        model = scripted_lm([{"name": "greet", "program": self.GREETING}])
        with dspy.context(lm=model):
            out = GraphInterpreter(self.ENTRY, self.TOOLS)(query="q")
        assert error_of(out)[0] == "InvalidSettingError"


class TestFunctionTool:
    def run(self, function: Any, prompt: str, call: Any = sync_call) -> AgentOutput:
        tool = FunctionTool(function, name="function")
        return call(GraphInterpreter(chain(use("function", prompt)), [tool]), query="q")

    def test_converts_arguments_to_the_types_of_the_function(self) -> None:
        given = {"order": {"id": "A", "count": "2"}, "size": "large", "when": ["1", 2]}
        out = self.run(book, json.dumps(given))
        assert out.error is None
        assert out.session.variables["got"] == {
            "order": Order(id="A", count=2),
            "size": Size.LARGE,
            "when": [1, 2],
            "note": None,
        }
        assert out.program_trace.steps[1].result["order"] == {"id": "A", "count": 2}

    @pytest.mark.parametrize(
        ("given", "named"),
        [
            ({"order": {"id": "A"}, "size": "huge", "when": []}, "size"),
            ({"order": {"id": "A"}, "size": "large"}, "when"),
            ({"order": {"id": "A", "count": "many"}, "size": "large", "when": []}, "order.count"),
        ],
    )
    def test_is_not_run_with_what_does_not_fit(self, given: dict[str, Any], named: str) -> None:
        kind, message = error_of(self.run(book, json.dumps(given)))
        assert kind == "ToolInputError"
        assert named in message

    @pytest.mark.parametrize("value", [None, 1, 1.5, True, "text", [1, {"a": 2}], {1, 2}, Order])
    def test_returns_anything(self, value: Any) -> None:
        out = self.run(lambda: value, "")
        assert out.error is None
        assert out.session.variables["got"] == value

    def test_takes_a_single_argument_from_the_prompt(self) -> None:
        def double(number: int) -> int:
            return 2 * number

        assert self.run(double, "21").session.variables["got"] == 42

    @both
    def test_awaits_a_coroutine_function(self, call: Any) -> None:
        async def double(number: int) -> int:
            await asyncio.sleep(0)
            return 2 * number

        assert self.run(double, "21", call).session.variables["got"] == 42

    def test_asks_a_model_for_its_arguments(self) -> None:
        program = chain(Action("b", "book", "Book it", "Book {{ query }}", var_out="got"))
        given = {"order": {"id": "A"}, "size": "small", "when": [3]}
        model = scripted_lm([{"arguments": given}])
        with dspy.context(lm=model):
            out = GraphInterpreter(program, [book])(query="A")
        assert out.program_trace.steps[1].arguments == given
        told = str(model.requests[0].system)
        assert "Book an order." in told
        assert '"count"' in told

    def wrong_then(self, *replies: Any, **settings: Any) -> tuple[AgentOutput, Any]:
        """Book an order for which a model gives these arguments, one after the other."""
        program = chain(Action("b", "book", "Book it", "Book {{ query }}", var_out="got"))
        model = scripted_lm([{"arguments": each} for each in replies])
        with dspy.context(lm=model):
            return GraphInterpreter(program, [book], **settings)(query="A"), model

    @both
    def test_asks_again_for_arguments_that_do_not_fit(self, call: Any) -> None:
        program = chain(Action("b", "book", "Book it", "Book {{ query }}", var_out="got"))
        right = {"order": {"id": "A"}, "size": "small", "when": [3]}
        model = scripted_lm([{"arguments": {**right, "size": "huge"}}, {"arguments": right}])
        with dspy.context(lm=model):
            out = call(GraphInterpreter(program, [book]), query="A")
        assert out.session.variables["got"]["size"] == Size.SMALL
        assert out.program_trace.steps[1].arguments == right
        assert "do not fit: size" in request_text(model.requests[1])

    def test_asks_no_more_often_than_it_may(self) -> None:
        wrong = {"order": {"id": "A"}, "size": "huge", "when": [3]}
        out, model = self.wrong_then(wrong, wrong, max_corrections=1)
        assert error_of(out)[0] == "ToolInputError"
        assert len(model.requests) == 2

    def test_reads_json_that_a_model_wrote_as_a_text(self) -> None:
        out, _ = self.wrong_then({"order": '{"id": "A"}', "size": "small", "when": "[3]"})
        assert out.session.variables["got"]["order"] == Order(id="A")
        assert out.session.variables["got"]["when"] == [3]

    def test_leaves_texts_that_look_like_json_alone(self) -> None:
        def note(text: str) -> str:
            return text

        assert self.run(note, '{"text": "[1, 2]"}').session.variables["got"] == "[1, 2]"

    def test_gives_all_arguments_to_a_function_that_takes_any(self) -> None:
        def kw(**kwargs: int) -> dict[str, int]:
            return kwargs

        for tool in (kw, dspy.Tool(kw)):
            program = chain(use("kw", '{"a": 1}'))
            assert GraphInterpreter(program, [tool])(query="q").session.variables["got"] == {"a": 1}
        kind, message = error_of(self.run(kw, "a is 1"))
        assert kind == "ToolInputError"
        assert "JSON object" in message

    def test_is_pickled_with_its_agent(self) -> None:
        agent = GraphInterpreter(chain(use("book", "{{ query }}")), [book])
        given = {"order": {"id": "A"}, "size": "small", "when": ["3"]}
        copied = pickle.loads(pickle.dumps(agent))
        assert copied(query=json.dumps(given)).session.variables["got"]["when"] == [3]

    def test_takes_whatever_can_be_called(self) -> None:
        class Doubler:
            def __call__(self, number: int) -> int:
                return 2 * number

            def method(self, number: int) -> int:
                return 2 * number

        def times(factor: int, number: int) -> int:
            return factor * number

        for function in (Doubler(), Doubler().method, functools.partial(times, 2)):
            prompt = "21" if not isinstance(function, functools.partial) else '{"number": "21"}'
            assert self.run(function, prompt).session.variables["got"] == 42

    def test_does_not_take_functions_whose_arguments_have_no_names(self) -> None:
        with pytest.raises(errors.InvalidSettingError, match="by place"):
            FunctionTool(lambda *values: values)

    @pytest.mark.parametrize("given", [Speak, dspy.Predict("a -> b"), "Speak", 3])
    def test_is_not_made_of_what_is_no_function(self, given: Any) -> None:
        with pytest.raises(errors.InvalidSettingError):
            GraphInterpreter(chain(say("a")), [given])


class TestDSPyTools:
    @both
    def test_work_as_they_are(self, call: Any, memory: hs.StepMemory) -> None:
        def look_up(query: str, limit: int = 3) -> str:
            """Look something up."""
            return f"{limit} results for {query}"

        tool = dspy.Tool(look_up, name="search")
        program = chain(Action("find", "search", "Find", "Find {{ query }}"))
        with dspy.context(lm=scripted_lm([{"arguments": {"query": "refunds", "limit": 1}}])):
            out = call(GraphInterpreter(program, [tool], memory), query="refunds")
        assert out.final_answer == "1 results for refunds"
        assert [step.tool for step in memory.iter_steps() if step.tool] == ["search"]

    def test_of_an_mcp_server_work_as_they_are(self) -> None:
        mcp_server = pytest.importorskip("mcp.server.mcpserver")
        from mcp import Client  # pyright: ignore[reportMissingImports]

        server = mcp_server.MCPServer("desk")

        @server.tool()
        def add(a: int, b: int) -> int:  # pyright: ignore[reportUnusedFunction]
            """Add two numbers."""
            return a + b

        async def run() -> AgentOutput:
            async with Client(server) as client:
                listed = await client.list_tools()
                tools = [dspy.Tool.from_mcp_tool(client, tool) for tool in listed.tools]
                program = chain(use("add", '{"a": 2, "b": 3}'))
                return await GraphInterpreter(program, tools).acall(query="q")

        assert asyncio.run(run()).final_answer == "5"

    def test_that_are_asynchronous_never_wait_on_a_wrong_loop(self) -> None:
        async def look_up(query: str) -> str:
            await asyncio.Event().wait()  # what it waits for happens on another loop
            return query

        agent = GraphInterpreter(chain(use("look_up", "x")), [dspy.Tool(look_up)])
        kind, message = error_of(agent(query="q"))
        assert kind == "ToolInputError"
        assert "await agent.acall" in message

    def test_of_an_mcp_server_without_a_session_say_what_to_give(self) -> None:
        types = pytest.importorskip("mcp.types")
        schema: dict[str, Any] = {"type": "object", "properties": {}}
        tool = types.Tool.model_validate({"name": "add", "inputSchema": schema})
        with pytest.raises(errors.InvalidSettingError, match=r"dspy\.Tool\.from_mcp_tool"):
            GraphInterpreter(chain(say("a")), [tool])

    def test_do_not_block_the_event_loop(self) -> None:
        together = threading.Barrier(4)

        def slow(query: str) -> str:
            together.wait(30)  # nobody passes alone
            return query

        agent = GraphInterpreter(chain(use("slow", "x")), [dspy.Tool(slow)])

        async def several() -> list[Any]:
            return await asyncio.gather(*(agent.acall(query="q") for _ in range(4)))

        assert [out.error for out in asyncio.run(several())] == [None] * 4


class TestToolBox:
    def test_uses_the_tool_that_the_model_names(self) -> None:
        def add(a: int, b: int) -> int:
            """Add two numbers."""
            return a + b

        def shout(text: str) -> str:
            """Say it loud."""
            return text.upper()

        program = chain(Action("act", "Act", "Act", "Do it", var_out="got"))
        model = scripted_lm([{"tool": "the tool `add`", "arguments": {"a": "2", "b": 3}}])
        with dspy.context(lm=model):
            out = GraphInterpreter(program, [ToolBox([add, shout])])(query="q")
        assert out.session.variables["got"] == 5
        assert out.program_trace.steps[1].arguments["arguments"] == {"a": "2", "b": 3}
        assert "Say it loud." in str(model.requests[0].system)

    def test_asks_again_for_a_tool_it_has_and_arguments_that_fit(self) -> None:
        def add(a: int, b: int) -> int:
            return a + b

        replies = [
            {"tool": "subtract", "arguments": {"a": 1, "b": 2}},
            {"tool": "add", "arguments": {"a": "one", "b": 2}},
            {"tool": "add", "arguments": {"a": 1, "b": 2}},
        ]
        model = scripted_lm(replies)
        with dspy.context(lm=model):
            program = chain(Action("act", "Act", "Act", "Do it", var_out="got"))
            out = GraphInterpreter(program, [ToolBox([add])])(query="q")
        assert out.session.variables["got"] == 3
        assert "subtract" in request_text(model.requests[1])
        assert "do not fit: a" in request_text(model.requests[2])

    def test_knows_only_its_tools(self) -> None:
        def add(a: int, b: int) -> int:
            return a + b

        program = chain(use("Act", '{"tool": "subtract", "arguments": {}}'))
        out = GraphInterpreter(program, [ToolBox([add])])(query="q")
        assert out.finish_reason == "finished"
        assert out.session.variables["got"].startswith("Error: UnknownToolError: ")
        assert "add" in out.session.variables["got"]

    def test_is_not_empty(self) -> None:
        with pytest.raises(errors.InvalidSettingError):
            ToolBox([])


def test_async_calls_share_no_session() -> None:
    agent = GraphInterpreter(chain(use("AskUser", "{{ query }}?")), [AskUser(lambda text: text)])
    outs = [async_call(agent, query=f"q{n}") for n in range(3)]
    assert [out.session.variables["got"] for out in outs] == ["q0?", "q1?", "q2?"]
