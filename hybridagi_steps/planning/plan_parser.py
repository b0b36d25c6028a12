"""Reading plans: what people and language models write as text or as JSON, as data for `Plan`.

Text and JSON give the same fields, which plan_fields.py reads; what a plan must hold it leaves to
the models of plan.py. A reader of lines rather than a grammar: models wrap plans in markdown, leave
lines out and add prose, so nearly every line is valid as text, and what a line means hangs on lines
far away (fences, keys in capitals). Every pattern is bounded, so reading takes linear time.
"""

from __future__ import annotations

import json
import re
from bisect import bisect
from collections.abc import Mapping, Sequence
from itertools import chain, islice
from textwrap import dedent
from typing import Any, NamedTuple, cast

from pydantic import ValidationError

from hybridagi_steps.errors import PlanParseError
from hybridagi_steps.planning.plan_fields import NAME_LISTS, NOTHING, read_steps

MOST_CHARACTERS = 1_000_000
"""Longest text read as a plan."""

FIELDS = {
    "id": ("id", "step_id", "step"),
    "name": ("name", "title"),
    "type": ("type", "step_type"),
    "goal": ("goal", "objective"),
    "description": ("description",),
    "files": ("files", "file", "required_files"),
    "dependencies": ("dependencies", "depends_on", "dependency"),
    "needs": ("needs", "inputs"),
    "artifacts": ("artifacts", "artifact", "expected_artifacts", "outputs"),
}
"""Every field of a step, and the names that models give to it; the first one counts."""
_JSON_STEP = {**FIELDS, "shapes": ("shapes",), "notes": ("notes",)}
_JSON_PLAN = {
    "name": ("name", "title", "plan"),
    "description": ("description",),
    "steps": ("steps",),
}
_KEYS = {"plan": "plan", "plan_name": "plan"} | {
    name: field for field, names in FIELDS.items() for name in names if name != "id"
}
_TEXT_NAMES = {"id": "STEP", "shapes": "ARTIFACTS", "notes": "ARTIFACTS"}
_LISTS = {*NAME_LISTS, "artifacts"}

_HEAD = 90
_KEY = re.compile(
    r"(?P<lead>(?:[\s>#+•-]|\*(?=\s)|\d{1,3}[.)]\s){0,20})"  # quote marks, headings, bullets
    r"(?P<mark>\*{1,3}|_{1,2}|`)?"
    r"(?P<key>[A-Za-z]{2,12}(?:[ _-][A-Za-z]{2,12})?)"
    r"(?:[ ]{0,3}\#?(?P<number>\d{1,4}))?"
    r"(?P<closed>\*{1,3}|_{1,2}|`)?"
    r"[ \t]{0,5}[:：]"
)
_END = re.compile(r"[\s>#*_`=-]{0,20}END[ _-]?(?:OF[ _-])?PLAN[\s*_`.=:-]{0,20}", re.IGNORECASE)
_FENCE = re.compile(r"\s{0,40}`{3,}(?P<info>[^`]*)")
_RULE = re.compile(r"\s{0,40}(?:-{3,}|={3,}|\*{3,}|_{3,}|\.{3,}|…)\s*")

_BULLETS = ("-", "*", "•", "+")
_BARE = re.compile(r"[\w./@+][\w./@+\-]*")
_JSON_START = re.compile(r"\s*[{\[]")
_JSON_FENCED = re.compile(
    r"^[ \t]{0,80}```(?:json|JSON)?[ \t]{0,80}\n\s{0,200}(?=[{\[])", re.MULTILINE
)
_JSON_BARE = re.compile(r"^[ \t]{0,80}(?=[{\[])", re.MULTILINE)
_MOST_STARTS_TRIED = 20


class Key(NamedTuple):
    """A line that begins a field: `number` is that of `STEP 3:`, `rest` what the colon precedes."""

    field: str
    number: str
    rest: str
    upper: bool


class _Value(NamedTuple):
    """One field: the line of its key, and its own lines."""

    line: int
    lines: list[str]


def read_plan(text: str) -> tuple[dict[str, Any], list[dict[str, int]]]:
    """Return what a text says of a plan, and for each step the lines its fields stand in."""
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise PlanParseError(f"expected the text of a plan, got {type(text).__name__}")
    if len(text) > MOST_CHARACTERS:
        raise PlanParseError(f"{len(text):,} characters are more than {MOST_CHARACTERS:,}")
    header, *steps = [{}] if _JSON_START.match(text) else _blocks(text)
    if not steps:
        return _json_plan(_find_json(text)), []
    about = _fields(header, "plan")
    plan = {
        "name": about["plan"] or about.get("name", ""),
        "description": about["description"],
        "steps": read_steps([_fields(step, "id") for step in steps]),
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


# Writing: names and texts are marked where reading would take them for something else.


def write_plan(plan: dict[str, Any]) -> str:
    """Return the text of a plan from its fields, as `Plan.model_dump` gives them."""
    lines = [_field("PLAN", plan["name"]) or "PLAN:", _field("DESCRIPTION", plan["description"])]
    for step in plan["steps"]:
        lines += ["", f"STEP: {step['id']}"]
        lines += [_field(key.upper(), step[key]) for key in ("name", "type", "goal", "description")]
        lines += [_field(key.upper(), ", ".join(map(_quoted, step[key]))) for key in NAME_LISTS]
        if step["artifacts"]:
            lines += ["ARTIFACTS:", *(f"- {_artifact_text(step, n)}" for n in step["artifacts"])]
    return "\n".join([*(line for line in lines if line is not None), "", "END_PLAN"]) + "\n"


def _artifact_text(step: dict[str, Any], name: str) -> str:
    text, shape, note = _quoted(name), step["shapes"].get(name), step["notes"].get(name)
    if shape is not None:
        text += f": {shape if isinstance(shape, str) else json.dumps(shape, ensure_ascii=False)}"
    return f"{text} - {note}" if note else text


def _field(key: str, value: str) -> str | None:
    return f"{key}: {_escaped(value)}" if value else None


def _quoted(name: str) -> str:
    """Return a name as it stands in a list: in quotes where it could be misread."""
    bare = _BARE.fullmatch(name) and not name.startswith("./")
    if bare and NOTHING.fullmatch(name) is None and key_of(f"{name}:") is None:
        return name
    return json.dumps(name, ensure_ascii=False)


def _escaped(text: str) -> str:
    """Return a text whose lines after the first cannot be taken for keys, ends or fences."""
    if "\n" not in text:
        return text
    first, *more = text.split("\n")
    unpaired = _fence_pairs(more)[1]
    for n, line in enumerate(more):
        place = _special_from(line)
        if place is not None and (unpaired or _fence_info(line) is None):
            more[n] = f"{line[:place]}\\{line[place:]}"
    return "\n".join([first, *more])


def _unescaped(line: str) -> str:
    place = _special_from(line)
    return line if place is None else line[:place] + line[place:].removeprefix("\\")


def _special_from(line: str) -> int | None:
    """Return where a key, an end or a fence begins, behind backslashes or not, else None."""
    text = line.lstrip()
    plain = text.lstrip("\\")
    special = key_of(plain) or any(each.fullmatch(plain) for each in (_END, _RULE, _FENCE))
    return len(line) - len(text) if special else None


# The lines of a text: which are keys, which are literal, where the plan begins and ends.


def key_of(line: str) -> Key | None:
    """Return the key that a line begins with, None when it is text."""
    found = _KEY.match(line[:_HEAD])
    if found is None:
        return None
    name = _KEYS.get(re.sub("[ -]", "_", found["key"].lower()))
    if name is None or (found["number"] and name != "id"):
        return None
    rest, mark = line[found.end() :], found["mark"] or ""
    if mark and not found["closed"]:
        rest = rest.lstrip()
        # `**GOAL:** text` closes behind the colon, `**GOAL: text**` at the end.
        rest = (
            rest.removeprefix(mark) if rest.startswith(mark) else rest.rstrip().removesuffix(mark)
        )
    return Key(name, found["number"] or "", rest.strip(), found["key"].isupper())


def _fence_info(line: str) -> str | None:
    found = _FENCE.fullmatch(line)
    return found["info"].strip() if found else None


def _fence_pairs(lines: list[str]) -> tuple[list[tuple[int, int]], list[int]]:
    """Match the fences in lines; return the pairs and the lines left over."""
    opened: list[int] = []
    pairs: list[tuple[int, int]] = []
    for n, line in enumerate(lines):
        info = _fence_info(line)
        if info is None:
            continue
        if opened and not info:
            pairs.append((opened.pop(), n))
        else:
            opened.append(n)
    return pairs, opened


def _visible(keys: list[Key | None]) -> list[Key | None]:
    """Forget keys in small letters where the plan writes its fields in capitals.

    Then `- Name: the user's name` inside a description is text, as it was meant.
    """
    groups = {name: name if name in {"plan", "id"} else "" for name in _KEYS.values()}
    capital = {groups[key.field] for key in keys if key and key.upper}
    return [
        key if key and (key.upper or groups[key.field] not in capital) else None for key in keys
    ]


def _blocks(text: str) -> list[dict[str, _Value]]:
    """Return the header of the plan inside a text, and its steps, each cut into its fields."""
    every = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    keys = _visible([key_of(line) for line in every])
    start, stop = _extent(every, keys)
    decoration = _forget_literal_keys(every, keys, start, stop)
    blocks, current = [dict[str, _Value]()], _Value(start + 1, [])
    for n in range(start, stop):
        key, block = keys[n], blocks[-1]
        if n in decoration:
            continue
        if key is None or _is_text_here(key, block, header=len(blocks) == 1):
            current.lines.append(every[n])
            continue
        if key.field == "plan" and block:
            message = "a second plan begins here; give one plan"
            raise PlanParseError(message, line=n + 1, field="PLAN")
        if key.field == "id":
            blocks.append(block := {"number": _Value(n + 1, [key.number])})
        elif key.field in block:
            message = f"stands twice, first in line {block[key.field].line}"
            raise PlanParseError(message, line=n + 1, field=key.field.upper())
        current = block[key.field] = _Value(n + 1, [key.rest])
    return blocks


def _extent(every: list[str], keys: list[Key | None]) -> tuple[int, int]:
    """Return where the plan begins and ends among all lines: nowhere when there is no step.

    It begins at the last PLAN before the steps, else at the first DESCRIPTION. Without END_PLAN it
    ends at the fence it stands in, else with the text.
    """
    fields = [key.field if key else None for key in keys]
    if "id" not in fields:
        return 0, 0
    before = fields[: fields.index("id")]
    start = len(before)
    if "plan" in before:
        start = len(before) - 1 - before[::-1].index("plan")
    elif "description" in before:
        start = before.index("description")
    for n in range(start, len(every)):
        if _END.fullmatch(every[n]):
            return start, n
    if _fence_pairs(every[:start])[1]:
        last_key = max(n for n, key in enumerate(keys) if key)
        for n in _fence_pairs(every[start:])[1]:
            if n + start > last_key:
                return start, n + start
    return start, len(every)


def _forget_literal_keys(
    every: list[str], keys: list[Key | None], start: int, stop: int
) -> set[int]:
    """Forget keys that are literal code; return the fences around steps, which only decorate."""
    steps = [n for n in range(start, stop) if (key := keys[n]) and key.field == "id"]
    decoration: set[int] = set()
    literal_to = -1
    for opened, closed in sorted(_fence_pairs(every[start:stop])[0]):
        opened, closed = opened + start, closed + start
        if opened <= literal_to:
            continue
        if bisect(steps, opened) < bisect(steps, closed):
            decoration |= {opened, closed}
        else:
            keys[opened : closed + 1] = [None] * (closed + 1 - opened)
            literal_to = closed
    return decoration


def _is_text_here(key: Key, block: Mapping[str, _Value], *, header: bool) -> bool:
    """Whether what looks like a key is part of the text around it."""
    if key.field in {"plan", "id"}:
        return False
    if header:
        return key.field not in {"name", "description"}
    return not key.upper and key.field in block


def _fields(block: Mapping[str, _Value], title: str) -> dict[str, str]:
    """Return the texts of a block's fields; what stands below its title describes it."""
    fields = {name: _text(value) for name, value in block.items()}
    fields |= {name: _without_prose(fields[name]) for name in _LISTS & fields.keys()}
    first, _, more = fields.get(title, "").strip().partition("\n")
    described = (more.strip(), fields.get("description"))
    return {
        **fields,
        title: first.strip(),
        "description": "\n\n".join(part for part in described if part),
    }


def _text(value: _Value) -> str:
    """Return a field's text; lines below an empty key lose the indentation they share."""
    first, *more = value.lines or [""]
    while more and (_RULE.fullmatch(more[-1]) or not more[-1].strip()):
        more.pop()
    more = [_unescaped(line) for line in more]
    return "\n".join([first, *more]) if first else dedent("\n".join(more))


def _without_prose(text: str) -> str:
    """Return a list's text; prose after a blank line is no part of it."""
    kept: list[str] = []
    depth, ended = 0, False
    for line in text.split("\n"):
        blank = not line.strip()
        if ended and not blank and not line.lstrip().startswith(_BULLETS):
            break
        kept.append(line)
        depth += sum(line.count(letter) for letter in "[{") - sum(map(line.count, "]}"))
        ended = ended or (blank and depth <= 0 and any(map(str.strip, kept[:2])))
    return "\n".join(kept)


# The JSON form: an object with `steps`, bare, in a fence, or inside other text.


def _find_json(text: str) -> Any:
    """Return the first JSON object or list in a text."""
    found = chain(_JSON_FENCED.finditer(text), _JSON_BARE.finditer(text))
    broken: PlanParseError | None = None
    for start in dict.fromkeys(match.end() for match in islice(found, _MOST_STARTS_TRIED)):
        try:
            return json.JSONDecoder().raw_decode(text, start)[0]
        except (ValueError, RecursionError) as error:
            line = getattr(error, "lineno", text.count("\n", 0, start) + 1)
            broken = broken or PlanParseError(f"broken JSON: {error}", line=line, field="steps")
    raise broken or PlanParseError(
        "no plan found: expected a line 'STEP: …' with its fields, or a JSON object with 'steps'",
        line=1 if text.strip() else None,
        field="STEP",
    )


def _json_plan(value: object) -> dict[str, Any]:
    """Return what a JSON value says of a plan, as data for `Plan`."""
    given = cast("dict[str, Any]", {"steps": value} if isinstance(value, list) else value)
    inner = given.get("plan")
    plan = _renamed(cast("Any", inner) if isinstance(inner, dict) else given, _JSON_PLAN)
    if "steps" not in plan:
        raise PlanParseError("the JSON object has no 'steps'", line=1, field="steps")
    steps: Any = plan["steps"]
    if isinstance(steps, dict):
        named = cast("dict[str, Any]", steps)
        steps = [{"id": n, **step} if isinstance(step, dict) else step for n, step in named.items()]
    if not isinstance(steps, list):
        return plan
    steps = cast("list[Any]", steps)
    for number, step in enumerate(steps):
        if not isinstance(step, dict):
            message = f"expected a step as an object, got {step!r:.60}"
            raise PlanParseError(message, field=f"steps[{number}]")
    return {**plan, "steps": read_steps([_renamed(step, _JSON_STEP) for step in steps])}


def _renamed(given: dict[str, Any], fields: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the fields that are understood under their own names, null left out."""
    found = ((field, given.get(name)) for field, names in fields.items() for name in names[::-1])
    return {field: value for field, value in found if value is not None}
