"""ReAct turns as demonstrations: what an agent's predictor was asked, and what it gave.

A turn is stored as the Action of its tool, under the thought that led there; what the predictor had
been shown is not stored again in each turn, so it is put together anew, in the words of DSPy.
"""

from __future__ import annotations

from typing import Any

import dspy

from hybridagi_steps.memory import StepMemory
from hybridagi_steps.messages.fences import inert_json
from hybridagi_steps.recording.call_steps import TURN, UNSAID
from hybridagi_steps.recording.trajectories import trajectory_of
from hybridagi_steps.records.agent_step import AgentStep

TRAJECTORY, NEXT_TOOL = "trajectory", "next_tool_name"


def is_turn(step: AgentStep) -> bool:
    """Whether a step is a turn of a ReAct agent."""
    return step.tool is not None and TURN in (step.metadata or {})


def turn_fields(step: AgentStep, memory: StepMemory) -> dict[str, Any]:
    """Return what the predictor of `dspy.ReAct` was asked in a turn, and what it gave."""
    calls = memory.get_steps([step.program_id]) if step.program_id is not None else []
    asked = calls[0].arguments if calls else {}
    thought = "" if (step.metadata or {}).get(UNSAID) else step.purpose
    chosen = {"next_thought": thought, NEXT_TOOL: step.tool, "next_tool_args": step.arguments}
    return {**inert_json({**asked, **chosen}), TRAJECTORY: shown_trajectory(step, memory)}


def shown_trajectory(step: AgentStep, memory: StepMemory) -> str:
    """Return the turns before a step as `dspy.ReAct` shows them."""
    turns = inert_json(trajectory_of(step, memory))  # before the marks of the adapter's own
    adapter = dspy.settings.adapter or dspy.ChatAdapter()
    signature: Any = dspy.Signature(f"{', '.join(turns)} -> x")
    return adapter.format_user_message_content(signature, turns)
