"""The loop of a ReAct agent: its turns, and which thought led to which tool.

DSPy tells of a predictor's call and of tools' calls; that the one leads to the others, and that the
last tool closes the loop, is known here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import dspy

from hybridagi_steps.recording.call_tree import Call, Maker
from hybridagi_steps.recording.usage import Usage
from hybridagi_steps.records.prompts import LMCall

_AGENTS = ("ReAct", "ReActV2")
"""Names in DSPy, looked up when they are needed: DSPy 3.5 has the second under the first."""
_TRAJECTORY_FIELDS = {"finish": "trajectory", "submit": "history"}
_CONTEXT = ("trajectory", "history", "tools")
"""Inputs of the thinking predictor that only repeat earlier steps."""


def closing_tool(module: object) -> Literal["finish", "submit"] | None:
    """Return the name of the tool that ends the loop of a ReAct agent, None for other modules.

    An agent that extracts its answer from a trajectory calls `finish`, one that keeps a history
    submits its answer.
    """
    kinds = tuple(kind for name in _AGENTS if (kind := getattr(dspy, name, None)) is not None)
    if not isinstance(module, kinds) or not hasattr(module, "react"):
        return None
    return "finish" if hasattr(module, "extract") else "submit"


@dataclass(slots=True)
class Thought:
    """What a ReAct agent thought in one turn."""

    text: str
    arguments: dict[str, Any]
    outputs: dict[str, Any]
    usage: Usage
    prompts: list[LMCall]
    duration_ms: float
    maker: Maker
    acted: bool = False
    """Whether a tool was called for it."""


@dataclass(slots=True)
class ReActLoop:
    """The turns of one agent call."""

    agent: Any
    closing_tool: str
    thought: Thought | None = None
    turns: int = 0
    """How often it has thought."""
    step_ids: list[str] = field(default_factory=list[str])
    """The tool Actions so far: they are the trajectory."""

    @property
    def trajectory_field(self) -> str:
        """The output field in which the agent gives back all of its turns."""
        return _TRAJECTORY_FIELDS[self.closing_tool]

    @classmethod
    def of(cls, module: object) -> ReActLoop | None:
        """Return the loop of a ReAct agent, None for any other module."""
        closing = closing_tool(module)
        return None if closing is None else cls(module, closing)

    def think(
        self,
        call: Call,
        arguments: dict[str, Any],
        outputs: dict[str, Any],
        usage: Usage,
        prompts: list[LMCall],
    ) -> None:
        """Begin a turn with what a call of the predictor was asked, gave and cost."""
        self.turns += 1
        text = outputs.get("next_thought")
        self.thought = Thought(
            text="" if text is None else str(text),
            arguments={key: value for key, value in arguments.items() if key not in _CONTEXT},
            outputs={key: value for key, value in outputs.items() if key != "next_thought"},
            usage=usage,
            prompts=prompts,
            duration_ms=call.elapsed_ms,
            maker=call.maker,
        )

    def act(self, usage: Usage, prompts: list[LMCall]) -> tuple[str, float]:
        """Note that a tool ran; return its purpose and the milliseconds spent on thinking.

        What thinking was asked and cost is added to `prompts` and `usage` of a turn's first tool.
        """
        thought = self.thought
        if thought is None:
            return "", 0.0
        if thought.acted:
            return thought.text, 0.0
        thought.acted = True
        usage.add(thought.usage)
        prompts[:0] = thought.prompts
        return thought.text, thought.duration_ms

    def idle_thought(self) -> Thought | None:
        """Return and forget the thought of the turn before if no tool came of it."""
        thought, self.thought = self.thought, None
        return None if thought is None or thought.acted else thought

    def trajectory(self) -> dict[str, Any]:
        """Return what stands for the trajectory: the steps that tell it."""
        return {"steps": list(self.step_ids)}
