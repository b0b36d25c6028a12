"""Copies of a workspace are whole, and go with the process that made them, however it ends."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from hybridagi_steps.workspace.snapshot import ChangeLog, Entry
from hybridagi_steps.workspace.workspace import Workspace

HOLDER = """
import sys, time
from hybridagi_steps.workspace.workspace import Workspace

with Workspace(sys.argv[1], state=sys.argv[2]).overlay() as overlay:
    print(overlay.root, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.txt").write_text("a")
    return Workspace(tmp_path / "files", state=tmp_path / "state")


def test_what_a_killed_process_left_is_removed(temporary: Path, workspace: Workspace) -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(workspace.root), str(workspace.state)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout is not None
    place = Path(other.stdout.readline().strip())
    try:
        with workspace.overlay():
            assert (place / "a.txt").exists()
        assert (place / "a.txt").exists()
    finally:
        other.send_signal(signal.SIGKILL)
        other.communicate()
    assert (place / "a.txt").exists()
    with workspace.overlay():
        assert not place.exists()
    assert list(temporary.iterdir()) == []


def test_overlays_side_by_side_leave_each_other_alone(temporary: Path) -> None:
    place = temporary.parent / "other"
    place.mkdir()
    other = Workspace(place, state=temporary.parent / "other-state")
    with other.overlay() as first, other.overlay() as second:
        assert first.root.exists()
        assert second.root.exists()
    assert list(temporary.iterdir()) == []


def test_what_others_have_put_there_stays(temporary: Path, workspace: Workspace) -> None:
    target = temporary.parent / "target"
    target.mkdir()
    (target / "lock").touch()
    (temporary / "steps-overlay-link").symlink_to(target)
    (temporary / "steps-overlay-without-a-lock").mkdir()
    (temporary / "something-else").mkdir()
    with workspace.overlay():
        pass
    assert (target / "lock").exists()
    assert len(list(temporary.iterdir())) == 3


# Merged into while they are copied


def test_a_copy_never_holds_half_of_a_merge(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that begins in the middle of a merge, as another process makes it, waits for it."""
    for name in ("a.txt", "b.txt"):
        workspace.write(name, "old")
    with workspace.overlay() as overlay:
        overlay.write("a.txt", "new")
        overlay.write("b.txt", "new")
        changes = overlay.changes()
    other = Workspace(workspace.root, state=workspace.state)
    copied: list[dict[str, bytes]] = []
    went_on = threading.Event()
    lock_file = workspace.state / "lock"

    def copy() -> None:
        with other.overlay() as overlay:
            copied.append({path: overlay.read_bytes(path) for path in ("a.txt", "b.txt")})
        went_on.set()

    copier = threading.Thread(target=copy)
    put, lock = ChangeLog._put, fcntl.flock  # pyright: ignore[reportPrivateUsage]

    def put_slowly(log: ChangeLog, path: str, entry: Entry) -> None:
        if path == "b.txt":
            copier.start()
            assert went_on.wait(30)
        put(log, path, entry)

    def seen_lock(file: Any, operation: int) -> None:
        number = file if isinstance(file, int) else file.fileno()
        if threading.current_thread() is copier and os.path.samestat(
            os.fstat(number), lock_file.stat()
        ):
            went_on.set()
        lock(file, operation)

    monkeypatch.setattr(ChangeLog, "_put", put_slowly)
    monkeypatch.setattr(fcntl, "flock", seen_lock)
    workspace.merge(changes)
    copier.join(30)
    assert copied == [{"a.txt": b"new", "b.txt": b"new"}]


def test_a_copy_after_a_killed_merge_holds_all_of_it(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever had the workspace open finishes the merge of a process that was killed."""
    with workspace.overlay() as overlay:
        overlay.write("a.txt", "new")
        overlay.write("b.txt", "new")
        changes = overlay.changes()
    put = ChangeLog._put  # pyright: ignore[reportPrivateUsage]

    def killed(log: ChangeLog, path: str, entry: Entry) -> None:
        if path == "b.txt":
            raise KeyboardInterrupt
        put(log, path, entry)

    with monkeypatch.context() as patched:
        patched.setattr(ChangeLog, "_put", killed)
        with pytest.raises(KeyboardInterrupt):
            workspace.merge(changes)
    with workspace.overlay() as overlay:
        assert [overlay.read(path) for path in ("a.txt", "b.txt")] == ["new", "new"]


MERGING = """
import sys
from hybridagi_steps.errors import ArtifactConflictError
from hybridagi_steps.workspace.workspace import Workspace

workspace = Workspace(sys.argv[1], state=sys.argv[2], durable=False)
for number in range(12):
    with workspace.overlay() as overlay:
        for name in range(20):
            overlay.write(f"part{name:02}", f"{sys.argv[3]}.{number}")
        changes = overlay.changes()
    try:
        workspace.merge(changes)
    except ArtifactConflictError:
        pass
"""


def test_copies_are_whole_while_other_processes_and_threads_merge(workspace: Workspace) -> None:
    for name in range(20):
        workspace.write(f"part{name:02}", "0")
    place = [str(workspace.root), str(workspace.state)]
    others = [
        subprocess.Popen([sys.executable, "-c", MERGING, *place, str(number)])
        for number in range(2)
    ]
    seen: set[str] = set()
    torn: list[set[str]] = []

    def copy() -> None:
        while any(other.poll() is None for other in others):
            with workspace.overlay() as overlay:
                parts = {overlay.read(f"part{name:02}") for name in range(20)}
            seen.update(parts)
            if len(parts) > 1:
                torn.append(parts)

    threads = [threading.Thread(target=copy) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [other.wait() for other in others] == [0, 0]
    assert len(seen) > 1, "nothing was merged meanwhile"
    assert torn == []
