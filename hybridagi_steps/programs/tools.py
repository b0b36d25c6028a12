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
    from hybridagi_steps.graph.tools.base import CallProgram as CallProgram
    from hybridagi_steps.graph.tools.base import GraphTool as GraphTool
    from hybridagi_steps.graph.tools.base import ToolUse as ToolUse
    from hybridagi_steps.graph.tools.builtin import AskUser as AskUser
    from hybridagi_steps.graph.tools.builtin import ChainOfThought as ChainOfThought
    from hybridagi_steps.graph.tools.builtin import PastActionSearch as PastActionSearch
    from hybridagi_steps.graph.tools.builtin import Predict as Predict
    from hybridagi_steps.graph.tools.builtin import Speak as Speak
    from hybridagi_steps.graph.tools.builtin import UpdateObjective as UpdateObjective
    from hybridagi_steps.graph.tools.functions import DSPyTool as DSPyTool
    from hybridagi_steps.graph.tools.functions import FunctionTool as FunctionTool
    from hybridagi_steps.graph.tools.functions import tools_by_name as tools_by_name
    from hybridagi_steps.graph.tools.program_tools import AddGraphProgram as AddGraphProgram
    from hybridagi_steps.graph.tools.program_tools import CallGraphProgram as CallGraphProgram
    from hybridagi_steps.graph.tools.program_tools import GraphProgramSearch as GraphProgramSearch
    from hybridagi_steps.graph.tools.program_tools import ReadGraphProgram as ReadGraphProgram
    from hybridagi_steps.graph.tools.tool_box import ToolBox as ToolBox


_NAMES = {
    "base": "CallProgram GraphTool ToolUse",
    "builtin": "AskUser ChainOfThought PastActionSearch Predict Speak UpdateObjective",
    "functions": "DSPyTool FunctionTool tools_by_name",
    "program_tools": "AddGraphProgram CallGraphProgram GraphProgramSearch ReadGraphProgram",
    "tool_box": "ToolBox",
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _NAMES, "hybridagi_steps.graph.tools")
