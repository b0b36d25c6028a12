"""Programs in files: one `<name>.cypher` per program, written whole or not at all.

Knows names and bytes, not what a program is. A program's name may hold anything, a file name may
not: what is unsafe anywhere is percent-encoded, and decoded when it is read.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote, unquote
from uuid import uuid4

from hybridagi_steps.errors import ProgramError, ProgramTextError, UnknownProgramError

SUFFIX = ".cypher"
LONGEST_NAME = 200
"""Most characters of a file name before its suffix; file systems take 255 bytes in all."""

_RESERVED = {"CON", "PRN", "AUX", "NUL"} | {f"{p}{n}" for p in ("COM", "LPT") for n in range(1, 10)}


def file_name(name: str) -> str:
    """Return the name of a program's file.

    Raises:
        ProgramError: The name is empty or too long, or has half a character.

    Example:
        >>> file_name("../plan"), file_name("ask user")
        ('%2E.%2Fplan.cypher', 'ask user.cypher')
    """
    try:
        stem = quote(name, safe=" ")
    except UnicodeEncodeError:
        raise ProgramError(f"the name {name!r} has half a character (a lone surrogate).") from None
    if stem.startswith((".", " ")) or stem.split(".")[0].upper() in _RESERVED:
        stem = f"%{ord(stem[0]):02X}{stem[1:]}"
    if not stem or len(stem) > LONGEST_NAME:
        raise ProgramError(
            f"a program cannot be saved under the name {name[:60]!r}: as a file name it has "
            f"{len(stem)} characters, and 1 to {LONGEST_NAME} are possible."
        )
    return stem + SUFFIX


def write(folder: Path, name: str, text: str) -> Path:
    """Write a program's text under its name and return the file."""
    path = folder / file_name(name)
    folder.mkdir(parents=True, exist_ok=True)
    # Opened by ourselves, so that the file gets the permissions of any new file.
    temporary = folder / f".{uuid4().hex}.saving"
    try:
        with temporary.open("xb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path


def read(path: Path) -> tuple[str, str]:
    """Return the name and the text of a program's file.

    Raises:
        UnknownProgramError: There is no such file.
        ProgramError: It is a folder.
        ProgramTextError: It is not UTF-8.
    """
    if path.is_dir():
        raise ProgramError(f"{str(path)!r} is a folder; load_folder reads all programs in one.")
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        known = [unquote(file.stem) for file in path.parent.glob(f"*{SUFFIX}")]
        raise UnknownProgramError(str(path), known) from None
    try:
        return unquote(path.stem), data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode()
        raise ProgramTextError(
            "this byte is not UTF-8: save the file as UTF-8",
            line=before.count("\n") + 1,
            column=len(before) - before.rfind("\n"),
            name=path.name,
        ) from None


def listed(folder: Path) -> list[Path]:
    """Return a folder's program files.

    Raises:
        UnknownProgramError: There is no such folder.
    """
    if not folder.is_dir():
        raise UnknownProgramError(str(folder))
    return sorted(folder.glob(f"*{SUFFIX}"))
