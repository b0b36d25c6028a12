"""The text form of graph programs: nodes and edges as in a Cypher CREATE, and back.

    // @desc: Answer the user
    CREATE
    (start:Control {id: "start"}),
    (end:Control {id: "end"}),
    (answer:Action {id: "answer", tool: "Speak", purpose: "Answer", prompt: "Answer the question"}),
    (start)-[:NEXT]->(answer),
    (answer)-[:NEXT]->(end)

A grammar reads it (lark, LALR), so that a value may hold whatever a text can hold. Strings are
those of JSON; `[:NEXT]` and `-->` are edges without a label; a name that is no plain word stands
in back quotes, doubled inside. Errors name line and column. This module knows nodes and edges;
whether they make a sound program is a question for `checks`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from hybridagi_steps.errors import ProgramError
from hybridagi_steps.graph.nodes import Control, Edge, Node, ProgramGraph

__all__ = ["write"]

_DESCRIPTION, _VARIABLES, _NO_LABEL = "// @desc: ", "// @var_in: ", "NEXT"


def write(program: ProgramGraph) -> str:
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
    head = f"({_quoted(name)}:{type(node).__name__} {{"
    values = dict(_properties(node))
    if isinstance(node, Control):
        return f"{head}{_property_source('id', values)}}})"
    inside = ",\n".join(f"  {_property_source(key, values)}" for key in values)
    return f"{head}\n{inside}\n}})"


def _properties(node: Node) -> Iterator[tuple[str, Any]]:
    """Yield a node's properties, without those that stand at their empty default."""
    for field in fields(node):
        value = getattr(node, field.name)
        if value not in (None, False, []):
            yield field.name, value


def _property_source(key: str, values: Mapping[str, Any]) -> str:
    return f"{key}: {json.dumps(values[key], ensure_ascii=False)}"


def _edge(edge: Edge) -> str:
    label = _NO_LABEL if edge.label is None else _quoted(edge.label)
    return f"({_quoted(edge.source)})-[:{label}]->({_quoted(edge.target)})"


def _quoted(name: str) -> str:
    """Return a name as it stands in the text: in back quotes unless it is a plain word.

    A label that reads NEXT is quoted too, since the bare word says that there is no label.
    """
    plain = name.isascii() and name.isidentifier() and name != _NO_LABEL
    return name if plain else "`" + name.replace("`", "``") + "`"
