"""What is erased is gone from the words of its neighbours too: at once, in every file, for good."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridagi_steps import AgentStep, AgentStepType, StepMemory
from hybridagi_steps.embedders.vectors import shortened
from hybridagi_steps.errors import StorageError

CANARY = "qzx9917"


def pair(**fields: Any) -> list[AgentStep]:
    """Return a step that says the canary, and the step after it, whose window shows it."""
    first = AgentStep(
        id="first",
        step_type=AgentStepType.Action,
        inputs={"purpose": "find the booking", "tool": "find"},
        outputs={"result": f"passport {CANARY}"},
        run_id="r",
        session_id="s",
        **fields,
    )
    second = AgentStep(
        id="second",
        step_type=AgentStepType.Action,
        inputs={"purpose": "give back the fare", "tool": "refund"},
        outputs={"result": "done"},
        run_id="r",
        hop=1,
        parent_id="first",
    )
    return [first, second]


def found(memory: StepMemory) -> list[str]:
    return [str(hit.step.id) for hit in memory.search(CANARY, mode="lexical")]


def files_that_tell(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir() if CANARY.encode() in file.read_bytes().lower()]


ERASING: list[Callable[[StepMemory], Any]] = [
    lambda memory: memory.delete("first"),
    lambda memory: memory.purge({"tools": "find"}),
    lambda memory: memory.purge({"session_id": "s"}),
    lambda memory: memory.update(pair()[0].model_copy(update={"outputs": {"result": "none"}})),
    lambda memory: memory.clear(),
]
NAMES = ["delete", "purge", "purge a session", "update", "clear"]
AT_ONCE = [False, True, True, False, True]


@pytest.mark.parametrize("erase", ERASING, ids=NAMES)
@pytest.mark.parametrize("searched", [True, False])
def test_nobody_finds_erased_words_any_more(
    memory: StepMemory, erase: Callable[[StepMemory], Any], searched: bool
) -> None:
    memory.add(pair())
    if searched:
        assert found(memory) == ["first", "second"]
    erase(memory)
    assert found(memory) == []
    assert memory.verify() == []


@pytest.mark.parametrize("erase", ERASING, ids=NAMES)
def test_erased_words_are_in_no_file_before_anybody_searches(
    tmp_path: Path, erase: Callable[[StepMemory], Any]
) -> None:
    with StepMemory(tmp_path / "s.db", embedder="hashing") as memory:
        memory.add(pair())
        assert found(memory) == ["first", "second"]
        erase(memory)
        memory.vacuum()
        assert files_that_tell(tmp_path) == []
    with StepMemory(tmp_path / "s.db") as memory:
        assert found(memory) == []
        assert memory.verify() == []
    assert files_that_tell(tmp_path) == []


@pytest.mark.parametrize(("erase", "at_once"), [*zip(ERASING, AT_ONCE, strict=True)], ids=NAMES)
def test_where_the_bytes_are_overwritten_and_when(
    tmp_path: Path, erase: Callable[[StepMemory], Any], at_once: bool
) -> None:
    """As is documented: `purge` and `clear` at once, others when the file is closed."""
    with StepMemory(tmp_path / "s.db", embedder="hashing") as memory:
        memory.add(pair())
        erase(memory)
        assert (files_that_tell(tmp_path) == []) is at_once
    assert files_that_tell(tmp_path) == []


def test_erased_words_are_not_in_the_cache_that_others_write(tmp_path: Path) -> None:
    many = [
        AgentStep(step_type=AgentStepType.Action, inputs={"purpose": f"thing {n}"})
        for n in range(2_500)
    ]
    with (
        StepMemory(tmp_path / "s.db", embedder="hashing") as memory,
        StepMemory(tmp_path / "s.db", embedder="hashing") as other,
    ):
        memory.add([*many, *pair()])
        assert found(other) == ["first", "second"]
        memory.flush()
        memory.purge({"tools": "find"})
        assert files_that_tell(tmp_path) == []
        other.close()
        assert len([*tmp_path.glob("*.db.????????.index")]) == 1
        assert files_that_tell(tmp_path) == []
        assert found(memory) == []
    assert files_that_tell(tmp_path) == []


@pytest.mark.parametrize("erase", ERASING[:2], ids=NAMES[:2])
def test_an_erased_vector_is_in_no_index(
    tmp_path: Path, erase: Callable[[StepMemory], Any]
) -> None:
    with StepMemory(tmp_path / "s.db", embedder="hashing") as memory:
        memory.add(AgentStep(step_type=AgentStepType.Action, inputs={"n": n}) for n in range(2_500))
        memory.add(pair())
        memory.flush()
        vector = memory.get("first", vectors=True)[0].vector
        told = shortened(np.array([vector], np.float32)).tobytes()
        assert memory.search(CANARY)
    (index,) = tmp_path.glob("s.db.????????.index")
    assert told in index.read_bytes()
    with StepMemory(tmp_path / "s.db", embedder="hashing") as memory:
        erase(memory)
        memory.search("anything")
    (index,) = tmp_path.glob("s.db.????????.index")
    assert told not in index.read_bytes()


@pytest.mark.parametrize("owner", [None, "ana"])
def test_what_an_older_version_left_behind_is_named_and_vacuumed(
    tmp_path: Path, owner: str | None
) -> None:
    with StepMemory(tmp_path / "s.db", embedder="hashing") as memory:
        memory.add(pair(user_id=owner))
        memory.flush()
        if owner is None:
            memory.delete("first")
            memory.flush()
    with closing(sqlite3.connect(tmp_path / "s.db")) as connection, connection:
        words = f"passport {CANARY} give back fare"
        shown = "UPDATE step_text SET parent_row = 1, tokens = ?, checksum = NULL WHERE row = 2"
        connection.execute(shown, (words,))
    with StepMemory(tmp_path / "s.db") as memory:
        [problem] = memory.verify()
        assert "until vacuum: 1 rows (2" in problem
        memory.vacuum()
        assert memory.verify() == []
        memory.delete("first")
        memory.vacuum()
        assert files_that_tell(tmp_path) == []
        assert found(memory) == []
        assert [hit.step.id for hit in memory.search("fare", mode="lexical")] == ["second"]


def test_the_words_of_another_user_or_of_a_trial_cannot_be_probed(memory: StepMemory) -> None:
    for owner in ({"user_id": "bob"}, {"scope": "evaluate:x"}):
        memory.clear()
        memory.add(pair(**owner))
        assert "second" not in found(memory)


ERASING_FROM_A_FILE = [*ERASING[:3], *ERASING[4:], StepMemory.vacuum]


@pytest.mark.parametrize("code", [errno.EIO, errno.EPERM])
@pytest.mark.parametrize(
    "erase", ERASING_FROM_A_FILE, ids=["delete", "purge", "purge a session", "clear", "vacuum"]
)
def test_an_index_that_cannot_be_removed_is_emptied_or_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    erase: Callable[[StepMemory], Any],
    code: int,
) -> None:
    path, stuck = tmp_path / "s.db", OSError(code, os.strerror(code))
    others = [
        AgentStep(step_type=AgentStepType.Action, inputs={"purpose": f"thing {n}"})
        for n in range(2_000)
    ]

    def refuse(*_: Any, **__: Any) -> None:
        raise stuck

    for truncate in (os.truncate, refuse):
        with StepMemory(path, embedder="hashing") as memory:
            memory.add([*pair(), *others])
            memory.flush()
        (cache,) = tmp_path.glob("s.db.????????.index")
        assert cache.stat().st_size
        with StepMemory(path) as memory, monkeypatch.context() as failing:
            failing.setattr(Path, "unlink", refuse)
            failing.setattr(os, "truncate", truncate)
            if truncate is refuse:
                with pytest.raises(StorageError, match=f"gone from the memory, but {cache} still"):
                    erase(memory)
            else:
                erase(memory)
                assert cache.read_bytes() == b""
            assert erase in ERASING_FROM_A_FILE[-1:] or not memory.exist("first")
        with StepMemory(path) as memory:
            memory.clear()
        assert not cache.exists()


def test_a_purge_that_cannot_give_space_back_forgets_the_index_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with StepMemory(path, embedder="hashing") as memory:
        memory.add(pair())
        memory.add(AgentStep(step_type=AgentStepType.Action) for _ in range(2_000))
        memory.flush()
    assert [*tmp_path.glob("*.index")]
    with StepMemory(path, timeout_seconds=0.1) as memory:
        with closing(sqlite3.connect(path)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM agent_step").fetchone()
            assert memory.purge({"session_id": "s"}).unreached == (str(path),)
        assert not memory.exist("first")
        assert not [*tmp_path.glob("*.index")]
