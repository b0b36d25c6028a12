"""The sandbox of prompts: what a template may reach, and how much it may make.

Attributes of Python objects cannot be reached at all. A template of twenty characters can still ask
for gigabytes, or for minutes: so the size of whatever makes a value is looked at first (operators,
filters, methods, formats, joined pieces), all that one prompt makes is added up, and loops and
calls are counted and timed.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from sys import getsizeof
from types import BuiltinMethodType, MethodType
from typing import Any, cast

from jinja2 import nodes, pass_context, pass_eval_context
from jinja2.exceptions import SecurityError
from jinja2.nodes import EvalContext
from jinja2.runtime import Context, LoopContext, markup_join, str_join
from jinja2.sandbox import (
    ImmutableSandboxedEnvironment,
    SandboxedEscapeFormatter,
    SandboxedFormatter,
)
from jinja2.visitor import NodeTransformer
from markupsafe import Markup

from hybridagi_steps.programs.graph.prompt_sizes import FILTERS, METHODS, OPERATORS, allow, weight

_MOST_BYTES = 128 * 2**20
"""Of all values that one prompt makes."""
_MOST_TURNS = 200_000
"""Turns of loops, and calls, in one prompt: about a tenth of a second if little is done in each."""
_MOST_SECONDS = 2.0
"""Of this thread's computing time, for turns in which much is done."""
_COUNTED, _TOGETHER = "counted", "together"


@dataclass(slots=True)
class _Allowance:
    """What one prompt has taken so far, and when it is stopped."""

    turns: int = 0
    bytes_made: int = 0
    until: float = field(default_factory=lambda: time.thread_time() + _MOST_SECONDS)

    def take_turn(self, turns: int = 1) -> None:
        """Count turns, and look at the time.

        Raises:
            SecurityError: They are too many, or take too long.
        """
        self.turns += turns
        if self.turns > _MOST_TURNS or time.thread_time() > self.until:
            raise SecurityError(
                f"its loops take over {_MOST_TURNS:,} turns, or {_MOST_SECONDS:g} s"
            )

    def add(self, value: Any) -> None:
        """Count what was made.

        Raises:
            SecurityError: It is too much.
        """
        if isinstance(value, str | bytes):
            self.bytes_made += getsizeof(value)
        elif isinstance(value, list | tuple | dict):
            self.bytes_made += getsizeof(cast("object", value))
        if self.bytes_made > _MOST_BYTES:
            raise SecurityError(f"what it makes on the way takes over {_MOST_BYTES:,} bytes")


_allowance: ContextVar[_Allowance] = ContextVar("allowance of the prompt that is filled in")


@contextmanager
def allowance() -> Generator[None]:
    """Begin to count what one prompt takes. Filters and loops work inside of it only."""
    token = _allowance.set(_Allowance())
    try:
        yield
    finally:
        _allowance.reset(token)


def _made(value: Any) -> Any:
    """Count a value that was made, or each one that will be."""
    _allowance.get().add(value)
    return _watched(value) if _is_iterator(value) else value


def _is_iterator(value: Any) -> bool:
    return isinstance(value, Iterator) and not isinstance(value, LoopContext)


def _listed(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values with those that can be read but once as lists."""
    return tuple(list(value) if _is_iterator(value) else value for value in values)


def _watched(items: Iterator[Any]) -> Iterator[Any]:
    taken = _allowance.get()
    for item in items:
        taken.take_turn(0)
        taken.add(item)
        yield item


def _guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that asks how large its result would be, and counts what it made."""
    begin = 1 if hasattr(function, "jinja_pass_arg") else 0
    size = FILTERS.get(name)

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        _allowance.get().take_turn(0)  # raises where no prompt is filled in: nothing is made ahead
        if size is not None:
            args = _listed(args)
            allow(size(*args[begin:], **kwargs), f"the filter {name!r}")
        return _made(function(*args, **kwargs))

    return called


class _Sizing:
    """What a formatter of `str.format` does here: it adds up what one text is filled in with."""

    size = 0

    def convert_field(self, value: Any, conversion: Any) -> Any:
        """Convert a value, unless its text would be too long."""
        allow(weight(value), "a format")
        return cast("Any", super()).convert_field(value, conversion)

    def format_field(self, value: Any, format_spec: str) -> Any:
        """Format a value, unless that would be too long."""
        self.size += weight(value) + sum(int(number) for number in re.findall(r"\d+", format_spec))
        allow(self.size, "a format")
        return cast("Any", super()).format_field(value, format_spec)


class _Formatter(_Sizing, SandboxedFormatter):
    pass


class _EscapeFormatter(_Sizing, SandboxedEscapeFormatter):
    pass


class _Loops(NodeTransformer):
    """Has the turns of loops counted, and joined pieces measured."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - Jinja's name
        """Count the turns of a loop."""
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, _COUNTED, [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - Jinja's name
        """Measure `a ~ b`."""
        self.generic_visit(node)
        pieces = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(pieces, _TOGETHER, [], [], None, None, lineno=node.lineno)


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, in which attributes of Python objects cannot be reached at all.

    `{{ order.id }}` reads the key of a dict; methods of texts, lists and dicts may be called.
    """

    intercepted_binops = frozenset(OPERATORS)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        filters = {name: _guarded(name, each) for name, each in self.filters.items()}
        self.filters = cast("Any", {**filters, _COUNTED: _counted, _TOGETHER: _together})

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Read a template and have the turns of all its loops counted."""
        tree = _Loops().visit(super()._parse(source, name, filename))
        return cast("nodes.Template", tree.set_environment(self))

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a method, a macro, or a recursive loop, and count that."""
        _allowance.get().take_turn()
        if isinstance(obj, LoopContext):
            args = tuple(_counted(context, each) for each in args)
        elif isinstance(obj, BuiltinMethodType | MethodType):
            args = _listed(args)
            for arg in (*args, *kwargs.values()):
                allow(0 if isinstance(arg, str) else weight(arg), f"{obj.__name__}()")
            size = METHODS.get(obj.__name__)
            if size is not None and isinstance(obj.__self__, str | int):
                allow(size(obj.__self__, *args, **kwargs), f"{obj.__name__}()")
        return _made(super().call(context, obj, *args, **kwargs))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether `obj.attr` may be read."""
        plain_value = isinstance(obj, str | list | tuple | dict | int | float) or obj is None
        of_jinja = type(cast("object", obj)).__module__.startswith("jinja2.")  # `loop.index`
        return (plain_value or of_jinja) and super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Calculate, unless that would fill the memory."""
        allow(OPERATORS[operator](left, right), repr(operator))
        return _made(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return a `str.format` that measures what it fills in, None for anything else."""
        if super().wrap_str_format(value) is None:
            return None
        text: str = value.__self__

        @functools.wraps(value)
        def formatted(*args: Any, **kwargs: Any) -> str:
            if value.__name__ == "format_map":
                args, kwargs = (), args[0]
            formatter: Any = _Formatter(self)
            if isinstance(text, Markup):
                formatter = _EscapeFormatter(self, escape=text.escape)
            return type(text)(formatter.vformat(text, args, kwargs))

        return formatted

    def concat(self, pieces: Iterable[str]) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Join what a macro or a block has written."""
        parts = list(pieces)
        allow(sum(len(part) for part in parts), "a block")
        return _made("".join(parts))


@pass_context
def _counted(_context: Context, items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        _allowance.get().take_turn()
        yield item


@pass_eval_context
def _together(evaluation: EvalContext, pieces: list[Any]) -> str:
    """Return `a ~ b`."""
    allow(weight(pieces), "'~'")
    return _made(markup_join(pieces) if evaluation.autoescape else str_join(pieces))
