"""Titles: what tells a step, a hit or a run apart, the same in notebook, terminal and page."""

# DSPy ships no types.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybridagi_steps as hs
from hybridagi_steps.display import steps_html
from hybridagi_steps.display.titles import title_of
from hybridagi_steps.exchange.shipped_runs import shipped_steps
from hybridagi_steps.testing import scripted_lm


class Classify(dspy.Signature):
    """Say how urgent it is."""

    ticket: str = dspy.InputField()
    urgency: Literal["low", "high"] = dspy.OutputField()


class Agent(dspy.Module):
    """Predictors with names of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.plan = dspy.ChainOfThought("question -> plan")
        self.classify = dspy.Predict(Classify)

    def forward(self, question: str) -> Any:
        self.plan(question=question)
        return self.classify(ticket=question)


def find_flight(city: str) -> str:
    """Look up a flight."""
    return f"HAT42 to {city}"


def recorded(program: Any, answers: list[Any], **inputs: Any) -> list[str]:
    """Titles of the steps that a program leaves."""
    with hs.StepMemory(":memory:", embedder="hashing") as memory:
        with dspy.context(lm=scripted_lm(answers)), hs.record(memory) as run:
            program(**inputs)
        return [str(title_of(vars(step))) for step in run.steps.steps]


def test_a_program_is_titled_by_its_question_and_predictors_by_their_names() -> None:
    answers = [{"reasoning": "r", "plan": "go"}, {"urgency": "low"}]
    assert recorded(Agent(), answers, question="When do we leave?") == [
        "Agent: When do we leave?",
        "plan: When do we leave?",
        "classify: When do we leave?",
        "Agent",
    ]


def test_a_tool_is_titled_by_its_first_argument() -> None:
    turns: list[Any] = [
        {
            "next_thought": "look",
            "next_tool_name": "find_flight",
            "next_tool_args": {"city": "Oslo"},
        },
        {"next_thought": "done", "next_tool_name": "finish", "next_tool_args": {}},
        {"reasoning": "r", "answer": "9:40"},
    ]
    agent = dspy.ReAct("question -> answer", tools=[find_flight])
    titles = recorded(agent, turns, question="When?")
    assert titles[:2] == ["ReAct: When?", "find_flight: Oslo"]
    assert "extract: When?" in titles


def test_a_bare_predictor_is_titled_by_its_fields() -> None:
    predict = dspy.Predict("question -> answer")
    assert recorded(predict, [{"answer": "4"}], question="What is 2+2?") == [
        "question -> answer: What is 2+2?"
    ]


def test_instructions_of_a_person_are_kept() -> None:
    titles = recorded(dspy.Predict(Classify), [{"urgency": "low"}], ticket="It is on fire")
    assert titles == ["Say how urgent it is.: It is on fire"]


def test_no_title_of_real_runs_is_empty_or_boilerplate() -> None:
    titles = [str(title_of(vars(step))) for step in shipped_steps()]
    assert all(titles)
    assert not [title for title in titles if "Given the field" in title]


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda each: (
    st.lists(each) | st.dictionaries(st.text(), each)
)))  # fmt: skip
def test_odd_data_has_a_title_in_one_line(data: Any) -> None:
    title = title_of({"inputs": data, "outputs": data, "predictor": data, "step_type": data})
    assert "\n" not in str(title)


class TestListings:
    @pytest.fixture
    def memory(self, tmp_path: Path) -> hs.StepMemory:
        memory = hs.StepMemory(tmp_path / "steps.db", embedder="hashing")
        answers = [{"answer": "HAT42 at 9:40"}, {"answer": "No <b>idea</b>"}]
        with dspy.context(lm=scripted_lm(answers)):
            for question in ("When is the flight to Oslo?", "And the train?"):
                with hs.record(memory):
                    dspy.Predict("question -> answer")(question=question)
        return memory

    def test_hits_are_a_list_that_prints_as_a_table(self, memory: hs.StepMemory) -> None:
        hits = memory.search("flight to Oslo", k=2)
        assert hits == list(hits)
        assert hits[:1] == [hits[0]]
        assert len(hits) == 2
        shown = str(hits)
        assert "question -> answer" in shown
        assert "→ HAT42 at 9:40" in shown
        assert repr(hits) == shown
        assert "Given the fields" not in shown

    def test_hits_draw_themselves(self, memory: hs.StepMemory) -> None:
        html = memory.search("train", k=1)._repr_html_()  # pyright: ignore[reportPrivateUsage]
        assert "And the train?" in html
        assert "No &lt;b&gt;idea&lt;/b&gt;" in html

    def test_runs_say_what_was_asked(self, memory: hs.StepMemory) -> None:
        runs = memory.runs()
        assert [run.title for run in runs] == [
            "question -> answer: And the train?",
            "question -> answer: When is the flight to Oslo?",
        ]
        assert "And the train?" in str(runs)
        html = runs._repr_html_()  # pyright: ignore[reportPrivateUsage]
        assert "2 runs" in html
        assert "And the train?" in html
        assert "2 steps · 2 runs" in str(memory)
        assert "And the train?" in str(memory)
        assert len(repr(memory).splitlines()) == 1

    def test_nothing_is_said_to_be_nothing(self) -> None:
        with hs.StepMemory(":memory:", embedder="hashing") as memory:
            assert str(memory.runs()) == "no runs"
            assert str(memory).endswith("0 steps · 0 runs · 0 sessions · 0 messages")
            assert str(memory.search("anything")) == "no hits"
        assert str(memory) == repr(memory), "of a closed one nothing is known"

    def test_a_tree_shows_what_was_asked_and_answered(self, memory: hs.StepMemory) -> None:
        steps = [step.model_dump(mode="json") for step in memory.iter_steps()]
        html = steps_html(steps)
        assert "When is the flight to Oslo?" in html
        assert "Given the fields" not in html.split("<pre")[0]


def test_a_decision_is_titled_by_its_own_field_and_a_node_by_its_name() -> None:
    assert recorded(dspy.Predict("ticket -> urgent: bool"), [{"urgent": True}], ticket="Fire") == [
        "ticket -> urgent: Fire"
    ]
    node = {"step_type": "Decision", "inputs": {"purpose": "Check"}}
    for predictor in ("GraphInterpreter.nodes['main.clear']", "A.nodes['m.clear'].predict"):
        assert title_of({**node, "predictor": predictor}).name == "clear"
