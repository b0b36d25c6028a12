r"""Artifacts as a plan names them: how they are written, and the shapes it may demand of them.

A shape is JSON data that a person and a small model can both write: a kind (`"text"`, `"integer"`
…), a pattern (`"/\d+/"`), an object of shapes (`{"host": "text"}`) or a list of one shape
(`["text"]`); as text it is JSON that needs no quotes (`{host: [text]}`). Pydantic does the
checking, so patterns run on its engine, which takes linear time whatever a model wrote. Where
artifacts are kept, and which step makes them, is no concern of this module.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, NamedTuple, cast

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, create_model
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
_TOO_DEEP = f"a shape may be {MAX_DEPTH} levels deep at most"
BRACKETS = ("[", "{")
"""What the text of a list or an object begins with."""

_BRACKETS = {"[]", "()", "{}", "<>"}
_MARKS = "*`\"'"
_DASHED = re.compile(r"\s[-–—]\s")
STRING = r'"(?:[^"\\\n]|\\[^\n])*"'
"""A text in quotes, as a pattern."""
_QUOTED = re.compile(rf"(?P<name>{STRING})")
_DASH = re.compile(r"\s*[-–—]\s+")
_NAMED = r"(?:\s{0,9}:(?:\s|$)|\s{1,9}[-–—]\s|\s{1,9}\()"
_ARTIFACT = re.compile(rf"(?P<name>\S+?){_NAMED}")
DESCRIBED = re.compile(rf"(?:{STRING}|\S+?){_NAMED}")
"""How an artifact begins about which something is said."""
_MOST_SHOWN = 100
_GENERIC = re.compile(r"(list|array|dict|mapping)\s*\[([^\n]*)\]", re.IGNORECASE)
_LIST_OF = re.compile(r"(?:list|array)\s+of\s+([^\n]+)", re.IGNORECASE)
_PATTERN = re.compile(r"/((?:[^/\\\n]|\\[^\n])+)/")
_WORDS = "|".join([*KINDS, *ALIASES])
_LEADING_KIND = re.compile(
    rf"(?:(?:list|array|dict|mapping)\s?\[[^\n]{{0,200}}\]|(?:list|array)\s+of\s+\w+|{_WORDS})"
    r"(?=\s*$|\s+[-–—]\s|\s*[,;(])",
    re.IGNORECASE,
)
_LEADING_PATTERN = re.compile(_PATTERN.pattern + r"(?=\s*$|\s+[-–—(])")
_STRICT = ConfigDict(strict=True, extra="allow")
_TOKEN = re.compile(
    r"\s*(?:"
    r"(?P<dropped>(?:list|array)\s*(?=\[)|,(?=\s*\}))"
    r"|(?P<mark>[\[\]{},:])"
    r"|(?P<text>\"(?:[^\"\\\n]|\\[^\n])*\"|'[^'\\\n]*'|/(?:[^/\\\n]|\\[^\n])+/"
    r"|(?:dict|mapping)\s*\[[^\[\]\n]*\]|\w[^\[\]{},:\"'/\n]*)"
    r")",
    re.IGNORECASE,
)
"""What a shape is written of: JSON's marks, and texts that need no quotes."""


class Artifact(NamedTuple):
    """One entry of a list of artifacts."""

    name: object
    shape: object
    note: object


def shape_problem(shape: object, value: object) -> str | None:
    """Return what is wrong with plain JSON data, None when it has the shape; None demands nothing.

    Faults are joined by "; ", each with the place inside the value.
    """
    if shape is None:
        return None
    try:
        _adapter(_in_own_words(shape)).validate_python(value)
    except PydanticError as error:
        faults = error.errors(include_url=False, include_input=False, include_context=False)
        return "; ".join(f"{_place(fault['loc'])}{fault['msg']}" for fault in faults)
    return None


def check_shape(shape: object) -> Any:
    """Return the shape in the words of this module, once it is known to be one."""
    if shape is None:
        return None
    known = _in_own_words(shape)
    _adapter(known)
    return known


def named_shape(text: str, depth: int = 0) -> Any:
    """Return the shape that a text such as `str`, `list[int]` or `{"n": integer}` means, else None.

    A list of something unknown is a list.
    """
    if text.strip()[:1] in BRACKETS:
        try:
            return _in_own_words(text)
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


def clean_name(value: object) -> Any:
    """Return a text as one line without the quotes, brackets or emphasis around it."""
    if not isinstance(value, str):
        return value
    name = " ".join(value.replace("\0", "").split())
    while (inner := _inside(name)) is not None:
        name = inner
    return name


def _inside(name: str) -> str | None:
    """Return what stands inside the marks around a whole name, None when there are none."""
    mark = name[:1]
    if mark + name[-1:] in _BRACKETS:
        inner = name[1:-1].strip()
        return inner if inner and not set(inner) & set("[](){}<>") else None
    if not mark or mark not in _MARKS or name[-1] != mark:
        return None
    inner = name.strip(mark)
    wraps = min(len(name) - len(name.lstrip(mark)), len(name) - len(name.rstrip(mark)))
    return name[wraps:-wraps].strip() if inner.strip() and mark not in inner else None


def read_name(item: str) -> str:
    """Return a name without what is put around and behind it."""
    item = item.strip()
    if (found := _QUOTED.fullmatch(item)) is not None:
        try:
            return str(json.loads(found[0], strict=False))
        except ValueError:
            return found[0][1:-1]
    if item.endswith(")"):
        item = item.partition(" (")[0]
    return clean_name(_DASHED.split(item, maxsplit=1)[0])


def read_artifact(item: str) -> Artifact:
    """Return one artifact from `name`, `name: shape`, `name (note)` or `name: shape - note`."""
    found = _QUOTED.match(item) or _ARTIFACT.match(item)
    if found is None:
        return Artifact(read_name(item), None, "")
    name, rest = read_name(item[: found.end("name")]), item[found.end("name") :].strip()
    if rest.startswith(":"):
        shape, rest = _leading_shape(rest[1:].strip())
        return Artifact(name, shape, _note(rest))
    note = _note(rest)
    if rest.startswith("(") and (shape := named_shape(note)) is not None:
        return Artifact(name, shape, "")
    return Artifact(name, None, note)


def _note(rest: str) -> str:
    rest = rest.strip()
    if (dash := _DASH.match(rest)) is not None:
        return rest[dash.end() :]
    if rest.startswith("(") and rest.endswith(")"):
        return rest[1:-1]
    return rest.lstrip(",; ")


def _leading_shape(text: str) -> tuple[Any, str]:
    """Return the shape at the beginning of a text, None where there is none, and what follows it.

    What begins with a bracket and is no shape is returned as one, for `check_shape` to refuse.
    """
    if text[:1] in BRACKETS:
        try:
            shape, end = _bracketed(text)
        except ValueError:
            return text, ""
        return shape, text[end:]
    if (pattern := _LEADING_PATTERN.match(text)) is not None:
        return pattern[0], text[pattern.end() :]
    # What it is a list of stays as the note where it is no kind.
    many = _LIST_OF.match(text) is not None
    if (kind := _LEADING_KIND.match(text)) is not None:
        shape = named_shape(kind[0])
        return shape, text if many and shape == "list" else text[kind.end() :]
    return ("list" if many else None), text


def _bracketed(text: str) -> tuple[Any, int]:
    """Return what stands in the brackets that a text begins with, as JSON data, and its end."""
    written: list[str] = []
    depth = end = 0
    while (found := _TOKEN.match(text, end)) is not None:
        end, mark = found.end(), found["mark"]
        if found["text"]:
            written.append(json.dumps(_unquoted(found["text"])))
        elif mark:
            written.append(mark)
            depth += (mark in "[{") - (mark in "]}")
        if depth == 0:
            break
        if depth > MAX_DEPTH:
            raise ValueError(_TOO_DEEP)
    try:
        return json.loads("".join(written)), end
    except ValueError as error:
        raise _no_shape(text[:_MOST_SHOWN]) from error


def _unquoted(text: str) -> str:
    if text[:1] not in ('"', "'"):
        return text.strip()
    try:
        return json.loads(text, strict=False)
    except ValueError:  # single quotes, or a pattern whose backslashes stand alone
        return text[1:-1]


def _in_own_words(shape: Any, depth: int = 0) -> Any:
    """Return a shape with its aliases and texts translated: only KINDS and patterns stay."""
    if depth > MAX_DEPTH:
        raise ValueError(_TOO_DEEP)
    if isinstance(shape, str):
        return _text_in_own_words(shape, depth)
    if isinstance(shape, list) and len(shape) == 1:  # pyright: ignore[reportUnknownArgumentType]
        return [_in_own_words(shape[0], depth + 1)]
    if isinstance(shape, dict):
        fields = cast("dict[str, Any]", shape)
        return {name: _in_own_words(inner, depth + 1) for name, inner in fields.items()}
    raise _no_shape(cast("object", shape))


def _text_in_own_words(text: str, depth: int) -> Any:
    if _PATTERN.fullmatch(text) is not None:
        return text
    if text.strip()[:1] in BRACKETS:
        shape, end = _bracketed(text)
        if text[end:].strip():
            raise _no_shape(text[:_MOST_SHOWN])
        return _in_own_words(shape, depth)
    if (shape := named_shape(text)) is None:
        raise _no_shape(text[:_MOST_SHOWN])
    return shape


def _adapter(shape: object) -> TypeAdapter[Any]:
    """Return what checks a shape that is in this module's words."""
    kind = _as_type(shape)
    # A model brings its own configuration and refuses another.
    config = None if isinstance(kind, type(BaseModel)) else ConfigDict(strict=True)
    try:
        return TypeAdapter[Any](kind, config=config)
    except SchemaError as error:
        raise ValueError(f"not a pattern that can be matched: {shape!r} ({error})") from error


def _as_type(shape: Any) -> Any:
    if isinstance(shape, list):
        return list[_as_type(shape[0])]
    if isinstance(shape, dict):
        # By alias: a field may have a name that Python cannot hold.
        fields: dict[str, Any] = {
            f"field_{number}": (_as_type(inner), Field(alias=name))
            for number, (name, inner) in enumerate(cast("dict[str, Any]", shape).items())
        }
        return create_model("object", __config__=_STRICT, **fields)
    if shape in KINDS:
        return KINDS[shape]
    # \A and \z: the whole text has to match, so that `/\d+/` does not accept "about 3".
    pattern = shape[1:-1].replace("\\/", "/")
    return Annotated[str, StringConstraints(pattern=rf"\A(?:{pattern})\z")]


def _no_shape(found: object) -> ValueError:
    return ValueError(
        f'not a shape: {found!r}. Use {", ".join(KINDS)}, "/pattern/", {{"field": shape}} or '
        "[shape]."
    )


def _place(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location) + ": " if location else ""
