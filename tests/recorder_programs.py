"""Programs for the recorder's tests, and readable views of what they left."""

# DSPy ships no types, and annotates some arguments more narrowly than it takes them.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportUnknownLambdaType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Any, Literal

import dspy

from hybridagi_steps import AgentStep, StepMemory


class Route(dspy.Signature):
    """Pick how to answer."""

    question: str = dspy.InputField()
    route: Literal["search", "chat"] = dspy.OutputField()


class Mood(Enum):
    """A closed set of values."""

    GOOD = "good"
    BAD = "bad"


def search(query: str) -> str:
    """Search the corpus."""
    return f"result for {query}"


class Agent(dspy.Module):
    """Answers questions, with search when it helps."""

    def __init__(self) -> None:
        super().__init__()
        self.route = dspy.Predict(Route)
        self.react = dspy.ReAct("question -> answer", tools=[search], max_iters=3)
        self.chat = dspy.ChainOfThought("question -> answer")

    def forward(self, question: str) -> Any:
        """Route, then search or chat."""
        if self.route(question=question).route == "search":
            return self.react(question=question)
        return self.chat(question=question)


class Pair(dspy.Module):
    """Two questions, one after the other or at once."""

    def __init__(self) -> None:
        super().__init__()
        self.first = dspy.Predict("question -> one")
        self.second = dspy.Predict("question -> two")
        self.last = dspy.Predict("question -> three")

    def forward(self, question: str) -> Any:
        """One after the other."""
        self.first(question=question)
        self.second(question=question)
        return self.last(question=question)

    async def aforward(self, question: str) -> Any:
        """The first two at once."""
        await asyncio.gather(
            self.first.acall(question=question), self.second.acall(question=question)
        )
        return await self.last.acall(question=question)


AGENT_REPLIES: list[Any] = [
    {"route": "search"},
    {"next_thought": "I look it up", "next_tool_name": "search", "next_tool_args": {"query": "x"}},
    {"next_thought": "I know it", "next_tool_name": "finish", "next_tool_args": {}},
    {"reasoning": "found it", "answer": "Paris"},
]
"""What a model says while `Agent` answers by searching once."""


def all_steps(memory: StepMemory) -> list[AgentStep]:
    """Everything in a memory, trial runs too, by row."""
    return list(memory.iter_steps({"scope": "*"}))


def outline(steps: list[AgentStep]) -> list[tuple[int, str, int | None, int | None]]:
    """Each step's hop, kind, hop of its parent and hop of its program's call."""
    hops = {str(step.id): step.hop for step in steps}
    return [
        (
            step.hop,
            f"{step.step_type.value} {step.tool or step.program or ''}".strip(),
            None if step.parent_id is None else hops[str(step.parent_id)],
            None if step.program_id is None else hops[step.program_id],
        )
        for step in steps
    ]


def question_of(step: AgentStep) -> Any:
    """The question a step was asked."""
    return step.arguments.get("question")
