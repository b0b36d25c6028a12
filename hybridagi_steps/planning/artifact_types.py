r"""The shapes of artifacts: what a plan may demand of the values that its steps hand on.

A shape is JSON data that a person and a small model can both write: a kind (`"text"`, `"integer"`
…), a pattern (`"/\d+/"`), an object of shapes (`{"host": "text"}`) or a list of one shape
(`["text"]`); as text it is understood without the quotes, too (`{host: [text]}`). Pydantic does the
checking, so patterns run on its engine, which takes linear time whatever a model wrote. Where
artifacts are kept, and which step makes them, is no concern of this module.
"""

from __future__ import annotations

import json
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
BRACKETS = ("[", "{")
"""What the text of a list or an object begins with."""

_MOST_SHOWN = 100
_GENERIC = re.compile(r"(list|array|dict|mapping)\s*\[([^\n]*)\]", re.IGNORECASE)
_LIST_OF = re.compile(r"(?:list|array)\s+of\s+([^\n]+)", re.IGNORECASE)
_PATTERN = re.compile(r"/((?:[^/\\\n]|\\[^\n])+)/")
_STRICT = ConfigDict(strict=True, extra="allow")
_QUOTED = re.compile(r'"(?:[^"\\\n]|\\[^\n])*"|\'[^\'\\\n]*\'')
_FIELD = re.compile(r"\w[\w .\-]*")
_WORD = re.compile(r"\w[^\[\]{},:\"'/\n]*")
_LIST_WORD = re.compile(r"(?:list|array)\s*(?=\[)", re.IGNORECASE)
_OBJECT_WORD = re.compile(r"(?:dict|mapping)\s*\[[^\[\]\n]*\]", re.IGNORECASE)
_BLANKS = re.compile(r"\s*")


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

    A list of something unknown is a list. What begins with a bracket is read as `read_shape` does.
    """
    if text.strip()[:1] in BRACKETS:
        try:
            return _whole_shape(text)
        except ValueError:
            return None
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


def read_shape(text: str, start: int = 0, depth: int = 0) -> tuple[Any, int]:
    """Return the shape that stands in a text, with quotes or without, and where it ends.

    Args:
        text: As `[integer]`, `{"host": text, "port": integer}` or `["/[a-z]+/"]`.
        start: Where it begins.
        depth: How many shapes are around it.

    Raises:
        ValueError: No shape begins there.
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"a shape may be {MAX_DEPTH} levels deep at most")
    place = _after_blanks(text, start)
    if (found := _LIST_WORD.match(text, place)) is not None:
        return read_shape(text, found.end(), depth)
    if text[place : place + 1] == "[":
        inner, place = read_shape(text, place + 1, depth + 1)
        return [inner], _closed(text, place, "]")
    if text[place : place + 1] == "{":
        return _read_fields(text, place + 1, depth)
    if (found := _QUOTED.match(text, place)) is not None:
        return check_shape(_unquoted(found[0])), found.end()
    if (found := _PATTERN.match(text, place)) is not None:
        return found[0], found.end()
    if (found := _OBJECT_WORD.match(text, place)) is not None:
        return "object", found.end()
    found = _WORD.match(text, place)
    word = found[0].strip() if found is not None else text[place : place + _MOST_SHOWN]
    if found is None or (shape := named_shape(word)) is None:
        raise ValueError(f"not a shape: {word[:_MOST_SHOWN]!r}. {_expected()}")
    return shape, found.end()


def _read_fields(text: str, place: int, depth: int) -> tuple[dict[str, Any], int]:
    """Return an object of shapes, whose opening brace was read."""
    fields: dict[str, Any] = {}
    while True:
        place = _after_blanks(text, place)
        if text[place : place + 1] == "}":  # a comma may stand behind the last field
            return fields, place + 1
        found = _QUOTED.match(text, place) or _FIELD.match(text, place)
        if found is None:
            raise ValueError(f"not a shape: {text[:_MOST_SHOWN]!r}. {_expected()}")
        place = _closed(text, found.end(), ":")
        fields[_unquoted(found[0])], place = read_shape(text, place, depth + 1)
        place = _after_blanks(text, place)
        if text[place : place + 1] == ",":
            place += 1
        else:
            return fields, _closed(text, place, "}")


def _whole_shape(text: str) -> Any:
    """Return the shape that a whole text is.

    Raises:
        ValueError: It is none.
    """
    shape, end = read_shape(text)
    _closed(text, end, "")
    return shape


def _closed(text: str, place: int, mark: str) -> int:
    """Return the place behind a mark, or the end of the text where no mark is given."""
    place = _after_blanks(text, place)
    if text[place : place + len(mark)] != mark or (not mark and place < len(text)):
        raise ValueError(f"not a shape: {text[:_MOST_SHOWN]!r}. {_expected()}")
    return place + len(mark)


def _after_blanks(text: str, place: int) -> int:
    found = _BLANKS.match(text, place)
    return found.end() if found is not None else place


def _unquoted(text: str) -> str:
    if text[:1] not in ('"', "'"):
        return text.strip()
    try:
        return json.loads(text, strict=False)
    except ValueError:  # single quotes, or a pattern whose backslashes stand alone
        return text[1:-1]


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
    config = None if isinstance(kind, type(BaseModel)) else ConfigDict(strict=True)
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
    known = _whole_shape(shape) if shape.strip()[:1] in BRACKETS else named_shape(shape)
    if isinstance(known, str):
        return KINDS[known]
    if known is not None:
        return _as_type(known, depth)
    raise ValueError(f"not a shape: {shape!r}. {_expected()}")


def _expected() -> str:
    return f'Use {", ".join(KINDS)}, "/pattern/", {{"field": shape}} or [shape].'


def _place(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location) + ": " if location else ""
