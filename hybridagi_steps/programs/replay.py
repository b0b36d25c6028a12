"""A recorded run, run again: a real `dspy.ReAct` agent whose model and tools answer as recorded.

For demonstrations and tests without a network: prompts, parsing, tool calls and recording are
DSPy's own; only what the model and the tools say comes from the steps of a past run.
"""

# pyright: reportUnknownVariableType=false

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import dspy

from hybridagi_steps.recording import RunHandle, record
from hybridagi_steps.recording.step_writer import Memory
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.testing import scripted_lm

RESPOND = "respond"
"""The tool by which recorded agents speak; what it gives back is what the customer says next."""


class Service(dspy.Signature):
    """Serve a customer."""

    request: str = dspy.InputField()
    outcome: str = dspy.OutputField()


class ServiceDesk(dspy.Module):
    """An agent at a service desk: looks things up, acts, and talks with a customer."""

    def __init__(self, tools: Sequence[dspy.Tool], max_iters: int) -> None:
        super().__init__()
        self.agent = dspy.ReAct(Service, tools=list(tools), max_iters=max_iters)

    def forward(self, request: str) -> dspy.Prediction:
        """Serve one customer."""
        return self.agent(request=request)


def replay(memory: Memory, steps: Sequence[AgentStep], **labels: Any) -> RunHandle:
    """Run a service desk over a recorded run and record it as a new run.

    Args:
        memory: Where the new steps go.
        steps: The tool Actions of one recorded run, in order; at least one.
        labels: `session_id`, `user_id`, `tags`, `scope`, as `record` takes them.
    """
    desk = ServiceDesk(_tools(steps), max_iters=len(steps) + 1)
    model = scripted_lm(_replies(steps), model="replay/recorded")
    with dspy.context(lm=model), record(memory, **labels) as run:
        desk(request=steps[0].purpose)
    return run


def _replies(steps: Sequence[AgentStep]) -> list[dict[str, Any]]:
    """Return what the model says: each recorded call, then the end and the outcome."""
    calls = [
        {
            "next_thought": step.purpose,
            "next_tool_name": step.tool,
            "next_tool_args": _call_arguments(step),
        }
        for step in steps
    ]
    done = {"next_thought": "Done.", "next_tool_name": "finish", "next_tool_args": {}}
    outcome = {"reasoning": steps[-1].purpose, "outcome": str(steps[-1].result)}
    return [*calls, done, outcome]


def _call_arguments(step: AgentStep) -> dict[str, Any]:
    return {"message": step.result} if step.tool == RESPOND else step.arguments


def _tools(steps: Sequence[AgentStep]) -> list[dspy.Tool]:
    """Return one tool per recorded name, each giving its recorded answers in order."""
    answers: dict[str, deque[Any]] = {}
    arguments: dict[str, set[str]] = {}
    for step, later in zip(steps, [*steps[1:], None], strict=True):
        name = step.tool or RESPOND
        said = later.purpose if later is not None else "Goodbye."
        answers.setdefault(name, deque()).append(said if name == RESPOND else step.result)
        arguments.setdefault(name, set()).update(_call_arguments(step))
    return [_tool(name, answers[name], sorted(arguments[name])) for name in answers]


def _tool(name: str, answers: deque[Any], arguments: list[str]) -> dspy.Tool:
    def answer(**_: object) -> Any:
        return answers.popleft()

    return dspy.Tool(
        answer,
        name=name,
        desc=f"{name.replace('_', ' ')}, as recorded",
        args={argument: {} for argument in arguments},
        arg_types=dict.fromkeys(arguments, Any),
    )
