"""Changes of one step in its copy of a workspace, how they are merged, and the folder of the copy.

Compares states path by path. A path that somebody else has changed meanwhile, to something else, is
a conflict; then nothing is merged. Files of the workspace are read and written by snapshot.py. The
folder of a copy is locked as long as its process lives; whoever makes the next one removes those of
this user whose process is gone, however that ended.

Guarded places are what version control, build services, shells and editors run for a person: a step
that writes there runs code later, outside of every sandbox, so it needs consent when it writes a
file there, when its changes are merged, or when a command in the workspace itself has ended.
"""

from __future__ import annotations

import fcntl
import os
import posixpath
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hybridagi_steps.errors import ArtifactConflictError, WorkspaceError
from hybridagi_steps.workspace.confined import ConfinedDirectory, path_parts
from hybridagi_steps.workspace.snapshot import Entry, Manifest

_MOST_NAMED = 20

_PREFIX = "steps-overlay-"
_LOCK = "lock"
_OPEN = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


Consent = Callable[[str], bool]
"""Says whether a guarded place may be changed."""
Places = dict[str, tuple[int, int]]
"""Guarded places that are there, each with its device and inode."""


class Change(NamedTuple):
    """One path before and after; None where there was or is nothing."""

    before: Entry | None
    after: Entry | None


@dataclass(frozen=True)
class Changes:
    """Everything a step added, changed and deleted."""

    paths: Mapping[str, Change]
    """Every path that differs, directories included."""
    contents: Mapping[str, bytes]
    """The new contents, by their hash."""

    @property
    def added(self) -> list[str]:
        """Files and links that are new, sorted."""
        return self._named(before=False, after=True)

    @property
    def changed(self) -> list[str]:
        """Files and links with another content, kind or permissions, sorted."""
        return self._named(before=True, after=True)

    @property
    def deleted(self) -> list[str]:
        """Files and links that are gone, sorted."""
        return self._named(before=True, after=False)

    def __bool__(self) -> bool:
        """Whether anything differs."""
        return bool(self.paths)

    def _named(self, *, before: bool, after: bool) -> list[str]:
        """Return the paths at which a file or link stood before, or stands after, or both."""
        return sorted(
            path
            for path, change in self.paths.items()
            if (_is_file(change.before), _is_file(change.after)) == (before, after)
        )


class OverlayFolder:
    """A new folder for temporary files; it goes with `close`, or when the next one is made."""

    def __init__(self) -> None:
        for left in _left_behind():
            shutil.rmtree(left, ignore_errors=True)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        unnamed = self.path / f"{_LOCK}.new"
        self._descriptor = os.open(unnamed, _OPEN | os.O_CREAT | os.O_EXCL, 0o600)
        with suppress(OSError):  # no locks on this file system: nobody removes it but we
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            unnamed.rename(self.path / _LOCK)

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def make_changes(before: Manifest, after: Manifest, contents: Mapping[str, bytes]) -> Changes:
    """Return what differs between two states, with the contents that the later one needs."""
    paths = {
        path: Change(before.get(path), after.get(path))
        for path in sorted({*before, *after})
        if not _same(before.get(path), after.get(path))
    }
    needed = {change.after.content for change in paths.values() if change.after}
    return Changes(paths, {name: contents[name] for name in needed if name in contents})


def merged(changes: Changes, now: Manifest) -> dict[str, Entry | None]:
    """Return what has to be written and removed to take changes over."""
    clashes = [
        path for path, change in changes.paths.items() if _clashes(path, change, changes, now)
    ]
    if clashes:
        shown = ", ".join(clashes[:_MOST_NAMED]) + (" …" if len(clashes) > _MOST_NAMED else "")
        raise ArtifactConflictError(
            f"changed by another step meanwhile: {shown}. Nothing was merged; run the step again "
            "on what is there now.",
            files=clashes,
        )
    return {
        path: change.after
        for path, change in changes.paths.items()
        if not _same(now.get(path), change.after)
    }


def sizes_after(
    entries: Mapping[str, Entry | None], changes: Changes, now: Mapping[str, int]
) -> dict[str, int]:
    """Return how many bytes every path would hold once changes are taken over."""
    sizes = {path: size for path, size in now.items() if path not in entries}
    for path, entry in entries.items():
        if entry is not None:
            sizes[path] = len(changes.contents.get(entry.content, b""))
    return sizes


def refuse_links_out(changes: Changes) -> None:
    """Pass if no new link leads out of the workspace, where a command would follow it."""
    for path, change in changes.paths.items():
        if change.after is None or change.after.kind != "link":
            continue
        target = change.after.content
        reached = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        if reached.startswith("/") or reached.split("/")[0] == "..":
            raise WorkspaceError(f"the link {path!r} leads out of the workspace, to {target!r}")


_GUARDED = frozenset(
    {
        *(".git", ".hg", ".svn", ".husky", ".pre-commit-config.yaml"),
        *(".circleci", ".gitlab-ci.yml", ".github/workflows", ".github/actions"),
        *(".envrc", ".devcontainer", ".vscode", ".idea", ".zed", ".fleet"),
        *(".dir-locals.el", ".exrc", ".nvim.lua"),
    }
)
"""What version control, build services, shells and editors run when a person uses them."""


def guarded_place(path: str, *, directory: bool = False) -> str | None:
    """Return the file or folder at or above a path that others run, None if there is none."""
    parts = path.split("/")
    lower = [part.casefold() for part in parts]
    for number, name in enumerate(lower, start=1):
        pair = "/".join(lower[number - 2 : number])
        # No link nor file may stand in for a folder that holds such a place.
        as_folder = name == ".github" and number == len(parts) and not directory
        if name in _GUARDED or pair in _GUARDED or as_folder:
            return "/".join(parts[:number])
    return None


class Consents:
    """The places that may be changed, as far as somebody was asked; shared by copies."""

    def __init__(self, consent: Consent | None) -> None:
        self._consent, self._granted = consent, set[str]()

    def ask(self, path: str, *, directory: bool = False) -> None:
        """Pass if what is at a path may be changed."""
        place = guarded_place("/".join(path_parts(path)), directory=directory)
        if place is None or place in self._granted:
            return
        if self._consent is None or self._consent(place) is not True:
            raise WorkspaceError(
                f"{place!r} is what version control, a build service, a shell or an editor runs: "
                "changing it needs consent, Workspace(consent=…); nothing was changed there."
            )
        self._granted.add(place)

    def ask_for(self, changes: Changes) -> None:
        """Pass if all that a step has changed may be changed."""
        for path, change in changes.paths.items():
            folders = all(entry is None or entry.kind == "dir" for entry in change)
            self.ask(path, directory=folders)

    def ungranted(self, root: Path) -> Places:
        """Return the places in a directory for which there is no consent yet."""
        found = guarded_places(root)
        return {place: inode for place, inode in found.items() if place not in self._granted}

    def remove_unasked(self, directory: ConfinedDirectory, before: Places) -> None:
        """Remove the places that a command has made, but for those that get consent now."""
        refused: list[WorkspaceError] = []
        for place, inode in self.ungranted(directory.root).items():
            try:
                if inode not in before.values():  # else it was only moved, and could not be written
                    self.ask(place)
            except WorkspaceError as error:
                _remove_whole(directory, place)
                refused.append(error)
        if refused:
            raise refused[0]


def _remove_whole(directory: ConfinedDirectory, path: str) -> None:
    found = directory.stat(path)
    if found is not None and found.kind == "dir":
        for inner in reversed(list(directory.walk(path))):
            directory.remove(inner.path)
    directory.remove(path)


def guarded_places(root: Path) -> Places:
    """Return the guarded places below a directory."""
    found: Places = {}
    for folder, directories, names in os.walk(root):
        for name in [*directories, *names]:
            path = Path(folder, name)
            status = path.lstat()
            place = path.relative_to(root).as_posix()
            if guarded_place(place, directory=stat.S_ISDIR(status.st_mode)) == place:
                found[place] = (status.st_dev, status.st_ino)
                if name in directories:
                    directories.remove(name)
    return found


def _clashes(path: str, change: Change, changes: Changes, now: Manifest) -> bool:
    current = now.get(path)
    if _same(current, change.after):
        return False
    if not _same(current, change.before):
        # A directory that is gone here and was to go, or to be made, there: nobody's loss.
        only_directories = _is_directory(change.before) and change.after is None
        return not only_directories or current is not None
    return change.after is not None and _in_the_way(path, change.after, changes, now)


def _in_the_way(path: str, after: Entry, changes: Changes, now: Manifest) -> bool:
    """Whether something new here stands where a change has to go."""
    above = [path[:place] for place, letter in enumerate(path) if letter == "/"]
    for parent in above:
        current = now.get(parent)
        if current is not None and current.kind != "dir" and parent not in changes.paths:
            return True
    if after.kind == "dir" or not _is_directory(now.get(path)):
        return False
    below = path + "/"
    return any(inner.startswith(below) and inner not in changes.paths for inner in now)


def _same(one: Entry | None, other: Entry | None) -> bool:
    """Whether two states of a path are the same; permissions of directories are not looked at."""
    return one == other or (_is_directory(one) and _is_directory(other))


def _is_directory(entry: Entry | None) -> bool:
    return entry is not None and entry.kind == "dir"


def _is_file(entry: Entry | None) -> bool:
    return entry is not None and entry.kind != "dir"


def _left_behind() -> Iterator[Path]:
    """Yield the folders of this user whose process is gone."""
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX) and _is_free(entry):
                yield Path(entry.path)


def _is_free(entry: os.DirEntry[str]) -> bool:
    try:
        status = entry.stat(follow_symlinks=False)
        if not entry.is_dir(follow_symlinks=False) or status.st_uid != os.getuid():
            return False
        descriptor = os.open(Path(entry.path) / _LOCK, _OPEN)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
