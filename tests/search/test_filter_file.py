"""What filters have read of a large memory is read once: the next process finds it in a file."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conformance.samples import message

from hybridagi_steps.memory import StepMemory
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.search import step_index
from hybridagi_steps.search.columns import metadata_columns
from hybridagi_steps.search.columns.filter_index import FilterColumns
from hybridagi_steps.stores.sqlite import SqliteStepStore

COUNT = 300
WHERES: list[dict[str, Any]] = [
    {"user_id": "user-3"},
    {"since": "2026-01-01T00:02:00Z", "until": "2026-01-01T00:03:00Z"},
    {"min_score": 0.5},
    {"metadata": {"region": "north"}},
    {"metadata": {"region": None}},
    {"metadata": {"tries": 2.0}, "min_score": 0.25},
]


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few hundred steps be worth a file."""
    monkeypatch.setattr(step_index, "_WORTH_CACHING", 100)


def made(number: int) -> AgentStep:
    metadata = {"region": ["north", "south", None][number % 3], "tries": number % 4}
    return AgentStep(
        id=f"s{number}",
        step_type=AgentStepType.Action,
        run_id=f"run-{number // 10}",
        user_id=f"user-{number % 7}",
        created_at=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=number),
        score=number / COUNT if number % 5 == 0 else None,
        metadata=metadata if number % 2 else {"tries": 2},
        inputs={"purpose": f"refund ticket {number}"},
    )


@pytest.fixture(params=["writer", "reader"])
def path(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A memory whose filters were asked for, by who wrote it or by a process with its index."""
    path = tmp_path / "steps.db"
    with StepMemory(path, embedder="hashing") as memory:
        memory.add([made(number) for number in range(COUNT)])
        for run in range(0, COUNT // 10, 3):
            memory.score(f"run-{run}", run / 30)
        memory.search("refund")
        if request.param == "writer":
            found(memory)
    if request.param == "reader":
        with StepMemory(path) as memory:
            found(memory)
    return path


def found(memory: StepMemory) -> list[set[str]]:
    """Return what filters find, which is what the database says."""
    answers: list[set[str]] = []
    for where in WHERES:
        hits = memory.search("refund ticket", COUNT + 9, where=where)
        answers.append({str(hit.step.id) for hit in hits})
        listed = memory.repository().store.find(StepFilter.of(where), limit=COUNT + 9)
        assert answers[-1] == {str(step.id) for step in listed}
    return answers


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows' keys, scores or values of metadata were read of the store, each time."""
    taken: list[int] = []
    for name in ("step_keys", "scored_rows", "metadata_values", "message_keys", "message_metadata"):
        real = getattr(SqliteStepStore, name)

        def counted(*args: Any, name: str = name, real: Any = real, **named: Any) -> Any:
            answer = real(*args, **named)
            taken.append(len(answer[0] if name.endswith("_keys") else answer))
            return answer

        monkeypatch.setattr(SqliteStepStore, name, counted)
    return taken


def test_the_first_filter_of_a_process_reads_what_is_new_alone(path: Path, read: list[int]) -> None:
    with StepMemory(path) as memory:
        before = found(memory)
        assert all(before)
        assert sum(read) == 0
        memory.add(made(COUNT + 1))
        memory.delete("s3")
        memory.score("run-1", 0.75)
        after = found(memory)
        assert 0 < sum(read) < 20
        assert after[0] == before[0] - {"s3"}
        assert after[2] == before[2] | {f"s{n}" for n in range(10, 20) if n % 5}


def test_scored_steps_are_changed_where_they_stand(path: Path, read: list[int]) -> None:
    with StepMemory(path) as memory:
        before = found(memory)
        memory.score_steps({"s1": 0.75, "s5": 0.0, "s295": 0.25})
        after = found(memory)
        assert after[2] == before[2] - {"s295"} | {"s1"}
        assert sum(read) == 0
        memory.revoke({"run_id": "run-24"})  # whether scores changed by that, nobody knows
        assert found(memory)[2] < after[2]
        assert 0 < sum(read) < COUNT


def test_steps_that_another_process_scored_are_read_again(path: Path) -> None:
    script = """
import sys
from hybridagi_steps import StepMemory
with StepMemory(sys.argv[1]) as memory:
    memory.score_steps({"s1": 0.75, "s295": 0.25})
"""
    with StepMemory(path) as memory:
        before = found(memory)
        subprocess.run([sys.executable, "-c", script, str(path)], check=True)
        memory.score_steps({"s5": 0.0})
        assert found(memory)[2] == before[2] - {"s295"} | {"s1"}


def test_a_filter_follows_what_another_process_says_of_runs(path: Path) -> None:
    script = """
import sys
from hybridagi_steps import StepMemory
with StepMemory(sys.argv[1]) as memory:
    memory.score("run-1", 0.75)
"""
    with StepMemory(path) as memory:
        before = found(memory)
        subprocess.run([sys.executable, "-c", script, str(path)], check=True)
        assert found(memory)[2] == before[2] | {f"s{n}" for n in range(10, 20) if n % 5}


def test_no_file_of_columns_outlives_an_erasure(path: Path) -> None:
    (columns,) = path.parent.glob("*.keys.index")
    assert b"user-3" in columns.read_bytes()
    with StepMemory(path) as memory:
        found(memory)
        memory.purge({"user_id": "user-3"})
        assert not columns.exists()
        found(memory)
    held = [file for file in path.parent.iterdir() if b"user-3" in file.read_bytes()]
    assert held == []
    assert columns.exists()


def talk(memory: StepMemory, name: str) -> None:
    keys: dict[str, Any] = {"metadata": {"mood": f"mood-of-{name}"}, "run_id": name}
    said = [message(f"refund {n} of {name}", **keys) for n in range(40)]
    memory.repository().store.commit(name, said)


def of_mood(memory: StepMemory, name: str) -> int:
    where = {"metadata": {"mood": f"mood-of-{name}"}, "kinds": "message"}
    return len(memory.search("refund", 99, where=where))


@pytest.mark.parametrize("how", ["purge", "delete_session", "before a filter"])
def test_of_messages_too_what_is_erased_stands_in_no_file(
    tmp_path: Path, read: list[int], how: str
) -> None:
    path = tmp_path / "steps.db"
    with StepMemory(path, embedder="hashing") as memory:
        for name in ("ann", "bob", "eve"):
            talk(memory, name)
        memory.search("refund")
        if how == "before a filter":
            memory.repository().store.delete_session("bob")
        assert of_mood(memory, "ann") == 40
    (columns,) = path.parent.glob("*.keys.index")
    assert b"mood-of-ann" in columns.read_bytes()
    assert (b"mood-of-bob" in columns.read_bytes()) == (how != "before a filter")
    with StepMemory(path) as memory:
        read.clear()
        assert of_mood(memory, "eve") == 40
        assert sum(read) == 0
        if how == "purge":
            memory.purge({"session_id": "bob"})
            assert not columns.exists()
        else:
            memory.repository().store.delete_session("bob")
        talk(memory, "zoe")
        assert [of_mood(memory, name) for name in ("ann", "bob", "zoe")] == [40, 0, 40]
        assert sum(read) in (80, 120)
    with StepMemory(path) as memory:
        assert of_mood(memory, "bob") == 0
        memory.add(made(1))
    held = [file for file in path.parent.glob("*.index") if b"mood-of-bob" in file.read_bytes()]
    assert held == []


def test_damaged_columns_are_read_again(path: Path, read: list[int]) -> None:
    (columns,) = path.parent.glob("*.keys.index")
    with StepMemory(path) as memory:
        expected = found(memory)
    whole, read_again = columns.read_bytes(), 0
    for place in np.linspace(0, len(whole) - 200, 12).astype(int).tolist():
        changed = bytearray(whole)
        changed[place : place + 64] = bytes(byte ^ 16 for byte in changed[place : place + 64])
        columns.write_bytes(changed)
        read.clear()
        with StepMemory(path) as memory:
            assert found(memory) == expected
        read_again += sum(read) >= COUNT  # else it was a column that no filter asked for
    assert read_again > 3


@pytest.mark.parametrize(("most_keys", "most_values"), [(16, 50_000), (256, 2)])
def test_metadata_take_a_bounded_room(
    monkeypatch: pytest.MonkeyPatch, most_keys: int, most_values: int
) -> None:
    """Beyond it the store is asked, of a key, or of the few rows whose values have one hash."""
    monkeypatch.setattr(metadata_columns, "MOST_KEYS", most_keys)
    monkeypatch.setattr(metadata_columns, "MOST_VALUES", most_values)
    monkeypatch.setattr(metadata_columns, "_HASH_BITS", 3)
    store = SqliteStepStore(":memory:")
    metadata: list[dict[str, Any]] = [{f"k{n}": n for n in range(40)}]
    metadata += [{"k1": n, "k2": f"text {n}" * 40, "k3": [n]} for n in range(9)]
    store.append([made(n).model_copy(update={"metadata": m}) for n, m in enumerate(metadata)])
    columns = FilterColumns(store)
    columns.follow(np.array([99]), np.empty(0, np.int64))
    keys: list[dict[str, Any]] = [{f"k{n}": n} for n in range(41)]
    keys += [{"k1": 3}, {"k1": 3.0, "k2": "text 3" * 40}, {"k2": "text 99" * 40}, {"\ud800": 0}]
    asked = [(StepFilter(metadata=each), columns.rows(StepFilter(metadata=each))) for each in keys]
    for where, rows in asked:
        assert rows.tolist() == store.rows(where).tolist()
    assert sum(len(rows) for _, rows in asked) == 43
    held = [name for name in columns.to_arrays() if name.startswith("metadata numbers ")]
    assert len(held) == min(most_keys, 40)
