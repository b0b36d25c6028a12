"""CallGraphProgram, ReadGraphProgram, GraphProgramSearch: programs as things an agent works with.

An agent finds a program, reads it, calls it. Entry programs and what they depend on are out of
reach: an agent that could call its own beginning, or be talked into reading its own prompts, would
be a worse one.
"""

from __future__ import annotations

import asyncio
from typing import Any

from hybridagi_steps.graph.library import ProgramLibrary, open_to_agents
from hybridagi_steps.graph.prompts import shown_text
from hybridagi_steps.graph.tools.base import Asked, CallProgram, GraphTool, ToolUse

_NAMED = {"program": Asked(str, "The exact name of the program, nothing else")}


class _ProgramTool(GraphTool):
    """A tool over programs.

    Args:
        programs: Where to look them up; by default the programs of the agent.
        name: What Actions call it.
        lm: The language model that its nodes ask.
    """

    def __init__(
        self,
        programs: ProgramLibrary | None = None,
        *,
        name: str | None = None,
        lm: Any = None,
    ) -> None:
        super().__init__(name=name, lm=lm)
        self.programs = programs

    def _library(self, use: ToolUse) -> ProgramLibrary:
        return use.library if self.programs is None else self.programs


class CallGraphProgram(_ProgramTool):
    """Runs a program by name, as part of the run."""

    instructions = "Name the program to call."
    asks_for = _NAMED

    def use(self, use: ToolUse) -> CallProgram:
        """Return the program to run.

        Raises:
            UnknownProgramError: There is none of this name.
            ProtectedProgramError: It is not for agents.
        """
        name = _name(use)
        return CallProgram(name, open_to_agents(self._library(use), name))


class ReadGraphProgram(_ProgramTool):
    """Returns the text of a program."""

    instructions = "Name the program to read."
    asks_for = _NAMED

    def use(self, use: ToolUse) -> str:
        """Return the text.

        Raises:
            UnknownProgramError: There is none of this name.
            ProtectedProgramError: It is not for agents.
        """
        return open_to_agents(self._library(use), _name(use)).to_cypher()


class GraphProgramSearch(_ProgramTool):
    """Finds programs by what they are for.

    Args:
        programs: Where to look; by default the programs of the agent.
        k: Most programs wanted.
        name: What Actions call it.
        lm: The language model that its nodes ask.
    """

    instructions = "Write a query that finds programs of use for the prompt."
    asks_for = {"query": Asked(str, "What the program should do, in a few words")}  # noqa: RUF012

    def __init__(
        self,
        programs: ProgramLibrary | None = None,
        k: int = 5,
        *,
        name: str | None = None,
        lm: Any = None,
    ) -> None:
        super().__init__(programs, name=name, lm=lm)
        self.k = k

    def use(self, use: ToolUse) -> list[dict[str, str]]:
        """Return names and descriptions, best first."""
        found = self._library(use).search(shown_text(use.arguments["query"]), self.k)
        return [{"program": each.name, "description": each.description} for each in found]

    async def ause(self, use: ToolUse) -> list[dict[str, str]]:
        """Search in a thread."""
        return await asyncio.to_thread(self.use, use)


def _name(use: ToolUse) -> str:
    return shown_text(use.arguments["program"]).strip().strip("\"'`")
