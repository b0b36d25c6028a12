"""The tools of graph programs: loaded on first use.

An Action names a tool; the interpreter is given them as a list. Besides the tools here, plain
functions and `dspy.Tool`s work as they are; an MCP tool becomes a `dspy.Tool` by
`dspy.Tool.from_mcp_tool(session, tool)`. A tool of your own is a subclass of `GraphTool`. A tool
holds no state of a run: it is shared by every copy of an agent and by every thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridagi_steps.lazy import lazy_names

if TYPE_CHECKING:
    from hybridagi_steps.graph.tools.base import CallProgram, GraphTool, ToolUse
    from hybridagi_steps.graph.tools.builtin import (
        AskUser,
        ChainOfThought,
        PastActionSearch,
        Predict,
        Speak,
        UpdateObjective,
    )
    from hybridagi_steps.graph.tools.functions import DSPyTool, FunctionTool, tools_by_name
    from hybridagi_steps.graph.tools.program_tools import (
        AddGraphProgram,
        CallGraphProgram,
        GraphProgramSearch,
        ReadGraphProgram,
    )
    from hybridagi_steps.graph.tools.tool_box import ToolBox

__all__ = [
    "AddGraphProgram",
    "AskUser",
    "CallGraphProgram",
    "CallProgram",
    "ChainOfThought",
    "DSPyTool",
    "FunctionTool",
    "GraphProgramSearch",
    "GraphTool",
    "PastActionSearch",
    "Predict",
    "ReadGraphProgram",
    "Speak",
    "ToolBox",
    "ToolUse",
    "UpdateObjective",
    "tools_by_name",
]

_NAMES = {
    "base": "CallProgram GraphTool ToolUse",
    "builtin": "AskUser ChainOfThought PastActionSearch Predict Speak UpdateObjective",
    "functions": "DSPyTool FunctionTool tools_by_name",
    "program_tools": "AddGraphProgram CallGraphProgram GraphProgramSearch ReadGraphProgram",
    "tool_box": "ToolBox",
}

__getattr__, __dir__ = lazy_names(__name__, _NAMES, "hybridagi_steps.graph.tools")
