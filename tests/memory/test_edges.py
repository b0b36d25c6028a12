"""All stores answer alike at the edges, and what the system refuses is named rightly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conformance.edge_contract import EdgeContract

from hybridagi_steps import StepMemory
from hybridagi_steps.errors import ExchangeError
from hybridagi_steps.exchange import import_file


class TestFile(EdgeContract):
    @pytest.fixture
    def memory(self, tmp_path: Path) -> Iterator[StepMemory]:
        with StepMemory(tmp_path / "steps.db", embedder="hashing") as opened:
            yield opened


class TestInMemory(EdgeContract):
    @pytest.fixture
    def memory(self) -> Iterator[StepMemory]:
        with StepMemory(":memory:", embedder="hashing") as opened:
            yield opened


class TestPostgres(EdgeContract):
    @pytest.fixture
    def memory(self, postgres_address: str) -> Iterator[StepMemory]:
        with StepMemory(postgres_address, embedder="hashing") as opened:
            yield opened


# What the system refuses


LIMITED = """
import gc, json, os, resource, sys
from pathlib import Path
from hybridagi_steps import AgentStep, StepMemory
from hybridagi_steps.errors import StorageError

kind, folder = sys.argv[1], Path(sys.argv[2])

made = 0

def step(length=10):
    global made
    made += 1
    purpose = f"find number {made} " + "x" * length
    return AgentStep(step_type="Action", inputs={"purpose": purpose})

def said(call):
    try:
        call()
    except StorageError as error:
        return f"{type(error).__name__}: {error}"
    return "ok"

def stored():
    with StepMemory(folder / "steps.db", embedder="hashing") as memory:
        memory.add([step(), step()])
        return memory.stats()["steps"]

stored()
answers = {}
if kind == "files":
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    def open_files():
        return len(os.listdir("/proc/self/fd"))
    before = open_files()
    for free in range(12):
        held = []
        try:
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            pass
        for _ in range(free):
            os.close(held.pop())
        answers[free] = said(lambda: StepMemory(folder / f"{free}.db").close())
        for descriptor in held:
            os.close(descriptor)
        gc.collect()
    answers["leaked"] = open_files() - before
    answers["after"] = said(stored)
else:
    memory = StepMemory(folder / "steps.db", embedder="hashing")
    memory.add(step())
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, resource.RLIM_INFINITY))
    added = [said(lambda: memory.add(step(50_000))) for _ in range(20)]
    answers["add"] = added[-1]
    answers["search"] = said(lambda: answers.update(found=len(memory.search("find", 50))))
    answers["kept"] = added.count("ok") + 3
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    answers["after"] = said(lambda: memory.add(step()))
    answers["verify"] = memory.verify()
    memory.close()
print(json.dumps(answers))
"""


def limited(kind: str, folder: Path) -> dict[str, Any]:
    """Return what a process says that may open, or write, no more."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, kind, str(folder)],
        capture_output=True,
        check=True,
        text=True,
        timeout=120,
    )
    return json.loads(done.stdout)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
def test_too_many_open_files_are_named_and_none_leaks(tmp_path: Path) -> None:
    answers = limited("files", tmp_path)
    assert answers.pop("leaked") == 0
    assert answers.pop("after") == "ok"
    opened = [said == "ok" for said in answers.values()]
    assert sorted(opened) == opened, "more free descriptors, and yet it does not open"
    assert opened.count(False) >= 3
    for said in answers.values():
        assert said == "ok" or "too many open files" in said
        assert "permissions" not in said


def test_a_file_that_may_not_grow_is_full(tmp_path: Path) -> None:
    answers = limited("size", tmp_path)
    assert answers["add"].startswith("DiskFullError")
    assert "ulimit -f" in answers["add"]
    assert answers["search"] == answers["after"] == "ok"
    assert answers["found"] == answers["kept"]
    assert answers["verify"] == []


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "steps.jsonl"
    os.mkfifo(pipe)
    done = subprocess.run(
        [sys.executable, "-m", "hybridagi_steps", "import", str(pipe), "--db", "new.db"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "is a pipe or a device" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "new.db").exists()


def test_an_object_with_a_key_twice_is_skipped_and_named(tmp_path: Path) -> None:
    good = '{"step_type": "Action", "inputs": {"purpose": "good"}}'
    twice = '{"step_type": "Action", "inputs": {"purpose": "one", "purpose": "two"}}'
    texts = {
        "lines.jsonl": f"{good}\n{twice}\n{good}\n",
        "list.json": f"[\n{good},\n{twice},\n{good}\n]",
        "one.json": f"[{good}, {twice}, {good}]",
        "pretty.json": f"{{\n{good[1:]}\n{{\n{twice[1:]}\n{{\n{good[1:]}",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        with StepMemory(":memory:", embedder="hashing") as memory:
            report = import_file(memory, tmp_path / name)
            assert report.added == 2, name
            [(_, reason)] = report.skipped
            assert "the key 'purpose' stands twice" in reason
    said = '{"role": "user", "content": "one", "content": "two"}'
    (tmp_path / "chat.json").write_text(f'[{{"role": "user", "content": "hi"}},\n{said}]')
    with (
        StepMemory(":memory:") as memory,
        pytest.raises(ExchangeError, match="'content' stands twice"),
    ):
        import_file(memory, tmp_path / "chat.json")


def test_an_import_cuts_the_link_of_a_step_to_itself_and_says_so(tmp_path: Path) -> None:
    steps = [{"step_type": "Action", "id": f"s{n}", "parent_id": "s1"} for n in range(3)]
    (tmp_path / "steps.jsonl").write_text("\n".join(map(json.dumps, steps)))
    with StepMemory(":memory:", embedder="hashing") as memory:
        report = import_file(memory, tmp_path / "steps.jsonl")
        assert report.added == 3
        assert "in a circle: 1" in report.notes[0]
        assert memory.get("s1").steps[0].parent_id is None
