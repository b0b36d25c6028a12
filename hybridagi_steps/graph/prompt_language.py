"""Language of prompts: a part of Jinja in which work and output grow with the data alone.

Programs come from files, memories and other agents, so what a prompt may ask for is decided when it
is read, not while it runs. There are values, `.key` and `[index]`, `if`, `for`, comparisons and
filters with short constants; no calls, arithmetic, assignments or macros. Five rules keep the work
within a constant times the template and its values:

* A loop goes through a variable, and an inner loop through the variable of the loop around it.
* Inside a loop, filters, slices, `~` and `in` work on that loop's variable or on constants.
* Filters that take a value apart come before those that write text.
* Together the filters of one chain lengthen a text at most `_MOST_GROWTH` times.
* Attributes of Python objects cannot be read, and the tests and filters are those listed here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from jinja2 import StrictUndefined, TemplateSyntaxError, nodes
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment

_LONGEST_CONSTANT = 100
_LARGEST_NUMBER = 10_000
_MOST_GROWTH = 100
_CONSTRUCTS = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.For, nodes.If, nodes.CondExpr),
    *(nodes.Name, nodes.Getattr, nodes.Getitem, nodes.Slice, nodes.Const, nodes.Tuple, nodes.List),
    *(nodes.Compare, nodes.Operand, nodes.And, nodes.Or, nodes.Not, nodes.Neg, nodes.Concat),
    *(nodes.Filter, nodes.Test, nodes.Keyword),
)
_COUNTS = frozenset({"abs", "count", "float", "int", "length", "round", "wordcount"})
"""Filters whose result is a number."""
_PARTS = frozenset(
    {
        *("batch", "dictsort", "first", "groupby", "items", "last", "list", "map", "max", "min"),
        *("reject", "rejectattr", "reverse", "select", "selectattr", "sort", "sum", "unique"),
    }
)
"""Filters that take a value apart; nothing is written by them."""
_TEXTS = frozenset(
    {
        *("capitalize", "d", "default", "e", "escape", "join", "lower", "replace", "string"),
        *("title", "tojson", "trim", "truncate", "upper", "urlencode"),
    }
)
"""Filters that write a text."""
_GROWTH = {"e": 5, "escape": 5, "tojson": 12, "urlencode": 12}
"""How many characters a filter may write for one."""
_MOST_ARGUMENTS = {"batch": 1, "groupby": 1, "map": 0, "tojson": 0}
"""Positional arguments of filters that could fill in, nest or indent with more."""
_TESTS = (
    *("!=", "<", "<=", "==", ">", ">=", "eq", "equalto", "ge", "greaterthan", "gt", "in", "le"),
    *("lessthan", "lt", "ne", "boolean", "defined", "divisibleby", "even", "false", "float"),
    *("integer", "iterable", "mapping", "none", "number", "odd", "sequence", "string", "true"),
    "undefined",
)
_NOUNS = {
    nodes.Call: "calls such as `x.get()` or `range(9)`; give the value as an input",
    nodes.BinExpr: "arithmetic; compute the value before and give it as an input",
    nodes.UnaryExpr: "arithmetic; compute the value before and give it as an input",
    nodes.Assign: "`set`; write the expression where its value is wanted",
    nodes.AssignBlock: "`set`; write the expression where its value is wanted",
    nodes.NSRef: "`set`; write the expression where its value is wanted",
    nodes.Macro: "macros; write their text out, or loop over a list with `for`",
    nodes.CallBlock: "macros; write their text out, or loop over a list with `for`",
    nodes.FilterBlock: "`filter` blocks; use `{{ x | filter }}`",
    nodes.Dict: "dicts; give the values as inputs",
}


class PromptEnvironment(ImmutableSandboxedEnvironment):
    """Environment that reads the language of prompts and refuses all other Jinja.

    Args:
        finalize: Returns how a value stands in a prompt.

    Raises:
        TemplateSyntaxError: By `parse` and `from_string`; it has the line and names the construct.
    """

    def __init__(self, finalize: Callable[[Any], str] | None = None) -> None:
        super().__init__(undefined=StrictUndefined, finalize=finalize, keep_trailing_newline=True)
        self.filters = {name: self.filters[name] for name in _COUNTS | _PARTS | _TEXTS}
        self.tests = {name: self.tests[name] for name in _TESTS}
        # By themselves these multiply a text, or fill it in, where they meet one.
        self.filters["round"] = _of_number(self.filters["round"])
        for name in ("divisibleby", "even", "odd"):
            self.tests[name] = _of_number(self.tests[name])
        self.globals.clear()

    def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:  # noqa: ARG002
        """Whether an attribute may be read: of `loop` alone; keys of dicts are no attributes."""
        return type(obj).__module__ == "jinja2.runtime" and not attr.startswith("_")

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        try:
            tree = super()._parse(source, name, filename)
        except ValueError as error:  # a number of more digits than Python reads
            raise TemplateSyntaxError(str(error), 1) from error
        _check(tree, None)
        return tree


def _of_number(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter or test that refuses whatever is no number."""

    def on_number(value: object, *args: Any, **options: Any) -> Any:
        if not isinstance(value, int | float):
            raise TypeError(f"{value!r:.60} is no number")
        return function(value, *args, **options)

    return on_number


_READER = PromptEnvironment()


@lru_cache(maxsize=2048)
def variables_in(source: str) -> frozenset[str]:
    """Return the variables that a prompt reads.

    Raises:
        TemplateSyntaxError: It is no prompt, or cannot be compiled.
    """
    try:
        tree = _READER.parse(source)
        names = find_undeclared_variables(tree)
        _READER.compile(tree)
    except (RecursionError, SyntaxError) as error:
        raise TemplateSyntaxError("it is nested too deeply", 1) from error
    return frozenset(names)


def _check(node: nodes.Node, loop: frozenset[str] | None) -> int:
    """Check a node and all below it.

    Args:
        node: Part of a template.
        loop: Variables of the innermost loop around it, None outside of loops.

    Returns:
        How many times longer than a value the text may be that is written here; 0 if none is.
    """
    if not isinstance(node, _CONSTRUCTS):
        kinds = (noun for kind, noun in _NOUNS.items() if isinstance(node, kind))
        raise _error(node, f"prompts have no {next(kinds, f'`{type(node).__name__.lower()}`')}")
    if isinstance(node, nodes.For):
        return _check_loop(node, loop)
    growth = max((_check(child, loop) for child in node.iter_child_nodes()), default=0)
    if isinstance(node, nodes.Neg | nodes.List | nodes.Slice) or (
        isinstance(node, nodes.Tuple) and node.ctx == "load"
    ):
        _constants(node, node.iter_child_nodes())
    if isinstance(node, nodes.Test | nodes.Filter):
        if node.dyn_args is not None or node.dyn_kwargs is not None:
            raise _error(node, "prompts have no `*` or `**`")
        constants = _constants(node, [*node.args, *(option.value for option in node.kwargs)])
        if isinstance(node, nodes.Filter):
            growth = _check_filter(node, constants, growth)
    if isinstance(node, nodes.Concat):
        growth = max(1, growth)
    if loop is not None:
        _check_in_loop(node, loop)
    return growth


def _check_loop(node: nodes.For, loop: frozenset[str] | None) -> int:
    if node.recursive:
        raise _error(node, "prompts have no recursive loops")
    source: nodes.Node = node.iter
    while isinstance(source, nodes.Getattr | nodes.Getitem | nodes.Filter):
        source = source.node or node
    if not isinstance(source, nodes.Name):
        raise _error(node, "a loop goes through a variable")
    if loop is not None and source.name not in loop:
        raise _error(
            node,
            f"an inner loop goes through the variable of the loop around it, not {source.name!r}",
        )
    if _check(node.iter, loop):
        raise _error(node, "a loop goes through a variable, not through a text that a filter wrote")
    inner = frozenset(_names(node.target))
    _check(node.target, loop)
    for child in node.body if node.test is None else (node.test, *node.body):
        _check(child, inner)
    for child in node.else_:
        _check(child, loop)
    return 0


def _check_filter(node: nodes.Filter, constants: Sequence[Any], growth: int) -> int:
    """Check the place and the arguments of a filter; return the growth of its result."""
    positional = constants[: len(node.args)]
    options = {option.key for option in node.kwargs}
    if (most := _MOST_ARGUMENTS.get(node.name)) is not None and (
        len(positional) > most or not options <= {"attribute", "case_sensitive"}
    ):
        raise _error(node, f"in prompts `{node.name}` takes no filter, filling, default or indent")
    if node.name in _PARTS and growth:
        raise _error(node, f"`{node.name}` takes a text apart that was written before it")
    if node.name not in _TEXTS:
        return 0
    sizes = [len(str(value)) for value in positional]
    factor = _GROWTH.get(node.name, 1)
    if node.name == "replace" and len(sizes) > 1 and sizes[0]:
        factor = max(1, -(-sizes[1] // sizes[0]))
    elif node.name in {"join", "replace"}:
        factor = 1 + max((len(str(value)) for value in constants), default=0)
    if (growth := max(1, growth) * factor) > _MOST_GROWTH:
        raise _error(node, f"with `{node.name}` a text may grow over {_MOST_GROWTH} times")
    return growth


def _check_in_loop(node: nodes.Node, loop: frozenset[str]) -> None:
    """Check that what costs more for a longer value works on the variable of the loop."""
    costly: list[nodes.Node] = []
    if isinstance(node, nodes.Filter | nodes.Concat) or (
        isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    ):
        costly = [node]
    elif isinstance(node, nodes.Compare):
        left: nodes.Node = node.expr
        for operand in node.ops:
            right = operand.expr
            if "in" in operand.op or not _names(left) <= loop:
                costly.append(right)
            left = right
    for each in costly:
        if others := _names(each) - loop - {"loop"}:
            raise _error(
                node,
                f"inside a loop, filters, slices, `~` and comparisons work on the variable of that "
                f"loop, not on {', '.join(map(repr, sorted(others)))}",
            )


def _names(node: nodes.Node) -> set[str]:
    names = {each.name for each in node.find_all(nodes.Name)}
    return names | {node.name} if isinstance(node, nodes.Name) else names


def _constants(node: nodes.Node, values: Any) -> list[Any]:
    """Return the values of nodes that must be short constants."""
    constants: list[Any] = []
    for value in values:
        negative = isinstance(value, nodes.Neg)
        constant = value.node if negative else value
        if not isinstance(constant, nodes.Const) or (
            len(str(constant.value)) > _LONGEST_CONSTANT
            or (isinstance(constant.value, int) and constant.value > _LARGEST_NUMBER)
        ):
            raise _error(
                node,
                "in prompts arguments of filters and tests, slices and lists are constants: texts "
                f"to {_LONGEST_CONSTANT} characters, numbers to {_LARGEST_NUMBER:,}",
            )
        constants.append(constant.value)
    return constants


def _error(node: nodes.Node, message: str) -> TemplateSyntaxError:
    return TemplateSyntaxError(message, node.lineno)
