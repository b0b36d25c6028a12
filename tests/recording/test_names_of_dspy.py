"""DSPy takes names away that it has announced to remove: recording, agents and graphs go on."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAMS = """
import asyncio
import dspy
import hybridagi_steps as hs
from hybridagi_steps.programs import Action, GraphProgram
from hybridagi_steps.programs.tools import Speak
from hybridagi_steps.testing import scripted_lm

def find_flight(city: str) -> str:
    "Look up a flight."
    return "HAT7"

agent_class = getattr(dspy, "ReAct", None) or dspy.ReActV2
memory = hs.StepMemory(":memory:", embedder="hashing")
agent = agent_class("question -> answer", tools=[find_flight])
if hasattr(agent, "extract"):
    replies = {
        "next_thought": ["Look.", "Done."], "next_tool_name": ["find_flight", "finish"],
        "next_tool_args": [{"city": "Oslo"}, {}], "reasoning": "named", "answer": "HAT7",
    }
else:
    calls = [("find_flight", {"city": "Oslo"}), ("submit", {"answer": "HAT7"})]
    replies = {
        "next_thought": ["Look.", "Done."],
        "tool_calls": [{"tool_calls": [{"name": name, "args": args}]} for name, args in calls],
    }
with dspy.context(lm=scripted_lm(replies)):
    with hs.record(memory) as run:
        assert agent(question="Which flight?").answer == "HAT7"
assert "find_flight" in [step.tool for step in run.steps.steps], run.steps
with dspy.context(lm=scripted_lm(replies)):
    answer = asyncio.run(hs.StepRunner(agent, memory).run("talk", "Which flight?"))
assert answer.status == "completed", answer
with dspy.context(lm=scripted_lm({"message": "Hello."})):
    graph = GraphProgram("main", "Greet")
    graph.add(Action("greet", "Speak", "Greet", "Greet {{ query }}"))
    graph.connect("start", "greet").connect("greet", "end")
    out = hs.GraphInterpreter(graph, tools=[Speak()], memory=memory)(query="Hi")
assert out.finish_reason == "finished", out
"""
REMOVALS = {
    "CodeAct": "del dspy.CodeAct",
    "ProgramOfThought": "del dspy.ProgramOfThought",
    "ReActV2": "del dspy.ReActV2",
    "ReAct": "del dspy.ReAct",
    "ReActV2 under the name of ReAct": "dspy.ReAct = dspy.ReActV2; del dspy.ReActV2",
    "BaseLM.forward": "del dspy.BaseLM.forward, dspy.BaseLM.aforward",
}


@pytest.mark.parametrize("removal", REMOVALS)
def test_programs_run_without_a_name_that_is_to_go(removal: str) -> None:
    script = f"import dspy\n{REMOVALS[removal]}\n{PROGRAMS}"
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr[-2000:]
