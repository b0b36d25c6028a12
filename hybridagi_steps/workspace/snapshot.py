"""What a workspace held at one moment, and the way from one such state to another.

A manifest names every file by the hash of its content; the contents lie once each in an object
folder outside the workspace. A change of many files is written down as a whole before the first
file is touched (a redo log), so one that was cut short by a crash is finished when the workspace is
opened the next time: it is done or it is not, never half.

Reference: Mohan et al. 1992, "ARIES", for redo after a crash; Git, for content-addressed objects.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from hybridagi_steps.errors import WorkspaceError
from hybridagi_steps.outside_files import StateFolder, replacing
from hybridagi_steps.workspace.confined import IGNORED, ConfinedDirectory


class Entry(NamedTuple):
    """One thing in a manifest."""

    kind: str
    """file, dir or link."""
    mode: int
    """Permission bits."""
    content: str
    """SHA-256 of a file's content; where a link points; empty for a directory."""


Manifest = dict[str, Entry]
"""What a directory holds, by path."""


class Limits(NamedTuple):
    """How much a workspace may hold, so that a copy of it stays affordable."""

    file_bytes: int = 64_000_000
    total_bytes: int = 1_000_000_000
    files: int = 50_000

    def refusal(self, files: int, total_bytes: int) -> WorkspaceError | None:
        """Return why so much may not be held, None when it may."""
        if files > self.files:
            told = f"{self.files:,} files"
        elif total_bytes > self.total_bytes:
            told = f"{self.total_bytes:,} bytes"
        else:
            return None
        return WorkspaceError(
            f"the workspace holds more than {told}; remove some, or give Workspace(limits=…)."
        )


def take_manifest(
    directory: ConfinedDirectory,
    limits: Limits | None,
    keep: Callable[[str, Entry, bytes], None] | None = None,
) -> Manifest:
    """Return what a directory holds, but for sockets, pipes and devices; `keep` gets every file."""
    manifest: Manifest = {}
    total = 0
    for found in directory.walk(skip=IGNORED):
        entry, content = Entry(found.kind, found.mode, ""), b""
        if found.kind == "link":
            entry = Entry("link", 0, directory.read_link(found.path))
        elif found.kind == "file":
            most = found.size_bytes if limits is None else limits.file_bytes
            content = directory.read_bytes(found.path, most)
            entry = entry._replace(content=digest(content))
        elif found.kind != "dir":
            continue
        manifest[found.path] = entry
        total += len(content)
        if limits is not None and (refusal := limits.refusal(len(manifest), total)):
            raise refusal
        if keep is not None and entry.kind == "file":
            keep(found.path, entry, content)
    return manifest


def copy_files(source: ConfinedDirectory, target: ConfinedDirectory, limits: Limits) -> Manifest:
    """Copy what a directory holds; return what was copied, by the contents that were read."""

    def write(path: str, entry: Entry, content: bytes) -> None:
        target.write_bytes(path, content, mode=entry.mode, sync=False)

    manifest = take_manifest(source, limits, write)
    for path, entry in manifest.items():
        if entry.kind == "dir":
            target.make_directory(path, entry.mode)
        elif entry.kind == "link":
            target.write_link(path, entry.content)
    return manifest


def digest(content: bytes) -> str:
    """Return the name of a content."""
    return hashlib.sha256(content).hexdigest()


def difference(before: Mapping[str, Entry], after: Mapping[str, Entry]) -> dict[str, Entry | None]:
    """Return what has to be written, and with None what has to be removed, to get to `after`."""
    gone: dict[str, Entry | None] = {path: None for path in before if path not in after}
    return {**gone, **{path: new for path, new in after.items() if before.get(path) != new}}


class ChangeLog:
    """Keeps contents, manifests, and the one change that may be under way."""

    def __init__(self, folder: Path, directory: ConfinedDirectory, *, sync: bool) -> None:
        self.folder, self._directory, self._sync = folder, directory, sync
        self.state = StateFolder(folder)
        self._rollback_file, self._pending_file = folder / "last_rollback", folder / "pending.json"

    def keep(self, name: str, content: bytes) -> None:
        """Keep a content under its hash."""
        path = self.state.object(name)
        if not path.exists():
            self._write(path, content)

    def content(self, name: str) -> bytes:
        """Return a content that was kept."""
        return _read_content(self.state.object(name), name)

    def save(self, snapshot_id: str, manifest: Manifest) -> None:
        """Keep a manifest; its contents must be kept before."""
        self._write(self._manifest(snapshot_id), _encoded(manifest))

    def load(self, snapshot_id: str) -> Manifest:
        """Return a manifest."""
        path = self._manifest(snapshot_id)
        try:
            stored = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise WorkspaceError(f"there is no snapshot {snapshot_id!r}") from error
        return {path: Entry(*entry) for path, entry in stored.items()}

    @property
    def rollback_id(self) -> str:
        """Names the last rollback; empty if there was none."""
        try:
            return self._rollback_file.read_text("ascii")
        except FileNotFoundError:
            return ""

    def note_rollback(self) -> None:
        """Give the rollback that is about to be done a name of its own."""
        self._write(self._rollback_file, uuid4().hex.encode())

    def forget(self, snapshot_id: str) -> None:
        """Drop a manifest, and the contents that no other one names."""
        self._manifest(snapshot_id).unlink(missing_ok=True)
        self.drop_unnamed()

    def drop_unnamed(self, contents: Iterable[str] | None = None) -> None:
        """Drop those of the contents that no manifest names; by default of all that are kept."""
        if contents is None:
            contents = [path.name for path in self.folder.glob("objects/*/*")]
        try:
            self.state.drop_unnamed(contents)
        except ValueError as error:
            raise WorkspaceError(f"a snapshot in {self.folder} is damaged: {error}") from error

    def note_snapshot(self, plan_run: str, snapshot_id: str) -> None:
        """Note that a snapshot goes when the run of a plan is forgotten."""
        self._write(self.state.handed_on(plan_run) / f"{snapshot_id}.snapshot", b"")

    def hand_on(self, plan_run: str, contents: Mapping[str, bytes]) -> None:
        """Keep what a step of a plan made, by hash."""
        for name, content in contents.items():
            self._write(self.state.handed_on(plan_run) / name, content)

    def handed_on(self, plan_run: str, names: Sequence[str]) -> dict[str, bytes]:
        """Return what was kept."""
        folder = self.state.handed_on(plan_run)
        return {name: _read_content(folder / name, name) for name in names}

    def apply(self, changes: Mapping[str, Entry | None], now: Manifest) -> None:
        """Make a change whole: written down first, then done, then struck out.

        Contents of entries must be kept; None removes. If a part fails, all is as it was `now`.
        """
        if not changes:
            return
        before = {path: now.get(path) for path in changes}
        contents = self._contents_of(before)
        self._note(changes)
        try:
            self._redo(changes)
        except WorkspaceError:
            for name, content in contents.items():
                self.keep(name, content)
            self._note(before)
            self._redo(before)
            self._pending_file.unlink()
            self.drop_unnamed(contents)
            raise
        self._pending_file.unlink()

    def recover(self) -> bool:
        """Finish a change that was cut short; return whether there was one."""
        try:
            stored = json.loads(self._pending_file.read_bytes())
        except FileNotFoundError:
            return False
        except ValueError as error:
            raise WorkspaceError(f"{self._pending_file} is damaged: {error}") from error
        changes = {path: None if entry is None else Entry(*entry) for path, entry in stored.items()}
        self._directory.sweep()
        self._redo(changes)
        self._pending_file.unlink()
        self.drop_unnamed()
        return True

    def _note(self, changes: Mapping[str, Entry | None]) -> None:
        self._write(self._pending_file, _encoded(changes))

    def _contents_of(self, entries: Mapping[str, Entry | None]) -> dict[str, bytes]:
        """Return the contents of files that are about to change, by hash."""
        contents: dict[str, bytes] = {}
        for path, entry in entries.items():
            if entry is not None and entry.kind == "file":
                found = self._directory.stat(path)
                content = self._directory.read_bytes(path, found.size_bytes if found else 0)
                contents[entry.content] = content
        return contents

    @property
    def pending(self) -> bool:
        """Whether a change was cut short, or is under way in another process."""
        return self._pending_file.exists()

    def _redo(self, changes: Mapping[str, Entry | None]) -> None:
        """Do every part of a change; doing it twice is the same as once."""
        for path in sorted(changes, reverse=True):  # what is in a directory before the directory
            self._clear(path, changes[path])
        for path in sorted(changes):
            if (entry := changes[path]) is not None:
                self._put(path, entry)

    def _clear(self, path: str, entry: Entry | None) -> None:
        """Remove what goes, and what stands in the way of another kind of thing."""
        found = self._directory.stat(path)
        if found is None or (entry is not None and (found.kind == "dir") == (entry.kind == "dir")):
            return
        if found.kind == "dir":
            for inner in reversed(list(self._directory.walk(path))):
                if entry is not None or not IGNORED.isdisjoint(inner.path.split("/")):
                    self._directory.remove(inner.path)
            if entry is None and any(True for _ in self._directory.walk(path)):
                return  # something new came into it meanwhile, which is not ours to remove
        self._directory.remove(path)

    def _put(self, path: str, entry: Entry) -> None:
        if entry.kind == "dir":
            self._directory.make_directory(path, entry.mode)
        elif entry.kind == "link":
            self._directory.write_link(path, entry.content)
        else:
            content = self.content(entry.content)
            self._directory.write_bytes(path, content, mode=entry.mode, sync=self._sync)

    def _manifest(self, snapshot_id: str) -> Path:
        if not isinstance(snapshot_id, str) or not snapshot_id.isalnum():  # pyright: ignore[reportUnnecessaryIsInstance]
            raise WorkspaceError(
                f"{snapshot_id!r:.80} is no id of a snapshot: give what snapshot() returned, or "
                "the snapshot of a plan's result"
            )
        return self.state.snapshot(snapshot_id)

    def _write(self, path: Path, content: bytes) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with replacing(path, sync=self._sync) as file:
                file.write(content)
            if self._sync:
                descriptor = os.open(path.parent, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
        except OSError as error:
            raise WorkspaceError(f"the state folder {self.folder}: {error.strerror}") from error


def _read_content(path: Path, name: str) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise WorkspaceError(f"the content {name[:12]} is not in the state: {error}") from error
    if digest(content) != name:
        raise WorkspaceError(f"the content {name[:12]} is damaged in the state")
    return content


def _encoded(value: Mapping[str, Entry | None]) -> bytes:
    # ASCII escapes hold the names that are not UTF-8; such files exist.
    return json.dumps(value).encode("ascii")
