"""Copies of a workspace go with the process that made them, however it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hybridagi_steps.planning.workspace import Workspace

HOLDER = """
import sys, time
from hybridagi_steps.planning.workspace import Workspace

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
