"""Where an export may go: never over the memory, into pipes as they are; and in once more."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from hybridagi_steps import AgentStep, AgentStepType, StepMemory
from hybridagi_steps.errors import ExchangeError
from hybridagi_steps.exchange import export_file, import_file


@pytest.fixture
def filled(file_memory: StepMemory) -> StepMemory:
    """A memory in a file with one step."""
    file_memory.add(AgentStep(step_type=AgentStepType.Action, inputs={"purpose": "kept"}))
    return file_memory


@pytest.mark.parametrize("ending", ["", "-wal", "-shm", "-journal", ".lock", ".1234abcd.index"])
def test_the_memory_itself_is_never_written_over(filled: StepMemory, ending: str) -> None:
    with pytest.raises(ExchangeError, match="belongs to the memory itself"):
        export_file(filled, filled.address + ending)
    assert filled.search("kept")
    assert filled.verify() == []


def test_a_link_to_the_memory_is_seen_through(filled: StepMemory, tmp_path: Path) -> None:
    link, here = tmp_path / "link.jsonl", Path(filled.address)
    link.symlink_to(here)
    with pytest.raises(ExchangeError, match="belongs to the memory itself"):
        export_file(filled, link)
    roundabout = here.parent / ".." / here.parent.name / here.name
    with pytest.raises(ExchangeError, match="belongs to the memory itself"):
        export_file(filled, roundabout)


def test_a_link_elsewhere_is_followed_and_stays(filled: StepMemory, tmp_path: Path) -> None:
    target, link = tmp_path / "target.jsonl", tmp_path / "link.jsonl"
    target.write_text("old")
    link.symlink_to(target)
    assert export_file(filled, link) == 1
    assert link.is_symlink()
    assert "kept" in target.read_text()


def test_a_name_that_only_begins_alike_is_another_file(filled: StepMemory) -> None:
    assert export_file(filled, filled.address + ".jsonl") == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_written_into(filled: StepMemory, tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    assert export_file(filled, pipe) == 1
    reader.join(10)
    assert "kept" in read[0]
    assert pipe.is_fifo()


def test_steps_without_ids_are_stored_once_each_however_often(
    file_memory: StepMemory, tmp_path: Path
) -> None:
    line = '{"step_type": "Action", "inputs": {"purpose": "a"}}\n'
    other = line.replace('"a"', '"b"')
    file = tmp_path / "nameless.jsonl"
    file.write_text(line + other + line)
    assert import_file(file_memory, file).added == 3
    again = import_file(file_memory, file)
    assert (again.added, again.already_there) == (0, 3)
    file.write_text(line + other + line + line)
    assert import_file(file_memory, file).added == 1
