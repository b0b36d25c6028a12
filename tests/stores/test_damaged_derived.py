"""Damaged words and embeddings keep nobody from searching, are named, and are made again."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import hybridagi_steps as hs
from hybridagi_steps.errors import DamagedFileError
from hybridagi_steps.stores import checked_tables

Damage = Callable[[str, str], None]
EMBEDDING = "embedding", "vector"
WORDS = "step_text", "text_hash"
ODD = "a gallimaufry"


class Place:
    """A memory of steps and a session, which can be opened again and damaged."""

    def __init__(self, address: str, **options: Any) -> None:
        self.address = address
        self.options: dict[str, Any] = {"embedder": "hashing"} | options
        with self.opened() as memory:
            memory.add(act(f"refund {n}") for n in range(30))
            self.step = act(ODD)
            memory.add(self.step)
            said: list[Any] = [{"role": "user", "content": "what about owls?"}]
            asyncio.run(memory.repository().append("s", said))
            memory.flush()
            memory.search("refund")

    def opened(self) -> hs.StepMemory:
        checked_tables._known.clear()  # pyright: ignore[reportPrivateUsage] - as a new process has it
        return hs.StepMemory(self.address, **self.options)

    def run(self, sql: str) -> list[Any]:
        """Run SQL as only a disk would."""
        if self.address.startswith("postgresql"):
            import psycopg

            with psycopg.connect(self.address, options="-c search_path=hybridagi_steps") as server:
                found = server.execute(sql.encode())
                return found.fetchall() if found.description else []
        Path(f"{self.address}.index").unlink(missing_ok=True)
        with closing(sqlite3.connect(self.address)) as connection, connection:
            return connection.execute(sql).fetchall()

    def damage(self, table: str, column: str, which: str = "row = 31") -> None:
        """Change what a row holds."""
        other = {"vector": "checksum", "text_hash": "text_hash", "body": "checksum"}[column]
        self.run(f"UPDATE {table} SET {other} = {other} + 4 WHERE {which}")


def act(purpose: str, **more: Any) -> hs.AgentStep:
    return hs.AgentStep(step_type=hs.AgentStepType.Action, inputs={"purpose": purpose}, **more)


@pytest.fixture(params=["sqlite", "postgres", "database"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "sqlite":
        yield Place(str(tmp_path / "steps.db"))
        return
    address = request.getfixturevalue("postgres_address")
    yield Place(address, **({"memory_budget": "1KB"} if request.param == "database" else {}))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    caplog.clear()
    return [line for line in found if "as it was written" in line or "as they were" in line]


def parts(memory: hs.StepMemory, query: str) -> tuple[float | None, float | None]:
    """Return how alike the odd step's meaning and words are, found by all of it."""
    hit = memory.search(query)[0]
    assert hit.step.purpose == ODD
    return hit.dense_score, hit.lexical_score


@pytest.mark.parametrize(("table", "column"), [EMBEDDING, WORDS])
def test_searches_go_on_and_flush_makes_it_again(
    place: Place, caplog: pytest.LogCaptureFixture, table: str, column: str
) -> None:
    with place.opened() as memory:
        whole = parts(memory, ODD)
    place.damage(table, column)
    half = 0 if table == "embedding" else 1
    with place.opened() as memory:
        for mode in ("hybrid", "lexical", "dense"):
            assert len(memory.search("refund 3", mode=mode)) == 5
        assert not memory.search("refund 3", where={"run_id": "none"})
        assert parts(memory, ODD)[half] in (None, 0)
        assert parts(memory, ODD)[1 - half] == pytest.approx(whole[1 - half], abs=0.01)
        assert [str(place.step.id) in line for line in warnings(caplog)] == [True]
        memory.vacuum()
        [problem] = memory.verify()
        assert str(place.step.id) in problem
        memory.flush()
        assert memory.verify() == []
        assert parts(memory, ODD) == pytest.approx(whole)
        assert warnings(caplog) == []


@pytest.mark.parametrize(("table", "column"), [EMBEDDING, WORDS])
def test_reembed_finds_what_nobody_came_upon(place: Place, table: str, column: str) -> None:
    place.damage(table, column)
    with place.opened() as memory:
        memory.reembed("hashing")
        assert memory.verify() == []
        assert None not in parts(memory, ODD)


@pytest.mark.parametrize(("table", "column"), [EMBEDDING, WORDS])
def test_messages_are_found_by_the_other_half(
    place: Place, caplog: pytest.LogCaptureFixture, table: str, column: str
) -> None:
    place.damage(table, column, "row > 1000000000")
    with place.opened() as memory:
        found = memory.search("what about owls", where={"kinds": "message"})
        assert len(found) == 1
        assert ["message " in line for line in warnings(caplog)] == [True]
        memory.flush()
        assert memory.verify() == []


@pytest.mark.parametrize(("table", "column"), [EMBEDDING, WORDS])
def test_what_is_made_of_a_damaged_step_stays_named(place: Place, table: str, column: str) -> None:
    place.damage(table, column)
    place.damage("agent_step", "body")
    with place.opened() as memory:
        assert len(memory.search("refund 3")) == 5
        memory.flush()
        memory.reembed("hashing")
        assert len(memory.search("refund 3")) == 5
        assert sum("that is not as it was written" in line for line in memory.verify()) == 2


def test_a_vector_that_came_with_its_step_stays_named(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = act("a bumbershoot", vector=[0.5] * 256)
    with place.opened() as memory:
        memory.add(given)
        memory.flush()
    place.damage("embedding", "vector", "given = 1")
    with place.opened() as memory:
        assert memory.search("bumbershoot")[0].step.id == given.id
        [line] = warnings(caplog)
        assert "cannot be made again" in line
        memory.flush()
        memory.reembed("hashing")
        [problem] = memory.verify()
        assert str(given.id) in problem
        with pytest.raises(DamagedFileError, match="`update` that step with its vector"):
            memory.get_steps([given.id], vectors=True)
        with pytest.raises(DamagedFileError, match="`update` that step with its vector"):
            memory.copy_to(tmp_path / "copy.db")
        memory.update(given)
        assert memory.verify() == []


def test_who_reads_vectors_passes_over_what_can_be_made_again(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    with place.opened() as memory:
        [whole] = memory.get_steps([place.step.id], vectors=True)
    place.damage(*EMBEDDING)
    with place.opened() as memory:
        [read] = memory.get_steps([place.step.id], vectors=True)
        assert (read.purpose, read.vector) == (ODD, None)
        assert [str(place.step.id) in line for line in warnings(caplog)] == [True]
        memory.flush()
        assert memory.get_steps([place.step.id], vectors=True) == [whole]
        assert memory.verify() == []


@pytest.mark.parametrize("which", ["row = 31", "row > 1000000000"])
@pytest.mark.parametrize(("table", "column"), [EMBEDDING, WORDS])
def test_a_copy_is_made_without_what_can_be_made_again(
    place: Place,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    table: str,
    column: str,
    which: str,
) -> None:
    place.damage(table, column, which)
    target = str(tmp_path / "copy.db")
    with place.opened() as memory:
        assert memory.copy_to(target).steps == 31
        assert len(warnings(caplog)) == 1
        memory.flush()
        assert memory.verify() == []
    with hs.StepMemory(target, embedder="hashing") as copy:
        assert None not in parts(copy, ODD)
        assert copy.search("what about owls", where={"kinds": "message"})
        assert copy.verify() == []


def test_a_mark_that_is_damaged_itself_costs_no_given_vector(place: Place) -> None:
    given = act("a bumbershoot", vector=[0.5] * 256)
    with place.opened() as memory:
        memory.add(given)
        memory.flush()
    place.run("UPDATE embedding SET given = 0 WHERE given = 1")
    with place.opened() as memory:
        memory.reembed("hashing")
        assert len(memory.verify()) == 1


def test_a_refused_text_is_tried_again_by_reembed_only(place: Place) -> None:
    place.run("DELETE FROM embedding WHERE row = 31")
    place.run("UPDATE namespace SET vectors_through = 30")

    class Refusing(hs.embedders.HashingEmbedder):
        def embed_documents(self, texts: Any) -> Any:
            if any(ODD in text for text in texts):
                raise ValueError("400")
            return super().embed_documents(texts)

    place.options["embedder"] = Refusing()
    with place.opened() as memory:
        memory.flush()
        assert memory.stats()["text_only"] == 1
    place.options["embedder"] = "hashing"
    with place.opened() as memory:
        memory.flush()
        assert memory.stats()["text_only"] == 1
        memory.reembed("hashing")
        assert memory.stats()["text_only"] == 0
        assert None not in parts(memory, ODD)
