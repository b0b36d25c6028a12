"""Graphs as Mermaid flowcharts: programs and plans for pages that draw such text themselves.

Takes the same plain dicts as the SVG drawing. Every mark of Mermaid, Markdown or HTML in a text is
written as an entity code, so that a text stays text whoever wrote it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hybridagi_steps.display.graph import shown

_SHAPES = {
    "control": ('(["', '"])'),
    "decision": ('{{"', '"}}'),
    "analyze": ('{{"', '"}}'),
    "program": ('[["', '"]]'),
    "validate": ('[["', '"]]'),
}
_LONGEST_TEXT = 2_000


def graph_mermaid(nodes: Sequence[Mapping[str, Any]], edges: Sequence[Mapping[str, Any]]) -> str:
    """Return a directed graph as a Mermaid flowchart.

    Args:
        nodes: One dict each, as of `graph_svg`; `id`, `label` and `kind` are read.
        edges: One dict each: `source`, `target` and `label`; those of unknown nodes are left out.
    """
    numbers = {str(node["id"]): number for number, node in enumerate(nodes)}
    lines = ["flowchart TD"]
    for number, node in enumerate(nodes):
        before, after = _SHAPES.get(str(node.get("kind")), ('["', '"]'))
        lines.append(f"    n{number}{before}{_text(node.get('label') or node['id'])}{after}")
    for edge in edges:
        ends = [numbers.get(str(edge[name])) for name in ("source", "target")]
        if None not in ends:
            label = _text(edge.get("label") or "")
            arrow = f'-->|"{label}"|' if label else "-->"
            lines.append(f"    n{ends[0]} {arrow} n{ends[1]}")
    return "\n".join(lines) + "\n"


def _text(value: object) -> str:
    plain = shown(str(value)[:_LONGEST_TEXT])
    return "".join(c if c.isalnum() or c in " .,:?!'_/-" else f"#{ord(c)};" for c in plain).strip()
