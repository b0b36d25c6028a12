"""Variables of graph programs: who sets them, who reads them, and who reads what nobody set.

A variable counts as set at a node when some way that leads there passes a node that sets it: an
Action with this `var_out`, or a call of a program that has one. That no way sets it is a mistake;
that another way does not is the author's business, and an error when it happens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hybridagi_steps.graph.nodes import (
    PROVIDED,
    RESERVED,
    Action,
    Decision,
    Node,
    Program,
    ProgramGraph,
)
from hybridagi_steps.programs.graph.program_paths import reached, steps_on

_CALLS_ANY = frozenset({"CallGraphProgram"})
"""Tools that call a program which is chosen only then."""
_ANY = "*"
"""Stands for all variables: what an unknown program sets cannot be known."""


def unset_variables(
    program: ProgramGraph, programs: Mapping[str, ProgramGraph] | None
) -> Iterator[str]:
    """Yield variables with names that none can have, and those read where nothing has set them.

    Complexity: O(v e) in variables and edges.
    """
    yield from _odd_names(program)
    yield from _taken_names(program)
    setters: dict[str, list[str]] = {}
    for node_id, node in program.nodes.items():
        for name in _set_by(node, programs):
            setters.setdefault(name, []).append(node_id)
    steps = steps_on(program.edges)
    known_at = {
        name: reached((after for node_id in ids for after in steps[node_id]), steps)
        for name, ids in setters.items()
    }
    always, anywhere = {*PROVIDED, *program.var_in}, known_at.get(_ANY, set())
    for node in program.nodes.values():
        needs, names = _wanted(node, programs)
        for name in dict.fromkeys(names):
            known = name in always or node.id in anywhere or node.id in known_at.get(name, ())
            if not known and name.isidentifier():
                yield (
                    f"{node.id!r} {needs} the variable {name!r}, which nothing before it sets: "
                    "give an Action before it this var_out, or the program this var_in"
                )


def var_in_of(node: Node) -> Sequence[str]:
    """Return the variables that a node's template may use."""
    return node.var_in if isinstance(node, Action | Decision) else ()


def _odd_names(program: ProgramGraph) -> Iterator[str]:
    for node in program.nodes.values():
        written = [node.var_out] if isinstance(node, Action) and node.var_out is not None else []
        for name in dict.fromkeys([*var_in_of(node), *written]):
            if not name.isidentifier():
                yield f"{name!r} at {node.id!r} cannot be the name of a variable"


def _taken_names(program: ProgramGraph) -> Iterator[str]:
    """Yield variables whose names stand for something else, so that their values would be lost."""
    for name in dict.fromkeys(program.var_in):
        if name in RESERVED:
            yield f"var_in of the program lists {name!r}, a name that agent(…) keeps; rename it"
    for node in program.nodes.values():
        if isinstance(node, Action) and node.var_out in PROVIDED:
            yield (
                f"var_out of {node.id!r} is {node.var_out!r}, which every run sets itself: keep "
                "the result under another name; the tool UpdateObjective changes the objective"
            )


def _wanted(node: Node, programs: Mapping[str, ProgramGraph] | None) -> tuple[str, Sequence[str]]:
    """Return how a node needs variables, and which."""
    if isinstance(node, Program) and programs and node.program in programs:
        return f"calls {node.program!r} with", programs[node.program].var_in
    return "reads", var_in_of(node)


def _set_by(node: Node, programs: Mapping[str, ProgramGraph] | None) -> set[str]:
    """Return the variables that a node may set."""
    if isinstance(node, Action):
        own = set[str]() if node.var_out is None else {node.var_out}
        return own | ({_ANY} if node.tool in _CALLS_ANY else set())
    if not isinstance(node, Program):
        return set()
    if programs is None or node.program not in programs:
        return {_ANY}
    names, waiting, seen = set[str](), [node.program], set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for inner in programs[name].nodes.values() if name in programs else ():
            if isinstance(inner, Program):
                waiting.append(inner.program)
            else:
                names |= _set_by(inner, programs)
    return names
