"""The lines of a plan's text: which are keys, which are literal, where the plan begins and ends.

Knows markdown as far as models write it around a plan, and nothing of what the fields mean. Only
the head of a line is looked at, and every pattern is bounded, so no text takes more than linear
time.
"""

from __future__ import annotations

import re
from bisect import bisect
from typing import NamedTuple

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
_ESCAPED = re.compile(r"(\s*)(\\*)(.*)", re.DOTALL)

KEYS = {
    "PLAN": "PLAN",
    "PLAN_NAME": "PLAN",
    "STEP": "STEP",
    "STEP_ID": "STEP",
    "NAME": "NAME",
    "TITLE": "NAME",
    "TYPE": "TYPE",
    "STEP_TYPE": "TYPE",
    "GOAL": "GOAL",
    "OBJECTIVE": "GOAL",
    "DESCRIPTION": "DESCRIPTION",
    "FILES": "FILES",
    "FILE": "FILES",
    "DEPENDENCIES": "DEPENDENCIES",
    "DEPENDENCY": "DEPENDENCIES",
    "DEPENDS_ON": "DEPENDENCIES",
    "NEEDS": "NEEDS",
    "INPUTS": "NEEDS",
    "ARTIFACTS": "ARTIFACTS",
    "ARTIFACT": "ARTIFACTS",
    "EXPECTED_ARTIFACTS": "ARTIFACTS",
    "OUTPUTS": "ARTIFACTS",
}
"""Every key that is understood, and the field it means."""


class Key(NamedTuple):
    """A line that begins a field."""

    field: str
    number: str
    """The number in `STEP 3:`, else empty."""
    rest: str
    """What stands behind the colon."""
    upper: bool
    """Whether the key is written in capitals, as the format has it."""


class Line(NamedTuple):
    """One line of a plan; `key` is None where it is text, `drop` where it is mere decoration."""

    number: int
    text: str
    key: Key | None
    drop: bool = False


def key_of(line: str) -> Key | None:
    """Return the key that a line begins with, None when it is text."""
    found = _KEY.match(line[:_HEAD])
    if found is None:
        return None
    field = KEYS.get(re.sub("[ -]", "_", found["key"].upper()))
    if field is None or (found["number"] and field != "STEP"):
        return None
    rest, mark = line[found.end() :], found["mark"] or ""
    if mark and not found["closed"]:
        rest = rest.lstrip()
        # `**GOAL:** text` closes behind the colon, `**GOAL: text**` at the end.
        rest = (
            rest.removeprefix(mark) if rest.startswith(mark) else rest.rstrip().removesuffix(mark)
        )
    return Key(field, found["number"] or "", rest.strip(), found["key"].isupper())


def plan_lines(text: str) -> list[Line]:
    """Return the lines of the plan inside a text, without what stands before and after it.

    Returns:
        From the plan's first key to its last line; empty when there is no STEP.
    """
    every = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    keys = _visible([key_of(line) for line in every])
    first_step = next((n for n, key in enumerate(keys) if key and key.field == "STEP"), None)
    if first_step is None:
        return []
    start = _start(keys, first_step)
    stop = next((n for n in range(start, len(every)) if is_end(every[n])), None)
    if stop is None:
        stop = _stop_of_open_plan(every, keys, start)
    literal, decoration = _fenced(every, keys, start, stop)
    return [
        Line(n + 1, every[n], None if n in literal else keys[n], n in decoration)
        for n in range(start, stop)
    ]


def is_end(line: str) -> bool:
    """Whether a line ends the plan."""
    return len(line) < _HEAD and _END.fullmatch(line) is not None


def is_rule(line: str) -> bool:
    """Whether a line is a horizontal rule or an ellipsis, as models put between steps."""
    return len(line) < _HEAD and _RULE.fullmatch(line) is not None


def escaped(text: str) -> str:
    """Return a text whose lines after the first cannot be taken for keys, ends or fences."""
    first, *more = text.split("\n")
    open_fences = bool(_pairs(more)[1])
    return "\n".join([first, *(_escaped_line(line, open_fences) for line in more)])


def unescaped(line: str) -> str:
    """Return a line as it was before `escaped`."""
    space, slashes, rest = _parts(line)
    return space + slashes[1:] + rest if slashes and _special(rest) else line


def _escaped_line(line: str, open_fences: bool) -> str:
    space, slashes, rest = _parts(line)
    if not _special(rest):
        return line
    plain_fence = not slashes and _fence_info(rest) is not None
    return line if plain_fence and not open_fences else f"{space}\\{slashes}{rest}"


def _parts(line: str) -> tuple[str, str, str]:
    found = _ESCAPED.fullmatch(line)
    return ("", "", line) if found is None else (found[1], found[2], found[3])


def _special(line: str) -> bool:
    return (
        key_of(line) is not None or is_end(line) or is_rule(line) or _fence_info(line) is not None
    )


def _visible(keys: list[Key | None]) -> list[Key | None]:
    """Forget keys in small letters where the plan writes its fields in capitals.

    Then `- Name: the user's name` inside a description is text, as it was meant.
    """
    groups = {field: field if field in {"PLAN", "STEP"} else "" for field in KEYS.values()}
    capital = {groups[key.field] for key in keys if key and key.upper}
    return [
        key if key and (key.upper or groups[key.field] not in capital) else None for key in keys
    ]


def _start(keys: list[Key | None], first_step: int) -> int:
    """Return the line the plan begins at: the last PLAN, else DESCRIPTION, before its steps."""
    for field in ("PLAN", "DESCRIPTION"):
        lines = [n for n in range(first_step) if (key := keys[n]) and key.field == field]
        if lines:
            return lines[-1] if field == "PLAN" else lines[0]
    return first_step


def _stop_of_open_plan(every: list[str], keys: list[Key | None], start: int) -> int:
    """Return where a plan without END_PLAN ends: at the fence it stands in, else at the end."""
    if not _pairs(every[:start])[1]:
        return len(every)
    last_key = max(n for n, key in enumerate(keys) if key)
    unpaired = _pairs(every[start:])[1]
    after = [n + start for n in unpaired if n + start > last_key]
    return after[0] if after else len(every)


def _fenced(
    every: list[str], keys: list[Key | None], start: int, stop: int
) -> tuple[set[int], set[int]]:
    """Return the lines that are literal code, and the fences that only decorate steps."""
    pairs, _ = _pairs(every[start:stop])
    steps = [n for n in range(start, stop) if (key := keys[n]) and key.field == "STEP"]
    literal: set[int] = set()
    decoration: set[int] = set()
    for opened, closed in sorted(pairs):
        opened, closed = opened + start, closed + start
        if opened in literal:
            continue
        if bisect(steps, opened) < bisect(steps, closed):
            decoration |= {opened, closed}
        else:
            literal.update(range(opened, closed + 1))
    return literal, decoration


def _pairs(lines: list[str]) -> tuple[list[tuple[int, int]], list[int]]:
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


def _fence_info(line: str) -> str | None:
    found = _FENCE.fullmatch(line)
    return found["info"].strip() if found else None
