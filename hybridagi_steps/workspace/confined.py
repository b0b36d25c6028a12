"""Files below one directory, and nothing else.

Every path is walked part by part from an open descriptor of the directory, and no symbolic link is
ever followed, so it does not matter what a command puts where between a check and a use: what is
opened is what was checked. Devices, pipes and sockets are refused before they are opened. A file is
written beside its place and renamed into it, so a reader sees the old content or the new.

Listing and searching below it reads, never writes, and never follows a link either. Knows
nothing of plans, snapshots or limits on the whole. POSIX only: it needs `dir_fd`.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from hybridagi_steps.errors import WorkspaceError

TEMPORARY = ".steps-tmp"
"""How names end that are no files yet; a crash may leave one, and it is swept away later."""

IGNORED = frozenset(
    {
        "__pycache__",
        ".pytest_cache",
        ".ruff_cache",
        ".mypy_cache",
        ".hypothesis",
        ".ipynb_checkpoints",
    }
)
"""Caches that programs write beside sources: never part of a snapshot, a listing or a change."""
HIDDEN = IGNORED | {".git", ".hg", ".svn", "node_modules", ".venv"}
"""What is neither listed nor searched: caches, histories and installed packages."""

_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _NO_LINK
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _NO_LINK
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK
_LONGEST_PATH = 4096
_DEEPEST = 100
_BINARY_HEAD = 8192


class FoundLine(NamedTuple):
    """One line that a search found."""

    path: str
    line: int
    """Counts from 1."""
    text: str


class Found(NamedTuple):
    """One thing in a directory tree."""

    path: str
    """Relative, with `/`."""
    kind: str
    """file, dir, link or other."""
    mode: int
    """Permission bits."""
    size_bytes: int


def path_parts(path: str) -> tuple[str, ...]:
    """Return the parts of a path below a workspace; none for the workspace itself."""
    if not isinstance(path, str) or not path.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
        raise WorkspaceError("a path in the workspace is needed, such as 'src/app.py'; got nothing")
    if "\0" in path or len(path) > _LONGEST_PATH:
        raise WorkspaceError(f"not a path: {path[:80]!r} holds a NUL or is too long")
    if path.startswith(("/", "~")):
        raise WorkspaceError(f"{path!r} is outside the workspace: name it relative to its top")
    parts = tuple(part for part in path.split("/") if part not in {"", "."})
    if ".." in parts:
        raise WorkspaceError(f"{path!r} leaves the workspace: '..' is not allowed")
    if len(parts) > _DEEPEST or any(part.endswith(TEMPORARY) for part in parts):
        raise WorkspaceError(f"{path!r} is no path for a workspace: too deep, or a reserved name")
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:
        raise WorkspaceError(f"{path!r} is no name that a file can have") from error
    return parts


class ConfinedDirectory:
    """The files below one directory."""

    def __init__(self, root: Path | str) -> None:
        if not isinstance(root, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise WorkspaceError(f"a workspace is made of a directory's path, not of {root!r:.80}")
        self.root = Path(root).resolve()
        if os.open not in os.supports_dir_fd:
            raise WorkspaceError("workspaces need a POSIX system: files are opened by descriptor")
        try:
            os.close(os.open(self.root, _DIRECTORY))
        except (OSError, ValueError) as error:
            raise WorkspaceError(_no_root(root, error)) from error

    def read_bytes(self, path: str, limit: int) -> bytes:
        """Return a file's content."""
        with self._parent(path) as (parent, name):
            self._regular(os.stat(name, dir_fd=parent, follow_symlinks=False), path, limit)
            descriptor = os.open(name, _READ, dir_fd=parent)
            with open(descriptor, "rb") as file:  # noqa: PTH123 - by descriptor, not by path
                self._regular(os.fstat(descriptor), path, limit)
                content = file.read(limit + 1)
        if len(content) > limit:
            raise _too_large(path, len(content), limit)
        return content

    def stat(self, path: str) -> Found | None:
        """Return what is at a path, None if nothing is."""
        try:
            with self._parent(path) as (parent, name):
                return _found(path, os.stat(name, dir_fd=parent, follow_symlinks=False))
        except WorkspaceError as error:
            if _is_absent(error):
                return None
            raise

    def write_bytes(self, path: str, content: bytes, *, mode: int | None, sync: bool) -> None:
        """Write a file whole, with the directories above it; with `sync` it is on the disk then.

        What was there is replaced, a link itself rather than what it points at; without a mode its
        permission bits are kept.
        """
        with self._parent(path, make=True) as (parent, name):
            if mode is None:
                mode = _mode_at(parent, name)
            temporary = f".{uuid4().hex}{TEMPORARY}"
            try:
                descriptor = os.open(temporary, _CREATE, 0o600, dir_fd=parent)
                with open(descriptor, "wb") as file:  # noqa: PTH123 - by descriptor, not by path
                    file.write(content)
                    os.fchmod(descriptor, mode & 0o777)
                    if sync:
                        file.flush()
                        os.fsync(descriptor)
                os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=parent)
                raise
            if sync:
                os.fsync(parent)

    def write_link(self, path: str, target: str) -> None:
        """Make a symbolic link; it is kept, never followed."""
        with self._parent(path, make=True) as (parent, name):
            temporary = f".{uuid4().hex}{TEMPORARY}"
            os.symlink(target, temporary, dir_fd=parent)
            os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)

    def read_link(self, path: str) -> str:
        """Return where a symbolic link points."""
        with self._parent(path) as (parent, name):
            return os.readlink(name, dir_fd=parent)

    def make_directory(self, path: str, mode: int) -> None:
        """Make a directory and those above it; one that is there gets the mode."""
        with self._parent(path, make=True) as (parent, name):
            descriptor = _open_directory(name, parent, make=True)
            try:
                os.fchmod(descriptor, (mode & 0o777) | 0o700)
            finally:
                os.close(descriptor)

    def remove(self, path: str) -> None:
        """Remove a file, a link or an empty directory; what is gone already is no fault."""
        try:
            with self._parent(path) as (parent, name):
                if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                    os.rmdir(name, dir_fd=parent)
                else:
                    os.unlink(name, dir_fd=parent)
        except WorkspaceError as error:
            if not _is_absent(error):
                raise

    def walk(self, path: str = ".", *, skip: frozenset[str] = frozenset()) -> Iterator[Found]:
        """Yield what is below a directory, by name, a directory before what is in it."""
        parts = path_parts(path)
        with self._directory(parts, path) as descriptor:
            yield from _walk(descriptor, "".join(f"{part}/" for part in parts), skip, len(parts))

    def sweep(self) -> None:
        """Remove temporary files that a crash has left."""
        with self._directory((), ".") as top:
            for _, _, names, descriptor in os.fwalk(".", dir_fd=top):
                for name in names:
                    if name.endswith(TEMPORARY):
                        os.unlink(name, dir_fd=descriptor)

    @contextmanager
    def _directory(
        self, parts: tuple[str, ...], path: str, *, make: bool = False
    ) -> Generator[int]:
        """Open a directory part by part, so that no link on the way is followed.

        What the system refuses, here or in the block, is said in words about `path`.
        """
        try:
            descriptor = os.open(self.root, _DIRECTORY)
            try:
                for part in parts:
                    inner = _open_directory(part, descriptor, make=make)
                    os.close(descriptor)
                    descriptor = inner
                yield descriptor
            finally:
                os.close(descriptor)
        except WorkspaceError:
            raise
        except OSError as error:
            raise WorkspaceError(_explained(path, error)) from error

    @contextmanager
    def _parent(self, path: str, *, make: bool = False) -> Generator[tuple[int, str]]:
        parts = path_parts(path)
        if not parts:
            raise WorkspaceError(f"{path!r} is the workspace itself; name a file in it")
        with self._directory(parts[:-1], path, make=make) as descriptor:
            yield descriptor, parts[-1]

    def _regular(self, status: os.stat_result, path: str, limit: int) -> None:
        if not stat.S_ISREG(status.st_mode):
            kind = _kind(status.st_mode)
            named = {"dir": "a directory", "link": "a symbolic link, which is never followed"}
            raise WorkspaceError(f"{path!r} is {named.get(kind, 'a device or pipe')}, not a file")
        if status.st_size > limit:
            raise _too_large(path, status.st_size, limit)


def _walk(descriptor: int, prefix: str, skip: frozenset[str], depth: int) -> Iterator[Found]:
    with os.scandir(descriptor) as entries:
        names = sorted(entry.name for entry in entries)
    for name in names:
        if name in skip or name.endswith(TEMPORARY):
            continue
        try:
            status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            yield _found(prefix + name, status)
            if stat.S_ISDIR(status.st_mode) and depth < _DEEPEST:
                inner = os.open(name, _DIRECTORY, dir_fd=descriptor)
                try:
                    yield from _walk(inner, f"{prefix}{name}/", skip, depth + 1)
                finally:
                    os.close(inner)
        except FileNotFoundError:
            continue  # removed while we looked


def _open_directory(name: str, parent: int, *, make: bool) -> int:
    if make:
        with suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=parent)
    return os.open(name, _DIRECTORY, dir_fd=parent)


def _mode_at(parent: int, name: str) -> int:
    """Return the permission bits of the file that is about to be replaced."""
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return 0o644
    return stat.S_IMODE(status.st_mode) if stat.S_ISREG(status.st_mode) else 0o644


def _found(path: str, status: os.stat_result) -> Found:
    return Found(path, _kind(status.st_mode), stat.S_IMODE(status.st_mode) & 0o777, status.st_size)


def _kind(mode: int) -> str:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "dir"
    return "link" if stat.S_ISLNK(mode) else "other"


def _is_absent(error: WorkspaceError) -> bool:
    """Whether the cause is that nothing is there, and not that it may not be touched."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}


def _too_large(path: str, size: int, limit: int) -> WorkspaceError:
    return WorkspaceError(f"{path!r} has {size:,} bytes, the limit is {limit:,}")


def _no_root(root: Path | str, error: Exception) -> str:
    """Say why a directory cannot be worked on."""
    place = f"the workspace {str(root)!r}"
    if isinstance(error, FileNotFoundError):
        return f"{place} is not there: make the directory, or name another one"
    if isinstance(error, NotADirectoryError):
        return f"{place} is a file: name a directory"
    return f"{place} cannot be opened: {getattr(error, 'strerror', None) or error}"


def _explained(path: str, error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return f"{path!r} is not in the workspace"
    if error.errno in {errno.ELOOP, errno.ENOTDIR}:
        return f"{path!r} goes through a symbolic link or a file, which is not followed"
    return f"{path!r}: {error.strerror or error}"


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
    # What it names stands for all below it, so the beginning of a path is matched.
    beginning = re.compile("".join(map(_part, parts)))
    return lambda path: beginning.match(f"{path}/") is not None


def _part(part: str) -> str:
    """Translate one name with `*` and `?`; all else stands for itself."""
    letters = {"*": "[^/]*", "?": "[^/]"}
    named = "".join(letters.get(c, re.escape(c)) for c in part)
    return "(?:[^/]+/)*" if part == "**" else f"{named}/"
