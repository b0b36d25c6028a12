"""The agents that come with the package run: on scripted models, and one on a real small one."""

# DSPy ships no types; xllamacpp neither.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from typing import Any

import dspy
import pytest

import hybridagi_steps as hs
from hybridagi_steps import errors
from hybridagi_steps.graph.checks import check_programs
from hybridagi_steps.graph.interpreter import ready_agent, ready_agents, ready_programs
from hybridagi_steps.graph.run_state import AgentOutput
from hybridagi_steps.programs.tools import AskUser, Speak
from hybridagi_steps.testing import request_text, scripted_lm


def tools_used(out: AgentOutput) -> list[str]:
    """What each step did, without the calls and ends of programs."""
    return [
        step.tool or (step.outputs or {})["choice"]
        for step in out.program_trace.steps
        if step.step_type in ("Action", "Decision")
    ]


def search(query: str) -> str:
    """Search the corpus."""
    return {"capital of France": "Paris", "river of Paris": "Seine"}.get(query, "nothing")


def test_there_are_four_and_they_are_sound() -> None:
    assert ready_agents() == ["episodic_recall", "plan_and_act", "react", "reflexion"]
    for name in ready_agents():
        for acting in (False, True):
            programs = ready_programs(name, acting=acting)
            check_programs(programs)
            assert "main" in [program.name for program in programs]
            assert all(program.description for program in programs)


def test_an_unknown_one_is_named() -> None:
    with pytest.raises(errors.UnknownProgramError, match="react"):
        ready_agent("nobody")


def test_react_acts_until_it_can_answer() -> None:
    agent = ready_agent("react", tools=[search])
    replies: list[Any] = [
        {"reasoning": "-", "answer": "Look up the capital."},
        {"choice": "ACT"},
        {"tool": "search", "arguments": {"query": "capital of France"}},
        {"reasoning": "-", "answer": "Now the river."},
        {"choice": "Act."},
        {"tool": "search", "arguments": {"query": "river of Paris"}},
        {"reasoning": "-", "answer": "Enough is known."},
        {"choice": "ANSWER"},
        {"message": "The Seine."},
    ]
    model = scripted_lm(replies)
    with dspy.context(lm=model):
        out = agent(query="Which river flows through the capital of France?")
    assert (out.finish_reason, out.final_answer) == ("finished", "The Seine.")
    turn = ["ChainOfThought", "ACT", "Act"]
    assert tools_used(out) == [*turn, *turn, "ChainOfThought", "ANSWER", "Speak"]
    assert "Seine" in request_text(model.requests[-1])


def test_react_needs_tools_to_act_with() -> None:
    with pytest.raises(errors.InvalidSettingError, match="functions"):
        ready_agent("react")


def test_plan_and_act_changes_its_plan_when_it_must() -> None:
    agent = ready_agent("plan_and_act", tools=[search])
    replies: list[Any] = [
        {"reasoning": "-", "answer": "1. Look up the river."},
        {"answer": "Look up the river."},
        {"tool": "search", "arguments": {"query": "the river"}},
        {"choice": "CHANGE"},
        {"reasoning": "-", "answer": "1. Look up the river of Paris."},
        {"answer": "Look up the river of Paris."},
        {"tool": "search", "arguments": {"query": "river of Paris"}},
        {"choice": "DONE"},
        {"message": "The Seine."},
    ]
    with dspy.context(lm=scripted_lm(replies)):
        out = agent(query="Which river flows through Paris?")
    assert (out.finish_reason, out.final_answer) == ("finished", "The Seine.")
    assert out.session.variables["plan"] == "1. Look up the river of Paris."
    programs = [step.program for step in out.program_trace.steps if step.program]
    assert programs == ["main", "carry_out", "carry_out", "main"]


def test_reflexion_improves_and_remembers_its_lessons(memory: hs.StepMemory) -> None:
    agent = ready_agent("reflexion", memory=memory)
    replies: list[Any] = [
        {"reasoning": "-", "answer": "Lyon"},
        {"answer": "Lyon is no capital; check the capital first."},
        {"choice": "IMPROVE"},
        {"reasoning": "-", "answer": "Paris"},
        {"answer": "The answer stands."},
        {"choice": "GIVE"},
    ]
    with dspy.context(lm=scripted_lm(replies)):
        out = agent(query="What is the capital of France?")
    assert (out.finish_reason, out.final_answer) == ("finished", "Paris")
    again = scripted_lm(
        [{"reasoning": "-", "answer": "Paris"}, {"answer": "Fine."}, *[{"choice": "GIVE"}]]
    )
    with dspy.context(lm=again):
        agent(query="What is the capital of France?")
    assert "check the capital first" in request_text(again.requests[0])


def test_episodic_recall_asks_once(file_memory: hs.StepMemory) -> None:
    def decide(request: Any) -> dict[str, str]:
        text = request_text(request)
        if "Which are the options" in text or "[[ ## choice ## ]]" in text:
            return {"choice": "KNOWN" if "in the blue folder" in text else "NEW"}
        return {"message": "In the blue folder." if "in the blue folder" in text else "No idea."}

    asked: list[str] = []

    def person(question: str) -> str:
        asked.append(question)
        return "It is in the blue folder."

    agent = ready_agent("episodic_recall", tools=[AskUser(person)], memory=file_memory)
    with dspy.context(lm=scripted_lm(decide)):
        first = agent(query="Where is the contract of the Miller family?")
        second = agent(query="Where is the contract of the Miller family?")
    assert tools_used(first) == ["PastActionSearch", "NEW", "AskUser", "Speak"]
    assert tools_used(second) == ["PastActionSearch", "KNOWN", "Speak"]
    assert second.final_answer == "In the blue folder."
    assert len(asked) == 1
    with hs.StepMemory(file_memory.address, embedder="hashing") as reopened:
        later = ready_agent("episodic_recall", tools=[AskUser(person)], memory=reopened)
        with dspy.context(lm=scripted_lm(decide)):
            assert later(query="Where is the Miller contract?").final_answer.startswith("In the")
    assert len(asked) == 1


@pytest.mark.parametrize("name", ["episodic_recall", "reflexion"])
def test_agents_that_recall_need_a_memory(name: str) -> None:
    with pytest.raises(errors.InvalidMemoryError):
        ready_agent(name)


def test_reflexion_looks_things_up_and_goes_on_when_that_fails(memory: hs.StepMemory) -> None:
    def look(at: str) -> str:
        """Look at something."""
        if at == "the wrong shelf":
            raise OSError("the shelf is locked")
        return "Paris"

    agent = ready_agent("reflexion", tools=[look], memory=memory)
    replies: list[Any] = [
        {"reasoning": "-", "answer": "Look at the wrong shelf."},
        {"choice": "ACT"},
        {"tool": "look", "arguments": {"at": "the wrong shelf"}},
        {"reasoning": "-", "answer": "That enough."},
        {"choice": "DRAFT"},
        {"reasoning": "-", "answer": "Lyon"},
        {"answer": "Nothing was looked up; try another shelf."},
        {"choice": "IMPROVE"},
        {"reasoning": "-", "answer": "Look at another shelf."},
        {"choice": "ACT"},
        {"tool": "look", "arguments": {"at": "another shelf"}},
        {"reasoning": "-", "answer": "Paris it is."},
        {"choice": "DRAFT"},
        {"reasoning": "-", "answer": "Paris"},
        {"answer": "It stands."},
        {"choice": "GIVE"},
    ]
    model = scripted_lm(replies)
    with dspy.context(lm=model):
        out = agent(query="What is the capital of France?")
    assert (out.finish_reason, out.final_answer) == ("finished", "Paris")
    assert "the shelf is locked" in request_text(model.requests[3])
    assert "try another shelf" in request_text(model.requests[8])
    again = scripted_lm([{"reasoning": "-", "answer": "-"}, {"choice": "DRAFT"}])
    with dspy.context(lm=again):
        agent(query="What is the capital of France?")
    assert "try another shelf" in request_text(again.requests[0])


def test_episodic_recall_looks_things_up_before_it_asks(memory: hs.StepMemory) -> None:
    asked: list[str] = []

    def person(question: str) -> str:
        asked.append(question)
        return "In the blue folder."

    def archive(name: str) -> str:
        """Look into the archive."""
        if name == "Miller":
            raise KeyError("no folder Miller")
        return "Shelf 3."

    def run(*replies: Any) -> AgentOutput:
        agent = ready_agent("episodic_recall", tools=[archive, AskUser(person)], memory=memory)
        with dspy.context(lm=scripted_lm(list(replies))):
            return agent(query="Where is the contract?")

    def call(name: str) -> Any:
        return {"tool": "archive", "arguments": {"name": name}}

    out = run({"choice": "NEW"}, call("Smith"), {"choice": "FOUND"}, {"message": "On shelf 3."})
    assert (out.final_answer, asked) == ("On shelf 3.", [])
    assert tools_used(out) == ["PastActionSearch", "NEW", "Act", "FOUND", "Speak"]
    out = run({"choice": "NEW"}, call("Miller"), {"choice": "MISSING"})
    assert out.final_answer == "Thank you, I will remember: In the blue folder."
    assert len(asked) == 1
    out = run({"choice": "KNOWN"}, {"message": "In the blue folder."})
    assert tools_used(out) == ["PastActionSearch", "KNOWN", "Speak"]


def test_a_tool_takes_the_place_of_the_agents_own() -> None:
    heard: list[str] = []
    agent = ready_agent("react", tools=[search, Speak(heard.append)])
    model = scripted_lm(
        [{"reasoning": "-", "answer": "-"}, {"choice": "ANSWER"}, {"message": "Done."}]
    )
    with dspy.context(lm=model):
        agent(query="q")
    assert heard == ["Done."]


@pytest.mark.slow
def test_an_agent_runs_on_a_real_small_model(
    small_model: dspy.LM, file_memory: hs.StepMemory
) -> None:
    agent = ready_agent("reflexion", memory=file_memory, max_iters=6, max_corrections=0)
    with dspy.context(lm=small_model):
        out = agent(query="What is the capital of France?")
    assert out.finish_reason in ("finished", "max_iters"), out.error
    assert bool(out.final_answer.strip()) == (out.finish_reason == "finished")
    assert list(file_memory.iter_steps()) == out.program_trace.steps
    asked = [step for step in out.program_trace.steps if step.tool in ("ChainOfThought", "Predict")]
    assert asked
    for step in asked:
        assert step.metrics is not None
        assert (step.metrics.total_tokens or 0) > 100
        assert step.metrics.model_name == "openai/smollm2"


@pytest.mark.parametrize("name", ["react", "plan_and_act", "reflexion"])
def test_a_tool_that_the_box_cannot_hold_is_named(name: str, memory: hs.StepMemory) -> None:
    def look(at: str) -> str:
        """Look at something."""
        return at

    with pytest.raises(
        errors.InvalidSettingError, match=r"'Act' cannot hold AskUser: .* named arg"
    ):
        ready_agent(name, tools=[look, AskUser(lambda _: "yes")], memory=memory)
