"""Secrets that are planted, and the net that finds them again, whatever they are caught in."""

from __future__ import annotations

import base64
import logging
import re
from pathlib import Path
from typing import Any

import orjson

_PATTERN = re.compile(r"canary\w*?x7f3a9c(\d\d)", re.IGNORECASE)


def redact(text: str) -> str:
    """Take every planted secret out."""
    return _PATTERN.sub("[gone]", text)


class Canaries:
    """Plants secrets, each with a name, and looks for them.

    Args:
        folder: The folder whose files are searched, to the last byte.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.names = folder, list[str]()
        self.seen: dict[str, Any] = {}
        """What left the library on other ways than files, by name."""

    def plant(self, name: str) -> str:
        """Return a new secret."""
        self.names.append(name)
        return f"canary{len(self.names):02d}x7f3a9c{len(self.names):02d}"

    def look_at(self, name: str, shown: Any) -> None:
        """Search this, too."""
        self.seen[f"{name} {len(self.seen)}"] = shown

    def leaks(self) -> dict[str, set[str]]:
        """Return where which secrets are found."""
        found: dict[str, set[str]] = {}
        for path in sorted(self.folder.rglob("*")):
            if path.is_file():
                found[path.name] = self.within(path.read_bytes()) | self.within(path.name)
        for name, shown in self.seen.items():
            found[name] = self.within(shown)
        return {place: names for place, names in found.items() if names}

    def within(self, shown: Any) -> set[str]:
        """Return the names of the secrets that stand in something, base64 included."""
        content = _bytes_of(shown).lower()
        found = {
            self.names[int(number) - 1]
            for number in _PATTERN.findall(content.decode("latin-1"))
            if 0 < int(number) <= len(self.names)
        }
        raw = _bytes_of(shown).replace(b"\\n", b"").replace(b"\n", b"")
        for number, name in enumerate(self.names, 1):
            secret = f"canary{number:02d}x7f3a9c{number:02d}".encode()
            if any(part in raw for part in _base64_forms(secret)):
                found.add(name)
        return found


class LogNet(logging.Handler):
    """Keeps every record of every logger, formatted with its traceback."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one."""
        self.lines.append(f"{self.format(record)} {record.args!r} {record.exc_info!r}")


def _bytes_of(shown: Any) -> bytes:
    if isinstance(shown, bytes):
        return shown
    if isinstance(shown, str):
        return shown.encode("utf-8", "surrogatepass")
    return orjson.dumps(shown, default=repr, option=orjson.OPT_NON_STR_KEYS)


def _base64_forms(secret: bytes) -> list[bytes]:
    """Return what base64 makes of a text wherever it begins, without the letters at the rims."""
    forms: list[bytes] = []
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + secret)
        forms.append(encoded[4 if shift else 0 : -4])
    return forms
