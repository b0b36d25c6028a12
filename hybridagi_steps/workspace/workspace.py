"""Workspace: the one directory that a plan may read and change.

Reads, writes, lists, searches and runs commands, all below its directory; takes snapshots and goes
back to them; lends a step a copy to work in and merges what the step changed. confined.py opens
files, snapshot.py keeps states outside the directory, command.py runs commands. A change of many
files is whole or absent: one that a crash cut short is finished when it is opened again.
"""

from __future__ import annotations

import builtins
import hashlib
import os
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from uuid import uuid4

from hybridagi_steps._concurrency import ForkSafeLock
from hybridagi_steps.errors import WorkspaceError
from hybridagi_steps.workspace.changes import (
    Changes,
    Consent,
    Consents,
    OverlayFolder,
    Places,
    make_changes,
    merged,
    refuse_links_out,
    sizes_after,
)
from hybridagi_steps.workspace.command import (
    AllowedCommands,
    CommandResult,
    Sandboxing,
    run_command,
)
from hybridagi_steps.workspace.confined import (
    ConfinedDirectory,
    FoundLine,
    list_files,
    search_lines,
)
from hybridagi_steps.workspace.snapshot import (
    ChangeLog,
    Entry,
    Limits,
    Manifest,
    copy_files,
    difference,
    take_manifest,
)

DEFAULT_LIMITS = Limits()


class Workspace:
    """A directory in which steps work, and out of which they cannot reach.

    Args:
        root: The directory.
        commands: What may be run, each as the beginning of an argument list, as
            `"python -m unittest"`; a single text is one command.
        state: Where snapshots and unfinished changes are kept; must be outside of `root`. By
            default in the user's state folder (`$XDG_STATE_HOME`, else `~/.local/state`), by path.
        read_bytes, output_bytes: Largest file that `read` returns; what is kept of an output.
        timeout_seconds: When a command is stopped, unless a call says otherwise.
        limits: How large the whole may be for snapshots and overlays.
        durable: Whether writes are on the disk on return, or survive a killed process alone.
        sandbox: Whether commands are confined by bubblewrap to the directory, without network:
            `auto` where the system can, else with a warning in the log; `required`; `off`.
        readable: Directories and files that commands in a sandbox may read, beside the system's
            programs, this Python and the workspace.
        consent: Says whether a place may be changed that others run, such as `.git`,
            `.github/workflows`, `.envrc`, `.vscode`; asked once a place, from any thread, until it
            says yes. Without it nothing there is changed.

    Raises:
        WorkspaceError: `root` is no directory or holds `state`, what is `readable` is not there,
            or a sandbox is required and cannot be had.
    """

    def __init__(
        self,
        root: Path | str,
        *,
        commands: Iterable[str] = (),
        state: Path | str | None = None,
        read_bytes: int = 1_000_000,
        output_bytes: int = 20_000,
        timeout_seconds: float = 60.0,
        limits: Limits = DEFAULT_LIMITS,
        durable: bool = True,
        sandbox: Sandboxing = "auto",
        readable: Iterable[Path | str] = (),
        consent: Consent | None = None,
    ) -> None:
        self.directory = ConfinedDirectory(root)
        self.commands = AllowedCommands(commands, sandbox=sandbox, readable=readable)
        self.read_limit, self.output_bytes = read_bytes, output_bytes
        self.timeout_seconds, self.limits, self.durable = timeout_seconds, limits, durable
        self.state = Path(state).resolve() if state else _default_state(self.root)
        if self.state.is_relative_to(self.root):
            raise WorkspaceError(f"the state folder {self.state} must be outside of the workspace")
        self._consents = Consents(consent)
        self._log = ChangeLog(self.state, self.directory, sync=durable)
        self._lock = ForkSafeLock()
        if self._log.pending:
            with self._alone():
                pass  # finishes what was cut short

    @property
    def root(self) -> Path:
        """The directory, without symbolic links."""
        return self.directory.root

    @property
    def rollback_id(self) -> str:
        """Names the last rollback; empty if there was none. Merges before it count no more."""
        return self._log.rollback_id

    def read_bytes(self, path: str) -> bytes:
        """Return a file's content.

        Raises:
            WorkspaceError: It is missing, outside, too large, or no regular file.
        """
        return self.directory.read_bytes(path, self.read_limit)

    def read(self, path: str) -> str:
        """Return a text file; bytes that are not UTF-8 are refused rather than changed.

        Raises:
            WorkspaceError: As `read_bytes`, and for a file that is not UTF-8.
        """
        try:
            return self.read_bytes(path).decode("utf-8")
        except UnicodeDecodeError as error:
            raise WorkspaceError(f"{path!r} is not UTF-8 text: {error.reason}") from error

    def write(self, path: str, content: str | bytes) -> None:
        """Write a file whole, with the directories above it; its permissions stay.

        Raises:
            WorkspaceError: The path is outside, goes through a link or into what others run without
                consent, or the content is too large.
        """
        self._consents.ask(path)
        data = content if isinstance(content, bytes) else _encoded(path, content)
        if len(data) > self.limits.file_bytes:
            raise WorkspaceError(
                f"{path!r}: {len(data):,} bytes are over the limit of {self.limits.file_bytes:,}"
            )
        self.directory.write_bytes(path, data, mode=None, sync=self.durable)

    def remove(self, path: str) -> None:
        """Remove a file, a link or an empty directory; nothing there is no fault."""
        self._consents.ask(path)
        self.directory.remove(path)

    def exists(self, path: str) -> bool:
        """Whether a regular file is there."""
        found = self.directory.stat(path)
        return found is not None and found.kind == "file"

    def list(self, pattern: str = "**") -> list[str]:
        """Return the regular files that match a pattern, sorted.

        Args:
            pattern: `*` within a name, `**` over directories, `src/**/*.py`; a directory's name
                stands for all below it. Caches, `.git` and the like are left out.
        """
        return list_files(self.directory, pattern)

    def search(
        self, text: str, pattern: str = "**", *, ignore_case: bool = False, limit: int = 200
    ) -> builtins.list[FoundLine]:
        """Return the lines that hold a text, by file and line; binary and huge files are skipped.

        Args:
            text: Taken literally.
            pattern: Which files, as in `list`.
            ignore_case: Whether case matters.
            limit: Most lines returned.
        """
        lines = search_lines(
            self.directory, text, pattern, ignore_case=ignore_case, limit=self.read_limit
        )
        return list(islice(lines, limit))

    def run(self, argv: Sequence[str], *, timeout_seconds: float | None = None) -> CommandResult:
        """Run an allowed command in the workspace, without a shell.

        Raises:
            CommandNotAllowedError: It is not on the list.
            WorkspaceError: It could not be started, or in a sandbox it made what others run without
                consent; that is removed.
        """
        guarded = self._guarded() if self.commands.confined else Places()
        result = run_command(
            self.commands.checked(argv),
            self.root,
            timeout_seconds=timeout_seconds or self.timeout_seconds,
            output_bytes=self.output_bytes,
            confine=self.commands.sandbox(self.root, guarded),
        )
        if self.commands.confined:
            self._end_of_command(guarded)
        return result

    def _guarded(self) -> Places:
        """Return what a command may only read."""
        return self._consents.ungranted(self.root)

    def _end_of_command(self, guarded: Places) -> None:
        self._consents.remove_unasked(self.directory, guarded)

    def snapshot(self, plan_run: str | None = None) -> str:
        """Keep all that the workspace holds, and return the id to come back to it.

        Args:
            plan_run: The key of a plan's run that it belongs to; it is forgotten with that run.
        """
        with self._alone():
            manifest = take_manifest(
                self.directory,
                self.limits,
                lambda _, entry, content: self._log.keep(entry.content, content),
            )
            snapshot_id = uuid4().hex
            if plan_run is not None:
                self._log.note_snapshot(plan_run, snapshot_id)
            self._log.save(snapshot_id, manifest)
            return snapshot_id

    def rollback(self, snapshot_id: str) -> builtins.list[str]:
        """Bring the workspace back to a snapshot; return the paths that had changed.

        Whole even if the process is killed meanwhile: the rest is done when the workspace is opened
        again. It may hold more than its limits; that is one thing to come back from.

        Raises:
            WorkspaceError: There is no such snapshot, or a content of it is damaged; nothing was
                changed.
        """
        with self._alone():
            wanted = self._log.load(snapshot_id)
            now = take_manifest(self.directory, None)
            changes = difference(now, wanted)
            for entry in changes.values():
                if entry is not None and entry.kind == "file":
                    self._log.content(entry.content)
            self._log.note_rollback()
            self._log.apply(changes, now)
            return sorted(changes)

    def forget(self, snapshot_id: str) -> None:
        """Drop a snapshot that is needed no more."""
        with self._alone():
            self._log.forget(snapshot_id)

    def hand_on(self, plan_run: str, contents: Mapping[str, bytes]) -> None:
        """Keep what a step of a plan made, by hash, until the run is forgotten."""
        with self._alone():
            self._log.hand_on(plan_run, contents)

    def handed_on(self, plan_run: str, names: Sequence[str]) -> dict[str, bytes]:
        """Return what was kept.

        Raises:
            WorkspaceError: It is gone or damaged, or was kept in another state folder.
        """
        return self._log.handed_on(plan_run, names)

    def overlay(self) -> Overlay:
        """Return a copy of the workspace for one step to work in; close it after use.

        Merges, rollbacks and other copies, of other processes too, wait until it is made; what is
        written one file at a time with `write` does not.

        Complexity: reads, hashes and writes every file once.
        """
        return Overlay(self)

    def merge(self, changes: Changes) -> None:
        """Take over what a step changed in its overlay: all of it, or nothing.

        Raises:
            ArtifactConflictError: A file was changed here since the overlay was made, to something
                else; names all such files. Nothing was merged.
            WorkspaceError: A link leads out of the workspace, there is no consent to a change of
                what others run, it would hold more than its limits, or a write failed. Nothing was
                merged.
        """
        refuse_links_out(changes)
        self._consents.ask_for(changes)
        with self._alone():
            sizes: dict[str, int] = {}
            now = take_manifest(
                self.directory,
                self.limits,
                lambda path, _, content: sizes.update({path: len(content)}),
            )
            entries = merged(changes, now)
            after = sizes_after(entries, changes, dict.fromkeys(now, 0) | sizes)
            if refusal := self.limits.refusal(len(after), sum(after.values())):
                raise refusal
            for name, content in changes.contents.items():
                self._log.keep(name, content)
            self._log.apply(entries, now)
            self._log.drop_unnamed(changes.contents)

    def manifest(self) -> Manifest:
        """Return what the workspace holds now, by path."""
        with self._alone():
            return take_manifest(self.directory, self.limits)

    @contextmanager
    def _alone(self) -> Generator[None]:
        """Keep other threads and processes from changing the workspace as a whole."""
        with self._lock, ExitStack() as stack:
            try:
                stack.enter_context(self._log.state.locked())
            except OSError as error:
                raise WorkspaceError(
                    f"{self.state} cannot be written; give state=…: {error}"
                ) from error
            if self._log.pending:  # by a process that was killed
                self._log.recover()
            yield


class Overlay(Workspace):
    """A copy of a workspace in which one step works; nothing reaches the workspace but by `merge`.

    Use it in a `with` statement, or call `close`.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._folder = OverlayFolder()
        root = self._folder.path / "files"
        root.mkdir()
        try:
            # Alone, so that no half of another step's merge is in the copy.
            with workspace._alone():  # noqa: SLF001 - of the same class
                target = ConfinedDirectory(root)
                self._base = copy_files(workspace.directory, target, workspace.limits)
            super().__init__(
                root,
                state=self._folder.path / "state",
                read_bytes=workspace.read_limit,
                output_bytes=workspace.output_bytes,
                timeout_seconds=workspace.timeout_seconds,
                limits=workspace.limits,
                durable=False,
            )
            self.commands, self._consents = workspace.commands, workspace._consents  # noqa: SLF001
        except BaseException:
            self.close()
            raise

    def _guarded(self) -> Places:
        return {}  # what a command did needs consent when it is merged

    def _end_of_command(self, guarded: Places) -> None:
        pass

    def changes(self) -> Changes:
        """Return what was added, changed and deleted since the overlay was made."""
        contents: dict[str, bytes] = {}

        def keep(_: str, entry: Entry, content: bytes) -> None:
            contents[entry.content] = content

        now = take_manifest(self.directory, self.limits, keep)
        return make_changes(self._base, now, contents)

    def close(self) -> None:
        """Remove the copy."""
        self._folder.close()

    def __enter__(self) -> Overlay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _encoded(path: str, content: str) -> bytes:
    try:
        return content.encode("utf-8")
    except UnicodeEncodeError as error:
        raise WorkspaceError(f"{path!r}: the text cannot be stored as UTF-8: {error}") from error


def _default_state(root: Path) -> Path:
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    name = hashlib.sha256(os.fsencode(root)).hexdigest()[:24]
    return Path(home).resolve() / "hybridagi_steps" / "workspaces" / name
