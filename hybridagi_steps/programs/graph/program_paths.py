"""Ways through a graph program: what is reached from where, and which programs can come to an end.

Plain graph walks without recursion, so that no program is too deep for them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from hybridagi_steps.graph.nodes import END, START, Edge, Program, ProgramGraph

Steps = Mapping[str, Sequence[str]]
"""For each node, the nodes one edge away; asking for an unknown node gives none."""


def steps_on(edges: Iterable[Edge]) -> Steps:
    """Return for each node those that follow it."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for edge in edges:
        found[edge.source].append(edge.target)
    return found


def steps_back(edges: Iterable[Edge]) -> Steps:
    """Return for each node those that lead to it."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for edge in edges:
        found[edge.target].append(edge.source)
    return found


def reached(first: Iterable[str], steps: Steps) -> set[str]:
    """Return the nodes given and all that can be reached from them."""
    seen, waiting = set[str](), list(first)
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting += steps[node]
    return seen


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
    if END not in reached({START}, steps_on(program.edges)):
        return True
    open_edges = [edge for edge in program.edges if edge.source not in blocked]
    return END in reached({START}, steps_on(open_edges))
