r"""The shapes of artifacts: what a plan may demand of the values that its steps hand on.

A shape is JSON data that a person and a small model can both write: a kind (`"text"`, `"integer"`
…), a pattern (`"/\d+/"`), an object of shapes (`{"host": "text"}`) or a list of one shape
(`["text"]`). Pydantic does the checking, so patterns run on its engine, which takes linear time
whatever a model wrote. Where artifacts are kept, and which step makes them, is no concern of this
module.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, StringConstraints, TypeAdapter, create_model
from pydantic import ValidationError as PydanticError
from pydantic_core import SchemaError

KINDS: dict[str, Any] = {
    "text": Annotated[str, StringConstraints(min_length=1)],
    "number": float | int,
    "integer": int,
    "boolean": bool,
    "list": list[Any],
    "object": dict[str, Any],
    "any": Any,
}
"""The kinds of values by name. `text` is never empty: a step that hands on nothing has failed."""

ALIASES = {
    "str": "text",
    "string": "text",
    "int": "integer",
    "float": "number",
    "num": "number",
    "bool": "boolean",
    "dict": "object",
    "json": "object",
    "mapping": "object",
    "array": "list",
}
"""What other languages call the kinds; upper and lower case are the same."""

MAX_DEPTH = 16
_GENERIC = re.compile(r"(list|array|dict|mapping)\s*\[([^\n]*)\]", re.IGNORECASE)
_LIST_OF = re.compile(r"(?:list|array)\s+of\s+([^\n]+)", re.IGNORECASE)
_PATTERN = re.compile(r"/((?:[^/\\\n]|\\[^\n])+)/")
_STRICT = ConfigDict(strict=True, extra="allow")


def shape_problem(shape: Any, value: Any) -> str | None:
    """Return what is wrong with a value, None when it has the shape.

    Args:
        shape: A shape as described above; None demands nothing.
        value: Plain JSON data.

    Returns:
        One line per fault, joined by "; ", each with the place inside the value.

    Raises:
        ValueError: `shape` is none.
    """
    if shape is None:
        return None
    try:
        _adapter(shape).validate_python(value)
    except PydanticError as error:
        faults = error.errors(include_url=False, include_input=False, include_context=False)
        return "; ".join(f"{_place(fault['loc'])}{fault['msg']}" for fault in faults)
    return None


def check_shape(shape: Any) -> Any:
    """Return the shape in the words of this module, once it is known to be one.

    Raises:
        ValueError: An unknown kind, a broken pattern, an empty list, nesting deeper than 16.
    """
    if shape is None:
        return None
    _adapter(shape)
    return _in_own_words(shape)


def named_shape(text: str, depth: int = 0) -> Any:
    """Return the shape that a word such as `str`, `Integer` or `list[int]` stands for, else None.

    A list of something unknown is a list.
    """
    word = text.strip().lower()
    word = ALIASES.get(word, word)
    if word in KINDS:
        return word
    if (generic := _GENERIC.fullmatch(word)) is not None:
        if ALIASES.get(generic[1], generic[1]) == "object":
            return "object"
        inner = generic[2]
    elif (many := _LIST_OF.fullmatch(word)) is not None:
        inner = many[1].removesuffix("s")
    else:
        return None
    shape = named_shape(inner, depth + 1) if depth < MAX_DEPTH // 2 else None
    return "list" if shape is None else [shape]


def _in_own_words(shape: Any) -> Any:
    """Translate the aliases in a shape that is known to be one."""
    if isinstance(shape, str):
        return shape if _PATTERN.fullmatch(shape) else named_shape(shape)
    if isinstance(shape, list):
        return [_in_own_words(inner) for inner in shape]  # pyright: ignore[reportUnknownVariableType]
    return {name: _in_own_words(inner) for name, inner in shape.items()}


def _adapter(shape: Any) -> TypeAdapter[Any]:
    kind = _as_type(shape, 0)
    # A model brings its own configuration and refuses another.
    config = None if isinstance(shape, dict) else ConfigDict(strict=True)
    try:
        return TypeAdapter[Any](kind, config=config)
    except SchemaError as error:
        raise ValueError(f"not a pattern that can be matched: {shape!r} ({error})") from error


def _as_type(shape: Any, depth: int) -> Any:
    """Translate a shape into a type that pydantic checks."""
    if depth > MAX_DEPTH:
        raise ValueError(f"a shape may be {MAX_DEPTH} levels deep at most")
    if isinstance(shape, str):
        return _named(shape, depth)
    if isinstance(shape, list) and len(shape) == 1:  # pyright: ignore[reportUnknownArgumentType]
        return list[_as_type(shape[0], depth + 1)]  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(shape, dict):
        return _as_model(shape, depth)  # pyright: ignore[reportUnknownArgumentType]
    raise ValueError(f"not a shape: {shape!r}. {_expected()}")


def _as_model(shape: dict[str, Any], depth: int) -> type[BaseModel]:
    """Translate an object of shapes; names that Python cannot hold are checked by alias."""
    from pydantic import Field

    fields: dict[str, Any] = {
        f"field_{number}": (_as_type(inner, depth + 1), Field(alias=name))
        for number, (name, inner) in enumerate(shape.items())
    }
    return create_model("object", __config__=_STRICT, **fields)


def _named(shape: str, depth: int) -> Any:
    if (pattern := _PATTERN.fullmatch(shape)) is not None:
        # \A and \z: the whole text has to match, so that `/\d+/` does not accept "about 3".
        matched = rf"\A(?:{pattern[1].replace(chr(92) + '/', '/')})\z"
        return Annotated[str, StringConstraints(pattern=matched)]
    known = named_shape(shape)
    if isinstance(known, str):
        return KINDS[known]
    if known is not None:
        return _as_type(known, depth)
    raise ValueError(f"not a shape: {shape!r}. {_expected()}")


def _expected() -> str:
    return f'Use {", ".join(KINDS)}, "/pattern/", {{"field": shape}} or [shape].'


def _place(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location) + ": " if location else ""
