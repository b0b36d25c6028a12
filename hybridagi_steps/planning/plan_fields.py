"""What the steps of a plan say, as `PlanStep` takes it: ids, kinds, lists of names, artifacts.

Fields come from plan_parser.py as texts, or as values of the JSON form; one way leads from there.
Knows the many forms in which models write ids and lists; what is of the wrong kind stays as it is,
for the models of plan.py to refuse.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, cast

from hybridagi_steps.planning.artifact_types import (
    DESCRIBED,
    STRING,
    Artifact,
    clean_name,
    read_artifact,
    read_name,
)

STEP_ID = re.compile(r"\w[\w.\-]{0,99}")
"""What a step may be called, so that a list of ids needs no quotes."""

NAME_LISTS = ("files", "dependencies", "needs")
"""Fields that are lists of names."""
_SYNONYMS = {
    "analyze": "analyze analyse analysis examine inspect investigate research review",
    "generate": "generate generation create implement build write add",
    "modify": "modify modification update edit change fix refactor",
    "validate": "validate validation verify verification test check",
    "cleanup": "cleanup clean optimize optimise document finalize finalise",
}
_TYPES = {word: kind for kind, words in _SYNONYMS.items() for word in words.split()}

NOTHING = re.compile(
    r"(?:none|n/?a|null|nil|empty|nothing|not applicable|[-–—]+)\.?"
    r"(?:\s+(?:required|needed|yet|\([^()]*\)|[-–—].*))?",
    re.IGNORECASE,
)
_BULLET = re.compile(r"(?:[-*+•]|\d{1,4}[.)])\s+")
_MARK = re.compile(
    rf"{STRING}|(?<=:)[^\S\n]*/(?:[^/\\\n]|\\[^\n])+/"  # what holds no marks
    r'|(?P<mark>[()\[\]{},;\n]|"[^\n]*)'
)
_DEPTH = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}


def read_steps(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the fields of steps as `PlanStep` takes them; what is of the wrong kind stays so."""
    known: dict[str, str] = {}
    for step in given:
        for name in _identify(step):
            known.setdefault(name, step["id"])
    known |= {step["id"]: step["id"] for step in given if isinstance(step.get("id"), str)}
    return [_step(step, known) for step in given]


def _identify(step: dict[str, Any]) -> set[str]:
    """Give a step its id, a title with blanks as one with underscores; return what names it."""
    title, name, number = step.get("id", ""), step.get("name", ""), step.pop("number", "")
    title = clean_name(str(title) if isinstance(title, int) else title)
    if not isinstance(title, str):
        return set()
    slugs = [_slug(each) for each in (title, f"step {number}" if number else "", name)]
    step["id"] = title if STEP_ID.fullmatch(title) else next(filter(None, slugs), "")[:100]
    if not name and title != step["id"]:
        step["name"] = title
    return {*slugs, number} - {""}


def _step(step: dict[str, Any], known: Mapping[str, str]) -> dict[str, Any]:
    fields = {**step, **{name: _names(step[name]) for name in NAME_LISTS if name in step}}
    if isinstance(kind := step.get("type"), str):
        word = re.search(r"[^\W\d_]+", kind.lower())
        fields["type"] = _TYPES.get(word[0], kind) if word else kind
    said = (step.get("goal"), step.get("description"), step.get("name"))
    fields["goal"] = next(filter(None, said), "")
    waits: Any = fields.get("dependencies")
    if isinstance(waits, list) and all(isinstance(name, str) for name in cast("list[Any]", waits)):
        found = [step_id for name in cast("list[str]", waits) for step_id in _resolved(name, known)]
        fields["dependencies"] = list(dict.fromkeys(found))
    return {**fields, **_artifacts(step)}


def _names(value: object) -> object:
    if isinstance(value, str):
        return [name for item in _items(value) if (name := _list_name(item))]
    if isinstance(value, list):
        values = cast("list[Any]", value)
        return [str(item) if isinstance(item, int) else item for item in values]
    return value


def _list_name(item: str) -> str:
    name = read_name(item)
    return name if item[0] == '"' else name.removeprefix("./") or name  # quoted: to the letter


def _slug(text: object) -> str:
    return re.sub(r"[^\w.\-]+", "_", str(text).lower()).strip("_.-")


def _resolved(name: str, known: Mapping[str, str]) -> list[str]:
    """Return the ids a name stands for: one, or several joined by blanks or "and"."""
    for spelling in (name, _slug(name)):
        if spelling in known:
            return [known[spelling]]
    parts = re.split(r"\s+(?:and\s+|&\s+)?", name)
    ids = [known.get(part) or known.get(_slug(part)) for part in parts]
    return [step_id for step_id in ids if step_id] if all(ids) else [name]


def _artifacts(fields: dict[str, Any]) -> dict[str, Any]:
    """Return artifacts, shapes and notes of names, `name: shape` texts, objects or a mapping."""
    given, plain = fields.get("artifacts"), "shapes" in fields or "notes" in fields
    if isinstance(given, str):
        given = _items(given, whole=DESCRIBED)
    elif isinstance(given, dict):
        given = [{"name": name, "shape": shape} for name, shape in given.items()]  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(given, list):
        return {}
    read = [_artifact(item, plain=plain) for item in cast("list[Any]", given)]
    found = {
        "shapes": {each.name: each.shape for each in read if each.shape is not None},
        "notes": {each.name: each.note for each in read if each.note},
    }
    for name, more in found.items():
        if isinstance(before := fields.get(name), dict):
            found[name] = {**cast("dict[str, Any]", before), **more}
        elif before is not None:
            found[name] = before
    return {"artifacts": [each.name for each in read], **found}


def _artifact(item: object, *, plain: bool) -> Artifact:
    """Return name, shape and note; a `plain` text is a name and nothing else."""
    if isinstance(item, dict) and isinstance(name := cast("Any", item).get("name"), str):
        entry = cast("dict[str, Any]", item)
        return Artifact(name, entry.get("shape"), entry.get("note") or entry.get("description"))
    if plain or not isinstance(item, str):
        return Artifact(item, None, "")
    return read_artifact(item)


def _items(text: str, *, whole: re.Pattern[str] | None = None) -> list[str]:
    """Return the items of a list in whatever way it is written, `none` and the like left out."""
    items: list[str] = []
    for line in _split(_unbracketed(text), "\n"):
        bullet = _BULLET.match(line)
        item = line[bullet.end() :] if bullet else line
        if bullet and whole is not None and whole.match(item):
            items.append(item)
        else:
            items.extend(_split(_unbracketed(item), ",;"))
    return [item for item in items if NOTHING.fullmatch(item) is None]


def _split(text: str, separators: str) -> list[str]:
    """Split at separators outside quotes, brackets and patterns; unbalanced text splits plainly."""
    cuts, depth = [-1], 0
    for mark, place in _marks(text):
        depth = max(0, depth + _DEPTH.get(mark, 0))
        if mark in separators and depth == 0:
            cuts.append(place)
        elif mark[0] == '"':  # no other closes it in its line
            depth = len(text)
    pieces = [text[cut + 1 : end] for cut, end in pairwise([*cuts, len(text)])]
    if depth:
        pieces = re.split(f"[{separators}]", text)
    return [piece.strip() for piece in pieces if piece.strip()]


def _unbracketed(text: str) -> str:
    """Return what stands inside the brackets that enclose a whole text."""
    text = text.strip()
    if text[:1] + text[-1:] not in {"[]", "()"}:
        return text
    depth = 0
    for mark, place in _marks(text):
        depth += _DEPTH.get(mark, 0)
        if depth == 0 and place < len(text) - 1:
            return text
    return text[1:-1]


def _marks(text: str) -> list[tuple[str, int]]:
    """Return brackets, separators and lone quotes, and where they stand."""
    return [(found["mark"], found.start()) for found in _MARK.finditer(text) if found["mark"]]
