"""The command fence: a sandbox where the system has one, an honest list of programs elsewhere."""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from hybridagi_steps.errors import WorkspaceError
from hybridagi_steps.workspace.command import refusal
from hybridagi_steps.workspace.tools import workspace_tools
from hybridagi_steps.workspace.workspace import Workspace

OUTSIDE_TEXT = "what stands outside"

needs_sandbox = pytest.mark.skipif(
    bool(refusal()), reason=f"commands cannot be confined here: {refusal()}"
)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory beside the workspace, with something to read and room to write."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "with space").write_text(OUTSIDE_TEXT)
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "work"
    root.mkdir()
    (root / "f").write_text("b\na\n")
    return root


def confined(root: Path, *commands: str, **settings: object) -> Workspace:
    state = root.parent / "state"
    options = {"sandbox": "required", "durable": False, **settings}
    return Workspace(root, commands=commands, state=state, **options)  # pyright: ignore[reportArgumentType]


WAYS_OUT: dict[str, Callable[[Path], list[str]]] = {
    "a glued short option": lambda outside: ["sort", "f", f"-o{outside}/x"],
    "a long option": lambda outside: ["sort", "f", f"--output={outside}/x"],
    "a path with white space": lambda outside: ["cp", "f", f"{outside}/a b"],
    "a path": lambda outside: ["cp", "f", f"{outside}/x"],
    "find -exec": lambda outside: ["find", "f", "-exec", "cp", "-t", f"{outside}", "{}", "+"],
    "sed's w": lambda outside: ["sed", f"w {outside}/x", "f"],
    "sed's e": lambda outside: ["sed", f"1e cp f {outside}/x", "f"],
    "tar's checkpoint": lambda outside: [
        "tar",
        "cf",
        "t.tar",
        "f",
        "--checkpoint=1",
        f"--checkpoint-action=exec=cp f {outside}/x",
    ],
    "any code": lambda outside: ["python", "-c", f"open({str(outside / 'x')!r}, 'w')"],
}


@needs_sandbox
@pytest.mark.parametrize("way", WAYS_OUT)
def test_no_command_writes_outside(root: Path, outside: Path, way: str) -> None:
    argv = WAYS_OUT[way](outside)
    confined(root, argv[0]).run(argv)
    assert [path.name for path in outside.iterdir()] == ["with space"]
    assert (root / "f").read_text() == "b\na\n"


@needs_sandbox
def test_no_command_reads_outside(root: Path, outside: Path) -> None:
    (root / "link").symlink_to(outside / "with space")
    workspace = confined(root, "cat", "cp", "python")
    for argv in (
        ["cat", f"{outside}/with space"],
        ["cat", "../outside/with space"],
        ["cat", "link"],
        ["cp", f"{outside}/with space", "taken"],
        ["python", "-c", f"print(open({str(outside / 'with space')!r}).read())"],
        ["cat", f"/proc/{os.getpid()}/environ"],
        ["cat", str(Path.home() / ".bashrc")],
        ["cat", "/etc/shadow"],
    ):
        result = workspace.run(argv)
        assert not result.ok
        assert OUTSIDE_TEXT not in result.output
    assert not (root / "taken").exists()


@needs_sandbox
def test_what_is_named_readable_is_read_and_never_written(root: Path, outside: Path) -> None:
    workspace = confined(root, "cat", "cp", readable=[outside])
    assert workspace.run(["cat", f"{outside}/with space"]).output == OUTSIDE_TEXT
    assert not workspace.run(["cp", "f", f"{outside}/with space"]).ok
    with pytest.raises(WorkspaceError, match="nowhere"):
        confined(root, "cat", readable=[outside / "nowhere"])


@needs_sandbox
def test_a_command_works_in_the_workspace_and_nowhere_else(root: Path) -> None:
    workspace = confined(root, "python", "sort")
    assert workspace.run(["sort", "f", "-os"]).ok
    assert (root / "s").read_text() == "a\nb\n"
    code = (
        "import os, tempfile; print(os.getcwd(), flush=True); tempfile.mkdtemp(); open('/x', 'w')"
    )
    result = workspace.run(["python", "-c", code])
    assert result.output.splitlines()[0] == str(root.resolve())
    assert "Read-only file system" in result.output or "Permission denied" in result.output
    assert workspace.run(["python", "-c", f"import sys; assert sys.prefix == {sys.prefix!r}"]).ok


@needs_sandbox
def test_a_command_has_no_network(root: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 5)"
        result = confined(root, "python").run(["python", "-c", code])
    assert not result.ok
    assert "refused" in result.output or "unreachable" in result.output


@needs_sandbox
@pytest.mark.timeout(60)  # less than the child would take
@pytest.mark.parametrize("ends", [True, False])
def test_not_even_a_child_of_another_session_outlives_its_command(root: Path, ends: bool) -> None:
    mark = uuid.uuid4().hex
    code = (
        "import subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', '{mark}'],"
        " start_new_session=True)\n" + ("" if ends else "time.sleep(600)\n")
    )
    result = confined(root, "python").run(["python", "-c", code], timeout_seconds=3.0)
    assert result.timed_out is not ends
    for _ in range(3_000):
        if not any(mark in line for line in running()):
            return
        time.sleep(0.01)
    raise AssertionError("a child outlived its command")


def running() -> list[str]:
    """The command lines of all processes of this machine."""
    found: list[str] = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(file.read_text("utf-8", "replace"))
        except OSError:
            continue
    return found


@needs_sandbox
def test_the_sandbox_is_used_by_copies_and_by_the_tools_of_models(
    root: Path, outside: Path
) -> None:
    workspace = confined(root, "cp")
    with workspace.overlay() as overlay:
        *_, run_command = workspace_tools(overlay)
        assert run_command("cp f g").startswith("exit code 0")
        assert "exit code 1" in run_command(f"cp f '{outside}/a b'")
        workspace.merge(overlay.changes())
    assert workspace.read("g") == "b\na\n"
    assert [path.name for path in outside.iterdir()] == ["with space"]


# Where there is no sandbox


@pytest.fixture
def unconfined(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system without bubblewrap."""
    refusal.cache_clear()
    monkeypatch.setenv("PATH", "/nowhere")
    assert "not installed" in refusal()
    monkeypatch.undo()


@pytest.fixture(autouse=True)
def looked_for_again() -> None:
    refusal.cache_clear()


@pytest.mark.usefixtures("unconfined")
def test_without_a_sandbox_commands_run_and_what_that_does_not_hold_is_said(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        workspace = Workspace(root, commands=["python"], state=root.parent / "state")
    assert workspace.run(["python", "-c", "print(1)"]).output == "1\n"
    (said,) = [record.getMessage() for record in caplog.records]
    assert "bubblewrap" in said
    for word in ("find -exec", "sed", "tar --checkpoint-action", "test runner"):
        assert word in said
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        with workspace.overlay():
            pass
        Workspace(root, state=root.parent / "state")
        Workspace(root, commands=["ls"], state=root.parent / "state", sandbox="off")
    assert not caplog.records, "said again, where nothing can run, or where it was asked for"


@pytest.mark.usefixtures("unconfined")
def test_who_requires_a_sandbox_is_refused_without_one(root: Path) -> None:
    with pytest.raises(WorkspaceError, match=r"bwrap.* not installed.*sandbox='off'"):
        Workspace(root, commands=["ls"], state=root.parent / "state", sandbox="required")


# What others run


GUARDED = [
    ".git/hooks/pre-commit",
    "sub/.GIT/config",
    ".git",
    ".hg/hgrc",
    ".github/workflows/ci.yml",
    ".github/Actions/own/action.yml",
    ".github",
    ".envrc",
    "sub/.envrc",
    ".vscode/tasks.json",
    ".idea/runConfigurations/x.xml",
    ".pre-commit-config.yaml",
]


@pytest.mark.parametrize("path", GUARDED)
def test_what_others_run_is_written_with_consent_alone(root: Path, path: str) -> None:
    asked: list[str] = []

    def answer(place: str) -> bool:
        asked.append(place)
        return len(asked) > 2

    state = root.parent / "state"
    silent = Workspace(root, state=state, durable=False)
    workspace = Workspace(root, state=state, durable=False, consent=answer)
    with silent.overlay() as overlay:
        (overlay.root / path).parent.mkdir(parents=True, exist_ok=True)
        (overlay.root / path).write_text("x")
        changes = overlay.changes()
    for act in (
        lambda: silent.write(path, "x"),
        lambda: silent.merge(changes),
        lambda: workspace.write(path, "x"),
        lambda: workspace.merge(changes),
    ):
        with pytest.raises(WorkspaceError, match=r"consent"):
            act()
    assert sorted(child.name for child in root.iterdir()) == ["f"]
    workspace.merge(changes)
    assert (root / path).read_text() == "x"
    workspace.write(path, "y")
    workspace.remove(path)
    assert len(asked) == 3, "asked again for what was granted"
    assert path.startswith(asked[0])
    assert len(set(asked)) == 1


@pytest.mark.parametrize(
    "path", [".github/docs/index.md", "workflows/x", "git/x", ".gitignore", "envrc", "vscode/x"]
)
def test_other_names_need_no_consent(root: Path, path: str) -> None:
    workspace = Workspace(root, state=root.parent / "state", durable=False)
    with workspace.overlay() as overlay:
        overlay.write(path, "x")
        workspace.merge(overlay.changes())
    assert workspace.read(path) == "x"


@needs_sandbox
@pytest.mark.parametrize(
    ("code", "made"),
    [
        ("open('.git/hooks/pre-commit', 'w')", False),
        ("open('.git/config', 'w')", False),
        ("import shutil; shutil.rmtree('.git')", False),
        ("os.rename('.git', 'x')", False),
        ("open('.envrc', 'w')", True),
        ("os.makedirs('.github/workflows'); open('.github/workflows/x.yml', 'w')", True),
        ("os.symlink('f', '.envrc')", True),
        ("os.rename('sub', 'x'); os.makedirs('sub/.git'); open('sub/.git/config', 'w')", False),
        ("os.makedirs('new/.git'); open('new/.git/config', 'w')", True),
    ],
)
def test_a_command_leaves_what_others_run_as_it_was(root: Path, code: str, made: bool) -> None:
    for place in (".git", "sub/.git"):
        (root / place / "hooks").mkdir(parents=True)
        (root / place / "config").write_text("mine")
    workspace = confined(root, "python")
    with pytest.raises(WorkspaceError, match="consent") if made else nullcontext():
        assert not workspace.run(["python", "-c", f"import os; {code}"]).ok
    assert (root / ".git" / "config").read_text() == "mine"
    assert not list((root / ".git" / "hooks").iterdir())
    assert not (root / ".envrc").is_symlink()
    assert not (root / ".envrc").exists()
    assert not (root / ".github" / "workflows").exists()
    found = [path.read_text() for path in root.rglob("config")]
    assert found == ["mine", "mine"]


@needs_sandbox
def test_what_others_run_is_not_moved_away_to_be_changed_there(root: Path) -> None:
    place = root / "sub" / ".github" / "workflows"
    place.mkdir(parents=True)
    (place / "ci.yml").write_text("mine")
    workspace = confined(root, "mv", "sh -c")
    for argv in (
        ["mv", "sub/.github", "gone"],
        ["mv", "sub", "gone"],
        ["sh", "-c", "mv sub/.github gone; echo evil > gone/workflows/ci.yml; mv gone sub/.github"],
    ):
        with suppress(WorkspaceError):  # a copy of it that mv makes needs consent
            assert not workspace.run(argv).ok
        assert (place / "ci.yml").read_text() == "mine"


@needs_sandbox
def test_nobody_sets_the_kernel_from_a_sandbox_not_even_root(root: Path) -> None:
    code = "import os; os.close(os.open('/proc/sys/kernel/core_pattern', os.O_WRONLY))"
    result = confined(root, "python").run(["python", "-c", code])
    assert not result.ok
    assert "Read-only file system" in result.output or "Permission denied" in result.output


@needs_sandbox
def test_a_command_changes_what_others_run_once_that_is_granted(root: Path) -> None:
    (root / ".vscode").mkdir()
    workspace = confined(root, "python", consent={".envrc", ".vscode"}.__contains__)
    assert workspace.run(["python", "-c", "open('.envrc', 'w').write('x')"]).ok
    assert (root / ".envrc").read_text() == "x"
    assert workspace.run(["python", "-c", "open('.envrc', 'w').write('y')"]).ok
    assert (root / ".envrc").read_text() == "y"
