"""Tools that run, read, find and write graph programs."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any, Unpack

from pydantic import TypeAdapter, ValidationError

from hybridagi_steps.errors import (
    InvalidProgramError,
    ProgramError,
    ProtectedProgramError,
    ToolInputError,
    UnknownProgramError,
    UnknownToolError,
)
from hybridagi_steps.graph.nodes import Action
from hybridagi_steps.graph.program import GraphProgram
from hybridagi_steps.graph.program_memory import ProgramLibrary
from hybridagi_steps.graph.prompts import shown_text
from hybridagi_steps.graph.tools.base import Asked, CallProgram, GraphTool, ToolOptions, ToolUse

_NAMED = {"program": Asked(str, "The exact name of the program, nothing else")}


class _ProgramTool(GraphTool):
    """A tool over programs: some that are given, by default those of the agent."""

    def __init__(
        self, programs: ProgramLibrary | None = None, **options: Unpack[ToolOptions]
    ) -> None:
        super().__init__(**options)
        self.programs = programs

    def _library(self, use: ToolUse) -> ProgramLibrary:
        return use.library if self.programs is None else self.programs


class CallGraphProgram(_ProgramTool):
    """Runs a program by name, as part of the run.

    Of a name that no program has the agent is told, with the names there are, and goes on.
    """

    observes = (UnknownProgramError,)
    instructions = "Name the program to call."
    asks_for = _NAMED

    def use(self, use: ToolUse) -> CallProgram:
        """Return the program to run."""
        name = _name(use)
        return CallProgram(name, _open_to_agents(self._library(use), name))


class ReadGraphProgram(_ProgramTool):
    """Returns the text of a program; of an unknown name it tells as `CallGraphProgram` does."""

    observes = CallGraphProgram.observes
    instructions = "Name the program to read."
    asks_for = _NAMED

    def use(self, use: ToolUse) -> str:
        """Return the text."""
        return _open_to_agents(self._library(use), _name(use)).to_cypher()


class GraphProgramSearch(_ProgramTool):
    """Finds programs by what they are for.

    Args:
        programs: Where to look; by default the programs of the agent.
        k: Most programs wanted.
        options: `name` and `lm`, as every tool takes them.
    """

    instructions = "Write a query that finds programs of use for the prompt."
    blocks = True
    asks_for = {"query": Asked(str, "What the program should do, in a few words")}  # noqa: RUF012

    def __init__(
        self,
        programs: ProgramLibrary | None = None,
        k: int = 5,
        **options: Unpack[ToolOptions],
    ) -> None:
        super().__init__(programs, **options)
        self.k = k

    def use(self, use: ToolUse) -> list[dict[str, str]]:
        """Return names and descriptions, best first."""
        found = self._library(use).search(shown_text(use.arguments["query"]), self.k)
        return [{"program": each.name, "description": each.description} for each in found]


def _open_to_agents(library: ProgramLibrary, name: str) -> GraphProgram:
    if library.is_protected(name):
        raise ProtectedProgramError(
            f"the program {name!r} is an entry program, or one depends on it; agents may not call, "
            "read or replace it."
        )
    try:
        return library.get(name)
    except UnknownProgramError:
        known = [each for each in library.names() if not library.is_protected(each)]
        raise UnknownProgramError(name, known) from None


def _name(use: ToolUse) -> str:
    return shown_text(use.arguments["program"]).strip().strip("\"'`")


_OBJECT = TypeAdapter(dict[str, Any])
_FENCE = re.compile(r"\A\s*```\w*\n(.*?)\n?```\s*\Z", re.DOTALL)
_EXAMPLE = """// @desc: Greet the user by name
CREATE
(start:Control {id: "start"}),
(end:Control {id: "end"}),
(known:Decision {id: "known", purpose: "See whether the name is known", question: "Is there one?"}),
(ask:Action {id: "ask", tool: "AskUser", purpose: "Ask", prompt: "Ask for it", var_out: "name"}),
(greet:Action {id: "greet", tool: "Speak", purpose: "Greet", prompt: "Greet the user"}),
(start)-[:NEXT]->(known),
(known)-[:YES]->(greet),
(known)-[:NO]->(ask),
(ask)-[:NEXT]->(greet),
(greet)-[:NEXT]->(end)"""


class AddGraphProgram(_ProgramTool):
    """Keeps a program that a language model writes, in place of one that has its name.

    A text that cannot be read, or a program that is not sound, is told to the model, which is asked
    again. Of a protected name, or tools that the agent does not have, the agent is told, and goes
    on.

    Args:
        programs: The ProgramMemory to keep it in; by default that of the agent.
        options: `name` and `lm`, as every tool takes them.
    """

    observes = (InvalidProgramError, ProtectedProgramError, UnknownToolError)
    blocks = True
    instructions = (
        "Write a graph program for later runs, with the tools that the prompt names. A node is an "
        "Action (tool, purpose, prompt), a Decision (purpose, question), whose edges have the "
        f"choices for labels, or a Program (purpose, program). For example:\n\n{_EXAMPLE}"
    )
    asks_for = {  # noqa: RUF012
        "name": Asked(str, "The name of the program, in a word or two"),
        "program": Asked(str, "The text of the program, nothing else"),
    }

    def from_prompt(self, prompt: str) -> dict[str, Any]:
        """Return name and text, from a JSON object of both."""
        with suppress(ValidationError):
            given = _OBJECT.validate_json(prompt)
            if set(given) == set(self.asks_for):
                return given
        raise ToolInputError(
            f"{self.name} takes name and program: without a language model its prompt must be a "
            "JSON object with these keys."
        )

    def check(self, arguments: dict[str, Any]) -> None:
        """Refuse a program that cannot be read or is not sound."""
        try:
            _written(arguments).build()
        except ProgramError as error:
            raise ToolInputError(str(error)) from None

    def use(self, use: ToolUse) -> str:
        """Keep the program and return its name."""
        program = _written(use.arguments)
        library = self._library(use)
        if library.is_protected(program.name):
            raise ProtectedProgramError(
                f"the program {program.name!r} is an entry program, or one depends on it; agents "
                "may not replace it."
            )
        tools = [node.tool for node in program.nodes.values() if isinstance(node, Action)]
        if unknown := [tool for tool in tools if tool not in use.tools]:
            raise UnknownToolError(unknown[0], use.tools)
        library.update(program)
        return program.name


def _written(arguments: dict[str, Any]) -> GraphProgram:
    """Return the program that a model wrote, with or without a fence around it."""
    name, text = shown_text(arguments["name"]), shown_text(arguments["program"])
    fenced = _FENCE.match(text)
    return GraphProgram.from_cypher(fenced[1] if fenced else text, name.strip().strip("\"'`"))
