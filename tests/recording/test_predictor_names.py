"""Which predictor made a step: its path in the program, and the shape of its signature."""

from __future__ import annotations

import asyncio
import copy
from enum import Enum
from typing import Any, Literal, Optional

import dspy
import pytest

import hybridagi_steps as hs
from hybridagi_steps.programs import Action, GraphProgram
from hybridagi_steps.programs import tools as tools_of
from hybridagi_steps.recording.step_shapes import signature_key
from hybridagi_steps.testing import scripted_lm


class Planner(dspy.Module):
    """Two predictors of one signature, one of them inside another module."""

    def __init__(self) -> None:
        super().__init__()
        self.think = dspy.ChainOfThought("question -> answer")
        self.first = dspy.Predict("question -> answer")
        self.rest = [dspy.Predict("question -> answer")]

    def forward(self, question: str) -> Any:
        self.first(question=question)
        self.rest[0](question=question)
        return self.think(question=question)

    async def aforward(self, question: str) -> Any:
        await self.first.acall(question=question)
        await self.rest[0].acall(question=question)
        return await self.think.acall(question=question)


class Agent(dspy.Module):
    """A planner inside."""

    def __init__(self) -> None:
        super().__init__()
        self.plan = Planner()

    def forward(self, question: str) -> Any:
        return self.plan(question=question)

    async def aforward(self, question: str) -> Any:
        return await self.plan.acall(question=question)


@pytest.fixture(autouse=True)
def lm() -> Any:
    with dspy.context(lm=scripted_lm(lambda _: {"answer": "4", "reasoning": "2 and 2"})):
        yield


def made(memory: hs.StepMemory) -> list[str | None]:
    """Who made each step, in order."""
    return [step.predictor for step in memory.iter_steps()]


INSIDE = ["Agent.plan.first", "Agent.plan.rest[0]", "Agent.plan.think.predict"]


def test_it_is_named_by_its_path_in_the_outermost_program(memory: hs.StepMemory) -> None:
    with hs.record(memory):
        Agent()(question="2 + 2?")
    assert [name for name in made(memory) if name] == INSIDE
    assert {step.predictor for step in memory.find({"step_types": "ProgramCall"}).steps} == {None}
    assert len(memory.find({"predictors": "Agent.plan.first"}).steps) == 1
    assert len({step.signature for step in memory.find({"predictors": INSIDE[:2]}).steps}) == 1


def test_asynchronous_calls_shells_and_copies_have_the_same_names(memory: hs.StepMemory) -> None:
    asyncio.run(hs.Recorded(Agent(), memory).acall(question="2 + 2?"))
    copied = copy.deepcopy(Agent())
    with hs.record(memory):
        copied(question="2 + 2?")
        copied(question="and again?")
    assert [name for name in made(memory) if name] == INSIDE * 3


def test_what_stands_in_no_program_has_its_own_name(memory: hs.StepMemory) -> None:
    class Passing(dspy.Module):
        """Makes its predictor when it is called."""

        def forward(self, question: str) -> Any:
            return dspy.Predict("question -> answer")(question=question)

    with hs.record(memory):
        dspy.Predict("question -> answer")(question="2 + 2?")
        dspy.ChainOfThought("question -> answer")(question="2 + 2?")
        Passing()(question="2 + 2?")
    names = [name for name in made(memory) if name]
    assert names == ["Predict", "ChainOfThought.predict", "Passing.Predict"]


def test_a_name_that_no_step_could_carry_loses_no_step(memory: hs.StepMemory) -> None:
    class Tabled(dspy.Module):
        """Keeps its predictors under what it was given."""

        def __init__(self) -> None:
            super().__init__()
            self.by_name = {"x" * 200 + "\x00\ud800": dspy.Predict("question -> answer")}

        def forward(self, question: str) -> Any:
            [only] = self.by_name.values()
            return only(question=question)

    with hs.record(memory) as run:
        Tabled()(question="2 + 2?")
    assert run.errors == []
    [name] = [name for name in made(memory) if name]
    assert len(name) == 128
    assert name.endswith("x??']")


def test_a_tool_of_an_agent_is_led_to_by_its_thinking_predictor(memory: hs.StepMemory) -> None:
    def look(place: str) -> str:
        """Look somewhere."""
        return f"nothing in {place}"

    turns = iter(["look", "finish"])
    arguments = iter([{"place": "the drawer"}, {}])

    def answers(_: Any) -> dict[str, Any]:
        name = next(turns, None)
        if name is None:
            return {"reasoning": "looked", "answer": "nowhere"}
        return {
            "next_thought": "perhaps there",
            "next_tool_name": name,
            "next_tool_args": next(arguments),
        }

    agent = dspy.ReAct("question -> answer", tools=[look])
    with dspy.context(lm=scripted_lm(answers)), hs.record(memory):
        agent(question="Where is the key?")
    [looked] = memory.find({"tools": "look"}).steps
    assert looked.predictor == "ReAct.react"
    assert looked.signature == key_of(agent.react.signature)
    assert made(memory) == [None, *["ReAct.react"] * 2, "ReAct.extract.predict", None]


def key_of(signature: Any) -> str:
    return signature_key(signature)


class Mood(Enum):
    """A closed choice."""

    GOOD = "good"
    BAD = "bad"


def test_a_signature_is_its_fields_and_not_its_words() -> None:
    plain: Any = dspy.Signature("question -> answer: float", "Answer it.")
    assert key_of(plain) == key_of(plain.with_instructions("Answer it at once."))
    others: list[Any] = [
        dspy.Signature("question -> answer"),
        dspy.Signature("question, context -> answer: float"),
        dspy.Signature("answer: float -> question"),
        dspy.Signature("question -> answer: list[float]"),
        dspy.Signature("question -> answer").with_updated_fields("answer", type_=Mood),
        dspy.Signature("question -> answer: Literal['a', 'b']"),
        dspy.Signature("question -> answer: Literal['a', 'c']"),
    ]
    keys = set(map(key_of, [plain, *others]))
    assert len(keys) == 1 + len(others)
    assert all(len(key) == 12 and int(key, 16) >= 0 for key in keys)


def test_the_ways_to_write_an_optional_type_are_one_signature() -> None:
    bare: Any = dspy.Signature("question -> answer")
    ways: list[Any] = [Optional[Literal["a", "b"]], Literal["a", "b"] | None]  # noqa: UP045
    assert len({key_of(bare.with_updated_fields("answer", type_=way)) for way in ways}) == 1


@pytest.mark.parametrize("said", ["yes", "None"])
def test_an_optional_choice_is_a_decision_that_names_its_field(
    memory: hs.StepMemory, said: str
) -> None:
    class Route(dspy.Signature):
        """Ask a person?"""

        question: str = dspy.InputField()
        ask_first: Literal["yes", "no"] | None = dspy.OutputField()

    with dspy.context(lm=scripted_lm(lambda _: {"ask_first": said})), hs.record(memory):
        dspy.Predict(Route)(question="Pay 400?")
    [decision] = memory.iter_steps()
    assert decision.step_type == "Decision"
    assert decision.outputs == {"choice": said}
    assert decision.inputs is not None
    assert decision.inputs["options"] == ["yes", "no", "None"]
    assert decision.metadata == {"output_field": "ask_first"}


def test_the_nodes_of_a_graph_program_name_their_predictors_and_reasons(
    memory: hs.StepMemory,
) -> None:
    program = GraphProgram(name="main", description="Think, then say")
    program.add(Action("think", "ChainOfThought", "Think", "{{ query }}", ["query"], "thought"))
    program.add(Action("say", "Predict", "Say", "{{ thought }}", ["thought"]))
    program.connect("start", "think").connect("think", "say").connect("say", "end")
    tools = [tools_of.ChainOfThought(), tools_of.Predict()]
    agent = hs.GraphInterpreter(program.build(), tools=tools, memory=memory)
    with dspy.context(lm=scripted_lm()):
        agent(query="?")
    think, say = memory.find({"step_types": "Action"}).steps
    names = {name for name, _ in agent.named_predictors()}
    for step in (think, say):
        assert step.predictor is not None
        assert step.predictor.removeprefix("GraphInterpreter.") in names
        assert step.signature is not None
    assert (think.metadata or {})["reasoning"] == "some reasoning"
    assert "reasoning" not in (say.metadata or {})
    assert memory.find({"predictors": think.predictor}).steps == [think]
