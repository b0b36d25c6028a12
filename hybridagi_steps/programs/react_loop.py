"""The turns of a ReAct agent: a thought and the tool calls that came of it read as one step.

DSPy runs a predictor that thinks and then calls tools. As steps the thought is the purpose of the
tool's Action, and what thinking cost is added to what the tool cost. A thought that led to no tool
is kept as an Action of its own. Works for `dspy.ReAct` and `dspy.ReActV2`; stores nothing.
"""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import dspy

from hybridagi_steps.recording.usage import Usage

_CLOSING_TOOLS: dict[Any, str] = {dspy.ReAct: "finish", dspy.ReActV2: "submit"}
_TOLD_IN = {"finish": "trajectory", "submit": "history"}
_CONTEXT = ("trajectory", "history", "tools")
"""Inputs of the thinking predictor that only repeat earlier steps."""


@dataclass(slots=True)
class Thought:
    """What a ReAct agent thought in one turn."""

    text: str
    arguments: dict[str, Any]
    outputs: dict[str, Any]
    usage: Usage
    duration_ms: float
    acted: bool = False
    """Whether a tool was called for it."""


@dataclass(slots=True)
class ReActLoop:
    """The turns of one agent call."""

    agent: Any
    closing_tool: str
    thought: Thought | None = None
    step_ids: list[str] = field(default_factory=list[str])
    """The tool Actions so far: they are the trajectory."""

    @property
    def told_in(self) -> str:
        """The output field in which the agent gives back all of its turns."""
        return _TOLD_IN[self.closing_tool]

    @classmethod
    def of(cls, module: Any) -> ReActLoop | None:
        """Return the loop of a ReAct agent, None for any other module."""
        for kind, closing_tool in _CLOSING_TOOLS.items():
            if isinstance(module, kind) and hasattr(module, "react"):
                return cls(module, closing_tool)
        return None

    def thinks_with(self, predictor: Any) -> bool:
        """Whether `predictor` is the one that thinks."""
        return self.agent.react is predictor

    def think(
        self,
        arguments: dict[str, Any],
        outputs: dict[str, Any],
        usage: Usage,
        duration_ms: float,
    ) -> None:
        """Begin a turn with what the predictor gave and what that cost."""
        text = outputs.get("next_thought")
        self.thought = Thought(
            text="" if text is None else str(text),
            arguments={key: value for key, value in arguments.items() if key not in _CONTEXT},
            outputs={key: value for key, value in outputs.items() if key != "next_thought"},
            usage=usage,
            duration_ms=duration_ms,
        )

    def act(self, usage: Usage) -> tuple[str, float]:
        """Note that a tool ran; return its purpose and the milliseconds spent on thinking.

        What thinking cost is added to `usage` of the first tool of a turn.
        """
        thought = self.thought
        if thought is None:
            return "", 0.0
        if thought.acted:
            return thought.text, 0.0
        thought.acted = True
        usage.add(thought.usage)
        return thought.text, thought.duration_ms

    def idle_thought(self) -> Thought | None:
        """Return and forget the thought of the turn before if no tool came of it."""
        thought, self.thought = self.thought, None
        return None if thought is None or thought.acted else thought

    def trajectory(self) -> dict[str, Any]:
        """Return what stands for the trajectory: the steps that tell it."""
        return {"steps": list(self.step_ids)}
