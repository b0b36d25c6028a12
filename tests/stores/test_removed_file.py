"""A file that goes away, is replaced or migrated under an open memory: no write is lost unsaid."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hybridagi_steps import AgentStep, AgentStepType, StepMemory
from hybridagi_steps.errors import FileGoneError, NewerSchemaError
from hybridagi_steps.stores.sqlite.schema import latest_version

pytestmark = pytest.mark.skipif(os.name != "posix", reason="an open file cannot be removed here")


def step(purpose: str) -> AgentStep:
    """A step about something."""
    return AgentStep(step_type=AgentStepType.Action, inputs={"purpose": purpose})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a memory is, in a folder of its own."""
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk" / "steps.db"


def remove(path: Path) -> None:
    """Remove a memory and what lies beside it."""
    for file in path.parent.iterdir():
        file.unlink()


def make_anew(path: Path) -> None:
    """Remove a memory, and make an empty one in its place."""
    remove(path)
    StepMemory(path, embedder="hashing").close()


def rename(path: Path) -> None:
    """Give a memory another name."""
    path.rename(path.with_name("other.db"))


def take_disk_away(path: Path) -> None:
    """Have the folder gone, as where a volume is unmounted."""
    path.parent.rename(path.parent.with_name("away"))


@pytest.mark.parametrize("event", [remove, make_anew, rename, take_disk_away])
def test_a_write_to_a_file_that_is_gone_is_refused(
    path: Path, event: Callable[[Path], None], tmp_path: Path
) -> None:
    with StepMemory(path, embedder="hashing") as memory:
        memory.add([step("one"), step("two")])
        assert memory.search("one")
        event(path)
        for write in (
            partial(memory.add, step("three")),  # a statement of its own
            partial(memory.add, [step("three"), step("four")]),  # a transaction
            memory.vacuum,
        ):
            with pytest.raises(FileGoneError, match="Nothing was written now") as error:
                write()
            assert error.value.path == str(path)
        assert memory.stats()["steps"] == 2
        memory.backup(tmp_path / "saved.db")
    with StepMemory(tmp_path / "saved.db", embedder="hashing") as saved:
        assert {each.purpose for each in saved.iter_steps()} == {"one", "two"}
        assert saved.verify() == []


def test_a_reader_that_connects_anew_reads_no_other_file(path: Path) -> None:
    with StepMemory(path, embedder="hashing") as memory:
        memory.add(step("one"))
        steps = memory.iter_steps()
        assert next(steps).purpose == "one"
        make_anew(path)
        database: Any = getattr(memory.repository().store, "_db")  # noqa: B009
        with database.reading(), pytest.raises(FileGoneError, match="another file"):
            memory.find({})


def test_a_file_removed_within_a_transaction_commits_nothing(path: Path) -> None:
    with StepMemory(path, embedder="hashing") as memory:
        memory.add(step("one"))

        database: Any = getattr(memory.repository().store, "_db")  # noqa: B009

        def delete() -> None:
            with database.writing() as connection:
                connection.execute("DELETE FROM agent_step")
                remove(path)

        with pytest.raises(FileGoneError):
            delete()
        assert memory.stats()["steps"] == 1


def test_a_copy_restored_over_an_open_memory_is_not_written(path: Path, tmp_path: Path) -> None:
    with StepMemory(path, embedder="hashing") as memory:
        memory.add(step("one"))
        memory.backup(tmp_path / "copy.db")
        memory.add(step("two"))
        shutil.copy(tmp_path / "copy.db", path.with_name("new"))
        path.with_name("new").replace(path)
        with pytest.raises(FileGoneError, match="is another file now"):
            memory.add(step("three"))


def test_a_writer_stops_where_a_newer_version_has_migrated(path: Path) -> None:
    with StepMemory(path, embedder="hashing") as memory:
        memory.add(step("one"))
        with closing(sqlite3.connect(path)) as newer:
            newer.execute(f"PRAGMA user_version = {latest_version() + 1}")
        for steps in (step("two"), [step("two"), step("three")]):
            with pytest.raises(NewerSchemaError, match="upgrade hybridagi-steps"):
                memory.add(steps)
        assert [each.purpose for each in memory.iter_steps()] == ["one"]
