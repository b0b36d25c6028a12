"""A backup is one whole state of a file, and a memory like any other."""

from __future__ import annotations

import shutil
import sqlite3
import stat
import subprocess
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from copied_memories import everything, fill

from hybridagi_steps import AgentStep, AgentStepType, StepMemory
from hybridagi_steps.errors import (
    DiskFullError,
    StorageError,
    UnsupportedAddressError,
)
from hybridagi_steps.stores.copying import back_up


def _steps(word: str, count: int) -> list[AgentStep]:
    return [
        AgentStep(
            step_type=AgentStepType.Action,
            run_id=f"{word}-{n // 2}",
            inputs={"purpose": f"weigh {word} apples {n}"},
        )
        for n in range(count)
    ]


def _memory(path: Path | str, namespace: str = "default") -> StepMemory:
    return StepMemory(str(path), embedder="hashing", namespace=namespace)


def test_a_backup_is_one_state_while_others_write(tmp_path: Path) -> None:
    done = threading.Event()

    def write(memory: StepMemory) -> None:
        while not done.is_set():
            memory.add(_steps("late", 2))

    with _memory(tmp_path / "steps.db") as memory:
        memory.add(_steps("early", 600))
        writer = threading.Thread(target=write, args=(memory,))
        writer.start()
        try:
            sizes = [memory.backup(tmp_path / f"backup-{n}.db") for n in range(4)]
        finally:
            done.set()
            writer.join()
    for n, size in enumerate(sizes):
        path = tmp_path / f"backup-{n}.db"
        assert path.stat().st_size == size
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with closing(sqlite3.connect(path)) as file:
            assert file.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        with _memory(path) as copied:
            assert copied.verify() == []
            found = [step.run_id for step in copied.iter_steps()]
            assert len(found) >= 600
            assert all(found.count(run) % 2 == 0 for run in {*found})
            copied.add(_steps("new", 1))
            assert copied.search("weigh new apples", 1)[0].step.run_id == "new-0"
    assert not [*tmp_path.glob(".*")]


def test_a_backup_holds_no_word_that_was_deleted(tmp_path: Path) -> None:
    with _memory(tmp_path / "steps.db") as memory:
        memory.add(_steps("secretive", 50))
        memory.flush()
        memory.delete([str(step.id) for step in memory.iter_steps()])
        memory.backup(tmp_path / "backup.db")
    assert b"secretive" not in (tmp_path / "backup.db").read_bytes()


def test_what_was_indexed_after_a_backup_is_not_believed_when_it_is_restored(
    tmp_path: Path,
) -> None:
    path = tmp_path / "steps.db"
    with _memory(path) as memory:
        memory.add(_steps("early", 300))
        memory.flush()
        memory.backup(tmp_path / "backup.db")
        memory.add(_steps("forgotten", 250))
        memory.flush()
    shutil.copy(tmp_path / "backup.db", path)
    with _memory(path) as memory:
        memory.add(_steps("later", 250))
        memory.flush()
        assert memory.search("weigh later apples 17", 1)[0].step.inputs == {
            "purpose": "weigh later apples 17"
        }
        hits = memory.search("forgotten", 5, mode="lexical")
        assert not hits
        assert memory.verify() == []


def test_a_memory_without_a_file_can_be_written_into_one(tmp_path: Path) -> None:
    with _memory(":memory:") as memory:
        memory.add(_steps("early", 3))
        memory.backup(tmp_path / "steps.db")
    with _memory(tmp_path / "steps.db") as kept:
        assert [step.run_id for step in kept.iter_steps()] == ["early-0", "early-0", "early-1"]
        assert kept.verify() == []


def test_no_file_is_replaced_and_none_is_left(tmp_path: Path) -> None:
    (tmp_path / "there.db").write_text("mine")
    with _memory(tmp_path / "steps.db") as memory:
        memory.add(_steps("early", 3))
        with pytest.raises(StorageError, match="is there"):
            memory.backup(tmp_path / "there.db")
        with pytest.raises(StorageError, match="cannot write the backup"):
            memory.backup(tmp_path / "no folder" / "backup.db")
    assert (tmp_path / "there.db").read_text() == "mine"
    assert not [*tmp_path.glob(".*")]


def test_the_database_of_a_server_is_not_written_into_a_file(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedAddressError, match="pg_dump"):
        back_up(object(), tmp_path / "backup.db")


def test_a_dump_of_a_database_is_restored_for_another_owner(
    postgres_server: Any, new_postgres_database: Callable[[], str], tmp_path: Path
) -> None:
    whole, restored = new_postgres_database(), new_postgres_database()
    dump = tmp_path / "dump"

    def run(program: str, *words: str | Path) -> None:
        done = subprocess.run(
            [postgres_server.bin_path / program, *words], check=False, stderr=subprocess.PIPE
        )
        assert done.returncode == 0, done.stderr.decode()

    with _memory(whole) as memory:
        fill(memory)
        before = everything(memory)
        run("pg_dump", "--format=custom", "--enable-row-security", "--file", dump, whole)
        memory.add(_steps("late", 2))
    run("pg_restore", "--exit-on-error", "--no-owner", "--dbname", restored, dump)
    with _memory(restored) as memory:
        assert everything(memory) == before
        assert memory.verify() == []
        memory.add(_steps("new", 1))


def test_a_backup_that_finds_no_room_is_named_itself(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource", reason="only POSIX limits the size of files")
    with StepMemory(tmp_path / "steps.db", embedder="hashing") as memory:
        memory.add(
            AgentStep(step_type=AgentStepType.Action, inputs={"purpose": "x" * 100_000})
            for _ in range(20)
        )
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, before[1]))
        try:
            with pytest.raises(DiskFullError, match=r"^the backup .*copy\.db cannot grow"):
                memory.backup(tmp_path / "copy.db")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not [file.name for file in tmp_path.iterdir() if "copy" in file.name]
