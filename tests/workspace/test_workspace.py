"""Workspaces: steps work in one directory and cannot reach out of it, nor leave it half changed."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

import os
import pickle
import shutil
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from child_processes import fork
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridagi_steps.errors import ArtifactConflictError, CommandNotAllowedError, WorkspaceError
from hybridagi_steps.workspace.confined import ConfinedDirectory, path_parts
from hybridagi_steps.workspace.snapshot import Limits
from hybridagi_steps.workspace.tools import workspace_tools
from hybridagi_steps.workspace.workspace import Workspace

OUTSIDE_TEXT = "what stands outside"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small workspace's directory, with something to protect beside it."""
    (tmp_path / "secret.txt").write_text(OUTSIDE_TEXT)
    root = tmp_path / "work"
    (root / "src").mkdir(parents=True)
    (root / "src" / "app.py").write_text("print('Hello')\n")
    (root / "data.csv").write_text("a,b\n1,2\n")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    return root


@pytest.fixture
def workspace(root: Path, tmp_path: Path) -> Workspace:
    return Workspace(root, commands=["python"], state=tmp_path / "state", durable=False)


def tree(root: Path) -> dict[str, str]:
    """What a directory holds, as text, links as where they point."""
    found: dict[str, str] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_dir():
            found[name] = "dir"
        else:
            found[name] = f"{path.stat().st_mode & 0o777:o} {path.read_text()}"
    return found


# Reading, writing, finding


def test_files_are_written_read_listed_and_searched(workspace: Workspace) -> None:
    workspace.write("docs/Überblick ✓.md", "# Hello\nGrüße\n")
    assert workspace.read("docs/Überblick ✓.md") == "# Hello\nGrüße\n"
    assert workspace.list() == ["data.csv", "docs/Überblick ✓.md", "run.sh", "src/app.py"]
    assert workspace.list("src") == workspace.list("src/") == workspace.list("**/*.py")
    assert workspace.list("*.py") == []
    assert [(hit.path, hit.line) for hit in workspace.search("Hello")] == [
        ("docs/Überblick ✓.md", 1),
        ("src/app.py", 1),
    ]
    assert [hit.text for hit in workspace.search("GRÜSSE", ignore_case=True)] == ["Grüße"]
    assert workspace.search("hello") == []


def test_writing_replaces_whole_files_and_keeps_their_permissions(workspace: Workspace) -> None:
    before = (workspace.root / "run.sh").stat().st_ino
    workspace.write("run.sh", "#!/bin/sh\necho hi\n")
    status = (workspace.root / "run.sh").stat()
    assert status.st_mode & 0o777 == 0o755
    assert status.st_ino != before, "written in place: a reader could see half of it"


def test_binary_and_too_large_files_are_refused_by_name(root: Path, tmp_path: Path) -> None:
    (root / "image.bin").write_bytes(b"\x00\xff\xfe")
    workspace = Workspace(root, state=tmp_path / "s", read_bytes=5, limits=Limits(file_bytes=5))
    with pytest.raises(WorkspaceError, match=r"'image.bin' is not UTF-8"):
        workspace.read("image.bin")
    with pytest.raises(WorkspaceError, match=r"'src/app.py' has 15 bytes, the limit is 5"):
        workspace.read("src/app.py")
    with pytest.raises(WorkspaceError, match="over the limit"):
        workspace.write("new.txt", "123456")
    assert not (root / "new.txt").exists()
    with pytest.raises(WorkspaceError, match="the limit is 5"):
        workspace.snapshot()


# No way out

OUTSIDE = [
    "../secret.txt",
    "src/../../secret.txt",
    "..",
    "/etc/passwd",
    "~/.ssh/id_rsa",
    "",
    " ",
    "a\0b",
    "x" * 5000,
    "a/" * 200 + "b",
    "\ud800",
    ".",
]


@pytest.mark.parametrize("path", OUTSIDE)
def test_no_path_leads_out(workspace: Workspace, path: str) -> None:
    with pytest.raises(WorkspaceError):
        workspace.read(path)
    with pytest.raises(WorkspaceError):
        workspace.write(path, "x")
    assert (workspace.root.parent / "secret.txt").read_text() == OUTSIDE_TEXT


@pytest.mark.parametrize("target", ["../secret.txt", "{outside}/secret.txt", "data.csv", "loop"])
def test_links_are_never_followed(workspace: Workspace, target: str) -> None:
    outside = workspace.root.parent
    (workspace.root / "loop").symlink_to(target.format(outside=outside))
    with pytest.raises(WorkspaceError, match="symbolic link"):
        workspace.read("loop")
    assert "loop" not in workspace.list()
    assert workspace.search(OUTSIDE_TEXT) == []
    workspace.write("loop", "mine")  # replaces the link, not what it points at
    assert not (workspace.root / "loop").is_symlink()
    assert (outside / "secret.txt").read_text() == OUTSIDE_TEXT
    assert (workspace.root / "data.csv").read_text() == "a,b\n1,2\n"


def test_directories_that_are_links_are_never_followed(workspace: Workspace) -> None:
    (workspace.root / "out").symlink_to(workspace.root.parent, target_is_directory=True)
    with pytest.raises(WorkspaceError, match="symbolic link"):
        workspace.read("out/secret.txt")
    for name in ("secret.txt", "new.txt"):
        with pytest.raises(WorkspaceError, match="symbolic link"):
            workspace.write(f"out/{name}", "x")
    assert workspace.list("out/**") == []
    assert not (workspace.root.parent / "new.txt").exists()
    assert (workspace.root.parent / "secret.txt").read_text() == OUTSIDE_TEXT


@pytest.mark.timeout(60)  # who opens the pipe waits for ever
def test_devices_and_pipes_are_refused_without_waiting(workspace: Workspace) -> None:
    os.mkfifo(workspace.root / "pipe")
    with pytest.raises(WorkspaceError, match="device or pipe"):
        workspace.read("pipe")
    snapshot = workspace.snapshot()
    workspace.rollback(snapshot)
    assert "pipe" not in workspace.list()


@settings(deadline=None)
@given(st.text(max_size=30))
def test_any_path_stays_below_or_is_refused(path: str) -> None:
    try:
        parts = path_parts(path)
    except WorkspaceError:
        return
    joined = os.path.normpath(os.path.join("/root", *parts))  # noqa: PTH118
    assert joined == "/root" or joined.startswith("/root/")
    assert ".." not in parts


@settings(deadline=None)
@given(st.lists(st.sampled_from(["..", ".", "", "a", "out", "secret.txt", "/"]), max_size=6))
def test_no_combination_of_parts_reaches_the_secret(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str]
) -> None:
    top = tmp_path_factory.mktemp("top")
    (top / "secret.txt").write_text(OUTSIDE_TEXT)
    (top / "in" / "a").mkdir(parents=True)
    (top / "in" / "out").symlink_to("..")
    (top / "in" / "a" / "out").symlink_to(top)
    directory = ConfinedDirectory(top / "in")
    with pytest.raises(WorkspaceError):
        directory.read_bytes("/".join(parts), 1000)


def test_a_directory_swapped_for_a_link_while_it_is_used_leads_nowhere(
    workspace: Workspace,
) -> None:
    inside, outside = workspace.root / "swap", workspace.root.parent / "outside"
    outside.mkdir()
    (outside / "file").write_text(OUTSIDE_TEXT)
    stop = threading.Event()

    def swap_until_stopped() -> None:
        while not stop.is_set():
            with suppress(OSError):  # the workspace may have written into it meanwhile
                shutil.rmtree(inside)
                inside.symlink_to(outside)
                inside.unlink()
                inside.mkdir()
                (inside / "file").write_text("inside")

    inside.mkdir()
    thread = threading.Thread(target=swap_until_stopped)
    thread.start()
    seen: set[str] = set()
    until = time.monotonic() + 1.5
    try:
        while time.monotonic() < until:
            try:
                seen.add(workspace.read("swap/file"))
                workspace.write("swap/new", "x")
            except WorkspaceError:
                continue
    finally:
        stop.set()
        thread.join()
    assert OUTSIDE_TEXT not in seen
    assert [path.name for path in outside.iterdir()] == ["file"]


# Commands


def python(code: str) -> list[str]:
    return ["python", "-c", code]


def test_a_command_runs_in_the_workspace_with_a_short_environment(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    code = "import os, sys; print(os.getcwd()); print(sorted(os.environ)); sys.exit(3)"
    result = workspace.run(python(code))
    assert result.exit_code == 3
    assert not result.ok
    assert result.output.splitlines()[0] == str(workspace.root)
    assert "OPENAI_API_KEY" not in result.output
    assert "PATH" in result.output


@pytest.mark.parametrize(
    "argv",
    [
        ["ls"],
        ["/usr/bin/python"],
        ["./python"],
        [],
        ["python", "a\0b"],
        ["python", "x.py", "&&", "ls"],
        ["python", "x.py", ">", "y"],
    ],
)
def test_what_is_not_allowed_does_not_run(workspace: Workspace, argv: list[str]) -> None:
    with pytest.raises(CommandNotAllowedError):
        workspace.run(argv)


def test_an_allowed_command_may_demand_its_first_arguments(root: Path, tmp_path: Path) -> None:
    workspace = Workspace(root, commands=["python -m json.tool"], state=tmp_path / "s")
    workspace.write("x.json", "[1]")
    assert workspace.run(["python", "-m", "json.tool", "x.json"]).ok
    with pytest.raises(CommandNotAllowedError, match=r"allowed: python -m json\.tool"):
        workspace.run(python("print(1)"))


@pytest.fixture
def unconfined(root: Path, tmp_path: Path) -> Workspace:
    """Where children have the numbers that this process sees, and a group is all that ends."""
    state = tmp_path / "state"
    return Workspace(root, commands=["python"], state=state, durable=False, sandbox="off")


@pytest.mark.timeout(60)  # less than the command and its child would take
def test_a_command_that_never_ends_is_killed_with_its_children(unconfined: Workspace) -> None:
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    result = unconfined.run(python(code), timeout_seconds=2.0)
    assert (result.timed_out, result.exit_code) == (True, None)
    assert is_gone(int(result.output))


@pytest.mark.timeout(60)  # less than the child would take
def test_children_left_behind_are_killed_and_not_waited_for(unconfined: Workspace) -> None:
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid)\n"
    )
    result = unconfined.run(python(code))
    assert result.ok
    assert is_gone(int(result.output))


def is_gone(pid: int) -> bool:
    """Whether a process has ended, or ends soon."""
    for _ in range(3_000):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state in {"Z", "X"}:
            return True
        time.sleep(0.01)
    return False


def test_long_output_keeps_its_beginning_and_its_end(workspace: Workspace) -> None:
    result = workspace.run(python("print('first'); print('x' * 5_000_000); print('last')"))
    assert result.ok
    assert result.truncated
    assert len(result.output) < 25_000
    assert result.output.startswith("first")
    assert result.output.endswith("last\n")
    assert "bytes left out" in result.output


# Snapshots


def test_a_rollback_brings_everything_back(workspace: Workspace) -> None:
    (workspace.root / "empty").mkdir()
    (workspace.root / "link").symlink_to("data.csv")
    before = tree(workspace.root)
    snapshot = workspace.snapshot()
    workspace.write("src/app.py", "changed")
    workspace.write("src/new/deep.py", "new")
    workspace.remove("data.csv")
    workspace.write("data.csv/inside", "a directory now")
    workspace.remove("link")
    (workspace.root / "run.sh").chmod(0o600)
    (workspace.root / "empty").rmdir()
    workspace.write("empty", "a file now")
    changed = workspace.rollback(snapshot)
    assert tree(workspace.root) == before
    assert {"src/app.py", "src/new", "src/new/deep.py", "data.csv", "run.sh"} <= set(changed)
    assert workspace.rollback(snapshot) == []


def test_a_snapshot_that_is_gone_or_damaged_changes_nothing(workspace: Workspace) -> None:
    with pytest.raises(WorkspaceError, match="no snapshot"):
        workspace.rollback("nothing")
    snapshot = workspace.snapshot()
    workspace.write("src/app.py", "changed")
    workspace.write("data.csv", "changed")
    before = tree(workspace.root)
    for path in (workspace.state / "objects").glob("*/*"):
        path.write_bytes(b"damaged")
    with pytest.raises(WorkspaceError, match="damaged"):
        workspace.rollback(snapshot)
    assert tree(workspace.root) == before


def test_an_unfinished_change_that_is_damaged_is_named(root: Path, tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "pending.json").write_text("{")
    with pytest.raises(WorkspaceError, match=r"pending\.json is damaged"):
        Workspace(root, state=tmp_path / "s")


def test_a_forgotten_snapshot_leaves_no_contents(workspace: Workspace) -> None:
    first = workspace.snapshot()
    workspace.write("data.csv", "other")
    second = workspace.snapshot()
    workspace.forget(first)
    workspace.write("data.csv", "third")
    workspace.rollback(second)
    assert workspace.read("data.csv") == "other"
    workspace.forget(second)
    assert list((workspace.state / "objects").glob("*/*")) == []


def test_snapshots_survive_the_process_and_pickle(workspace: Workspace) -> None:
    snapshot = workspace.snapshot()
    workspace.write("data.csv", "other")
    again = pickle.loads(pickle.dumps(workspace))
    again.rollback(snapshot)
    assert workspace.read("data.csv") == "a,b\n1,2\n"


def test_the_state_must_be_outside(root: Path) -> None:
    with pytest.raises(WorkspaceError, match="outside"):
        Workspace(root, state=root / "state")
    with pytest.raises(WorkspaceError):
        Workspace(root / "nothing")
    with pytest.raises(WorkspaceError):
        Workspace(root / "data.csv")


# Overlays


def test_an_overlay_is_a_copy_whose_changes_can_be_merged(workspace: Workspace) -> None:
    (workspace.root / "link").symlink_to("../secret.txt")
    before = tree(workspace.root)
    with workspace.overlay() as overlay:
        assert tree(overlay.root) == before
        assert not overlay.changes()
        overlay.write("src/app.py", "changed")
        overlay.write("new/file.txt", "new")
        overlay.remove("data.csv")
        assert overlay.run(python("open('by_command', 'w').write('x')")).ok
        changes = overlay.changes()
        place = overlay.root
        assert tree(workspace.root) == before, "the workspace changed before the merge"
    assert not place.exists()
    assert changes.added == ["by_command", "new/file.txt"]
    assert changes.changed == ["src/app.py"]
    assert changes.deleted == ["data.csv"]
    workspace.merge(pickle.loads(pickle.dumps(changes)))
    assert workspace.read("src/app.py") == "changed"
    assert workspace.read("new/file.txt") == "new"
    assert workspace.list() == ["by_command", "new/file.txt", "run.sh", "src/app.py"]


def test_merging_two_overlays_that_wrote_the_same_file_names_it(workspace: Workspace) -> None:
    with workspace.overlay() as first, workspace.overlay() as second:
        first.write("src/app.py", "first")
        first.write("same.txt", "same")
        second.write("src/app.py", "second")
        second.write("same.txt", "same")
        second.write("other.txt", "second")
        workspace.merge(first.changes())
        with pytest.raises(ArtifactConflictError, match=r"src/app\.py") as refused:
            workspace.merge(second.changes())
    assert "same.txt" not in str(refused.value)
    assert workspace.read("src/app.py") == "first"
    assert not workspace.exists("other.txt"), "half of a conflicting change was merged"


def test_a_merge_that_fails_in_the_middle_changes_nothing(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with workspace.overlay() as overlay:
        overlay.remove("run.sh")
        overlay.write("data.csv", "changed")
        overlay.write("deep/new.txt", "new")
        overlay.write("src/app.py", "changed")
        overlay.write("z.txt", "new")
        changes = overlay.changes()
    before = tree(workspace.root)
    write, failing = ConfinedDirectory.write_bytes, {"src/app.py"}

    def full(self: ConfinedDirectory, path: str, *args: Any, **settings: Any) -> None:
        if path in failing:
            failing.clear()
            raise WorkspaceError("no space left on device")
        write(self, path, *args, **settings)

    monkeypatch.setattr(ConfinedDirectory, "write_bytes", full)
    with pytest.raises(WorkspaceError, match="no space"):
        workspace.merge(changes)
    assert tree(workspace.root) == before
    workspace.merge(changes)
    assert workspace.read("z.txt") == "new"
    assert list((workspace.state / "objects").glob("*/*")) == []


def test_a_link_that_leads_out_is_not_merged(workspace: Workspace) -> None:
    for target in ("../secret.txt", "/etc/passwd", "src/../../x"):
        with workspace.overlay() as overlay:
            (overlay.root / "link").symlink_to(target)
            overlay.write("other.txt", "x")
            with pytest.raises(WorkspaceError, match="'link' leads out"):
                workspace.merge(overlay.changes())
    assert not workspace.exists("other.txt")
    with workspace.overlay() as overlay:
        (overlay.root / "src" / "link").symlink_to("../data.csv")
        workspace.merge(overlay.changes())
    assert (workspace.root / "src" / "link").read_text() == "a,b\n1,2\n"


@pytest.mark.parametrize(
    ("ours", "theirs", "clashes"),
    [
        ({"data.csv": None}, {"data.csv": "new"}, True),
        ({"data.csv": "new"}, {"data.csv": None}, True),
        ({"data.csv": None}, {"data.csv": None}, False),
        ({"x": "1"}, {"x/y": "2"}, True),
        ({"x/y": "2"}, {"x": "1"}, True),
        ({"x/y": "1"}, {"x/z": "2"}, False),
        ({"src/app.py": None, "src": None}, {"src/new.py": "2"}, False),
        ({"src/new.py": "2"}, {"src/app.py": None, "src": None}, False),
        ({"src/app.py": None, "src": "a file"}, {"src/new.py": "2"}, True),
        ({"a": "1"}, {"b": "2"}, False),
    ],
)
def test_changes_meet_without_loss(
    workspace: Workspace,
    ours: dict[str, str | None],
    theirs: dict[str, str | None],
    clashes: bool,
) -> None:
    with workspace.overlay() as first, workspace.overlay() as second:
        for overlay, wanted in ((first, theirs), (second, ours)):
            for path, content in wanted.items():
                if content is None:
                    overlay.remove(path)
                else:
                    if (overlay.root / path).is_dir():
                        overlay.remove(path)
                    overlay.write(path, content)
        workspace.merge(first.changes())
        after_first = tree(workspace.root)
        if clashes:
            with pytest.raises(ArtifactConflictError):
                workspace.merge(second.changes())
            assert tree(workspace.root) == after_first
            return
        workspace.merge(second.changes())
    for path, content in {**ours, **theirs}.items():
        if content is not None:
            assert workspace.read(path) == content


def test_many_overlays_merge_from_threads(workspace: Workspace) -> None:
    def work(number: int) -> None:
        with workspace.overlay() as overlay:
            overlay.write(f"out/{number}.txt", str(number))
            workspace.merge(overlay.changes())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [workspace.read(f"out/{number}.txt") for number in range(8)] == list("01234567")


parts = st.lists(st.sampled_from(["a", "b", "ü ✓", ".hidden"]), min_size=1, max_size=3)
trees = st.dictionaries(parts.map("/".join), st.binary(max_size=4), max_size=6).map(
    lambda files: {
        path: content
        for path, content in files.items()
        if not any(other.startswith(path + "/") for other in files)
    }
)


def fill(root: Path, files: dict[str, bytes]) -> None:
    """Make a directory hold these files and nothing else."""
    for path in root.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


def held(root: Path) -> dict[str, bytes]:
    files = [path for path in root.rglob("*") if path.is_file()]
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


@settings(deadline=None, max_examples=50)
@given(trees, trees)
def test_any_tree_goes_back_and_comes_over(
    tmp_path_factory: pytest.TempPathFactory, before: dict[str, bytes], after: dict[str, bytes]
) -> None:
    top = tmp_path_factory.mktemp("trees")
    (top / "work").mkdir()
    workspace = Workspace(top / "work", state=top / "state", durable=False)
    fill(workspace.root, before)
    directories = {path for path in workspace.root.rglob("*") if path.is_dir()}
    snapshot = workspace.snapshot()
    with workspace.overlay() as overlay:
        fill(overlay.root, after)
        changes = overlay.changes()
    workspace.merge(changes)
    assert held(workspace.root) == after
    assert set(changes.added) == set(after) - set(before)
    assert set(changes.deleted) == set(before) - set(after)
    workspace.rollback(snapshot)
    assert held(workspace.root) == before
    assert {path for path in workspace.root.rglob("*") if path.is_dir()} == directories


# Killed in the middle


def work_until_killed(root: Path, state: Path, what: str, snapshot: str, after: int) -> None:
    """Roll back or merge, and die of a kill once so many changes are made; runs in a child."""
    workspace, done = Workspace(root, state=state, durable=False), count()

    def dying(act: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if next(done) >= after:
                os.kill(os.getpid(), signal.SIGKILL)
            return act(*args, **kwargs)

        return run

    act = partial(workspace.rollback, snapshot)
    if what == "merge":
        with workspace.overlay() as overlay:
            for number in range(4):
                overlay.write(f"file{number}", "merged")
            overlay.remove("data.csv")
            overlay.write("sub/new", "merged")
            act = partial(workspace.merge, overlay.changes())
    for name in ("write_bytes", "remove", "make_directory"):
        setattr(ConfinedDirectory, name, dying(getattr(ConfinedDirectory, name)))
    act()


@pytest.mark.parametrize("what", ["rollback", "merge"])
@pytest.mark.parametrize("after", [0, 1, 2, 4, 6])
def test_a_kill_in_the_middle_leaves_all_or_nothing(
    root: Path, tmp_path: Path, what: str, after: int
) -> None:
    state = tmp_path / "state"
    workspace = Workspace(root, state=state, durable=False)
    for number in range(4):
        workspace.write(f"file{number}", "before")
    before = tree(root)
    snapshot = workspace.snapshot() if what == "rollback" else ""
    if what == "rollback":
        for number in range(4):
            workspace.write(f"file{number}", "after")
        workspace.remove("data.csv")
        workspace.write("sub/new", "after")
        wanted = before
    else:
        with workspace.overlay() as overlay:
            for number in range(4):
                overlay.write(f"file{number}", "merged")
            overlay.remove("data.csv")
            overlay.write("sub/new", "merged")
            wanted = tree(overlay.root)
    child = fork(lambda: work_until_killed(root, state, what, snapshot, after))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    assert tree(root) != wanted, "it was killed too late to say anything"
    if after % 2:
        Workspace(root, state=state, durable=False)
    else:
        workspace.snapshot()  # one that was open all the while finishes it, too
    assert tree(root) == wanted


# Tools


def test_the_tools_are_what_a_model_can_call(workspace: Workspace) -> None:
    import dspy

    tools = {tool.name: tool for tool in map(dspy.Tool, workspace_tools(workspace))}
    assert list(tools) == [
        "read_file",
        "write_file",
        "list_files",
        "search_files",
        "run_command",
    ]
    assert all(tool.desc for tool in tools.values())
    assert tools["write_file"](path="a/b.txt", content="one\ntwo\n") == "wrote 8 bytes to a/b.txt"
    assert tools["read_file"](path="a/b.txt", first_line=2) == "two\n"
    assert tools["list_files"](pattern="a") == "a/b.txt"
    assert tools["list_files"](pattern="*.rs") == "no file matches *.rs"
    assert tools["search_files"](text="two") == "a/b.txt:2: two"
    assert "in no file" in tools["search_files"](text="three")
    assert tools["run_command"](command="python -c 'print(1)'") == "exit code 0\n1\n"
    assert "python" in (tools["run_command"].desc or "")
    with pytest.raises(CommandNotAllowedError, match="no shell"):
        tools["run_command"](command="python x.py | cat")
    with pytest.raises(CommandNotAllowedError, match="cannot be read"):
        tools["run_command"](command="python 'x")


def test_long_answers_of_tools_are_cut_and_say_so(workspace: Workspace) -> None:
    workspace.write("long.txt", "".join(f"line {number}\n" for number in range(1, 5001)))
    read, _, _, search, _ = workspace_tools(workspace)
    assert read("long.txt").endswith("lines 2001 to 5000 left out; ask with first_line=2001")
    assert read("long.txt", first_line=4999) == "line 4999\nline 5000\n"
    assert search("line").endswith("more left out; narrow it down")


def test_without_commands_there_is_no_tool_to_run_them(root: Path, tmp_path: Path) -> None:
    tools = workspace_tools(Workspace(root, state=tmp_path / "s"))
    assert "run_command" not in [tool.__name__ for tool in tools]
