r"""Artifacts of a plan: lists of them as text, and the shapes that they must have.

A shape is JSON data that a person and a small model can both write: a type (`"string"`,
`"integer"` …), a pattern (`"/\d+/"`), an object of shapes (`{"host": "string"}`) or a list of one
shape (`["string"]`). Pydantic does the checking, so patterns run on its engine, which takes linear
time whatever a model wrote. Where artifacts are stored is no concern of this module.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, create_model
from pydantic import ValidationError as PydanticError
from pydantic_core import SchemaError

TYPES: dict[str, Any] = {
    "string": Annotated[str, StringConstraints(min_length=1)],
    "number": float | int,
    "integer": int,
    "boolean": bool,
    "array": list[Any],
    "object": dict[str, Any],
    "any": Any,
}
"""Types by name. `string` is never empty: a step that hands on nothing has failed."""

ALIASES = {
    "str": "string",
    "text": "string",
    "int": "integer",
    "float": "number",
    "num": "number",
    "bool": "boolean",
    "dict": "object",
    "json": "object",
    "mapping": "object",
    "list": "array",
}
"""Other names that models were seen to write; upper and lower case are the same."""

MAX_DEPTH = 16
_PATTERN = re.compile(r"/((?:[^/\\\n]|\\[^\n])+)/")
_STRICT = ConfigDict(strict=True, extra="allow")
NOTHING = re.compile(
    r"(?:none|n/?a|null|nil|empty|nothing|not applicable|[-–—]+)\.?"
    r"(?:\s+(?:required|needed|yet|\([^()]*\)|[-–—].*))?",
    re.IGNORECASE,
)
_BULLET = re.compile(r"\A(?:[-*+•]|\d{1,4}[.)])\s+")
_STRING = r'"(?:[^"\\\n]|\\[^\n])*"'
_ITEM = re.compile(rf"\s*({_STRING}|(?:[^,;(]|\([^()]*\)|\()+?)(?=[,;]|$)")
_ARTIFACT = re.compile(
    rf"(?P<name>{_STRING}|[^\s\"]\S*?)(?P<mark>\s{{0,9}}:(?:\s|$)|\s{{1,9}}[-–—]\s|\s{{1,9}}\()"
)
_DASH = re.compile(r"\s*[-–—]\s+")
_SHAPE = re.compile(
    r"/(?:[^/\\\n]|\\[^\n])+/(?=\s*$|\s+[-–—(])"
    r"|[A-Za-z]{2,12}(?:\s?\[[^\n]{0,200}\]|\s+of\s+\w+)?(?=\s*$|\s+[-–—]\s|\s*[,;(])"
)
_BRACKETS = {"[]", "()", "{}", "<>"}
_MARKS = "*`\"'"


def shape_problem(shape: object, value: object) -> str | None:
    """Return what is wrong with plain JSON data, None when it has the shape; None demands nothing.

    Faults are joined by "; ", each with the place inside the value.
    """
    if shape is None:
        return None
    try:
        _adapter(_normalized(shape)).validate_python(value)
    except PydanticError as error:
        faults = error.errors(include_url=False, include_input=False, include_context=False)
        return "; ".join(f"{_place(fault['loc'])}{fault['msg']}" for fault in faults)
    return None


def check_shape(shape: object) -> Any:
    """Return a shape with the types' own names, once it is known to be one."""
    if shape is None:
        return None
    normalized = _normalized(shape)
    _adapter(normalized)
    return normalized


def type_named(word: str) -> str | None:
    """Return the type that a word such as `Integer`, `str` or `list[int]` names, else None."""
    found = re.match(r"\s*(\w{1,20})(\s+of\s|\s*\[|\s*$)", word)
    name = found[1].lower() if found else ""
    name = ALIASES.get(name, name)
    if found is None or (found[2].strip() and name not in {"array", "object"}):
        return None
    return name if name in TYPES else None


def clean_name(value: object) -> Any:
    """Return a text as one line without the quotes, brackets or emphasis around it."""
    if not isinstance(value, str):
        return value
    name = " ".join(value.replace("\0", "").split())
    while (inner := _inside(name)) is not None:
        name = inner
    return name


def _inside(name: str) -> str | None:
    """Return the text inside the marks around a whole name, None when there are none."""
    mark = name[:1]
    if mark + name[-1:] in _BRACKETS:
        inner = name[1:-1].strip()
        return inner if inner and not set(inner) & set("[](){}<>") else None
    if not mark or mark not in _MARKS or name[-1] != mark:
        return None
    inner = name.strip(mark)
    wraps = min(len(name) - len(name.lstrip(mark)), len(name) - len(name.rstrip(mark)))
    return name[wraps:-wraps].strip() if inner.strip() and mark not in inner else None


def _normalized(shape: Any, depth: int = 0) -> Any:
    """Return a shape with the types' own names."""
    if depth > MAX_DEPTH:
        raise ValueError(f"a shape may be {MAX_DEPTH} levels deep at most")
    if isinstance(shape, str):
        named = shape if _PATTERN.fullmatch(shape) else type_named(shape)
        if named is not None:
            return named
    if isinstance(shape, list) and len(shape) == 1:  # pyright: ignore[reportUnknownArgumentType]
        return [_normalized(shape[0], depth + 1)]
    if isinstance(shape, dict):
        fields = cast("dict[str, Any]", shape)
        return {name: _normalized(inner, depth + 1) for name, inner in fields.items()}
    raise ValueError(
        f'not a shape: {cast("object", shape)!r:.100}. Use {", ".join(TYPES)}, "/pattern/", '
        '{"field": shape} or [shape], in JSON.'
    )


def _adapter(shape: object) -> TypeAdapter[Any]:
    """Return what checks a shape whose types have their own names."""
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
    if shape in TYPES:
        return TYPES[shape]
    # \A and \z: the whole text has to match, so that `/\d+/` does not accept "about 3".
    pattern = shape[1:-1].replace("\\/", "/")
    return Annotated[str, StringConstraints(pattern=rf"\A(?:{pattern})\z")]


def _place(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location) + ": " if location else ""


# Lists of names and artifacts, as people and models write them


def read_names(value: object) -> object:
    """Return the names in a list, however it is written; what is no list stays as it is."""
    if isinstance(value, str):
        return [
            _name(item).removeprefix("./") if item[0] != '"' else _name(item)
            for item in _items(value)
        ]
    if isinstance(value, list):
        return [str(item) if isinstance(item, int) else item for item in cast("list[Any]", value)]
    return value


def _name(item: str) -> str:
    """Return a name without what is put around and behind it."""
    if item.startswith('"') and item.endswith('"') and len(item) > 1:
        try:
            return str(json.loads(item, strict=False))
        except ValueError:
            return item[1:-1]
    return clean_name(re.split(r"\s[-–—(]", item, maxsplit=1)[0])


def _lines(text: str) -> list[str]:
    """Return the lines inside the brackets of a list, up to a blank one that prose follows."""
    lines: list[str] = []
    for line in _unbracketed(text).split("\n"):
        bullet = _BULLET.match(line.strip())
        if lines and lines[-1] == "" and any(lines) and not bullet and line.strip():
            break
        lines.append(line.strip())
    return lines


def _unbracketed(text: str) -> str:
    text = text.strip()
    return text[1:-1] if text[:1] + text[-1:] in {"[]", "()"} else text


def _items(text: str) -> list[str]:
    """Return the items of a list in whatever way it is written, `none` and the like left out."""
    lines = [_unbracketed(_BULLET.sub("", line, count=1)) for line in _lines(text)]
    items = [match[1].rstrip() for line in lines for match in _ITEM.finditer(line)]
    return [item for item in items if item and NOTHING.fullmatch(item) is None]


def read_artifacts(step: Mapping[str, Any]) -> dict[str, Any]:
    """Return artifacts, shapes and notes of names, `name: shape` texts, objects or a mapping."""
    value, plain = step.get("artifacts"), "shapes" in step or "notes" in step
    if isinstance(value, str):
        value = [item for line in _lines(value) for item in _artifact_items(line)]
    elif isinstance(value, dict):
        value = [{"name": name, "shape": shape} for name, shape in cast("Any", value).items()]
    if not isinstance(value, list):
        return {}
    names: list[Any] = []
    shapes, notes = step.get("shapes", {}), step.get("notes", {})
    for item in cast("list[Any]", value):
        name, shape, note = _artifact(item, plain=plain)
        names.append(name)
        if shape is not None and isinstance(shapes, dict):
            shapes = {**cast("Any", shapes), name: shape}
        if note and isinstance(notes, dict):
            notes = {**cast("Any", notes), name: note}
    return {"artifacts": names, "shapes": cast("Any", shapes), "notes": cast("Any", notes)}


def _artifact_items(line: str) -> list[str]:
    """Return the artifacts of a line: one where it says more of it than a list could."""
    item = _BULLET.sub("", line, count=1)
    if (item != line and _ARTIFACT.match(item)) or re.search(r":\s*(?:\w{0,9}\[|[{/])", item):
        return [item]
    return _items(line)


def _artifact(item: Any, *, plain: bool) -> tuple[Any, Any, Any]:
    """Return name, shape and note; a `plain` text is a name and nothing else."""
    if isinstance(item, dict) and isinstance(name := cast("Any", item).get("name"), str):
        entry = cast("dict[str, Any]", item)
        return name, entry.get("shape"), entry.get("note") or entry.get("description")
    if plain or not isinstance(item, str):
        return cast("Any", item), None, ""
    match = _ARTIFACT.match(item)
    if match is None:
        return _name(item), None, ""
    name, rest = _name(match["name"]), item[match.end() :].strip()
    if ":" in match["mark"]:
        return (name, *_shape_and_note(rest))
    if "(" in match["mark"]:
        rest = rest.removesuffix(")")
        shape = type_named(rest)
        return name, shape, "" if shape else rest
    return name, None, rest


def _shape_and_note(text: str) -> tuple[Any, str]:
    """Return the shape at the beginning of a text, None where there is none, and the note.

    What begins with a bracket and is no JSON is returned as a shape, to be refused as one.
    """
    if text[:1] in ("{", "["):
        try:
            shape, end = json.JSONDecoder().raw_decode(text)
        except (ValueError, RecursionError):
            return text, ""
        return shape, _note(text[end:])
    match = _SHAPE.match(text)
    shape = match and (match[0] if text[0] == "/" else type_named(match[0]))
    return (shape, _note(text[match.end() :])) if match and shape else (None, text)


def _note(text: str) -> str:
    text = text.strip()
    if dash := _DASH.match(text):
        return text[dash.end() :]
    return text[1:-1] if text[:1] + text[-1:] == "()" else text.lstrip(",; ")
