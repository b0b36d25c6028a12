"""The text form of plans: PLAN, DESCRIPTION, then STEP after STEP, END_PLAN.

Knows fields and what they mean; plan_lines.py finds the keys, plan_items.py reads the lists,
plan_json.py the JSON form. A reader of lines rather than a grammar: models wrap plans in markdown,
leave lines out and add prose, so nearly every line is valid as text, and a context-free grammar
would have to accept everything anyway; a line reader refuses only what it names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from textwrap import dedent
from typing import Any

from pydantic import ValidationError as PydanticError

from hybridagi_steps.errors import PlanParseError
from hybridagi_steps.planning.plan import STEP_ID, Plan, PlanStep, PlanStepType, clean_name
from hybridagi_steps.planning.plan_items import (
    Artifact,
    read_artifacts,
    read_files,
    read_names,
    write_artifact,
    write_names,
)
from hybridagi_steps.planning.plan_lines import Key, Line, escaped, is_rule, plan_lines, unescaped

MOST_CHARACTERS = 1_000_000
"""Longest text read as a plan."""

_LISTS = {"FILES", "DEPENDENCIES", "NEEDS", "ARTIFACTS"}
_HEADER_FIELDS = {"PLAN", "NAME", "DESCRIPTION"}
_SYNONYMS = {
    PlanStepType.ANALYZE: "analyze analyse analysis examine inspect investigate research review",
    PlanStepType.GENERATE: "generate generation create implement build write add",
    PlanStepType.MODIFY: "modify modification update edit change fix refactor",
    PlanStepType.VALIDATE: "validate validation verify verification test check",
    PlanStepType.CLEANUP: "cleanup clean optimize optimise document finalize finalise",
}
_TYPES = {word: kind for kind, words in _SYNONYMS.items() for word in words.split()}
_BULLETS = ("-", "*", "•", "+")
_JSON_START = re.compile(r"\s*[{\[]")


@dataclass
class _Value:
    """One field: the line of its key, and its own lines."""

    line: int
    lines: list[str]


@dataclass
class _Block:
    """The header of a plan, or one step."""

    line: int
    number: str = ""
    values: dict[str, _Value] = field(default_factory=dict[str, _Value])


def read_plan(text: str) -> dict[str, Any]:
    """Return what a plan's text says, as data for `Plan`.

    Args:
        text: Text or JSON form, at most 1,000,000 characters.

    Raises:
        PlanParseError: It cannot be read; names line and field.
    """
    from hybridagi_steps.planning.plan_json import find_json, plan_from_json

    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise PlanParseError(f"expected the text of a plan, got {type(text).__name__}")
    if len(text) > MOST_CHARACTERS:
        raise PlanParseError(f"{len(text):,} characters are more than {MOST_CHARACTERS:,}")
    lines = [] if _JSON_START.match(text) else plan_lines(text)
    if not any(line.key and line.key.field == "STEP" for line in lines):
        return plan_from_json(find_json(text))
    header, *steps = _blocks(lines)
    return {**_read_header(header), "steps": _read_steps(steps)}


def write_plan(plan: Plan) -> str:
    """Return a plan in its text form."""
    lines = [_field("PLAN", plan.name) or "PLAN:", _field("DESCRIPTION", plan.description)]
    for step in plan.steps:
        lines += ["", *_step_fields(step)]
    return "\n".join([*(line for line in lines if line is not None), "", "END_PLAN"]) + "\n"


def _step_fields(step: PlanStep) -> list[str | None]:
    artifacts = [
        write_artifact(Artifact(name, step.shapes.get(name), step.notes.get(name, "")))
        for name in step.artifacts
    ]
    return [
        f"STEP: {step.id}",
        _field("NAME", step.name),
        _field("TYPE", step.type.value),
        _field("GOAL", step.goal),
        _field("DESCRIPTION", step.description),
        _field("FILES", write_names(step.files)),
        _field("DEPENDENCIES", write_names(step.dependencies)),
        _field("NEEDS", write_names(step.needs)),
        "\n".join(["ARTIFACTS:", *(f"- {item}" for item in artifacts)]) if artifacts else None,
    ]


def _field(key: str, value: str) -> str | None:
    return f"{key}: {escaped(value)}" if value else None


def _blocks(lines: list[Line]) -> list[_Block]:
    """Cut lines into the header and the steps, each into its fields."""
    blocks = [_Block(lines[0].number)]
    current = _Value(lines[0].number, [])
    for line in lines:
        if line.drop:
            continue
        key = line.key
        if key is None or _is_text_here(key, blocks[-1], header=len(blocks) == 1):
            current.lines.append(line.text)
            continue
        if key.field == "PLAN" and blocks[-1].values:
            raise PlanParseError(
                "a second plan begins here; give one plan", line=line.number, field="PLAN"
            )
        if key.field == "STEP":
            blocks.append(_Block(line.number, key.number))
        elif key.field in blocks[-1].values:
            first = blocks[-1].values[key.field].line
            raise PlanParseError(
                f"stands twice, first in line {first}", line=line.number, field=key.field
            )
        current = _Value(line.number, [key.rest])
        blocks[-1].values[key.field] = current
    return blocks


def _is_text_here(key: Key, block: _Block, *, header: bool) -> bool:
    """Whether what looks like a key is part of the text around it."""
    if key.field in {"PLAN", "STEP"}:
        return False
    if header:
        return key.field not in _HEADER_FIELDS
    return not key.upper and key.field in block.values


def _text(block: _Block, name: str) -> str:
    """Return a field's text; lines below an empty key lose the indentation they share."""
    value = block.values.get(name)
    if value is None:
        return ""
    first, *more = value.lines
    while more and (is_rule(more[-1]) or not more[-1].strip()):
        more.pop()
    more = [unescaped(line) for line in more]
    return "\n".join([first, *more]) if first else dedent("\n".join(more))


def _list_text(block: _Block, name: str) -> str:
    """Return a list's text; prose after a blank line is no part of it."""
    kept: list[str] = []
    depth, ended = 0, False
    for line in _text(block, name).split("\n"):
        blank = not line.strip()
        if ended and not blank and not line.lstrip().startswith(_BULLETS):
            break
        kept.append(line)
        depth += sum(line.count(letter) for letter in "[{") - sum(map(line.count, "]}"))
        ended = ended or (blank and depth <= 0 and any(map(str.strip, kept[:2])))
    return "\n".join(kept)


def _first_line(block: _Block, name: str) -> tuple[str, str]:
    """Return a field's first line with something on it, and the rest."""
    first, _, rest = _text(block, name).strip().partition("\n")
    return first.strip(), rest.strip()


def _read_header(header: _Block) -> dict[str, Any]:
    name, more = _first_line(header, "PLAN")
    if "NAME" in header.values:
        name = name or _text(header, "NAME")
    description = "\n\n".join(part for part in (more, _text(header, "DESCRIPTION")) if part)
    return {"name": name, "description": description}


def _read_steps(blocks: list[_Block]) -> list[PlanStep]:
    ids = [_read_id(block) for block in blocks]
    known = _spellings(blocks, ids)
    return [_read_step(block, ids[n], known) for n, block in enumerate(blocks)]


def _read_step(block: _Block, step_id: str, known: dict[str, str]) -> PlanStep:
    title, more = _first_line(block, "STEP")
    name = _text(block, "NAME") or ("" if clean_name(title) == step_id else title)
    description = "\n\n".join(part for part in (more, _text(block, "DESCRIPTION")) if part)
    artifacts = read_artifacts(_list_text(block, "ARTIFACTS"))
    values = {
        "id": step_id,
        "type": _read_type(block),
        "name": name,
        "goal": _text(block, "GOAL") or description.strip() or name,
        "description": description,
        "files": read_files(_list_text(block, "FILES")),
        "dependencies": _read_dependencies(block, known),
        "needs": read_names(_list_text(block, "NEEDS")),
        "artifacts": [artifact.name for artifact in artifacts],
        "shapes": {item.name: item.shape for item in artifacts if item.shape is not None},
        "notes": {item.name: item.note for item in artifacts if item.note},
    }
    try:
        return PlanStep.model_validate(values)
    except PydanticError as error:
        raise _refused(error, block) from error


def _refused(error: PydanticError, block: _Block) -> PlanParseError:
    fault = error.errors(include_url=False)[0]
    place = str(fault["loc"][0]) if fault["loc"] else "id"
    name = {"id": "STEP", "shapes": "ARTIFACTS", "notes": "ARTIFACTS"}.get(place, place.upper())
    message = fault["msg"].removeprefix("Value error, ")
    if name == "GOAL":
        message = "the step says nothing of what it is for; give it a GOAL"
    line = block.values[name].line if name in block.values else block.line
    return PlanParseError(message, line=line, field=name)


def _read_type(block: _Block) -> PlanStepType:
    if "TYPE" not in block.values:
        return PlanStepType.GENERATE
    value = _first_line(block, "TYPE")[0]
    word = re.search(r"[^\W\d_]+", value.lower())
    if word is None or word[0] not in _TYPES:
        known = ", ".join(PlanStepType)
        line = block.values["TYPE"].line
        raise PlanParseError(f"{value!r} is none of {known}", line=line, field="TYPE")
    return _TYPES[word[0]]


def _read_id(block: _Block) -> str:
    """Return a step's id; a title with blanks becomes one with underscores."""
    title = clean_name(_first_line(block, "STEP")[0])
    if STEP_ID.fullmatch(title):
        return title
    if step_id := _slug(title)[:100]:
        return step_id
    if block.number:
        return f"step_{block.number}"
    if step_id := _slug(_text(block, "NAME"))[:100]:
        return step_id
    raise PlanParseError("the step has no id", line=block.line, field="STEP")


def _slug(text: str) -> str:
    return re.sub(r"[^\w.\-]+", "_", text.lower()).strip("_.-")


def _spellings(blocks: list[_Block], ids: list[str]) -> dict[str, str]:
    """Return every way in which a step may be named, and its id; the id itself wins."""
    known: dict[str, str] = {}
    for block, step_id in zip(blocks, ids, strict=True):
        names = [step_id, _text(block, "NAME"), _first_line(block, "STEP")[0]]
        if block.number:
            names += [block.number, f"step {block.number}"]
        for name in names:
            if spelling := _slug(name):
                known.setdefault(spelling, step_id)
    return {**known, **{step_id: step_id for step_id in ids}}


def _read_dependencies(block: _Block, known: dict[str, str]) -> list[str]:
    found: list[str] = []
    for name in read_names(_list_text(block, "DEPENDENCIES")):
        found.extend(_resolved(name, known))
    for name in found:
        if STEP_ID.fullmatch(name) is None:
            line = block.values["DEPENDENCIES"].line
            raise PlanParseError(f"{name!r} is no step id", line=line, field="DEPENDENCIES")
    return list(dict.fromkeys(found))


def _resolved(name: str, known: dict[str, str]) -> list[str]:
    """Return the ids a name stands for: one, or several joined by blanks or "and"."""
    for spelling in (name, _slug(name)):
        if spelling in known:
            return [known[spelling]]
    parts = re.split(r"\s+(?:and\s+|&\s+)?", name)
    ids = [known.get(part) or known.get(_slug(part)) for part in parts]
    return [step_id for step_id in ids if step_id] if all(ids) else [name]
