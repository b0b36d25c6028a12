"""Plan text: reads what people and models write, and writes what it reads back the same.

A field is a line `KEY: value`, bare or decorated by markdown; its value runs to the next key. JSON
with `steps` gives the same fields. What a plan must hold is left to the models of plan.py. A reader
of lines rather than a grammar: models add prose and markdown, so nearly every line is valid as
text. Every pattern is bounded, so reading takes linear time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import islice
from textwrap import dedent
from typing import Any, NamedTuple, cast

from pydantic import ValidationError

from hybridagi_steps.errors import PlanParseError
from hybridagi_steps.planning.artifact_types import (
    NOTHING,
    clean_name,
    read_artifacts,
    read_names,
)

MOST_CHARACTERS = 1_000_000
"""Longest text read as a plan."""
STEP_ID = re.compile(r"\w[\w.\-]{0,99}")
"""What a step may be called, so that a list of ids needs no quotes."""

_STEP_ALIASES = {
    "id": ("id", "step_id", "step"),
    "name": ("name", "title"),
    "type": ("type", "step_type"),
    "goal": ("goal", "objective"),
    "description": ("description",),
    "files": ("files", "file", "required_files"),
    "dependencies": ("dependencies", "depends_on", "dependency", "deps", "dependences", "after"),
    "needs": ("needs", "inputs"),
    "artifacts": ("artifacts", "artifact", "expected_artifacts", "outputs"),
}
"""Every field of a step, and the names that models give to it; the first one counts."""
_JSON_STEP = {**_STEP_ALIASES, "shapes": ("shapes",), "notes": ("notes",)}
_JSON_PLAN = {
    "name": ("name", "title", "plan"),
    "description": ("description",),
    "steps": ("steps",),
}
_KEYS = {"plan": "plan", "plan_name": "plan"} | {
    alias: field
    for field, names in _STEP_ALIASES.items()
    for alias in names
    if alias not in ("id", "after")
}
_TEXT_NAMES = {"id": "STEP", "shapes": "ARTIFACTS", "notes": "ARTIFACTS"}
_NAME_LISTS = ("files", "dependencies", "needs")
_TYPES = {
    word: kind
    for kind, words in {
        "analyze": "analyze analyse analysis examine inspect investigate research review",
        "generate": "generate generation create implement build write add",
        "modify": "modify modification update edit change fix refactor",
        "validate": "validate validation verify verification test check",
        "cleanup": "cleanup clean optimize optimise document finalize finalise",
    }.items()
    for word in words.split()
}

_KEY = re.compile(
    r"(?:[\s>#+•-]|\*(?=\s)|\d{1,3}[.)]\s){0,20}"  # quote marks, headings, bullets
    r"(?P<mark>\*{1,3}|_{1,2}|`)?"
    r"(?P<key>[A-Za-z]{2,12}(?:[ _-][A-Za-z]{2,12})?)"
    r"(?:[ ]{0,3}\#?(?P<number>\d{1,4}))?"
    r"(?P<closed>\*{1,3}|_{1,2}|`)?"
    r"[ \t]{0,5}[:：]"
)
_KEY_LENGTH = 90
_UNKNOWN = re.compile(
    r"(?:\*{1,3}|_{1,2}|`)?([A-Za-z]{2,30}(?:[ _-][A-Za-z]{2,30})?)[*_`]{0,3}[ \t]{0,5}[:：](?!//)"
)
_OF_WORDS = ("name", "goal", "description", "artifacts")  # may hold lines `word: …`
_END = re.compile(r"[\s>#*_`=-]{0,20}END[ _-]?(?:OF[ _-])?PLAN[\s*_`.=:-]{0,20}", re.IGNORECASE)
_RULE = re.compile(r"\s*(?:-{3,}|={3,}|\*{3,}|_{3,}|\.{3,}|…)?\s*")
_FENCE = "```"
_LITERAL = "|"
"""Begins the lines of a text that may hold keys, fences and ends of its own."""
_BARE = re.compile(r"[\w/@+][\w./@+\-]*")
_JSON_START = re.compile(
    r"^[ \t]{0,80}(?:```(?:json)?[ \t]{0,80}\n\s{0,200})?(?=[{\[])", re.MULTILINE | re.IGNORECASE
)
_MOST_STARTS_TRIED = 20


class _Key(NamedTuple):
    """A line that begins a field."""

    field: str
    number: str
    value: str
    is_upper: bool
    is_bare: bool  # nothing stands before it in its line


class _Value(NamedTuple):
    """One field: the line of its key, and its own lines."""

    line: int
    lines: list[str]


def read_plan(text: str) -> tuple[dict[str, Any], list[dict[str, int]]]:
    """Return the fields of a plan, and for each step the lines its fields stand in (none of JSON).

    Raises:
        PlanParseError: There is no plan in the text, or it says something twice.
    """
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise PlanParseError(f"expected the text of a plan, got {type(text).__name__}")
    if len(text) > MOST_CHARACTERS:
        raise PlanParseError(f"{len(text):,} characters are more than {MOST_CHARACTERS:,}")
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    header, *steps = [{}] if text.lstrip()[:1] in ("{", "[") else _blocks(lines)
    if not steps:
        return _json_plan(_find_json(text)), []
    about = _texts(header, "plan")
    plan = {
        "name": about["plan"] or about.get("name", ""),
        "description": about["description"],
        "steps": _normalized([_texts(step, "id") for step in steps]),
    }
    return plan, [{name: value.line for name, value in step.items()} for step in steps]


def refusal(error: ValidationError, lines: list[dict[str, int]]) -> PlanParseError:
    """Return why what was read is no plan, with the place in the text or in the JSON."""
    fault = error.errors(include_url=False)[0]
    place, message = fault["loc"], fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "enum" or fault["type"].endswith("_type"):
        message += f", not {fault['input']!r:.60}"
    if place[2:] == ("goal",) and isinstance(fault["input"], str):
        message = "the step says nothing of what it is for; give it a GOAL"
    inside = [str(part) for part in place]
    if place[2:3] == ("shapes",) and len(place) > 3:
        message, inside = f"artifact {inside[3]}: {message}", inside[:3]
    if not lines or len(place) < 3:
        steps = f"steps[{inside[1]}]" if len(place) > 1 else inside[0]
        return PlanParseError(message, field=".".join([steps, *inside[2:]]))
    step, name = lines[cast("int", place[1])], _TEXT_NAMES.get(inside[2], inside[2].upper())
    return PlanParseError(message, line=step.get(name.lower(), step["id"]), field=name)


def write_plan(plan: Mapping[str, Any]) -> str:
    """Return the text of a plan from its fields, as `Plan.model_dump` gives them."""
    lines = [f"PLAN: {plan['name']}".rstrip(), *_field("DESCRIPTION", plan["description"])]
    for step in plan["steps"]:
        lines += ["", f"STEP: {step['id']}"]
        for key in ("name", "type", "goal", "description"):
            lines += _field(key.upper(), step[key])
        for key in _NAME_LISTS:
            lines += _field(key.upper(), ", ".join(map(_quoted, step[key])))
        if step["artifacts"]:
            lines += ["ARTIFACTS:", *(f"- {_artifact_text(step, n)}" for n in step["artifacts"])]
    return "\n".join([*lines, "", "END_PLAN", ""])


def _field(key: str, value: str) -> list[str]:
    if "\n" in value:
        return [f"{key}:", *(f"{_LITERAL} {line}" for line in value.split("\n"))]
    return [f"{key}: {value}"] if value else []


def _quoted(name: str) -> str:
    """Return a name as it stands in a list: in quotes where it could be misread."""
    means_more = NOTHING.fullmatch(name) or _END.fullmatch(name) or _key(f"{name}:")
    return (
        name if _BARE.fullmatch(name) and not means_more else json.dumps(name, ensure_ascii=False)
    )


def _artifact_text(step: Mapping[str, Any], name: str) -> str:
    text, shape, note = _quoted(name), step["shapes"].get(name), step["notes"].get(name)
    if shape is not None:
        text += f": {shape if isinstance(shape, str) else json.dumps(shape, ensure_ascii=False)}"
    return f"{text} - {note}" if note else text


# The lines of a text


def _key(line: str) -> _Key | None:
    """Return the key that a line begins with, None when it is text."""
    match = _KEY.match(line[:_KEY_LENGTH])
    name = _KEYS.get(re.sub("[ -]", "_", match["key"].lower())) if match else None
    if match is None or name is None or (match["number"] and name != "id"):
        return None
    value, mark = line[match.end() :].strip(), match["mark"] or ""
    if mark and not match["closed"]:
        # `**GOAL:** text` closes behind the colon, `**GOAL: text**` at the end.
        value = value.removeprefix(mark) if value.startswith(mark) else value.removesuffix(mark)
    is_bare = match.start("mark" if mark else "key") == 0
    return _Key(name, match["number"] or "", value.strip(), match["key"].isupper(), is_bare)


def _blocks(lines: Sequence[str]) -> list[dict[str, _Value]]:
    """Return the header of the plan inside a text, and its steps, each cut into its fields.

    The header begins at the last PLAN before the steps. Where steps are written in capitals, keys
    in small letters are text, unless they begin their line and their field is still missing.
    """
    keys = [_key(line) for line in lines]
    in_capitals = any(key and key.field == "id" and key.is_upper for key in keys)
    blocks: list[dict[str, _Value]] = [{}]
    current = _Value(0, [])
    fences = outer_fences = 0
    for number, (line, key) in enumerate(zip(lines, keys, strict=True), 1):
        in_steps, block = len(blocks) > 1, blocks[-1]
        if in_capitals and key and not key.is_upper and not _is_missing(key, block, in_steps):
            key = None
        if in_steps and _END.fullmatch(line):
            break
        if line.lstrip().startswith(_FENCE):
            if not in_steps:
                outer_fences ^= 1
            elif fences or line.strip() != _FENCE:
                fences ^= 1
            elif outer_fences:
                break
            current.lines.append(line)
        elif (
            key is None
            or fences
            or not (in_steps or key.field in {"plan", "id", "name", "description"})
        ):
            if in_steps and not fences:
                _check_text(line, number, block, current)
            current.lines.append(line)
        elif key.field == "plan" and in_steps:
            raise PlanParseError("a second plan begins here", line=number, field="PLAN")
        elif key.field in {"plan", "id"}:
            new = {key.field: (current := _Value(number, [key.value]))}
            if key.field == "plan":
                blocks = [new]
            else:
                blocks.append({"number": _Value(number, [key.number]), **new})
        elif key.field in block and in_steps:
            message = f"stands twice, first in line {block[key.field].line}"
            raise PlanParseError(message, line=number, field=key.field.upper())
        else:
            current = block[key.field] = _Value(number, [key.value])
    return blocks


def _is_missing(key: _Key, block: Mapping[str, _Value], in_steps: bool) -> bool:
    """Whether a key in small letters begins a field that its block does not hold yet."""
    if not key.is_bare or key.number or (key.field in block and key.field != "id"):
        return False
    return key.field != "plan" if in_steps else key.field != "name" or "plan" not in block


def _check_text(line: str, number: int, block: Mapping[str, _Value], current: _Value) -> None:
    """Refuse a line that names a field there is not, where it would be no part of a text."""
    found = _UNKNOWN.match(line[:_KEY_LENGTH])
    if found is None or any(block.get(name) is current for name in _OF_WORDS):
        return
    if "goal" in block and not all(each.strip() for each in current.lines[1:]):
        return  # prose behind the last list of a step
    fields = ", ".join(_TEXT_NAMES.get(name, name.upper()) for name in _STEP_ALIASES)
    message = f"a step has no such field; its fields are {fields}"
    raise PlanParseError(message, line=number, field=found[1])


def _texts(block: Mapping[str, _Value], title: str) -> dict[str, str]:
    """Return the texts of a block's fields; what stands below its title describes it."""
    fields = {name: _text(value.lines) for name, value in block.items()}
    first, _, more = fields.get(title, "").partition("\n")
    parts = (more.strip(), fields.get("description"))
    return {**fields, title: first, "description": "\n\n".join(part for part in parts if part)}


def _text(lines: Sequence[str]) -> str:
    """Return a field's text; lines below an empty key lose the marks or the blanks they share."""
    first, *more = lines
    while more and _RULE.fullmatch(more[-1]):
        more.pop()
    if first:
        return "\n".join([first, *more])
    if all(line.startswith(_LITERAL) for line in more):
        return "\n".join(line[1:].removeprefix(" ") for line in more)
    return dedent("\n".join(more)).strip("\n")


# The JSON form: an object with `steps`, bare, in a fence, or inside other text


def _find_json(text: str) -> Any:
    """Return the first JSON object or list in a text."""
    broken: PlanParseError | None = None
    for match in islice(_JSON_START.finditer(text), _MOST_STARTS_TRIED):
        try:
            return json.JSONDecoder().raw_decode(text, match.end())[0]
        except (ValueError, RecursionError) as error:
            line = getattr(error, "lineno", text.count("\n", 0, match.end()) + 1)
            broken = broken or PlanParseError(f"broken JSON: {error}", line=line, field="steps")
    raise broken or PlanParseError(
        "no plan found: expected a line 'STEP: …' with its fields, or a JSON object with 'steps'",
        line=1 if text.strip() else None,
        field="STEP",
    )


def _json_plan(value: Any) -> dict[str, Any]:
    """Return the fields of a plan in JSON."""
    values = cast("dict[str, Any]", {"steps": value} if isinstance(value, list) else value)
    inner = values.get("plan")
    plan = _renamed(cast("Any", inner) if isinstance(inner, dict) else values, _JSON_PLAN)
    if "steps" not in plan:
        raise PlanParseError("the JSON object has no 'steps'", line=1, field="steps")
    steps: Any = plan["steps"]
    if isinstance(steps, dict):
        named = cast("dict[str, Any]", steps)
        steps = [{"id": n, **step} if isinstance(step, dict) else step for n, step in named.items()]
    if isinstance(steps, list):
        for number, step in enumerate(cast("list[Any]", steps)):
            if not isinstance(step, dict):
                message = f"expected a step as an object, got {step!r:.60}"
                raise PlanParseError(message, field=f"steps[{number}]")
        plan["steps"] = _normalized([_json_step(n, s) for n, s in enumerate(cast("Any", steps))])
    return plan


def _json_step(number: int, step: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a step in JSON, whatever their case; what is none is refused."""
    known = {alias for names in _JSON_STEP.values() for alias in names}
    values: dict[str, Any] = {}
    for name, value in step.items():
        plain = re.sub(r"(?<=[a-z])(?=[A-Z])|[ -]", "_", name).lower()
        if value is not None and plain not in known:
            message = f"a step has no such field; its fields are {', '.join(_JSON_STEP)}"
            raise PlanParseError(message, field=f"steps[{number}].{name:.60}")
        values[plain] = value if value is not None else values.get(plain)
    return _renamed(values, _JSON_STEP)


def _renamed(values: Mapping[str, Any], fields: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the fields that are understood under their own names, null left out."""
    found = ((field, values.get(name)) for field, names in fields.items() for name in names[::-1])
    return {field: value for field, value in found if value is not None}


# Fields of both forms: ids, kinds, lists. What is of the wrong kind stays for plan.py to refuse.


def _normalized(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give steps ids, kinds and lists; dependencies may name a step by number or title."""
    ids: dict[str, str] = {}
    for step in steps:
        number, name = step.pop("number", ""), step.get("name", "")
        title = clean_name(
            str(step["id"]) if isinstance(step.get("id"), int) else step.get("id", "")
        )
        if isinstance(title, str):
            slugs = [_slug(each) for each in (title, f"step {number}" if number else "", name)]
            step["id"] = title if STEP_ID.fullmatch(title) else next(filter(None, slugs), "")[:100]
            if not name and title != step["id"]:
                step["name"] = title
            for slug in filter(None, [*slugs, number]):
                ids.setdefault(slug, step["id"])
    ids |= {step["id"]: step["id"] for step in steps if isinstance(step.get("id"), str)}
    for step in steps:
        if isinstance(kind := step.get("type"), str):
            word = re.search(r"[^\W\d_]+", kind.lower())
            step["type"] = _TYPES.get(word[0], kind) if word else kind
        texts = (step.get("goal"), step.get("description"), step.get("name"))
        step["goal"] = next(filter(None, texts), "")
        step.update({name: read_names(step[name]) for name in _NAME_LISTS if name in step})
        if isinstance(waits := step.get("dependencies"), list):
            found = [each for name in cast("list[Any]", waits) for each in _resolved(name, ids)]
            step["dependencies"] = (
                list(dict.fromkeys(found))
                if all(isinstance(each, str) for each in found)
                else found
            )
        step.update(read_artifacts(step))
    return steps


def _slug(text: object) -> str:
    return re.sub(r"[^\w.\-]+", "_", str(text).lower()).strip("_.-")


def _resolved(name: Any, ids: Mapping[str, str]) -> list[Any]:
    """Return the ids that a name stands for: one, or several joined by "and"."""
    if not isinstance(name, str):
        return [name]
    if known := ids.get(name) or ids.get(_slug(name)):
        return [known]
    parts = [ids.get(part) or ids.get(_slug(part)) for part in re.split(r"\s+(?:and|&)\s+", name)]
    return parts if all(parts) else [name]
