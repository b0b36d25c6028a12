"""The sandbox of prompts: what a template may reach, and how much it may make.

Attributes of Python objects cannot be reached at all, and of filters only those on a list. A
template of twenty characters can still ask for gigabytes, or for minutes. So no value that a
template makes is longer than a prompt may be, or nested deeply; the few operations whose result can
be far longer than what they are given are looked at before they run; all that is made is added up;
turns of loops and calls are counted, and the thread's computing time is looked at with each.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Generator, ItemsView, Iterable, Iterator, KeysView, ValuesView
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from sys import getsizeof
from typing import Any, cast

from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

MOST_CHARACTERS = 2_000_000
"""Of a prompt, and of each value that is made on the way."""
_MOST_BYTES = 128 * 2**20
"""Of all values that one prompt makes."""
_MOST_ON_THE_WAY = 2**25
"""Characters that one operation may come to before its result is looked at."""
_MOST_TURNS = 200_000
"""Turns of loops, and calls, in one prompt: about a tenth of a second if little is done in each."""
_MOST_SECONDS = 2.0
"""Of this thread's computing time, for turns in which much is done."""
_MOST_LEVELS = 64
_LARGEST_NUMBER = 10_000
"""As a factor, or as a width."""

FILTERS = frozenset(
    {
        *("abs", "attr", "batch", "capitalize", "center", "count", "d", "default", "dictsort", "e"),
        *("escape", "filesizeformat", "first", "float", "format", "groupby", "indent", "int"),
        *("items", "join", "last", "length", "list", "lower", "map", "max", "min", "random"),
        *("reject", "rejectattr", "replace", "reverse", "round", "safe", "select", "selectattr"),
        *("slice", "sort", "string", "sum", "title", "tojson", "trim", "truncate", "unique"),
        *("upper", "urlencode", "wordcount"),
    }
)
"""The filters that a prompt may use."""
_GROWING = frozenset(
    {
        *("batch", "center", "expandtabs", "indent", "join", "ljust", "replace", "rjust", "round"),
        *("slice", "to_bytes", "tojson", "translate", "zfill"),
    }
)
"""Filters and methods whose result can be as long as what they are given times an argument."""
_FORMATTING = frozenset({"format", "format_map"})
_WIDTH = re.compile(r"(?<!\d)\d++(?=[a-zA-Z.,_%}])")
_WIDTH_FROM_VALUE = re.compile(r"%[^%a-zA-Z]*\*|\{[^{}]*\{")
_CONTAINERS = (list, tuple, set, frozenset, KeysView, ValuesView, ItemsView)
_COUNTED, _CHECKED = "counted", "checked"


@dataclass(slots=True)
class _Allowance:
    """What one prompt has taken so far, and when it is stopped."""

    turns: int = 0
    bytes_made: int = 0
    until: float = field(default_factory=lambda: time.thread_time() + _MOST_SECONDS)

    def take_turn(self, turns: int = 1) -> None:
        """Count turns, and look at the time."""
        self.turns += turns
        if self.turns > _MOST_TURNS or time.thread_time() > self.until:
            raise SecurityError(
                f"its loops take over {_MOST_TURNS:,} turns, or {_MOST_SECONDS:g} s"
            )

    def made(self, value: Any) -> Any:
        """Count a value that was made, and return it."""
        self.take_turn(0)
        if isinstance(value, Iterator):
            return cast("Any", value)
        size = weight(value)
        allow(size, "a value")
        # A list holds some four bytes for each letter that it is written with.
        self.bytes_made += getsizeof(value) if isinstance(value, str | bytes) else 4 * size
        if self.bytes_made > _MOST_BYTES:
            raise SecurityError(f"what it makes on the way takes over {_MOST_BYTES:,} bytes")
        return value


_allowance: ContextVar[_Allowance] = ContextVar("allowance of the prompt that is filled in")


@contextmanager
def allowance() -> Generator[None]:
    """Begin to count what one prompt takes. Filters and loops work inside of it only."""
    token = _allowance.set(_Allowance())
    try:
        yield
    finally:
        _allowance.reset(token)


def allow(size: int, what: str, most: int = MOST_CHARACTERS) -> None:
    """Let something be made."""
    if size > most:
        raise SecurityError(f"{what} would make some {size:,} characters, over {most:,} allowed")


def weight(value: object, level: int = 0) -> int:
    """Return about how many characters a value has as text; what is too long is not read on."""
    if level > _MOST_LEVELS:
        raise SecurityError(f"a value of over {_MOST_LEVELS} levels is too large")
    if isinstance(value, Namespace):
        value = object.__getattribute__(value, "_Namespace__attrs")
    if isinstance(value, dict):
        value = cast("dict[Any, Any]", value).items()
    if isinstance(value, str | bytes):
        return 2 + len(value)
    if isinstance(value, int):
        return 2 + value.bit_length() // 3
    total = 2  # a comma and a blank
    if isinstance(value, _CONTAINERS):
        for item in cast("Iterable[Any]", value):
            total += weight(item, level + 1)
            if total > MOST_CHARACTERS:
                break
        return total
    try:
        return total + len(str(value))
    except Exception:  # whoever writes it out will meet the same and say so
        return total


def _number(value: float) -> int:
    if abs(value) > _LARGEST_NUMBER:
        raise SecurityError(f"{value:,} is too large a factor or width in a prompt")
    return int(abs(value))


def _check_operation(name: str, args: tuple[Any, ...]) -> None:
    """Let an operation begin whose result may be far longer than what it is given."""
    subject, *others = args
    if name in _FORMATTING:
        size = _formatted(subject, others)
    elif name in _GROWING:
        sizes = [_number(each) if isinstance(each, int) else weight(each) for each in others]
        size = weight(subject) * max([1, *sizes]) * (_MOST_LEVELS if name == "tojson" else 1)
    elif name == "sum" and any(isinstance(each, list | tuple) for each in others):
        size = weight(subject) ** 2  # copied for each that is added
    else:
        return
    allow(size, f"{name!r}", _MOST_ON_THE_WAY)


def _formatted(pattern: object, values: object) -> int:
    """Return the most that a format makes: its widths, and every value in every place."""
    text = str(pattern).replace("{{", "")
    if _WIDTH_FROM_VALUE.search(text):
        raise SecurityError("a width that is given as a value may be too large")
    widths = sum(int(number) for number in _WIDTH.findall(text))
    return len(text) + widths + weight(values) * (text.count("%") + text.count("{"))


def _listed(values: Iterable[Any]) -> tuple[Any, ...]:
    """Return the values with those that can be read but once as lists."""
    return tuple(
        list(cast("Iterator[Any]", value))
        if isinstance(value, Iterator) and not isinstance(value, LoopContext)
        else value
        for value in values
    )


def _guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that is looked at before it runs, and its result after."""
    begin = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        taken = _allowance.get()  # raises where no prompt is filled in: nothing is made ahead
        args = _listed(args)
        _check_operation(name, (*args[begin:], *kwargs.values()))
        return taken.made(function(*args, **kwargs))

    return called


class _Watched(NodeTransformer):
    """Has the turns of loops counted, and what is written as `[…]`, `{…}` or `a ~ b` checked."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - Jinja's name
        """Count the turns of a loop."""
        self.generic_visit(node)
        node.iter = _filter(cast("nodes.Expr", node.iter), _COUNTED)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - Jinja's name
        """Write `a ~ b` as `[a, b] | join`."""
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), "join")

    def visit_Literal(self, node: nodes.Literal) -> nodes.Expr:  # noqa: N802 - Jinja's name
        """Check a list, a tuple or a dict that is written out."""
        self.generic_visit(node)
        if isinstance(node, nodes.Tuple) and node.ctx != "load":
            return node
        return _filter(node, _CHECKED)

    visit_List = visit_Tuple = visit_Dict = visit_Literal  # noqa: N815 - Jinja's names


def _filter(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, in which attributes of Python objects cannot be reached at all.

    `{{ order.id }}` reads the key of a dict; methods of texts, lists and dicts may be called.
    """

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.tests = {name: _guarded(name, test) for name, test in self.tests.items()}
        filters = {name: _guarded(name, self.filters[name]) for name in FILTERS}
        checked = _guarded(_CHECKED, _as_it_is)
        self.filters = cast("Any", {**filters, _COUNTED: _counted, _CHECKED: checked})

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Read a template and have its loops and literals watched."""
        tree = _Watched().visit(super()._parse(source, name, filename))
        return cast("nodes.Template", tree.set_environment(self))

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a method, a macro, or a recursive loop, and count that."""
        taken = _allowance.get()
        taken.take_turn()
        if isinstance(obj, LoopContext):
            args = tuple(_counted(context, each) for each in args)
        else:
            args = _listed(args)
            method = getattr(obj, "__wrapped__", obj)  # Jinja wraps `str.format`
            if isinstance(subject := getattr(method, "__self__", None), str | int):
                _check_operation(method.__name__, (subject, *args, *kwargs.values()))
        return taken.made(super().call(context, obj, *args, **kwargs))

    def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
        """Whether `obj.attr` may be read."""
        plain_value = isinstance(obj, str | list | tuple | dict | int | float) or obj is None
        of_jinja = type(cast("object", obj)).__module__.startswith("jinja2.")  # `loop.index`
        return (plain_value or of_jinja) and super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Calculate, unless that would fill the memory."""
        if operator == "%" and isinstance(left, str | bytes):
            allow(_formatted(left, right), repr(operator), _MOST_ON_THE_WAY)
        elif operator in {"*", "**"}:
            numbers = [each for each in (left, right) if isinstance(each, int | float)]
            if len(numbers) == 2:
                _ = [_number(each) for each in numbers]
            elif numbers:
                text = right if numbers == [left] else left
                allow(int(weight(text) * abs(numbers[0])), repr(operator))
        return _allowance.get().made(super().call_binop(context, operator, left, right))

    def concat(self, pieces: Iterable[str]) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Join what a macro or a block has written."""
        parts = list(pieces)
        allow(sum(map(len, parts)), "a block")
        return _allowance.get().made("".join(parts))


def _as_it_is(value: object) -> object:
    return value


@pass_context
def _counted(_context: Context, items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        _allowance.get().take_turn()
        yield item
