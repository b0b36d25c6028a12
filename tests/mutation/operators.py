"""The faults: what one place in a module could read instead."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_LEFT_ALONE = {"__repr__", "_repr_html_", "__str__"}
_LOGS = {"log", "_log"}


@dataclass(frozen=True)
class Mutant:
    """One place of a file and what is to stand there."""

    path: Path
    line: int
    begin: int
    end: int
    before: str
    after: str

    def applied(self, source: bytes) -> bytes:
        """Return the file with the fault in it."""
        return source[: self.begin] + self.after.encode() + source[self.end :]


def mutants(path: Path) -> Iterator[Mutant]:
    """Yield every fault that a function of a file can be given; annotations and logs have none."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in _inside_functions(ast.parse(source)):
        if not isinstance(node, ast.expr | ast.stmt):
            continue
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        before = source[begin:end].decode()
        for other in _others(node):
            after = ast.unparse(ast.fix_missing_locations(other))
            if after == ast.unparse(node):
                continue
            if isinstance(other, ast.expr):
                after = f"({after})"
            mutant = Mutant(path, node.lineno, begin, end, before, after)
            try:
                compile(mutant.applied(source), str(path), "exec")
            except (SyntaxError, ValueError):
                continue
            yield mutant


def _inside_functions(tree: ast.Module) -> Iterator[Any]:
    for function in ast.walk(tree):
        is_function = isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        if is_function and function.name not in _LEFT_ALONE:
            yield from chain.from_iterable(map(_parts, function.body))


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and what is in it, but for functions of its own, annotations, texts and logs."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.JoinedStr):
        return
    if isinstance(node, ast.Raise | ast.Assert) or _logs(node):
        return
    yield node
    for part in ast.iter_child_nodes(node):
        if part is not getattr(node, "annotation", None):
            yield from _parts(part)


def _logs(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and any(
        isinstance(part, ast.Name) and part.id in _LOGS for part in ast.walk(node)
    )


def _others(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what could stand in the place of a node."""
    other: Any = deepcopy(node)
    match node:
        case ast.Compare(ops=[op]):
            other.ops = [_COMPARED[type(op)]()]
        case ast.BoolOp():
            other.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        case ast.IfExp():
            other.test = ast.UnaryOp(ast.Not(), other.test)
        case ast.UnaryOp(op=ast.Not()):
            other = other.operand
        case ast.BinOp() if type(node.op) in _COMPUTED:
            other.op = _COMPUTED[type(node.op)]()
        case ast.Constant(value=True | False as value):
            other.value = not value
        case ast.Constant(value=int() as value):
            other.value = value + 1
            yield ast.Constant(value - 1)
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign():
            other = ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            other = ast.Pass()
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            other.value = ast.Constant(None)
        case ast.Call(args=[first, second, *_]) if not isinstance(first, ast.Starred):
            if isinstance(second, ast.Starred) or ast.unparse(node.func) == "cast":
                return
            other.args[:2] = [second, first]
        case _:
            return
    yield other
