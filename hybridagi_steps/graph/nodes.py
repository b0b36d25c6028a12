"""The parts that a graph program is made of: nodes, edges, and the names that every run knows.

Plain values, checked for their types only; whether they make a sound program is a question for
`checks`. They stand in a module of their own, with the text they are written as, so that checks,
parser and drawing read programs without knowing the class that people build them with.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from typing import Annotated, Any, NamedTuple, Protocol, TypeVar

from pydantic import ConfigDict, Field, Strict, ValidationError
from pydantic.dataclasses import dataclass

from hybridagi_steps.errors import ProgramError

START, END = "start", "end"
"""The two nodes that every program has."""

ERROR = "ERROR"
"""The label of the edge that an Action takes when it fails."""

PROVIDED = frozenset({"query", "objective"})
"""Variables that every run sets before its first node."""

RESERVED = frozenset({"session", "self"})
"""Names that `agent(…)` takes for itself, so that no caller could set a variable of that name."""

_DESCRIPTION, _VARIABLES, _NO_LABEL = "// @desc: ", "// @var_in: ", "NEXT"

_CONFIG = ConfigDict(use_attribute_docstrings=True, extra="forbid")


_T = TypeVar("_T")


def _checked(kind: type[_T]) -> type[_T]:
    """Have a node that is given values of the wrong type say so in this package's own words."""
    build: Callable[..., None] = kind.__init__

    @functools.wraps(build)
    def init(self: _T, *args: object, **values: object) -> None:
        try:
            build(self, *args, **values)
        except ValidationError as error:
            raise ProgramError(_what_is_wrong(kind, error)) from error

    kind.__init__ = init
    return kind


def _what_is_wrong(kind: type[Any], error: ValidationError) -> str:
    names = [field.name for field in fields(kind)]
    first = error.errors(include_url=False)[0]
    place = first["loc"][0] if first["loc"] else ""
    name = names[place] if isinstance(place, int) and place < len(names) else place
    shown = f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}"
    if first["type"] in ("missing", "missing_argument"):
        return f"{shown} needs {name!r}."
    return f"{name!r} of {shown} cannot be {first['input']!r:.80}: {first['msg']}."


@_checked
@dataclass(frozen=True, config=_CONFIG)
class Control:
    """Where a program starts or ends."""

    id: str
    """`start` or `end`."""


@_checked
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
    """A template: what to do; may use the variables in `var_in`."""
    var_in: list[str] = Field(default_factory=list[str])
    """Variables that the prompt may use."""
    var_out: str | None = None
    """Variable that the result is stored in."""
    disable_inference: Annotated[bool, Strict()] = False
    """Give the rendered prompt to the tool as it is, without asking a language model."""


@_checked
@dataclass(frozen=True, config=_CONFIG)
class Decision:
    """Choose between the labels of the edges that leave this node."""

    id: str
    """Unique in the program."""
    purpose: str
    """Why this is asked."""
    question: str
    """A template: the question to answer."""
    var_in: list[str] = Field(default_factory=list[str])
    """Variables that the question may use."""


@_checked
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

    @property
    def is_error(self) -> bool:
        """Whether its label is ERROR; out of an Action that is the way taken when it fails."""
        return self.label is not None and self.label.strip().upper() == ERROR


class ProgramGraph(Protocol):
    """What checks, text and drawing read of a program."""

    name: str
    """Its name."""
    description: str
    """What it is for."""
    var_in: list[str]
    """Variables that its caller sets."""
    nodes: dict[str, Node]
    """Its nodes by id."""
    edges: list[Edge]
    """Its edges, in the order they were added."""


def reached(first: Iterable[str], after: Callable[[str], Iterable[str]]) -> dict[str, None]:
    """Return the names given and all that can be reached from them, nearest first."""
    found = dict.fromkeys(first)
    waiting = list(found)
    for name in waiting:
        new = [each for each in dict.fromkeys(after(name)) if each not in found]
        found |= dict.fromkeys(new)
        waiting += new
    return found


_TEXTS = ("purpose", "prompt", "question")


def with_texts(node: Node, rewrite: Callable[[str], str]) -> Node:
    """Return a node with its purpose, prompt and question rewritten."""
    said = {key: rewrite(getattr(node, key)) for key in _TEXTS if hasattr(node, key)}
    return replace(node, **said)


def program_text(program: ProgramGraph) -> str:
    """Return the text form of a program."""
    head = [f"{_DESCRIPTION}{line}" for line in _description_lines(program.description)]
    if program.var_in:
        head.append(_VARIABLES + ", ".join(program.var_in))
    items = [_node_source(name, node) for name, node in program.nodes.items()]
    items += [_edge(edge) for edge in program.edges]
    text = "\n".join([*head, "CREATE", ",\n".join(items)]) + "\n"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        around = text[max(0, error.start - 20) : error.start + 20]
        raise ProgramError(
            f"the program {program.name!r} cannot be written as text: near {around!r} there is "
            "half a character (a lone surrogate)."
        ) from None
    return text


def _description_lines(text: str) -> list[str]:
    """Return the lines of a description; as one JSON string if plain lines would not keep it."""
    lines = text.split("\n") if text else []
    plain = all(line == line.strip() and line.isprintable() for line in lines)
    return lines if plain and not text.startswith('"') else [json.dumps(text)]


def _node_source(name: str, node: Node) -> str:
    """Return a node as text, without the properties that stand at their empty default."""
    head = f"({_quoted(name)}:{type(node).__name__} {{"
    values = {field.name: getattr(node, field.name) for field in fields(node)}
    written = [
        f"{key}: {json.dumps(value, ensure_ascii=False)}"
        for key, value in values.items()
        if value not in (None, False, [])
    ]
    if isinstance(node, Control):
        return f"{head}{written[0]}}})"
    inside = ",\n  ".join(written)
    return f"{head}\n  {inside}\n}})"


def _edge(edge: Edge) -> str:
    label = _NO_LABEL if edge.label is None else _quoted(edge.label)
    return f"({_quoted(edge.source)})-[:{label}]->({_quoted(edge.target)})"


def _quoted(name: str) -> str:
    """Return a name as it stands in the text: in back quotes unless it is a plain word.

    A label that reads NEXT is quoted too, since the bare word says that there is no label.
    """
    plain = name.isascii() and name.isidentifier() and name != _NO_LABEL
    return name if plain else "`" + name.replace("`", "``") + "`"
