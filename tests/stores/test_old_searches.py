"""A file written before searches had formulas is searched as if it had just been written."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from store_files import made_old

from hybridagi_steps import AgentStep, AgentStepType, StepMemory
from hybridagi_steps.records.store_values import MESSAGE_ROWS
from hybridagi_steps.search import step_index
from hybridagi_steps.search.index_cache import load_cache
from hybridagi_steps.stores.sqlite.schema import latest_version

BEFORE_FORMULAS = 5
"""The last schema whose words were those of the recipe."""
CACHE_BEFORE_FORMULAS = 3
ASKED: list[dict[str, Any]] = [
    {"query": "refund of order 7"},
    {"query": "refund of order 7", "aim": "episode"},
    {"query": "refund of order 7", "aim": "tool", "where": {"user_id": "u1"}},
    {"query": "Bob at lake 3"},
    {"query": "lake 2 last week", "where": {"session_id": "talk"}},
    {"query": "mango 4"},
    {"query": "mango 4", "where": {"kinds": ["message"], "user_id": "u0"}},
]


def acted(n: int) -> AgentStep:
    return AgentStep(
        id=f"s{n}",
        step_type=AgentStepType.Action,
        inputs={"purpose": f"look at order {n // 4}", "tool": ["get_order", "refund"][n % 2]},
        outputs={"result": f"order {n // 4} is at {n}"},
        run_id=f"r{n // 4}",
        user_id=f"u{n // 4 % 2}",
        hop=n % 4,
    )


def said(n: int) -> AgentStep:
    return AgentStep(
        id=f"t{n}",
        step_type=AgentStepType.Action,
        inputs={"purpose": "", "arguments": {}},
        outputs={"result": f"We were at lake {n} last week, and it rained all day."},
        metadata={"said_by": {"result": ("Ann", "Bob")[n % 2]}},
        session_id="talk",
        run_id="talk",
        hop=n,
        created_at=datetime(2024, 5, 8, tzinfo=UTC),
    )


def found(memory: StepMemory) -> list[list[tuple[str, str, float, dict[str, float]]]]:
    return [
        [(hit.kind, str(hit.step.id), hit.score, hit.parts) for hit in memory.search(k=5, **asked)]
        for asked in ASKED
    ]


def write(path: Path) -> None:
    with StepMemory(path, embedder="hashing", durability="normal") as memory:
        memory.add([*map(acted, range(80)), *map(said, range(8))])
        chat = [
            {
                "role": ("user", "assistant")[n % 2],
                "content": f"mango {n} of {n + 1}?",
                "run_id": "r0",
            }
            for n in range(10)
        ]
        asyncio.run(memory.repository().append("chat", chat))
        memory.flush()


def made_as_before(path: Path) -> None:
    """Leave of a file what the release before formulas would have written."""
    made_old(path, BEFORE_FORMULAS)
    with closing(sqlite3.connect(path)) as connection, connection:
        for table in ("step_text", "embedding"):
            connection.execute(f"DELETE FROM {table} WHERE row >= {MESSAGE_ROWS}")
        # One line of words, of the step before and of the step, and nothing of who speaks.
        connection.execute("UPDATE step_text SET tokens = 'look order outdat', purpose_hash = 0")


@pytest.mark.parametrize("flushed", [False, True])
def test_an_old_file_is_searched_as_if_it_were_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flushed: bool
) -> None:
    path = tmp_path / "steps.db"
    monkeypatch.setattr(step_index, "_WORTH_CACHING", 10)
    with monkeypatch.context() as before:
        before.setattr(step_index, "FORMAT", CACHE_BEFORE_FORMULAS)
        write(path)
    with StepMemory(path, embedder="hashing") as memory:
        expected = found(memory)
    with monkeypatch.context() as before:
        before.setattr(step_index, "FORMAT", CACHE_BEFORE_FORMULAS)
        with StepMemory(path, embedder="hashing") as memory:
            assert memory.search("order")
            memory.flush()
    [cache] = (file for file in tmp_path.glob("*.index") if ".keys." not in file.name)
    made_as_before(path)
    assert load_cache(cache, {"format": CACHE_BEFORE_FORMULAS}) is not None
    assert all(hits for hits in expected)

    with StepMemory(path, embedder="hashing", durability="normal") as memory:
        reported: list[tuple[int, int]] = []
        if flushed:
            memory.flush(progress=lambda done, whole: reported.append((done, whole)))
            assert reported[-1][0] == reported[-1][1] > 0
        assert found(memory) == expected
        memory.flush()
        assert found(memory) == expected
        assert memory.search("outdated", mode="lexical") == []
        assert memory.verify() == []
    assert load_cache(cache, {"format": step_index.FORMAT}) is not None
    written = cache.stat().st_mtime_ns, cache.read_bytes()
    with StepMemory(path, embedder="hashing") as memory:
        assert found(memory) == expected
    assert (cache.stat().st_mtime_ns, cache.read_bytes()) == written, "it is built anew once"
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (latest_version(),)
