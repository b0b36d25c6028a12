"""Users who may read a file and write nothing beside it: what they can open, what they are told.

Root may write whatever the permissions say, so what is run by root is done as another user.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from conformance.samples import step

from hybridagi_steps.memory import StepMemory

pytestmark = pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's here")

NOBODY = 65_534
READER = """
import sys
from hybridagi_steps import AgentStep, StepMemory
from hybridagi_steps.errors import ReadOnlyStorageError, StorageError
def say():
    found = memory.search("refund", k=99)
    print(memory.stats()["steps"], len(found), len(list(memory.iter_steps({"run_id": "r"}))))
try:
    with StepMemory(sys.argv[1]) as memory:
        say()
        for _ in sys.argv[2:]:
            print("waiting", flush=True)
            sys.stdin.readline()
            say()
        try:
            memory.add(AgentStep(step_type="Action"))
        except ReadOnlyStorageError as error:
            print("cannot be written")
        print(memory.verify())
except StorageError as error:
    print(type(error).__name__, error)
"""


@pytest.fixture
def path() -> Iterator[Path]:
    """The path of a memory in a folder that everybody may read."""
    folder = Path(tempfile.mkdtemp(prefix="shelf-"))
    folder.chmod(0o755)
    yield folder / "steps.db"
    folder.chmod(0o755)
    shutil.rmtree(folder)


def fill(path: Path, first: int = 0, count: int = 50) -> StepMemory:
    """Add steps that nobody has indexed yet, to a file that others may read; return the memory."""
    if not path.exists():
        path.touch()
        path.chmod(0o644)
    memory = StepMemory(path, embedder="hashing", durability="normal")
    numbers = range(first, first + count)
    memory.add([step(id=str(n), run_id="r", inputs={"purpose": f"refund {n}"}) for n in numbers])
    return memory


def _skip_where_no_other_user_has_this_python(user: dict[str, Any]) -> None:
    """Skip as root with a Python in a folder of root's own, as below a `/root` of mode 0700."""
    try:
        subprocess.run([sys.executable, "-c", "pass"], check=True, cwd="/", **user)
    except (PermissionError, subprocess.CalledProcessError):
        pytest.skip(f"no other user may execute {sys.executable}: install Python elsewhere")


def reader(path: Path, folder_mode: int = 0o555, *, pauses: int = 0) -> subprocess.Popen[str]:
    """Start a process of a user who cannot write the folder."""
    path.parent.chmod(folder_mode)
    user: dict[str, Any] = (
        {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    )
    _skip_where_no_other_user_has_this_python(user)
    command = [sys.executable, "-W", "error", "-c", READER, str(path), *["pause"] * pauses]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen(command, text=True, cwd="/", **pipes, **user)


def said(path: Path, folder_mode: int = 0o555) -> list[str]:
    """Return what a reader says, line by line."""
    process = reader(path, folder_mode)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return out.splitlines()


READ = ["50 50 50", "cannot be written", "[]"]


def test_a_file_that_was_closed(path: Path) -> None:
    fill(path).close()
    assert said(path) == READ
    assert {file.name for file in path.parent.iterdir()} == {"steps.db", "steps.db.lock"}


@pytest.mark.parametrize("table", ["embedding", "step_text"])
def test_what_is_damaged_of_one_step_keeps_no_reader_from_searching(path: Path, table: str) -> None:
    with fill(path) as memory:
        memory.flush()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE {table} SET checksum = checksum + 1 WHERE row = 7")
    found, refused, problems = said(path)
    assert [found, refused] == READ[:2]
    assert "row 7" in problems


def test_a_file_with_an_empty_log(path: Path) -> None:
    fill(path).close()
    path.with_name("steps.db-wal").touch()
    assert said(path) == READ


def test_a_file_that_may_not_be_written_either(path: Path) -> None:
    fill(path).close()
    path.chmod(0o444)
    assert said(path) == READ


def test_a_file_that_somebody_has_open(path: Path) -> None:
    with fill(path):
        assert said(path) == READ


def test_a_file_whose_writer_was_killed(path: Path, tmp_path: Path) -> None:
    copy_of_an_open_file(path, tmp_path, "", "-wal", "-shm")
    assert said(path) == READ


def copy_of_an_open_file(path: Path, folder: Path, *parts: str) -> None:
    """Put the files down as a kill leaves them, all of the log's index or none."""
    with fill(folder / "steps.db"):
        for part in parts:
            shutil.copyfile(folder / f"steps.db{part}", path.with_name(f"steps.db{part}"))


@pytest.mark.parametrize("index", ["missing", "unreadable"])
def test_a_log_whose_index_cannot_be_had_is_named_with_the_way_out(
    path: Path, tmp_path: Path, index: str
) -> None:
    copy_of_an_open_file(path, tmp_path, "", "-wal", *(["-shm"] if index == "unreadable" else []))
    if index == "unreadable":
        path.with_name("steps.db-shm").chmod(0)
    (line,) = said(path)
    assert line.startswith("ReadOnlyStorageError")
    assert "write-ahead log" in line
    assert "copy the file and its -wal" in line
    copied = path.parent / "copied"
    path.parent.chmod(0o755)
    copied.mkdir()
    for part in ("", "-wal"):
        shutil.copyfile(path.with_name(f"steps.db{part}"), copied / f"steps.db{part}")
    with StepMemory(copied / "steps.db") as memory:
        assert memory.stats()["steps"] == 50


@pytest.mark.parametrize(("file_mode", "folder_mode"), [(0, 0o555), (0o644, 0)])
def test_what_may_not_be_read_is_named(path: Path, file_mode: int, folder_mode: int) -> None:
    fill(path).close()
    path.chmod(file_mode)
    (line,) = said(path, folder_mode)
    assert line.startswith("StorageError")
    assert str(path) in line


def test_what_is_written_later_is_seen(path: Path) -> None:
    fill(path).close()
    with reader(path, pauses=3) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert next_lines(process) == ["50 50 50"]
        path.parent.chmod(0o755)
        with fill(path, 50):
            path.parent.chmod(0o555)
            answer(process)  # the writer has it open
            assert next_lines(process) == ["100 99 100"]
            path.parent.chmod(0o755)
        path.parent.chmod(0o555)
        answer(process)  # closed again
        assert next_lines(process) == ["100 99 100"]
        path.parent.chmod(0o755)
        fill(path, 100, 1).close()
        path.parent.chmod(0o555)
        answer(process)  # written and closed between two reads
        assert process.stdout.read().splitlines() == ["101 99 101", "cannot be written", "[]"]


def next_lines(process: subprocess.Popen[str]) -> list[str]:
    """Return what a reader says up to its next pause."""
    assert process.stdout is not None
    lines: list[str] = []
    while (line := process.stdout.readline().rstrip("\n")) != "waiting":
        assert line, "the reader ended"
        lines.append(line)
    return lines


def answer(process: subprocess.Popen[str]) -> None:
    """Let a reader go on."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
