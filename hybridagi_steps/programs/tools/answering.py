"""Predict and ChainOfThought: have a language model answer, at once or after reasoning."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

from typing import Any

import dspy

from hybridagi_steps.graph.tools.base import GraphTool, ToolUse


class Predict(GraphTool):
    """Answers the prompt. With `disable_inference` the prompt itself is the result."""

    instructions = "Do what the prompt asks for, to reach the objective."

    def told_arguments(self, prompt: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the prompt: the answer is the result."""
        del arguments
        return {"prompt": prompt}

    def told_result(self, result: Any, arguments: dict[str, Any]) -> Any:
        """Return the answer as the step remembers it."""
        return arguments.get("answer", result)

    def use(self, use: ToolUse) -> Any:
        """Return the answer."""
        return use.arguments["answer"]


class ChainOfThought(Predict):
    """Answers the prompt after reasoning; the reasoning is not part of the result."""

    def make_predictor(self, signature: type[dspy.Signature]) -> dspy.Module:
        """Return a predictor that reasons first."""
        return dspy.ChainOfThought(signature)
