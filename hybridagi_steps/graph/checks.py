"""What is wrong with a graph program: all of it at once, before anything runs.

Each check is a small generator of plain sentences over nodes and edges; `problems` and
`check_programs` collect them. Prompts are parsed here and never rendered, so nothing that a prompt
says is carried out. Checks are arranged so that one mistake makes one line: what lies behind a
dead end is not called a dead end again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast

from hybridagi_steps.errors import InvalidProgramError
from hybridagi_steps.graph.nodes import (
    END,
    PROVIDED,
    RESERVED,
    START,
    Action,
    Control,
    Decision,
    Edge,
    Node,
    Program,
    ProgramGraph,
    reached,
)

_CONTROL_IDS = (START, END)


def problems(
    program: ProgramGraph, programs: Mapping[str, ProgramGraph] | None = None
) -> list[str]:
    """Return all that is wrong with a program, one plain sentence each; empty when sound.

    With the `programs` that may be called, by name, calls of unknown programs and recursion without
    an exit are found too; None leaves calls unchecked.
    """
    found = [*_names(program), *_edges(program)]
    if set(program.nodes) <= set(_CONTROL_IDS):
        found.append("the program is empty: add a node and connect it between 'start' and 'end'")
    else:
        found += [*_ways_out(program), *_ways(program)]
    found += _prompts(program)
    found += unset_variables(program, programs)
    if programs is not None:
        found += _calls(program, {**programs, program.name: program})
    return found


def check_programs(programs: Iterable[ProgramGraph] | Mapping[str, ProgramGraph]) -> None:
    """Check programs that call each other.

    Raises:
        InvalidProgramError: Something is wrong; `problems` names the program of each line.
    """
    given = listed(programs)
    by_name = {program.name: program for program in given}
    counts = Counter(program.name for program in given)
    found = [
        f"{name}: {count} programs have this name" for name, count in counts.items() if count > 1
    ]
    broken = [name for name, count in counts.items() if count > 1]
    for program in given:
        lines = problems(program, by_name)
        found += [f"{program.name}: {line}" for line in lines]
        broken += [program.name] if lines else []
    if found:
        raise InvalidProgramError(", ".join(dict.fromkeys(broken)), found)


def listed(programs: Iterable[ProgramGraph] | Mapping[str, ProgramGraph]) -> list[ProgramGraph]:
    """Return programs that were given as a list or by name."""
    if isinstance(programs, Mapping):
        return list(cast("Mapping[str, ProgramGraph]", programs).values())
    return list(programs)


def _names(program: ProgramGraph) -> Iterator[str]:
    if reason := _odd(program.name):
        yield f"the program's name {reason}"
    for node_id, node in program.nodes.items():
        if node_id != node.id:
            yield f"the node {node.id!r} is kept under another id, {node_id!r}"
        if reason := _odd(node.id):
            yield f"the id of the {type(node).__name__} {node.id!r} {reason}"
        if isinstance(node, Control) != (node.id in _CONTROL_IDS):
            yield (
                f"the Control {node.id!r} is neither 'start' nor 'end'"
                if isinstance(node, Control)
                else f"{node.id!r} is no id for a {type(node).__name__}: every program has its own"
            )
        if isinstance(node, Action) and (reason := _odd(node.tool)):
            yield f"the tool of {node.id!r} {reason}"
        if isinstance(node, Program) and (reason := _odd(node.program)):
            yield f"the program called by {node.id!r} {reason}"
    yield from (
        f"the node {name!r} is missing" for name in _CONTROL_IDS if name not in program.nodes
    )


def _odd(name: str) -> str | None:
    """Return why a name would be misread wherever it is shown, or None."""
    if not name:
        return "is empty"
    if name != name.strip():
        return "begins or ends with a blank"
    return None if name.isprintable() else "holds characters that cannot be seen"


def _edges(program: ProgramGraph) -> Iterator[str]:
    for edge in program.edges:
        shown = f"the edge {edge.source!r} -> {edge.target!r}"
        for name in dict.fromkeys(edge[:2]):
            if name not in program.nodes:
                yield f"{shown} names an unknown node, {name!r}"
        if edge.source == END:
            yield f"{shown} leaves 'end'; nothing comes after it"
        if edge.target == START:
            yield f"{shown} enters 'start'; to begin again, connect to the node after it"
        source = program.nodes.get(edge.source)
        may_have = Decision | Action | None if edge.is_error else Decision | None
        if edge.label is not None and not isinstance(source, may_have):
            yield (
                f"{shown} has the label {edge.label!r}; only edges out of a Decision have one, "
                f"an Action's may be ERROR, and {edge.source!r} is a {type(source).__name__}"
            )


def _ways_out(program: ProgramGraph) -> Iterator[str]:
    """Yield what is wrong with the number and the labels of the edges out of each node."""
    leaving: dict[str, list[Edge]] = defaultdict(list)
    for edge in program.edges:
        leaving[edge.source].append(edge)
    for node_id, node in program.nodes.items():
        edges = leaving[node_id]
        if isinstance(node, Decision):
            yield from _options(node_id, edges)
        elif node_id != END:
            failing = [edge for edge in edges if edge.is_error and isinstance(node, Action)]
            edges = [edge for edge in edges if edge not in failing]
            yield from _several(node, edges, "edges")
            yield from _several(node, failing, "ERROR edges")
        if not edges and node_id != END:
            yield f"{node_id!r} is a dead end: connect it to what comes next, or to 'end'"


def _several(node: Node, edges: Sequence[Edge], kind: str) -> Iterator[str]:
    if len(edges) > 1:
        what, targets = type(node).__name__, ", ".join(repr(edge.target) for edge in edges)
        yield f"{len(edges)} {kind} leave the {what} {node.id!r} ({targets}); keep one"


def _options(node_id: str, edges: Sequence[Edge]) -> Iterator[str]:
    for edge in edges:
        if edge.label is None or not edge.label.strip():
            yield f"the edge {node_id!r} -> {edge.target!r} has no label; a Decision's edges do"
        elif not edge.label.isprintable():
            yield f"the label {edge.label!r} of {node_id!r} holds characters that cannot be seen"
    same: dict[str, list[str]] = defaultdict(list)
    for edge in edges:
        if edge.label and edge.label.strip():
            same[label_key(edge.label)].append(edge.label)
    for labels in same.values():
        if len(labels) > 1:
            shown = " and ".join(repr(label) for label in dict.fromkeys(labels))
            yield f"the labels of {node_id!r} repeat: {shown} stands {len(labels)} times"
    if len(edges) == 1:
        yield f"the Decision {node_id!r} has a single choice; it needs two or more"


def label_key(label: str) -> str:
    """Return what two labels share when a model's answer cannot tell them apart.

    Example:
        >>> label_key("Ask User") == label_key("ASK_USER")
        True
    """
    return "_".join(label.casefold().replace("-", " ").replace("_", " ").split()) or label


def _ways(program: ProgramGraph) -> Iterator[str]:
    """Yield the nodes that no way leads to, and those from which no way leads on to `end`."""
    on = steps_on(program.edges)
    met = set(reached([START], on.__getitem__))
    for node_id in program.nodes:
        if node_id not in met and node_id != END:
            yield f"{node_id!r} is unreachable: no way leads there from 'start'"
    # Dead ends and unknown nodes have lines of their own: what leads there is not to blame.
    stops = {END} | {name for name in met if not on[name]}
    leave = set(reached(stops, steps_on(program.edges, back=True).__getitem__))
    if stuck := [repr(node_id) for node_id in program.nodes if node_id in met - leave]:
        yield f"no way leads to 'end' from {', '.join(stuck)}: the loop has no exit"


def _prompts(program: ProgramGraph) -> Iterator[str]:
    from jinja2 import TemplateSyntaxError

    from hybridagi_steps.graph.prompt_language import variables_in

    for node in program.nodes.values():
        if not isinstance(node, Action | Decision):
            continue
        part, text = template_of(node)
        try:
            used = variables_in(text)
        except TemplateSyntaxError as error:
            yield f"the {part} of {node.id!r}, line {error.lineno}: {error.message}"
        else:
            for name in sorted(used - {*node.var_in, *PROVIDED}):
                yield f"the {part} of {node.id!r} uses {name!r}, which its var_in does not list"


def template_of(node: Action | Decision) -> tuple[str, str]:
    """Return what a node's template is called, and the template."""
    return ("prompt", node.prompt) if isinstance(node, Action) else ("question", node.question)


def _calls(program: ProgramGraph, programs: Mapping[str, ProgramGraph]) -> Iterator[str]:
    for node in program.nodes.values():
        if isinstance(node, Program) and node.program not in programs:
            known = ", ".join(sorted(programs)) or "none"
            yield f"{node.id!r} calls the unknown program {node.program!r}; known are {known}"
    endless = programs.keys() - can_finish(programs)
    if program.name in endless:
        called = ", ".join(map(repr, sorted(_called(program) & endless)))
        yield (
            f"recursion without an exit: every way to 'end' calls {called}, which never comes back"
        )


Steps = Mapping[str, Sequence[str]]
"""For each node, the nodes one edge away; asking for an unknown node gives none."""


def steps_on(edges: Iterable[Edge], *, back: bool = False) -> Steps:
    """Return for each node those that follow it, or those that lead to it."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for edge in edges:
        source, target = (edge.target, edge.source) if back else (edge.source, edge.target)
        found[source].append(target)
    return found


def can_finish(programs: Mapping[str, ProgramGraph]) -> set[str]:
    """Return the programs with a way from `start` to `end` on which every call comes back.

    Programs are added while one is found whose way needs none but those already added: a least
    fixed point, so that programs which only wait for each other stay out. Programs with no way to
    `end` at all have another fault and count as coming back, as do unknown ones.
    """
    finishing = set[str]()
    left = dict(programs)
    while True:
        added = {name for name, program in left.items() if _finishes(program, left)}
        if not added:
            return finishing
        finishing |= added
        left = {name: program for name, program in left.items() if name not in added}


def _finishes(program: ProgramGraph, unfinished: Mapping[str, ProgramGraph]) -> bool:
    """Return whether a way to `end` avoids calls of programs not known to come back."""
    blocked = {
        node.id
        for node in program.nodes.values()
        if isinstance(node, Program) and node.program in unfinished
    }
    if END not in reached([START], steps_on(program.edges).__getitem__):
        return True
    open_edges = [edge for edge in program.edges if edge.source not in blocked]
    return END in reached([START], steps_on(open_edges).__getitem__)


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
        name: reached((after for node_id in ids for after in steps[node_id]), steps.__getitem__)
        for name, ids in setters.items()
    }
    always, anywhere = {*PROVIDED, *program.var_in}, known_at.get(_ANY, ())
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
    if isinstance(node, Action):
        own = set[str]() if node.var_out is None else {node.var_out}
        return own | ({_ANY} if node.tool in _CALLS_ANY else set())
    if not isinstance(node, Program):
        return set()
    if programs is None or node.program not in programs:
        return {_ANY}
    called = reached([node.program], lambda name: _called(programs.get(name)))
    inside = [node for name in called if name in programs for node in programs[name].nodes.values()]
    names = (_set_by(inner, programs) for inner in inside if not isinstance(inner, Program))
    return set[str]().union(*names)


def _called(program: ProgramGraph | None) -> set[str]:
    """Return the names of the programs that one calls."""
    nodes = program.nodes.values() if program is not None else ()
    return {node.program for node in nodes if isinstance(node, Program)}
