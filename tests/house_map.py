"""Draws the rooms of the package and lists them: `python -m tests.house_map` rewrites both.

The drawing is `.github/docs/architecture.svg`, the table stands between two marks in
`architecture.md`. An arrow means "imports"; what follows from other arrows is left out.
"""

from __future__ import annotations

import ast
from pathlib import Path

from hybridagi_steps.display.graph import graph_svg
from tests.import_graph import Graph, import_graph

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "hybridagi_steps"
PAGE = ROOT / ".github" / "docs" / "architecture.md"
DRAWING = PAGE.with_suffix(".svg")
BEGIN, END = "<!-- rooms: python -m tests.house_map -->", "<!-- end of rooms -->"

_SMALL = {"__main__", "lazy", "errors", "_concurrency", "outside_files"}
"""Left out of the drawing: whatever stands above them uses them."""
_KINDS = {
    "cli": "control", "server": "control", "plots": "control", "display": "control",
    "programs": "action", "graph": "action", "planning": "action", "running": "action",
    "recording": "action", "durable": "action", "workspace": "action", "testing": "action",
    "memory": "program", "search": "program", "stores": "program", "sessions": "program",
    "erasure": "program", "embedders": "program", "rerankers": "program",
    "context": "decision", "messages": "decision", "exchange": "decision",
}  # fmt: skip


def rooms() -> dict[str, set[str]]:
    """Return which rooms of the package each room imports from; the doors are left out."""
    graph: dict[str, set[str]] = {}
    for name, targets in import_graph(PACKAGE).items():
        if name == PACKAGE.name or name.startswith(f"{PACKAGE.name}.programs.tools"):
            continue
        if name == f"{PACKAGE.name}.programs":
            targets = set[str]()
        inner = {target.split(".")[1] for target in targets if "." in target}
        graph.setdefault(name.split(".")[1], set()).update(inner)
    return {room: targets - {room} for room, targets in graph.items()}


def without_shortcuts(graph: Graph) -> dict[str, set[str]]:
    """Return a graph without the arrows that a longer way stands for (transitive reduction)."""

    def reached(room: str) -> set[str]:
        below = graph.get(room, set())
        return below.union(*map(reached, below))

    return {
        room: {each for each in below if not any(each in reached(o) for o in below - {each})}
        for room, below in graph.items()
    }


def _about(room: str) -> tuple[int, int, str]:
    """Return a room's number of files, its lines, and the first line of its docstring."""
    folder = PACKAGE / room
    files = sorted(folder.rglob("*.py")) if folder.is_dir() else [PACKAGE / f"{room}.py"]
    lines = sum(len(path.read_text("utf-8").splitlines()) for path in files)
    own = folder / "__init__.py" if folder.is_dir() else files[0]
    told = ast.get_docstring(ast.parse(own.read_text("utf-8"))) or ""
    return len(files), lines, told.splitlines()[0]


def drawing(graph: Graph) -> str:
    """Return the map as SVG."""
    shown = {room: below for room, below in graph.items() if room not in _SMALL}
    arrows = without_shortcuts({room: below - _SMALL for room, below in shown.items()})
    nodes: list[dict[str, str]] = []
    for room in shown:
        files, lines, told = _about(room)
        detail = f"{lines:,} lines, {files} files" if files > 1 else f"{lines:,} lines"
        nodes.append({"id": room, "kind": _KINDS.get(room, ""), "detail": detail, "title": told})
    edges = [{"source": a, "target": b} for a, below in arrows.items() for b in sorted(below)]
    return graph_svg(nodes, edges, title="The rooms of the package and what they import")


def table(graph: Graph) -> str:
    """Return the rooms as a table in Markdown, those that stand on others first."""
    above: dict[str, int] = {}

    def height(room: str) -> int:
        if room not in above:
            above[room] = 1 + max(map(height, graph.get(room, ())), default=0)
        return above[room]

    lines = ["| room | files | lines | what lives there |", "| --- | --- | --- | --- |"]
    for room in sorted(graph, key=lambda room: (-height(room), room)):
        if room != "__main__":
            files, length, told = _about(room)
            lines.append(f"| `{room}` | {files} | {length:,} | {told} |")
    return "\n".join(lines)


def main() -> None:
    """Rewrite the drawing and the table."""
    graph = rooms()
    DRAWING.write_text(drawing(graph) + "\n", "utf-8")
    text = PAGE.read_text("utf-8")
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    PAGE.write_text(f"{head}{BEGIN}\n{table(graph)}\n{END}{tail}", "utf-8")


if __name__ == "__main__":
    main()
