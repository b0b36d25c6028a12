"""A graph program as a drawing: which text stands on which node.

Turns nodes and edges into the plain dicts that `display.graph_drawing` draws, and knows how a
notebook is told to show something. Long texts are cut in the drawing and whole in the tooltips.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from hybridagi_steps.display.graph import graph_svg
from hybridagi_steps.graph.nodes import (
    Action,
    Decision,
    Node,
    Program,
    ProgramGraph,
)


def program_svg(program: ProgramGraph) -> str:
    """Return a program as an SVG drawing; it loads nothing and runs no script."""
    nodes = [_drawn(name, node) for name, node in program.nodes.items()]
    edges = [
        {"source": edge.source, "target": edge.target, "label": edge.label or ""}
        for edge in program.edges
    ]
    title = f"{program.name}: {program.description}" if program.description else program.name
    return graph_svg(nodes, edges, title=title)


def shown_in_notebook(value: Any) -> bool:
    """Show a value in the notebook that runs this code; return whether there is one."""
    # Whoever runs in a notebook has loaded IPython; nobody else pays for looking.
    ipython = sys.modules.get("IPython")
    shell: Any = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return False
    display: Any = import_module("IPython.display").display
    display(value)
    return True


def _drawn(name: str, node: Node) -> dict[str, str]:
    kind = type(node).__name__
    drawn = {"id": name, "label": node.id, "kind": kind.lower(), "title": node.id}
    if isinstance(node, Action):
        drawn["detail"] = f"{node.tool} · {node.purpose}"
        drawn["title"] = f"{kind} {node.id}: {node.tool}\n{node.purpose}\n\n{node.prompt}"
    elif isinstance(node, Decision):
        drawn["detail"] = node.question or node.purpose
        drawn["title"] = f"{kind} {node.id}\n{node.purpose}\n\n{node.question}"
    elif isinstance(node, Program):
        drawn["detail"] = f"{node.program} · {node.purpose}"
        drawn["title"] = f"{kind} {node.id}: {node.program}\n{node.purpose}"
    return drawn
