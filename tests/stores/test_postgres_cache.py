"""The index of a memory in PostgreSQL is cached on each machine; what is erased is in no cache."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import logging
import platform
from collections.abc import Callable
from pathlib import Path

import pytest
from conformance.samples import step

from hybridagi_steps import StepMemory
from hybridagi_steps.records.store_values import Changes, Position
from hybridagi_steps.search import step_index

psycopg = pytest.importorskip("psycopg", reason="the extra postgres is not installed")

from hybridagi_steps.stores.postgres import PostgresStepStore  # noqa: E402
from hybridagi_steps.stores.postgres.following import FOLDER_VARIABLE, cache_folder  # noqa: E402

STEPS = 60
WORD, STEM = "orchidaceous", b"orchid"


class Machine:
    """A machine with a cache folder of its own, as far as this library can tell."""

    def __init__(self, patch: pytest.MonkeyPatch, root: Path) -> None:
        self._patch, self._root = patch, root
        self.use("a")

    def use(self, name: str) -> Path:
        """Continue on a machine; return its folder."""
        folder = self._root / name
        self._patch.setenv(FOLDER_VARIABLE, str(folder))
        self._patch.setattr(platform, "node", lambda: name)
        return folder


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    monkeypatch.setattr(step_index, "_WORTH_CACHING", STEPS // 2)
    return Machine(monkeypatch, tmp_path / "caches")


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many texts and vectors each look at the store's changes brought."""
    counts: list[int] = []
    changes = PostgresStepStore.changes

    def counted(store: PostgresStepStore, since: Position, *, limit: int = 100_000) -> Changes:
        answer = changes(store, since, limit=limit)
        counts.append(max(len(answer.texts), len(answer.vectors)))
        return answer

    monkeypatch.setattr(PostgresStepStore, "changes", counted)
    return counts


def fill(address: str, word: str = WORD) -> None:
    with StepMemory(address, embedder="hashing") as memory:
        memory.add(
            [
                step(id=f"{word}{n}", user_id="u" if n < 3 else "v", inputs={"purpose": text})
                for n in range(STEPS)
                for text in [f"{word} {n}" if n < 3 else f"plain {n}"]
            ]
        )
        memory.flush()
        memory.search("plain")


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def indexes(folder: Path) -> list[Path]:
    return [path for path in files(folder) if not path.name.endswith(".keys.index")]


def found(memory: StepMemory, query: str = "plain 7") -> list[str]:
    return [str(hit.step.id) for hit in memory.search(query, k=3)]


def test_the_next_process_reads_nothing_but_what_is_new(
    machine: Machine, postgres_address: str, taken: list[int]
) -> None:
    folder = machine.use("a")
    fill(postgres_address)
    [cache] = indexes(folder)
    assert cache.stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700
    with StepMemory(postgres_address) as memory:
        memory.add(step(id="new", inputs={"purpose": "plain new"}))
        taken.clear()
        expected = found(memory)
        assert sum(taken) <= 1
    machine.use("b")
    with StepMemory(postgres_address) as memory:
        taken.clear()
        assert found(memory) == expected
        assert sum(taken) == STEPS + 1


def test_who_wants_no_cache_has_none(
    machine: Machine, postgres_address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, "no")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    fill(postgres_address)
    assert files(tmp_path) == []
    monkeypatch.setenv(FOLDER_VARIABLE, "")
    assert cache_folder() == tmp_path / "home" / "hybridagi_steps"
    fill(postgres_address, "more")
    assert len(indexes(tmp_path / "home" / "hybridagi_steps")) == 1


def test_namespaces_have_caches_of_their_own(machine: Machine, postgres_address: str) -> None:
    folder = machine.use("a")
    fill(postgres_address)
    with StepMemory(postgres_address, namespace="b", embedder="hashing") as other:
        other.add([step(id=f"b{n}", inputs={"purpose": f"plain {n}"}) for n in range(STEPS)])
        assert {one[0] for one in found(other)} == {"b"}
        other.flush()
        other.close()
        assert len(indexes(folder)) == 2
        with StepMemory(postgres_address) as memory:
            assert {one[0] for one in found(memory)} == {WORD[0]}


def test_a_purge_erases_the_caches_here_and_names_those_elsewhere(
    machine: Machine, postgres_address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    away = machine.use("b")
    fill(postgres_address)
    machine.use("a")
    for folder in ("user 1", "user 2"):
        monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / folder))
        with StepMemory(postgres_address) as memory:
            memory.search(WORD)
        assert len(indexes(tmp_path / folder)) == 1
    with StepMemory(postgres_address) as memory:
        erased = memory.purge({"user_id": "u"})
        here = [place for place in erased.unreached if place.startswith("a:")]
        there = [place for place in erased.unreached if place.startswith("b:")]
        assert (erased, here) == (3, [])
        assert there == [f"b:{path}" for path in indexes(away)]
        assert files(tmp_path / "user 1") + files(tmp_path / "user 2") == []
    assert [STEM in path.read_bytes() for path in indexes(away)] == [True]
    machine.use("b")
    with StepMemory(postgres_address) as memory:
        memory.search("plain")
        assert files(away) == []
        assert memory.purge({"user_id": "nobody"}).unreached == ()
    assert not any(STEM in path.read_bytes() for path in files(away))


@pytest.mark.parametrize("how", ["delete", "clear", "purge"])
def test_who_lives_on_elsewhere_erases_its_cache_with_its_next_search(
    machine: Machine, postgres_address: str, how: str
) -> None:
    away = machine.use("b")
    fill(postgres_address)
    with StepMemory(postgres_address) as living:
        living.search(WORD)
        machine.use("a")
        with StepMemory(postgres_address) as memory:
            erasing: dict[str, Callable[[], object]] = {
                "delete": lambda: memory.delete(f"{WORD}1"),
                "clear": memory.clear,
                "purge": lambda: memory.purge({"user_id": "u"}),
            }
            erasing[how]()
        assert len(indexes(away)) == 1
        assert f"{WORD}1" not in found(living, WORD)
        assert files(away) == []


def test_another_incarnation_of_the_database_has_another_cache(
    machine: Machine, new_postgres_database: Callable[[], str]
) -> None:
    """Its rows may have the numbers of others: here each got one of its own after the copy."""
    folder = machine.use("a")
    first, second = new_postgres_database(), new_postgres_database()
    fill(first)
    names = [str(psycopg.conninfo.conninfo_to_dict(one)["dbname"]) for one in (first, second)]
    with psycopg.connect(first, dbname="postgres", autocommit=True) as server:
        server.execute(f"DROP DATABASE {names[1]}".encode())
        server.execute(f"CREATE DATABASE {names[1]} TEMPLATE {names[0]}".encode())
    for address, word in ((first, "hotel"), (second, "train")):
        with StepMemory(address) as memory:
            memory.add([step(id=f"{word}{n}", inputs={"purpose": word}) for n in range(STEPS)])
            memory.flush()
            assert found(memory, word)[0].startswith(word)
    for address, word in ((first, "hotel"), (second, "train"), (first, "hotel")):
        with StepMemory(address) as memory:
            assert found(memory, word)[0].startswith(word)
        assert len(indexes(folder)) == 1


def test_a_folder_that_others_may_write_to_is_not_used(
    machine: Machine, postgres_address: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = machine.use("a")
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with caplog.at_level(logging.WARNING, "hybridagi_steps"):
        fill(postgres_address)
    assert files(folder) == []
    assert "others can write there" in caplog.text


def test_a_folder_that_cannot_be_made_costs_only_the_cache(
    machine: Machine, postgres_address: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = machine.use("a")
    folder.parent.mkdir(parents=True)
    folder.write_bytes(b"a file")
    with caplog.at_level(logging.WARNING, "hybridagi_steps"):
        fill(postgres_address)
    assert folder.read_bytes() == b"a file"
    assert "is not cached" in caplog.text


def test_what_cannot_be_noted_is_not_written(machine: Machine, postgres_address: str) -> None:
    """Else a purge elsewhere could not name it."""
    folder = machine.use("a")
    fill(postgres_address)
    for cache in files(folder):
        cache.unlink()
    with StepMemory(postgres_address) as memory:
        memory.search("plain")
        store = PostgresStepStore(postgres_address)
        with store._db.writing():
            memory.close()
        store.close()
    assert files(folder) == []


def test_the_columns_of_filters_go_with_the_index(
    machine: Machine, postgres_address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = machine.use("a")
    fill(postgres_address)
    with StepMemory(postgres_address) as memory:
        assert memory.search("plain", where={"user_id": "v"})
        memory.flush()
    assert len(files(folder)) == 2
    with StepMemory(postgres_address) as memory:
        assert len(memory.search("plain", where={"user_id": "v"})) > 0
        assert len(files(folder)) == 2
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "another user"))
    with StepMemory(postgres_address) as memory:
        assert memory.purge({"user_id": "u"}).unreached == ()
    assert files(folder) == []
