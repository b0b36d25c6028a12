"""What JSON can hold, exactly: the one place that turns any value into plain JSON data.

Steps are written as JSON and read by other programs and other databases, so what JSON (or
PostgreSQL's text) cannot hold is repaired before it is stored, and each repair is named. A clean
value is returned as it is, without a copy. Nothing here knows about steps.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from enum import Enum
from functools import cache
from operator import is_not
from pathlib import PurePath
from typing import Any, TypeVar, cast
from uuid import UUID

from pydantic import BaseModel, ValidationError

MAX_DEPTH = 64
"""Deepest nesting of a step's values; deeper values are left as they are and refused on write."""

_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1
_KEPT_TEXT = 500
_ADDRESS = re.compile(r" (?:object )?at 0x[0-9A-Fa-f]{6,}")
_type: Callable[[Any], type[Any]] = type
"""As a type checker knows it: a `cast` of what it gives would take longer than the call."""
_JSON_TYPES = frozenset({str, int, float, bool, type(None), dict, list})


def transformed(
    value: object,
    replace: Callable[[Any, str], Any],
    names: Callable[[dict[Any, Any], str], Iterable[Any]] | None = None,
    *,
    path: str = "",
    levels: int | None = None,
) -> Any:
    """Return a tree of dicts and lists made anew from the top down; of a tuple it makes a list.

    `replace` gets a value and its path, such as `arguments.files[2]`, and returns what stands
    there; where that is a dict or a list, its members come next. `names` gets a dict and its path,
    and yields a name for each of its members, no two alike; by default they keep theirs. `levels`
    is how deep those may stand whose members are looked at. When nothing changes the same object is
    returned.
    """
    value = replace(value, path)
    if levels is not None:
        if levels < 0:
            return value
        levels -= 1
    if isinstance(value, dict):
        old = cast("dict[Any, Any]", value)
        made: dict[Any, Any] = {}
        changed = False
        named = old if names is None else names(old, path)
        for name, (key, item) in zip(named, old.items(), strict=True):
            below = f"{path}.{name}" if path else str(name)
            new = transformed(item, replace, names, path=below, levels=levels)
            made[name] = new
            changed = changed or new is not item or name is not key
        return made if changed else old
    if isinstance(value, list | tuple):
        items = cast("Sequence[Any]", value)
        new_items = [
            transformed(item, replace, names, path=f"{path}[{n}]", levels=levels)
            for n, item in enumerate(items)
        ]
        return new_items if any(map(is_not, new_items, items)) else items
    return value


def json_value(value: object, repairs: list[str], path: str = "") -> Any:
    """Return `value` as plain JSON data, appending "path: what was done" to `repairs`.

    A clean one is returned as it is, else a copy of the parts that were not clean. What stands
    deeper than `MAX_DEPTH` is left as it is.
    """
    if is_json(value):
        return value
    repair = _Repair(repairs)
    return transformed(value, repair.value, repair.names, path=path, levels=MAX_DEPTH)


def is_json(value: Any, depth: int = 0) -> bool:
    """Return whether `value` is plain JSON data, at most `MAX_DEPTH` levels deep.

    Nearly every value is, and this costs a fourth of a walk that could name its repairs.
    """
    kind = _type(value)
    if kind is dict:
        if depth > MAX_DEPTH:
            return False
        for key, item in value.items():
            if type(key) is not str or not key.isprintable():
                return False
            # Most values are texts, numbers or nothing: asked here, they cost no call of ours.
            kind = _type(item)
            if kind is str:
                if "\x00" in item or not (item.isascii() or is_clean(item)):
                    return False
            elif kind is int:
                if not _INT_MIN <= item <= _INT_MAX:
                    return False
            elif item is not None and kind is not bool and not is_json(item, depth + 1):
                return False
        return True
    if kind is str:
        return is_clean(value)
    if value is None or kind is bool:
        return True
    if kind is int:
        return _INT_MIN <= value <= _INT_MAX
    if kind is float:
        return math.isfinite(value)
    return kind is list and depth <= MAX_DEPTH and all(is_json(item, depth + 1) for item in value)


def is_clean(text: str) -> bool:
    """Return whether a text holds neither NUL nor half a character."""
    if "\x00" in text:
        return False
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def too_deep(value: Any, path: str = "", depth: int = 0) -> str | None:
    """Return the path of the first value nested deeper than `MAX_DEPTH`, None if there is none."""
    if depth > MAX_DEPTH:
        return path
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
    elif isinstance(value, list):
        items = enumerate(cast("list[Any]", value))
    else:
        return None
    for key, item in items:
        if isinstance(item, dict | list) and (found := too_deep(item, f"{path}.{key}", depth + 1)):
            return found
    return None


class _Repair:
    """Turns what is no JSON into it, and notes each repair."""

    def __init__(self, notes: list[str]) -> None:
        self._notes = notes

    def value(self, value: Any, path: str) -> Any:
        """Return JSON for one value; the members of a dict or list are not looked at."""
        kind = _type(value)
        if kind not in _JSON_TYPES:
            plain, how = _plain(value)
            self._notes.append(f"{path}: {kind.__name__} stored as {how}")
            return self.value(plain, path)
        if kind is str:
            return value if value.isprintable() else self._text(value, path)
        if kind is int and not _INT_MIN <= value <= _INT_MAX:
            self._notes.append(f"{path}: integer over 64 bits stored as text")
            return hex(value) if value.bit_length() > 10_000 else str(value)
        if kind is float and not math.isfinite(value):
            self._notes.append(f"{path}: {value} stored as null")
            return None
        return value

    def names(self, members: dict[Any, Any], path: str) -> Iterator[str]:
        """Yield a text for each key, different from all others."""
        made = set[str]()
        for key in members:
            name = key if type(key) is str else _key(key)
            if not name.isprintable():
                name = self._text(name, f"{path} (a key)")
            if name is not key:
                if type(key) is not str:
                    kind = type(key).__name__
                    self._notes.append(f"{path}: key {name[:80]!r} was a {kind}")
                while name in members or name in made:
                    name += "'"
            made.add(name)
            yield name

    def _text(self, value: str, path: str) -> str:
        fixed = value.replace("\x00", "\ufffd")
        if not fixed.isascii():
            fixed = fixed.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        if fixed == value:
            return value
        self._notes.append(f"{path}: NUL or lone surrogates replaced by U+FFFD")
        return fixed


def _key(key: object) -> str:
    plain = key.value if isinstance(key, Enum) else key
    return str(plain) if isinstance(plain, str) else _described(plain)


def _plain(value: Any) -> tuple[Any, str]:
    if isinstance(value, Enum):
        return value.value, "its value"
    if isinstance(value, BaseModel):
        return value.model_dump(mode="python"), "an object"
    if isinstance(value, Mapping):
        return dict(cast("Mapping[Any, Any]", value)), "an object"
    if isinstance(value, list | tuple | set | frozenset):
        return list(cast("list[Any]", value)), "an array"
    if isinstance(value, str | int | float):
        base = str if isinstance(value, str) else int if isinstance(value, int) else float
        return base(value), base.__name__
    if isinstance(value, datetime | date | time):
        return value.isoformat(), "text"
    if isinstance(value, UUID | PurePath):
        return str(value), "text"
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(bytes(cast("bytes", value))).decode(), "base64 text"
    if hasattr(value, "tolist"):
        return value.tolist(), "an array"
    return _described(value), "text"


def without_address(text: str) -> str:
    """Return what an object says of itself without where it lay in memory, which means nothing."""
    return _ADDRESS.sub("", text)


def _described(value: object) -> str:
    try:
        return without_address(str(value))[:_KEPT_TEXT]
    except Exception as error:  # a broken __str__ must not lose the step
        return f"<{type(value).__name__}: {type(error).__name__} in str()>"


def first_fault(error: ValidationError, whole: str = "") -> str:
    """Return what pydantic refused first, behind its place, else `whole`; no value is quoted."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"])) or whole
    return f"{place}: {first['msg']}" if place else first["msg"]


def with_repairs(metadata: object, notes: Iterable[str]) -> Any:
    """Return metadata that name further repairs; others refuse what is no mapping."""
    if not isinstance(metadata, dict | None):
        return metadata
    kept = cast("dict[str, Any]", metadata or {})
    before = kept.get("repairs", [])
    known = cast("list[Any]", before) if isinstance(before, list) else [before]
    return {**kept, "repairs": [*known, *notes]}


Record = TypeVar("Record", bound=BaseModel)
_set = object.__setattr__


@cache
def _every_field(record: type[BaseModel]) -> set[str]:
    """Return the names of all fields: one set for all records, two thirds of what each would take.

    Assigning to a field adds a name that is there already, and a copy of a record copies it.
    """
    return set(record.model_fields)


def unvalidated(
    record: type[Record], values: dict[str, Any], extra: dict[str, Any] | None = None
) -> Record:
    """Return a record that holds these values, set as unpickling it would set them.

    All fields are given by name, and for a class that allows it `extra` ones; kept, not copied.
    """
    made = object.__new__(record)
    # What `__setstate__` does, at a sixth of its time.
    _set(made, "__dict__", values)
    _set(made, "__pydantic_fields_set__", _every_field(record))
    _set(made, "__pydantic_extra__", extra)
    _set(made, "__pydantic_private__", None)
    return made


def defaults_of(record: type[BaseModel]) -> dict[str, Any]:
    """Return the defaults of a record's fields, but for those that a factory makes."""
    return {
        name: field.default
        for name, field in record.model_fields.items()
        if not field.is_required() and field.default_factory is None
    }
