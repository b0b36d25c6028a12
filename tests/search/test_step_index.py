"""What a memory's index does with codes that are built in the background: cached once, whole."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hybridagi_steps.embedders import resolution
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.protocols import Embedder
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType
from hybridagi_steps.records.store_values import Changes, FloatMatrix, Position, Rows
from hybridagi_steps.search import quantized_codes as scan_codes
from hybridagi_steps.search import step_index
from hybridagi_steps.search import vector_index as faiss_index
from hybridagi_steps.search.step_index import StepIndex
from hybridagi_steps.search.vector_rows import VectorStore
from hybridagi_steps.stores.address import cache_path
from hybridagi_steps.stores.sqlite import SqliteStepStore

STEPS = 2_400
NAMES = ["refund", "ticket", "hotel", "train", "invoice", "airline", "weather", "search"]


@pytest.fixture(autouse=True)
def small_tiers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let codes come into play with a few hundred vectors."""
    with monkeypatch.context() as patch:
        patch.setattr(faiss_index, "CODES_FROM_BYTES", 100_000)
        patch.setattr(faiss_index, "LISTS_FROM", 1_000)
        yield


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Which builds were begun since: with lists, or without."""
    begun: list[bool] = []
    real = scan_codes.build

    def build(vectors: scan_codes.Vectors, *, lists: bool) -> scan_codes.Building:
        begun.append(lists)
        return real(vectors, lists=lists)

    monkeypatch.setattr(scan_codes, "build", build)
    return begun


def step(number: int) -> AgentStep:
    return AgentStep(
        id=f"step-{number}",
        step_type=AgentStepType.Action,
        inputs={"purpose": f"{NAMES[number % 8]} {NAMES[number // 8 % 8]} number {number}"},
        outputs={"result": f"done {number}"},
    )


def filled(path: Path) -> list[str]:
    """Fill a memory, index it, and return what a search finds."""
    with StepMemory(path, embedder="hashing") as memory:
        memory.add([step(number) for number in range(STEPS)])
        memory.flush()
        return found(memory)


def found(memory: StepMemory) -> list[str]:
    hits = memory.search("train invoice number 99", k=5, mode="dense")
    return [str(hit.step.id) for hit in hits]


def test_codes_are_built_once_and_found_in_the_cache_by_the_next(
    tmp_path: Path, builds: list[bool]
) -> None:
    expected = filled(tmp_path / "s.db")
    assert builds == [True]
    with StepMemory(tmp_path / "s.db") as memory:
        assert found(memory) == expected
    assert builds == [True]


def test_a_cache_that_is_gone_or_damaged_is_written_anew_with_codes(
    tmp_path: Path, builds: list[bool]
) -> None:
    expected = filled(tmp_path / "s.db")
    (cache,) = tmp_path.glob("s.db.????????.index")
    whole = cache.read_bytes()
    for content in [None, whole[:-1], whole.replace(b"\x01", b"\x02", 1)]:
        builds.clear()
        cache.unlink()
        if content is not None:
            cache.write_bytes(content)
        for wanted in ([True], [True]):  # the first builds them, the second finds them
            with StepMemory(tmp_path / "s.db") as memory:
                assert found(memory) == expected
            assert builds == wanted


def test_codes_made_for_a_search_alone_are_worth_a_new_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, builds: list[bool]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(faiss_index, "LISTS_FROM", 10 * STEPS)
        expected = filled(tmp_path / "s.db")
    assert builds == [False]
    for _ in range(2):
        with StepMemory(tmp_path / "s.db") as memory:
            assert found(memory) == expected
    assert builds == [False, True]


def test_a_memory_without_a_file_abandons_its_build_when_it_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    building = threading.Event()

    def endless(vectors: scan_codes.Vectors, *, lists: bool) -> scan_codes.Building:
        while True:
            building.set()
            yield

    monkeypatch.setattr(scan_codes, "build", endless)
    with StepMemory(":memory:", embedder="hashing") as memory:
        memory.add([step(number) for number in range(STEPS)])
        assert len(found(memory)) == 5
        assert building.wait(10)
    for thread in threading.enumerate():
        if thread.name == "hybridagi-steps-index":
            thread.join(10)
            assert not thread.is_alive()


def test_a_large_store_is_taken_in_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What all of it takes side by side, a process would keep from its first search on."""
    path = tmp_path / "steps.db"
    expected = filled(path)
    cache_path(str(path), "default").unlink()  # pyright: ignore[reportOptionalMemberAccess]
    taken: list[int] = []
    changes = SqliteStepStore.changes

    def counted(store: SqliteStepStore, since: Position, *, limit: int) -> Changes:
        answer = changes(store, since, limit=limit)
        taken.append(max(len(answer.texts), len(answer.vectors)))
        return answer

    held: set[int] = set()
    append = VectorStore.append

    def appended(store: VectorStore, rows: Rows, vectors: FloatMatrix) -> None:
        append(store, rows, vectors)
        held.add(store.vectors.ctypes.data)

    monkeypatch.setattr(SqliteStepStore, "changes", counted)
    monkeypatch.setattr(VectorStore, "append", appended)
    monkeypatch.setattr(step_index, "PAGE", 100)
    with StepMemory(path) as memory:
        assert found(memory) == expected
    assert max(taken) == 100
    assert sum(taken) == STEPS
    assert len(held) <= 2, "vectors moved each time they had grown by half"


def test_words_that_others_saved_meanwhile_stand_for_those_held(tmp_path: Path) -> None:
    """Held words are of when they were pending; what others made of the step since is newer."""
    with StepMemory(tmp_path / "steps.db", embedder="hashing") as memory:
        memory.add([step(0), step(1)])
        store = memory.searcher._store  # pyright: ignore[reportPrivateUsage]
        since = store.frontier().position
        memory.search("refund")
        index = memory.searcher._index  # pyright: ignore[reportPrivateUsage]
        (text,) = (t for t in store.changes(since).texts if t.row == 2)
        stale = text._replace(tokens=f"zebra\t{text.tokens.rpartition(chr(9))[2]}")
        assert index.take_in({2: stale}, {}, since)
        index.follow(*index._model)  # pyright: ignore[reportPrivateUsage]
        assert index.own.lexical.match(["zebra"]).of(np.array([2])).tolist() == [0.0]
        assert len(index.own.lexical) == 2


def test_a_first_flush_with_nothing_pending_loads_neither_embedder_nor_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.db"
    filled(path)
    loaded: list[str] = []
    follow, embedder = StepIndex.follow, resolution.embedder_for

    def followed(index: StepIndex, model_id: str, dimension: int) -> None:
        loaded.append("index")
        follow(index, model_id, dimension)

    def embedded(model_id: str) -> Embedder:
        loaded.append("embedder")
        return embedder(model_id)

    monkeypatch.setattr(StepIndex, "follow", followed)
    monkeypatch.setattr(resolution, "embedder_for", embedded)
    with StepMemory(path) as memory:
        assert memory.stats()["pending_texts"] == 0
        memory.flush()
        memory.flush()
        assert loaded == []
        memory.add(step(STEPS + 1))
        memory.flush()
        assert loaded == ["embedder"], "one step more is not worth another cache"
        memory.add([step(STEPS + 2 + number) for number in range(STEPS // 8)])
        memory.flush()
        assert set(loaded) == {"embedder", "index"}
    loaded.clear()
    with StepMemory(path) as memory:
        memory.flush()
        assert loaded == []
    (cache,) = (file for file in tmp_path.glob("*.index") if ".keys." not in file.name)
    cache.write_bytes(b"no cache")
    with StepMemory(path) as memory:
        memory.flush()
        assert loaded == ["index"]
        assert cache.stat().st_size > 8, "it is made anew"


def test_a_cache_of_steps_that_a_restored_file_never_had_is_not_used(tmp_path: Path) -> None:
    """After as many other steps the counters are those of the cache, and its rows are theirs."""
    path, kept = tmp_path / "steps.db", tmp_path / "kept.db"

    def said(name: str, count: int) -> list[AgentStep]:
        made = [step(number) for number in range(count)]
        for one in made:
            one.id, one.user_id = f"{name}-{one.id}", name
            one.inputs = {"purpose": f"{name} {one.purpose}"}
        return made

    with StepMemory(path, embedder="hashing:64") as memory:
        memory.add(said("first", STEPS))
        memory.flush()
        memory.backup(kept)
        memory.add(said("lost", 300))
        memory.flush()
        memory.search("refund", where={"user_id": "lost"})
    for beside in ("-wal", "-shm"):
        path.with_name(path.name + beside).unlink(missing_ok=True)
    kept.replace(path)
    with StepMemory(path) as memory:
        memory.add(said("other", 400))
        memory.flush()
    with StepMemory(path) as memory:
        assert not memory.search("lost", mode="lexical")
        assert not memory.search("number", where={"user_id": "lost"})
        own = memory.search("number", 5_000, mode="lexical", where={"user_id": "other"})
        assert len(own) == 400
