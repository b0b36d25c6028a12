"""GraphProgram: what an agent should do, drawn as a graph of nodes and labelled edges.

A program is data. It starts at `start`, ends at `end`; an Action uses a tool, a Decision asks a
question whose options are the labels of its edges, a Program node calls another program. Building
checks the whole graph before anything runs. This module knows nothing of language models, of how a
program is written as text, or of who runs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, NamedTuple, Self

from pydantic import ConfigDict, Field, Strict
from pydantic.dataclasses import dataclass

from hybridagi_steps.errors import ProgramError

START, END = "start", "end"
"""The two nodes that every program has."""

_CONFIG = ConfigDict(use_attribute_docstrings=True, extra="forbid")


@dataclass(frozen=True, config=_CONFIG)
class Control:
    """Where a program starts or ends."""

    id: str
    """`start` or `end`."""


@dataclass(frozen=True, config=_CONFIG)
class Action:
    """Use a tool."""

    id: str
    """Unique in the program."""
    tool: str
    """Name of the tool."""
    purpose: str
    """Why this is done."""
    prompt: str = ""
    """A jinja2 template: what to do; may use the variables in `var_in`."""
    var_in: list[str] = Field(default_factory=list[str])
    """Variables that the prompt may use."""
    var_out: str | None = None
    """Variable that the result is stored in."""
    disable_inference: Annotated[bool, Strict()] = False
    """Give the rendered prompt to the tool as it is, without asking a language model."""


@dataclass(frozen=True, config=_CONFIG)
class Decision:
    """Choose between the labels of the edges that leave this node."""

    id: str
    """Unique in the program."""
    purpose: str
    """Why this is asked."""
    question: str
    """A jinja2 template: the question to answer."""
    var_in: list[str] = Field(default_factory=list[str])
    """Variables that the question may use."""


@dataclass(frozen=True, config=_CONFIG)
class Program:
    """Call another program."""

    id: str
    """Unique in the program."""
    purpose: str
    """Why it is called."""
    program: str
    """Name of the program."""


Node = Control | Action | Decision | Program


class Edge(NamedTuple):
    """From one node to the next; out of a Decision it carries the option's label."""

    source: str
    target: str
    label: str | None = None


class GraphProgram:
    """A program as a graph.

    Example:
        >>> program = GraphProgram(name="main", description="Answer, or ask back")
        >>> _ = program.add(Decision("clear", "Check the question", "Is the question clear?"))
        >>> _ = program.add(Action("answer", "Speak", "Answer", "Answer the question"))
        >>> _ = program.add(Action("ask", "AskUser", "Clarify", "Ask what is unclear"))
        >>> _ = program.connect("start", "clear").connect("clear", "answer", label="YES")
        >>> _ = program.connect("clear", "ask", label="NO").connect("ask", "clear")
        >>> _ = program.connect("answer", "end")
        >>> sorted(program.choices("clear"))
        ['NO', 'YES']
    """

    def __init__(self, name: str, description: str = "") -> None:
        """Begin a program with nothing but `start` and `end`."""
        self.name, self.description = name, description
        self.nodes: dict[str, Node] = {START: Control(START), END: Control(END)}
        self.edges: list[Edge] = []

    def add(self, node: Node) -> Self:
        """Add a node.

        Raises:
            ProgramError: Its id is taken.
        """
        if node.id in self.nodes:
            raise ProgramError(f"the program {self.name!r} has a node {node.id!r} already.")
        self.nodes[node.id] = node
        return self

    def connect(self, source: str, target: str, label: str | None = None) -> Self:
        """Add an edge; `build` checks it."""
        self.edges.append(Edge(source, target, label))
        return self

    def leaving(self, node_id: str) -> Iterator[Edge]:
        """Yield the edges that leave a node, in the order they were added."""
        return (edge for edge in self.edges if edge.source == node_id)

    def next(self, node_id: str) -> str:
        """Return the node that follows one with a single way out."""
        return next(self.leaving(node_id)).target

    def choices(self, node_id: str) -> dict[str, str]:
        """Return a Decision's options: label to target, in the order they were added."""
        return {edge.label or "": edge.target for edge in self.leaving(node_id)}

    def calls(self) -> list[str]:
        """Return the names of the programs that this one calls, each once."""
        called = (node.program for node in self.nodes.values() if isinstance(node, Program))
        return list(dict.fromkeys(called))
