"""ToolBox: several tools behind one Action; a language model chooses which, and its arguments."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import dspy

from hybridagi_steps.errors import InvalidSettingError, ToolInputError, UnknownToolError
from hybridagi_steps.graph.predictors import chosen
from hybridagi_steps.graph.tools.base import INPUTS, Asked, GraphTool, ToolUse, node_signature
from hybridagi_steps.graph.tools.functions import CallTool, named_arguments, tools_by_name
from hybridagi_steps.records.agent_step import AgentStep


class ToolBox(GraphTool):
    """Uses whichever of several tools is needed.

    When a tool fails, its Action's result is what went wrong, and the agent goes on.

    Args:
        tools: Functions and `dspy.Tool`s.
        name: What Actions call the box.
        lm: The language model that its nodes ask.

    Raises:
        InvalidSettingError: No tools, or some that are not called with named arguments.
    """

    observes = (Exception,)

    def __init__(
        self, tools: Iterable[Any] | Mapping[str, Any], name: str = "Act", lm: object = None
    ) -> None:
        super().__init__(name=name, lm=lm)
        found = tools_by_name(tools)
        self.tools = {key: tool for key, tool in found.items() if isinstance(tool, CallTool)}
        others = ", ".join(key for key in found if key not in self.tools)
        if others:
            raise InvalidSettingError(
                f"the tool box {name!r} cannot hold {others}: it calls its tools with named "
                "arguments, so give it functions or dspy.Tools; what else an agent may do has a "
                "node of its own in its programs."
            )
        if not self.tools:
            raise InvalidSettingError(f"the tool box {name!r} needs functions or dspy.Tools.")
        self.own = tuple(part for tool in self.tools.values() for part in tool.own)

    def predictor(self, purpose: str) -> dspy.Module:
        """Return a new predictor that chooses a tool and its arguments."""
        listed = "\n".join(
            f"- {tool.name}: {tool.description} "
            f"Arguments, as JSON schemas: {json.dumps(tool.schemas, default=str)}"
            for tool in self.tools.values()
        )
        asked = {
            "tool": Asked(str, f"one of: {', '.join(self.tools)}"),
            "arguments": Asked(dict[str, Any], "The tool's arguments by name, a JSON object"),
        }
        told = f"Choose one of these tools, and its arguments, as the prompt asks.\n{listed}"
        return dspy.Predict(node_signature(told, purpose, INPUTS, asked))

    def from_prompt(self, prompt: str) -> dict[str, Any]:
        """Return tool and arguments from a JSON object with these two keys."""
        try:
            given = json.loads(prompt)
            return {"tool": given["tool"], "arguments": dict(given.get("arguments") or {})}
        except (ValueError, TypeError, KeyError) as error:
            raise ToolInputError(
                f"without a language model {self.name} takes a JSON object with the keys tool and "
                "arguments."
            ) from error

    def from_prediction(self, prediction: dspy.Prediction) -> dict[str, Any]:
        """Return the tool and the arguments that a language model came up with."""
        return {"tool": str(prediction["tool"]), "arguments": prediction["arguments"]}

    def prediction_of(self, step: AgentStep) -> dict[str, Any]:
        """Return the tool and the arguments of a finished use."""
        return step.arguments

    def check(self, arguments: dict[str, Any]) -> None:
        """Check the name of the tool and its arguments."""
        tool, inner = self._chosen(arguments)
        tool.check(inner)

    def use(self, use: ToolUse) -> Any:
        """Use the tool that was chosen."""
        tool, inner = self._chosen(use.arguments)
        return tool.use(replace(use, arguments=inner))

    async def ause(self, use: ToolUse) -> Any:
        """Use the tool that was chosen."""
        tool, inner = self._chosen(use.arguments)
        return await tool.ause(replace(use, arguments=inner))

    def _chosen(self, arguments: dict[str, Any]) -> tuple[GraphTool, dict[str, Any]]:
        """Return the tool that was named, and what it is given."""
        named = arguments["tool"]
        name = named if named in self.tools else chosen(str(named), list(self.tools))
        if name is None:
            raise UnknownToolError(str(named), list(self.tools))
        return self.tools[name], named_arguments(name, arguments["arguments"])
