"""Where a memory is, is settled when it is opened: by whatever name, wherever a process goes."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from hybridagi_steps import AgentSession, AgentStep, AgentStepType, StepMemory
from hybridagi_steps.errors import ReadOnlyStorageError
from hybridagi_steps.search import step_index

CANARY = "qzx9917"
STEPS = 2_000  # so many are worth an index file


def memory_at(address: Path | str) -> StepMemory:
    return StepMemory(address, embedder="hashing", durability="normal")


def filled(address: Path | str) -> None:
    with memory_at(address) as memory:
        memory.add(
            AgentStep(
                step_type=AgentStepType.Action,
                inputs={"purpose": f"{CANARY} number {number}"},
                user_id="ann",
            )
            for number in range(STEPS)
        )


def tells(folder: Path) -> list[str]:
    files = [file for file in folder.rglob("*") if file.is_file()]
    return sorted(file.name for file in files if CANARY.encode() in file.read_bytes())


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Two folders, in the first of which a memory is."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    filled(tmp_path / "here" / "steps.db")
    return tmp_path / "here", tmp_path / "there"


def to_file(here: Path, there: Path) -> Path:
    (there / "link.db").symlink_to(here / "steps.db")
    return there / "link.db"


def to_folder(here: Path, there: Path) -> Path:
    (there / "link").symlink_to(here)
    return there / "link" / "steps.db"


@pytest.mark.parametrize("link", [to_file, to_folder])
def test_a_memory_opened_by_a_link_has_its_files_beside_the_file(
    folders: tuple[Path, Path], link: Callable[[Path, Path], Path]
) -> None:
    here, there = folders
    with memory_at(link(here, there)) as memory:
        memory.flush()
        assert [file.name for file in there.iterdir() if not file.is_symlink()] == []
        assert any(name.endswith(".index") for name in tells(here))
        with memory_at(here / "steps.db") as same:
            assert same.purge({"user_id": "ann"}) == STEPS
    assert tells(here.parent) == []


def test_nothing_is_written_to_a_file_of_two_names(
    folders: tuple[Path, Path],
) -> None:
    here, there = folders
    (there / "other.db").hardlink_to(here / "steps.db")
    with memory_at(here / "steps.db") as memory:
        before = memory.stats()["steps"]
        for write in (
            partial(memory.purge, {"user_id": "ann"}),
            partial(memory.add, AgentStep(step_type=AgentStepType.Action)),
        ):
            with pytest.raises(ReadOnlyStorageError, match=r"another name \(a hard link\)"):
                write()
        assert memory.stats()["steps"] == before
        (there / "other.db").unlink()
        memory.add(AgentStep(step_type=AgentStepType.Action))
        assert memory.stats()["steps"] == before + 1


def test_a_memory_stays_where_it_was_opened(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = folders
    monkeypatch.chdir(here)
    with memory_at("steps.db") as memory:
        monkeypatch.chdir(there)
        memory.flush()
        with pickle.loads(pickle.dumps(memory)) as again:
            assert again.stats()["steps"] == STEPS
        with pytest.raises(Exception, match="belongs to the memory itself"):
            _export(memory, here / "steps.db")
        assert [*there.iterdir()] == []
        assert memory.purge({"user_id": "ann"}).unreached == ()
    assert tells(here.parent) == []


def _export(memory: StepMemory, path: Path) -> None:
    from hybridagi_steps.exchange import export_file

    export_file(memory, path)


def test_a_queue_stays_beside_the_memory(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("dbos", reason="queues need the extra `durable`")
    from hybridagi_steps.durable.session_runs import DurableRunner

    here, there = folders
    monkeypatch.chdir(here)
    with memory_at("steps.db") as memory:
        monkeypatch.chdir(there)
        with DurableRunner(memory=memory) as durable:
            asyncio.run(durable.submit(AgentSession("s", "ann"), CANARY))
        assert [*there.iterdir()] == []
    with memory_at(here / "steps.db") as memory:
        assert memory.purge({"user_id": "ann"}).unreached == ()
    assert tells(here.parent) == []


KILLED = """
import os, signal, sys
from hybridagi_steps import StepMemory
from hybridagi_steps.search import index_cache, step_index
written = step_index.save_cache
def killed(*arguments):
    index_cache.os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
    return written(*arguments)
step_index.save_cache = killed
StepMemory(sys.argv[1], embedder="hashing").flush()
"""


@pytest.mark.parametrize("name", ["steps.db", "steps[1].db"])
def test_what_a_killed_writer_of_an_index_left_is_erased(tmp_path: Path, name: str) -> None:
    filled(tmp_path / name)
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path / name], check=False)
    assert done.returncode == -signal.SIGKILL
    assert any(file.endswith(".tmp") for file in tells(tmp_path))
    with memory_at(tmp_path / name) as memory:
        assert memory.purge({"user_id": "ann"}).unreached == ()
    assert tells(tmp_path) == []


def test_an_index_that_is_written_beside_a_purge_is_not_left(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, _ = folders
    written = step_index.save_cache

    def purged_first(path: str | os.PathLike[str], *arguments: object) -> bool:
        monkeypatch.setattr(step_index, "save_cache", written)
        with memory_at(here / "steps.db") as other:
            other.purge({"user_id": "ann"})
        return written(path, *arguments)  # pyright: ignore[reportArgumentType] - as given

    monkeypatch.setattr(step_index, "save_cache", purged_first)
    with memory_at(here / "steps.db") as memory:
        memory.flush()
    assert tells(here) == []
