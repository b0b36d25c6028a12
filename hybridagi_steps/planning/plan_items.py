"""Lists inside a plan's text: file names, dependencies, artifacts with their shapes.

People and models write the same list in a dozen ways: `a, b`, `[a, b]`, bullets, backticks, `none`,
remarks in brackets. One scanner splits a text at the separators that stand outside quotes,
brackets and patterns; it looks at every character once. What is written here reads back the same.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from hybridagi_steps.planning.artifact_types import (
    ALIASES,
    BRACKETS,
    KINDS,
    named_shape,
    read_shape,
)
from hybridagi_steps.planning.plan import clean_name
from hybridagi_steps.planning.plan_lines import key_of

_NOTHING = re.compile(
    r"(?:none|n/?a|null|nil|empty|nothing|not applicable|[-–—]+)\.?"
    r"(?:\s+(?:required|needed|yet|\([^()]*\)|[-–—].*))?",
    re.IGNORECASE,
)
_BULLET = re.compile(r"(?:[-*+•]|\d{1,4}[.)])\s+")
_DASHED = re.compile(r"\s[-–—]\s")
_BARE = re.compile(r"[\w./@+][\w./@+\-]*")
_WORDS = "|".join([*KINDS, *ALIASES])
_KIND = re.compile(
    rf"((?:list|array|dict|mapping)\s?\[[^\n]{{0,200}}\]|(?:list|array)\s+of\s+\w+|{_WORDS})"
    r"(?=\s*$|\s+[-–—]\s|\s*[,;(])",
    re.IGNORECASE,
)
_LIST_OF = re.compile(r"(?:list|array)\s+of\s", re.IGNORECASE)
_PATTERN = re.compile(r"/(?:[^/\\\n]|\\[^\n])+/(?=\s*$|\s+[-–—(])")
_DASH = re.compile(r"\s*[-–—]\s+")
_QUOTED = re.compile(r'(?P<name>"(?:[^"\\\n]|\\[^\n])*")')
_SLASHED = re.compile(r"/(?:[^/\\\n]|\\[^\n])+/")
_NAMED = r"(?:\s{0,9}:(?:\s|$)|\s{1,9}[-–—]\s|\s{1,9}\()"
_ARTIFACT = re.compile(rf"(?P<name>\S+?){_NAMED}")
_DESCRIBED = re.compile(rf'(?:"(?:[^"\\\n]|\\[^\n])*"|\S+?){_NAMED}')
_OPEN, _CLOSE = "([{", ")]}"


class Artifact(NamedTuple):
    """One entry of a list of artifacts."""

    name: str
    shape: Any
    note: str


def split_list(text: str, *, whole: re.Pattern[str] | None = None) -> list[str]:
    """Return the items of a list in whatever way it is written, `none` and the like left out.

    Args:
        text: The value of a field, several lines allowed.
        whole: A bulleted line that begins like this is one item, commas and all.
    """
    items: list[str] = []
    for line in _split(_unbracketed(text), "\n"):
        bullet = _BULLET.match(line)
        item = line[bullet.end() :] if bullet else line
        if bullet and whole is not None and whole.match(item):
            items.append(item)
        else:
            items.extend(_split(_unbracketed(item), ",;"))
    return [item for item in items if _NOTHING.fullmatch(item) is None]


def read_names(text: str) -> list[str]:
    """Return names as they are meant: without quotes, backticks, and remarks behind them."""
    return [name for item in split_list(text) if (name := _name(item))]


def read_files(text: str) -> list[str]:
    """Return file names; a leading `./` says nothing and is left out."""
    return [name.removeprefix("./") or name for name in read_names(text)]


def read_artifacts(text: str) -> list[Artifact]:
    """Return artifacts with what is said about them."""
    return [read_artifact(item) for item in split_list(text, whole=_DESCRIBED)]


def read_artifact(item: str) -> Artifact:
    """Return one artifact from `name`, `name: shape`, `name (note)` or `name: shape - note`."""
    found = _QUOTED.match(item) or _ARTIFACT.match(item)
    if found is None:
        return Artifact(_name(item), None, "")
    name, rest = _name(item[: found.end("name")]), item[found.end("name") :].strip()
    if rest.startswith(":"):
        shape, rest = _leading_shape(rest[1:].strip())
        return Artifact(name, shape, _note(rest))
    note = _note(rest)
    if rest.startswith("(") and (shape := named_shape(note)) is not None:
        return Artifact(name, shape, "")
    return Artifact(name, None, note)


def write_names(names: list[str]) -> str:
    """Return names on one line, quoted where they could be misread."""
    return ", ".join(_written(name) for name in names)


def write_artifact(artifact: Artifact) -> str:
    """Return one artifact as an item of a list."""
    text = _written(artifact.name)
    if artifact.shape is not None:
        shape = artifact.shape
        text += f": {shape if isinstance(shape, str) else json.dumps(shape, ensure_ascii=False)}"
    return f"{text} - {artifact.note}" if artifact.note else text


def _split(text: str, separators: str) -> list[str]:
    """Split at separators outside quotes, brackets and patterns; unbalanced text splits plainly."""
    pieces: list[str] = []
    start = place = depth = closed_until = 0
    last = ""
    while place < len(text):
        letter = text[place]
        literal = _literal(letter, last)
        if literal is not None and place >= closed_until:
            if (found := literal.match(text, place)) is not None:
                place, last = found.end(), letter
                continue
            # What is not closed in this line is not looked for again: one scan, linear time.
            closed_until = text.find("\n", place) % (len(text) + 1)
        if letter in _OPEN:
            depth += 1
        elif letter in _CLOSE:
            depth = max(0, depth - 1)
        elif letter in separators and depth == 0:
            pieces.append(text[start:place])
            start = place + 1
        last = last if letter.isspace() else letter
        place += 1
    if depth:
        return _stripped(re.split(f"[{re.escape(separators)}]", text))
    return _stripped([*pieces, text[start:]])


def _literal(letter: str, last: str) -> re.Pattern[str] | None:
    """Return how the literal reads that a letter begins; `last` is the letter before it."""
    if letter == '"':
        return _QUOTED
    return _SLASHED if letter == "/" and last == ":" else None


def _stripped(pieces: list[str]) -> list[str]:
    return [piece.strip() for piece in pieces if piece.strip()]


def _unbracketed(text: str) -> str:
    """Return what stands inside the brackets that enclose a whole text."""
    text = text.strip()
    if len(text) < 2 or text[0] not in "[(" or text[-1] != _CLOSE[_OPEN.index(text[0])]:
        return text
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter in _OPEN) - (letter in _CLOSE)
        if depth == 0 and place < len(text) - 1:
            return text
    return text[1:-1]


def _name(item: str) -> str:
    """Return a name without what is put around and behind it."""
    item = item.strip()
    if (quoted := _QUOTED.fullmatch(item)) is not None:
        try:
            return str(json.loads(quoted[0], strict=False))
        except ValueError:
            return quoted[0][1:-1]
    if item.endswith(")"):
        item = item.partition(" (")[0]
    return clean_name(_DASHED.split(item, maxsplit=1)[0])


def _written(name: str) -> str:
    bare = _BARE.fullmatch(name) and not name.startswith("./")
    if bare and _NOTHING.fullmatch(name) is None and key_of(f"{name}:") is None:
        return name
    return json.dumps(name, ensure_ascii=False)


def _leading_shape(text: str) -> tuple[Any, str]:
    """Return the shape at the beginning of a text, and the rest of the text."""
    if text[:1] in BRACKETS:
        try:
            shape, end = read_shape(text)
        except ValueError:
            return text, ""  # no shape, which the step that it belongs to says
        return shape, text[end:]
    if (pattern := _PATTERN.match(text)) is not None:
        return pattern[0], text[pattern.end() :]
    if (kind := _KIND.match(text)) is not None:
        shape = named_shape(kind[1])
        vague = shape == "list" and _LIST_OF.match(text) is not None
        return shape, text if vague else text[kind.end() :]
    # What it is a list of stays as the note.
    return ("list" if _LIST_OF.match(text) else None), text


def _note(rest: str) -> str:
    rest = rest.strip()
    if (dash := _DASH.match(rest)) is not None:
        return rest[dash.end() :]
    if rest.startswith("(") and rest.endswith(")"):
        return rest[1:-1]
    return rest.lstrip(",; ")
