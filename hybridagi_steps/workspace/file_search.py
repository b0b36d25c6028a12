"""Finding files and lines below a confined directory. Reads, never writes, never follows a link."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from hybridagi_steps.errors import WorkspaceError
from hybridagi_steps.workspace.confined import ConfinedDirectory, path_parts
from hybridagi_steps.workspace.snapshot import IGNORED

HIDDEN = IGNORED | {".git", ".hg", ".svn", "node_modules", ".venv"}
"""What is neither listed nor searched: caches, histories and installed packages."""

_BINARY_HEAD = 8192


class FoundLine(NamedTuple):
    """One line that a search found."""

    path: str
    line: int
    """Counts from 1."""
    text: str


def list_files(directory: ConfinedDirectory, pattern: str) -> list[str]:
    """Return the regular files that match a pattern, sorted."""
    matches = _matcher(pattern)
    walked = directory.walk(skip=HIDDEN)
    return sorted(found.path for found in walked if found.kind == "file" and matches(found.path))


def search_lines(
    directory: ConfinedDirectory, text: str, pattern: str, *, ignore_case: bool, limit: int
) -> Iterator[FoundLine]:
    """Yield the lines that hold a text, by file and line."""
    if not text:
        raise WorkspaceError("a text to search for is needed; got nothing")
    wanted = text.casefold() if ignore_case else text
    for path in list_files(directory, pattern):
        for number, line in enumerate(_lines(directory, path, limit), start=1):
            if wanted in (line.casefold() if ignore_case else line):
                yield FoundLine(path, number, line)


def _lines(directory: ConfinedDirectory, path: str, limit: int) -> list[str]:
    try:
        content = directory.read_bytes(path, limit)
    except WorkspaceError:
        return []  # too large, or gone since it was listed: the search goes on
    if b"\0" in content[:_BINARY_HEAD]:
        return []
    return content.decode("utf-8", "replace").splitlines()


def _matcher(pattern: str) -> Callable[[str], bool]:
    parts = path_parts(pattern)
    # Equal neighbours say nothing new, and many `**` in a row would make matching slow.
    before = ("", *parts)
    parts = tuple(
        part for part, last in zip(parts, before, strict=False) if part != "**" or last != "**"
    )
    if sum(part == "**" for part in parts) > 4 or any(part.count("*") > 8 for part in parts):
        raise WorkspaceError(f"the pattern {pattern!r} has too many stars")
    compiled = [None if part == "**" else _part(part) for part in parts]
    return lambda path: _matches(compiled, path.split("/"))


def _part(part: str) -> re.Pattern[str]:
    """Translate one name with `*` and `?`; all else stands for itself."""
    letters = {"*": ".*", "?": "."}
    return re.compile("".join(letters.get(c, re.escape(c)) for c in part), re.DOTALL)


def _matches(parts: list[re.Pattern[str] | None], names: list[str]) -> bool:
    """Match names against parts; parts used up match all that is below."""
    if not parts:
        return True
    if not names:
        return all(part is None for part in parts)
    if (first := parts[0]) is None:
        return _matches(parts[1:], names) or _matches(parts, names[1:])
    return first.fullmatch(names[0]) is not None and _matches(parts[1:], names[1:])
