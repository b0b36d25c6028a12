"""How long the values of a prompt are as text, and those that an operation would make of them.

A template of twenty characters can ask for gigabytes: by the width of a format, by joining, by
lists that hold one another many times. Whatever makes a value has a size here, reckoned from what
it is given before anything is made; it may be too large by a little, never too small by much.
"""

from __future__ import annotations

import re
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from itertools import chain
from typing import Any, cast

from jinja2.exceptions import SecurityError
from jinja2.utils import Namespace

MOST_CHARACTERS = 2_000_000
"""Of a prompt, and of each value that is made on the way."""
_LARGEST_FACTOR = 10_000
_NO_MORE = object()
_CONTAINERS = (list, tuple, set, frozenset, KeysView, ValuesView, ItemsView)
_CONVERSIONS = ".hlLdiouxXeEfFgGcrsa"
_WIDTHS = re.compile(rf"(\d+)(?=[{_CONVERSIONS}])")
_GIVEN_WIDTHS = re.compile(rf"\*[{_CONVERSIONS}]")


def weight(value: Any, indent: int = 0) -> int:
    """Return about how many characters a value has as text; what is far too long is not read on.

    A part that stands in several places counts in each of them, as it is written in each.

    Args:
        value: Anything that a template holds.
        indent: The blanks that each level indents its lines by.
    """
    total, known = 0, dict[int, int]()
    levels: list[Iterator[Any]] = [iter((value,))]
    while levels and total <= MOST_CHARACTERS:
        item = next(levels[-1], _NO_MORE)
        if item is _NO_MORE:
            levels.pop()
            continue
        total += 2 + indent * (len(levels) - 1)  # a comma and a blank
        if isinstance(item, str | bytes):
            total += len(item)
        elif isinstance(item, int):
            total += item.bit_length() // 3
        elif isinstance(item, dict):
            levels.append(chain.from_iterable(cast("dict[Any, Any]", item).items()))
        elif isinstance(item, _CONTAINERS):
            levels.append(iter(item))  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(item, Namespace):
            levels.append(iter((object.__getattribute__(item, "_Namespace__attrs"),)))
        elif item is not None and not isinstance(item, float):
            if id(item) not in known:
                known[id(item)] = _text_length(item)
            total += known[id(item)]
    return total


def _text_length(value: object) -> int:
    try:
        return len(str(value))
    except Exception:  # whoever writes it out will meet the same and say so
        return 0


def allow(size: int, what: str) -> None:
    """Let something be made.

    Raises:
        SecurityError: It would have too many characters, or entries.
    """
    if size > MOST_CHARACTERS:
        raise SecurityError(
            f"{what} would make some {size:,} characters, over the {MOST_CHARACTERS:,} allowed"
        )


def _count(number: Any) -> int:
    return abs(number) if isinstance(number, int) else 0


def _length(value: Any) -> int:
    return len(value) if hasattr(value, "__len__") else 0


def _text(value: Any) -> str:
    if not isinstance(value, str):
        allow(weight(value), "a text of it")
    return str(value)


def _unless_text(value: Any, *_: Any, **__: Any) -> int:
    return 0 if isinstance(value, str) else weight(value)


def _repeated(left: Any, right: Any) -> int:
    sizes = [abs(n) if isinstance(n, int | float) else len(n) for n in (left, right)]
    if max(sizes) > _LARGEST_FACTOR and all(isinstance(n, int | float) for n in (left, right)):
        raise SecurityError(f"{max(sizes):,} is too large a factor in a prompt")
    return int(sizes[0] * sizes[1]) if hasattr(left, "__len__") or hasattr(right, "__len__") else 0


def _formatted(text: Any, values: Any) -> int:
    """Return the size of `text % values`: widths, precisions, and what is filled in."""
    if not isinstance(text, str | bytes):
        return 0
    pattern = text if isinstance(text, str) else text.decode("latin-1")
    size = len(pattern) + sum(int(number) for number in _WIDTHS.findall(pattern))
    if _GIVEN_WIDTHS.search(pattern):
        given = cast("tuple[Any, ...]", values) if isinstance(values, tuple) else (values,)
        size += sum(_count(value) for value in given)
    named = isinstance(values, Mapping)  # and may be filled in any number of times
    return size + weight(values) * (pattern.count("%") if named else 1)


def _padded(text: Any, width: Any = 80, *_: Any) -> int:
    return len(_text(text)) + _count(width)


def _indented(text: Any, width: Any = 4, first: bool = False, blank: bool = False) -> int:
    del first, blank
    each = len(width) if isinstance(width, str) else _count(width)
    return len(_text(text)) + (1 + len(_text(text).splitlines())) * each


def _replaced(text: Any, old: Any, new: Any, count: Any = None) -> int:
    del count
    return len(_text(text)) + _text(text).count(_text(old)) * len(_text(new))


def _joined(items: Any, between: Any = "", attribute: Any = None) -> int:
    del attribute
    return weight(items) + _length(items) * len(_text(between))


def _wrapped(
    text: Any,
    width: int = 79,
    break_long_words: bool = True,
    wrapstring: Any = None,
    break_on_hyphens: bool = True,
) -> int:
    del width, break_long_words, break_on_hyphens
    return len(_text(text)) * max(1, len(_text(wrapstring or "")))


def _linked(
    text: Any,
    trim_url_limit: Any = None,
    nofollow: bool = False,
    target: Any = None,
    rel: Any = None,
    extra_schemes: Any = None,
) -> int:
    del trim_url_limit, nofollow, extra_schemes
    return len(_text(text)) * (1 + len(_text(target or "")) + len(_text(rel or "")))


def _summed(items: Any, attribute: Any = None, start: Any = 0) -> int:
    """Return the size; lists are copied for each that is added."""
    del attribute
    return 0 if isinstance(start, int | float) else _length(items) * weight(items) // 100


def _number(name: str, times: int = 1) -> Callable[..., int]:
    """Return the size that a number called `name`, the first argument, makes."""

    def size(_value: Any, *args: Any, **named: Any) -> int:
        return _count(named.get(name, args[0] if args else 0)) * times

    return size


def _tabbed(text: str, tabsize: Any = 8) -> int:
    return len(text) + text.count("\t") * _count(tabsize)


def _added(left: Any, right: Any) -> int:
    return _length(left) + _length(right)


def _formatted_by_filter(text: Any, *args: Any, **named: Any) -> int:
    return _formatted(_text(text), named or args)


def _joined_by(between: str, items: Any) -> int:
    return _joined(items, between)


def _pretty(value: Any) -> int:
    return weight(value) ** 2 // 100  # lines are indented by the length of keys


def _as_json(value: Any, indent: Any = None) -> int:
    return weight(value, _count(indent))


def _translated(text: str, table: Any) -> int:
    return len(text) * (1 + weight(table))


OPERATORS: dict[str, Callable[[Any, Any], int]] = {
    "*": _repeated,
    "**": _repeated,
    "+": _added,
    "%": _formatted,
}
FILTERS: dict[str, Callable[..., int]] = {
    "batch": _number("linecount"),
    "center": _padded,
    "format": _formatted_by_filter,
    "indent": _indented,
    "join": _joined,
    "pprint": _pretty,
    "replace": _replaced,
    "round": _number("precision", times=200),
    "slice": _number("slices"),
    "sum": _summed,
    "tojson": _as_json,
    "urlize": _linked,
    "wordwrap": _wrapped,
}
for _name in (
    *("capitalize", "e", "escape", "forceescape", "lower", "safe", "string", "striptags", "title"),
    *("trim", "truncate", "upper", "urlencode", "wordcount", "xmlattr"),
):
    FILTERS[_name] = _unless_text
METHODS: dict[str, Callable[..., int]] = {
    "center": _padded,
    "expandtabs": _tabbed,
    "join": _joined_by,
    "ljust": _padded,
    "replace": _replaced,
    "rjust": _padded,
    "to_bytes": _number("length"),
    "translate": _translated,
    "zfill": _padded,
}
