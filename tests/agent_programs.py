"""Programs for the tests of agents, what a model says while they run, and two ways to call them."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hybridagi_steps.graph.interpreter import GraphInterpreter
from hybridagi_steps.graph.run_state import AgentOutput
from hybridagi_steps.programs import Action, Decision, GraphProgram


def chain(*nodes: Any, name: str = "main", var_in: tuple[str, ...] = ()) -> GraphProgram:
    """Nodes one after the other, from start to end."""
    program = GraphProgram(name, f"the {name} program", var_in)
    before = "start"
    for node in nodes:
        program.add(node).connect(before, node.id)
        before = node.id
    return program.connect(before, "end")


def say(text: str, node_id: str = "say", **options: Any) -> Action:
    """An Action that says a text as it is."""
    return Action(node_id, "Speak", "Say it", text, disable_inference=True, **options)


def ask_back() -> GraphProgram:
    """Decides whether the question is clear, asks until it is, answers."""
    program = GraphProgram("main", "Answer, or ask back")
    program.add(Decision("clear", "Check the question", "Is {{ query }} clear?"))
    program.add(Action("ask", "AskUser", "Clarify", "Ask what is unclear", var_out="detail"))
    program.add(Action("answer", "Speak", "Answer", "Answer the question"))
    program.connect("start", "clear").connect("clear", "answer", label="ANSWER")
    program.connect("clear", "ask", label="ASK_USER").connect("ask", "clear")
    return program.connect("answer", "end")


ASK_BACK_REPLIES: list[Any] = [
    {"choice": "Ask User"},
    {"question": "Which city?"},
    {"choice": "answer"},
    {"message": "It rains in Paris."},
]


def sync_call(agent: GraphInterpreter, **inputs: Any) -> AgentOutput:
    """Call an agent."""
    return agent(**inputs)


def async_call(agent: GraphInterpreter, **inputs: Any) -> AgentOutput:
    """Call an agent from an event loop."""
    return asyncio.run(agent.acall(**inputs))


both = pytest.mark.parametrize("call", [sync_call, async_call])
