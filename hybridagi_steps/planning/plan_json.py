"""The JSON form of plans: an object with `steps`, bare, in a fence, or inside other text.

Knows the names that models give to the same fields. What it does not know is left out, since it
cannot be acted upon; what is of the wrong kind is refused with its place, `steps[2].type`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import chain, islice
from typing import Any, cast

from pydantic import ValidationError as PydanticError

from hybridagi_steps.errors import PlanParseError
from hybridagi_steps.planning.plan import PlanStep
from hybridagi_steps.planning.plan_items import Artifact, read_artifact, read_files, read_names

_FENCED = re.compile(r"^[ \t]{0,80}```(?:json|JSON)?[ \t]{0,80}\n(?=\s{0,200}[{\[])", re.MULTILINE)
_BARE = re.compile(r"^[ \t]{0,80}(?=[{\[])", re.MULTILINE)
_BLANK = re.compile(r"\s*")
_MOST_STARTS_TRIED = 20

_NAMES = {
    "id": ("id", "step_id", "step"),
    "type": ("type", "step_type"),
    "name": ("name", "title"),
    "goal": ("goal", "objective"),
    "description": ("description",),
    "files": ("files", "file", "required_files"),
    "dependencies": ("dependencies", "depends_on", "dependency"),
    "needs": ("needs", "inputs"),
    "artifacts": ("artifacts", "expected_artifacts", "outputs"),
    "shapes": ("shapes",),
    "notes": ("notes",),
}
"""Every field of a step, and the names under which it may stand."""


def find_json(text: str) -> Any:
    """Return the first JSON object or list in a text.

    Raises:
        PlanParseError: There is none, or it is broken; names the line.
    """
    found = chain(_FENCED.finditer(text), _BARE.finditer(text))
    starts = list(dict.fromkeys(match.end() for match in islice(found, _MOST_STARTS_TRIED)))
    if not starts:
        raise PlanParseError(
            "no plan found: expected a line 'STEP: …' with its fields, or a JSON object "
            "with 'steps'",
            line=1 if text.strip() else None,
            field="STEP",
        )
    failure: PlanParseError | None = None
    for start in starts:
        try:
            return json.JSONDecoder().raw_decode(text, _after_blanks(text, start))[0]
        except (json.JSONDecodeError, RecursionError) as error:
            failure = failure or _broken(text, start, error)
    raise failure or PlanParseError("no JSON found", field="STEP")


def plan_from_json(value: Any) -> dict[str, Any]:
    """Return what a JSON value says of a plan, as data for `Plan`.

    Raises:
        PlanParseError: It is no plan; names the field.
    """
    given: dict[str, Any] = {"steps": value} if isinstance(value, list) else value
    inner = given.get("plan")
    if isinstance(inner, dict):
        given = {"plan": "", **cast("dict[str, Any]", inner)}
    if "steps" not in given:
        raise PlanParseError("the JSON object has no 'steps'", line=1, field="steps")
    name = next((given[key] for key in ("name", "title", "plan") if key in given), "")
    return {
        "name": _text(name, "name"),
        "description": _text(given.get("description"), "description"),
        "steps": [_step(step, n) for n, step in enumerate(_step_list(given["steps"]))],
    }


def _after_blanks(text: str, start: int) -> int:
    found = _BLANK.match(text, start)
    return found.end() if found else start


def _broken(text: str, start: int, error: Exception) -> PlanParseError:
    if isinstance(error, json.JSONDecodeError):
        message = f"broken JSON: {error.msg} (column {error.colno})"
        return PlanParseError(message, line=error.lineno, field="steps")
    line = text.count("\n", 0, start) + 1
    return PlanParseError("the JSON is nested too deeply", line=line, field="steps")


def _step_list(value: Any) -> list[Any]:
    if isinstance(value, dict):
        named = cast("dict[str, Any]", value)
        return [
            {"id": key, **cast("dict[str, Any]", step)} if isinstance(step, dict) else step
            for key, step in named.items()
        ]
    if isinstance(value, list):
        return cast("list[Any]", value)
    raise PlanParseError(f"expected a list of steps, got {_kind(value)}", field="steps")


def _step(value: Any, number: int) -> PlanStep:
    place = f"steps[{number}]"
    if not isinstance(value, dict):
        raise PlanParseError(f"expected a step as an object, got {_kind(value)}", field=place)
    given = cast("dict[str, Any]", value)
    found = {
        name: given[key]
        for name, keys in _NAMES.items()
        if (key := next((key for key in keys if given.get(key) is not None), None)) is not None
    }
    fields = {**found, **_lists(found, place)}
    if "type" in fields and isinstance(fields["type"], str):
        fields["type"] = fields["type"].strip().lower()
    if "goal" not in fields:
        fields["goal"] = fields.get("description") or fields.get("name") or ""
    if isinstance(fields.get("id"), int):
        fields["id"] = str(fields["id"])
    try:
        return PlanStep.model_validate(fields)
    except PydanticError as error:
        fault = error.errors(include_url=False)[0]
        inside = ".".join(str(part) for part in fault["loc"])
        message = fault["msg"].removeprefix("Value error, ")
        raise PlanParseError(message, field=f"{place}.{inside}") from error


def _lists(found: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return the fields that are lists, whether they are given as lists or as text."""
    lists: dict[str, Any] = {}
    for name in ("files", "dependencies", "needs"):
        if name in found:
            read = read_files if name == "files" else read_names
            given = found[name]
            lists[name] = (
                read(given) if isinstance(given, str) else _texts(given, f"{place}.{name}")
            )
    if "artifacts" in found:
        lists.update(_artifacts(found, f"{place}.artifacts"))
    return lists


def _texts(value: Any, place: str) -> list[str]:
    if not isinstance(value, list):
        raise PlanParseError(f"expected a list, got {_kind(value)}", field=place)
    return [str(item) if isinstance(item, int) else item for item in cast("list[Any]", value)]


def _artifacts(found: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return artifacts, shapes and notes from names, `name: shape` texts, objects or a mapping."""
    given = found["artifacts"]
    if isinstance(given, str):
        given = [given] if given.strip() else []
    if isinstance(given, dict):
        given = [{"name": key, "shape": shape} for key, shape in given.items()]  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(given, list):
        raise PlanParseError(f"expected a list, got {_kind(given)}", field=place)
    names: list[str] = []
    shapes: dict[str, Any] = dict(found.get("shapes") or {})
    notes: dict[str, Any] = dict(found.get("notes") or {})
    for item in cast("list[Any]", given):
        name, shape, note = _artifact(item, place, plain="shapes" in found or "notes" in found)
        names.append(name)
        if shape is not None:
            shapes[name] = shape
        if note:
            notes[name] = note
    return {"artifacts": names, "shapes": shapes, "notes": notes}


def _artifact(item: Any, place: str, *, plain: bool) -> Artifact:
    """Return name, shape and note; a `plain` text is a name and nothing else."""
    if isinstance(item, str):
        return Artifact(item, None, "") if plain else read_artifact(item)
    if isinstance(item, dict) and isinstance(name := cast("Any", item).get("name"), str):
        entry = cast("dict[str, Any]", item)
        note = entry.get("note") or entry.get("description") or ""
        return Artifact(name, entry.get("shape"), _text(note, place))
    raise PlanParseError(f"expected a name or an object with 'name', got {item!r}", field=place)


def _text(value: Any, place: str) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    raise PlanParseError(f"expected text, got {_kind(value)}", field=place)


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "text", bool: "a boolean", type(None): "null"}
    return kinds.get(cast("type[Any]", type(value)), "a number")
