"""Ready agents: graph programs that come with the package, for anybody's tools.

`react` thinks and acts in turns, `plan_and_act` follows a plan, `reflexion` improves its answer and
learns from its own reviews, `episodic_recall` remembers what it was told. They are texts like any
other program: read them, change them, use parts of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

import dspy

from hybridagi_steps.errors import InvalidSettingError, UnknownProgramError
from hybridagi_steps.graph.interpreter import GraphInterpreter
from hybridagi_steps.graph.program import Action, GraphProgram
from hybridagi_steps.graph.tools.base import GraphTool
from hybridagi_steps.graph.tools.builtin import (
    AskUser,
    ChainOfThought,
    PastActionSearch,
    Predict,
    Speak,
)
from hybridagi_steps.graph.tools.tool_box import ToolBox

_ENDING = ".cypher"
_BOX = "Act"
_BUILT_IN: dict[str, type[GraphTool]] = {
    kind.__name__: kind for kind in (AskUser, ChainOfThought, PastActionSearch, Predict, Speak)
}


def ready_agents() -> list[str]:
    """Return the names of the agents that come with the package."""
    return sorted(folder.name for folder in _folder().iterdir() if folder.is_dir())


def ready_programs(name: str) -> list[GraphProgram]:
    """Return the programs of an agent; `main` is the one to begin with.

    Raises:
        UnknownProgramError: No agent has this name.
    """
    if name not in ready_agents():
        raise UnknownProgramError(name, ready_agents())
    texts = [file for file in _folder().joinpath(name).iterdir() if file.name.endswith(_ENDING)]
    return [
        GraphProgram.from_cypher(file.read_text("utf-8"), file.name.removesuffix(_ENDING))
        for file in sorted(texts, key=lambda file: file.name)
    ]


def ready_agent(
    name: str, tools: Iterable[Any] = (), memory: Any = None, **options: Any
) -> GraphInterpreter:
    """Return an agent that comes with the package.

    Args:
        name: Which one.
        tools: Functions and `dspy.Tool`s to act with, and tools such as `AskUser(callback)` that
            take the place of the agent's own.
        memory: Where it records and recalls; `reflexion` and `episodic_recall` need one.
        options: Whatever else `GraphInterpreter` takes.

    Raises:
        UnknownProgramError: No agent has this name.
        InvalidSettingError: A tool that the agent has no use for, or none where it must act.
        InvalidMemoryError: The agent recalls, and no memory was given.
    """
    programs = ready_programs(name)
    nodes = [node for program in programs for node in program.nodes.values()]
    used = list(dict.fromkeys(node.tool for node in nodes if isinstance(node, Action)))
    given = list(tools)
    own = {tool.name: tool for tool in given if isinstance(tool, GraphTool) and tool.name in used}
    box = [tool for tool in given if not (isinstance(tool, GraphTool) and tool.name in used)]
    if box and _BOX not in used:
        shown = ", ".join(_name(tool) for tool in box)
        raise InvalidSettingError(f"{name} has no use for {shown}; it uses {', '.join(used)}.")
    if _BOX in used and _BOX not in own:
        if not box:
            raise InvalidSettingError(f"{name} acts with tools: give functions or dspy.Tools.")
        own[_BOX] = ToolBox(box, name=_BOX)
    chosen = [own.get(tool) or _BUILT_IN[tool]() for tool in used]
    return GraphInterpreter(programs, chosen, memory, **options)


def _folder() -> Traversable:
    return files("hybridagi_steps.data").joinpath("programs")


def _name(tool: Any) -> str:
    if isinstance(tool, GraphTool | dspy.Tool):
        return str(tool.name)
    return str(getattr(tool, "__name__", type(tool).__name__))
