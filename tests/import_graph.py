"""The import graph of a package, read from its source.

Every import counts, wherever it stands: in a function, under `TYPE_CHECKING`, in the dotted text
that `import_module` or `sys.modules` is given. What runs or what a linter sees is less than that.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

Graph = Mapping[str, set[str]]


def import_graph(root: Path) -> dict[str, set[str]]:
    """Return which modules of a package each of its modules names.

    What a package's `__init__` takes from its own modules is its door, and no arrow.
    """
    paths = _modules(root)
    graph: dict[str, set[str]] = {}
    for name, path in paths.items():
        named = set(_named(ast.parse(path.read_text("utf-8")), paths)) - {name}
        is_door = path.name == "__init__.py"
        graph[name] = {each for each in named if not (is_door and each.startswith(f"{name}."))}
    return graph


def circles(graph: Graph) -> list[list[str]]:
    """Return the groups of nodes that reach each other (Tarjan 1972)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for target in graph.get(name, ()):
            if target not in order:
                visit(target)
                low[name] = min(low[name], low[target])
            elif target in stack:
                low[name] = min(low[name], order[target])
        if low[name] == order[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                found.append(sorted(group))

    for name in graph:
        if name not in order:
            visit(name)
    return found


def _modules(root: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in sorted(root.rglob("*.py")):
        parts = (root.name, *path.relative_to(root).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _named(tree: ast.AST, modules: Mapping[str, Path]) -> Iterator[str]:
    prose = set[int]()
    for node in ast.walk(tree):  # parents come before their children
        if isinstance(node, ast.Expr):
            prose.add(id(node.value))
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module in modules:
            for alias in node.names:
                inside = f"{node.module}.{alias.name}"
                yield inside if inside in modules else node.module  # pyright: ignore
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value.partition(":")[0]
            owner = text.rpartition(".")[0]
            if id(node) in prose or "." not in text:
                continue
            if text in modules:
                yield text
            elif "." in owner and owner in modules:
                yield owner
