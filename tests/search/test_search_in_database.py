"""A memory searched in its database answers as one that holds the index itself."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import hybridagi_steps as hs
from hybridagi_steps.cli import main
from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.records.store_values import Level, StemCounts
from hybridagi_steps.search.database import database_index
from hybridagi_steps.search.database.planner import levels
from hybridagi_steps.stores.postgres import PostgresStepStore, database, search_tables
from hybridagi_steps.stores.postgres.following import FOLDER_VARIABLE

WORD = "orchidaceous"
SMALL: dict[str, Any] = {"embedder": "hashing", "memory_budget": "1KB"}
"""How a memory is opened whose index does not fit."""
Open = Callable[..., hs.StepMemory]


def answers(hits: Sequence[hs.StepHit]) -> list[tuple[str, float, str]]:
    return [(str(hit.step.id), round(hit.score, 3), hit.why) for hit in hits]


def in_database(memory: hs.StepMemory) -> bool:
    return memory.searcher._database is not None


@pytest.fixture(scope="module")
def pair(
    postgres_server: Any, real_steps: list[hs.AgentStep]
) -> Iterator[tuple[hs.StepMemory, hs.StepMemory]]:
    """One memory of the shipped runs, opened without a budget and with one that is too small."""
    address, namespace = str(postgres_server.get_uri()), uuid4().hex
    users = [f"user-{number % 3}" for number in range(len(real_steps))]
    steps = [s.model_copy(update={"user_id": u}) for s, u in zip(real_steps, users, strict=True)]
    with (
        hs.StepMemory(address, namespace=namespace, embedder="hashing") as held,
        hs.StepMemory(address, namespace=namespace, **SMALL) as there,
    ):
        held.add(steps)
        yield held, there
        assert in_database(there)
        assert not in_database(held)
        assert held.verify() == []


@pytest.fixture
def open_pair(postgres_server: Any) -> Iterator[Callable[[], tuple[hs.StepMemory, hs.StepMemory]]]:
    """Opens an empty memory twice, as `pair`."""
    opened: list[hs.StepMemory] = []

    def both() -> tuple[hs.StepMemory, hs.StepMemory]:
        address, namespace = str(postgres_server.get_uri()), uuid4().hex
        opened.append(hs.StepMemory(address, namespace=namespace, embedder="hashing"))
        opened.append(hs.StepMemory(address, namespace=namespace, **SMALL))
        return opened[-2], opened[-1]

    yield both
    for memory in opened:
        memory.close()


QUERIES = [
    "refund the ticket",
    "which flight was booked for the customer",
    "pytest fails with an import error",
    "the",
    "zxqv unheard",
]
ASKED: dict[str, dict[str, Any]] = {
    "by words": {"mode": "lexical"},
    "by meaning": {"mode": "dense"},
    "many": {"k": 120},
    "of a user": {"where": {"user_id": "user-1"}},
    "without a user": {"where": {"exclude": [{"user_id": "user-1"}]}},
    "of a status": {"where": {"status": "error"}},
    "of nobody": {"where": {"user_id": "nobody"}},
    "in any scope": {"where": {"scope": "*"}},
    "an episode": {"aim": "episode"},
    "a tool": {"aim": "tool"},
    "a tool of a user": {"aim": "tool", "where": {"user_id": "user-2"}},
    "only good ones": {"min_score": 0.4},
    "a tool that is named": {"where": {"tools": ["respond", "search"]}},
    "an episode of a user, a tool named": {
        "aim": "episode",
        "where": {"user_id": "user-1", "tools": "respond"},
    },
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_the_same_is_found(
    pair: tuple[hs.StepMemory, hs.StepMemory], asked: dict[str, Any]
) -> None:
    held, there = pair
    for query in QUERIES:
        assert answers(there.search(query, **asked)) == answers(held.search(query, **asked))


@pytest.mark.parametrize("aim", [None, "next"])
def test_the_same_is_like_a_step(
    pair: tuple[hs.StepMemory, hs.StepMemory], real_steps: list[hs.AgentStep], aim: Any
) -> None:
    held, there = pair
    for step in real_steps[5:800:97]:
        asked: dict[str, Any] = {"aim": aim, "where": {"exclude_run_id": [str(step.run_id)]}}
        assert answers(there.search(step, **asked)) == answers(held.search(step, **asked))
        assert answers(there.search(step)) == answers(held.search(step))


def test_several_queries_take_turns(pair: tuple[hs.StepMemory, hs.StepMemory]) -> None:
    held, there = pair
    asked = hs.QueryList(queries=[hs.Query(query=query) for query in QUERIES])
    assert answers(there.search(asked)) == answers(held.search(asked))


def test_a_wide_filter_is_looked_through(
    pair: tuple[hs.StepMemory, hs.StepMemory], monkeypatch: pytest.MonkeyPatch
) -> None:
    held, there = pair
    monkeypatch.setattr(database_index, "NARROW", 10)
    for query in QUERIES:
        asked: dict[str, Any] = {"where": {"user_id": "user-1"}, "mode": "dense"}
        assert answers(there.search(query, **asked)) == answers(held.search(query, **asked))


def test_what_is_new_changed_and_gone_is_seen_by_the_next_search(
    open_pair: Callable[[], tuple[hs.StepMemory, hs.StepMemory]], real_steps: list[hs.AgentStep]
) -> None:
    held, there = open_pair()
    query = "book a flight for the customer"

    def alike() -> None:
        for memory in (there, held):  # each saves for the other what it derives
            memory.search(query)
        assert answers(there.search(query)) == answers(held.search(query))
        assert in_database(there)

    held.add(real_steps[:400])
    alike()
    there.add(real_steps[400:500])  # fewer than are counted at once
    alike()
    there.add(real_steps[500:])
    alike()
    there.delete([step.id for step in real_steps[:300]])
    alike()
    changed = real_steps[350].model_copy(update={"outputs": {"result": f"{query} {WORD}"}})
    there.update(changed)
    alike()
    assert there.search(WORD)[0].step.id == changed.id
    held.revoke({"run_id": str(real_steps[600].run_id)})
    alike()
    there.purge({"run_id": str(real_steps[700].run_id)})
    alike()
    there.clear()
    assert there.search(query) == []
    there.add(real_steps[:50])
    alike()
    assert there.verify() == []


def test_messages_and_forks_are_found_alike(
    open_pair: Callable[[], tuple[hs.StepMemory, hs.StepMemory]],
) -> None:
    held, there = open_pair()
    repository = held.repository(user_id="ann")
    said = ["The ferry to Texel leaves at noon.", "Do you take the dog?", "He stays at home."]
    for session in ("sea", "hills"):
        talk = [
            {"role": role, "content": f"{text} {session} {number}"}
            for number, text in enumerate(said * 3)
            for role in ("user", "assistant")
        ]
        asyncio.run(repository.append(session, talk))
    asyncio.run(repository.fork("sea", 6, "lake"))
    asyncio.run(repository.append("lake", [{"role": "user", "content": "Is the ferry full?"}]))
    asyncio.run(repository.delete_steps("hills", 8))
    for query in ("when does the ferry leave", "dog at home", "hills", "is it full"):
        for asked in ({}, {"user_id": "ann"}, {"user_id": "bob"}, {"session_id": "lake"}):
            found = there.search(query, where=asked or None)
            wanted = held.search(query, where=asked or None)
            assert [hit.step.id for hit in found] == [hit.step.id for hit in wanted]
            assert [hit.sequence for hit in found] == [hit.sequence for hit in wanted]
    assert len(there.search("ferry")) > 1
    assert there.search("ferry", where={"user_id": "bob"}) == []


def test_erased_words_stand_in_no_page_of_the_database(
    new_postgres_server: Callable[[], Any], real_steps: list[hs.AgentStep]
) -> None:
    server = new_postgres_server()
    psycopg = pytest.importorskip("psycopg")
    with hs.StepMemory(str(server.get_uri()), **SMALL) as memory:
        secret = real_steps[7].model_copy(update={"outputs": {"result": WORD}, "run_id": "secret"})
        memory.add([*real_steps[:7], secret])
        assert memory.search(WORD)[0].step.run_id == "secret"
        memory.purge({"run_id": "secret"})
        assert "secret" not in {hit.step.run_id for hit in memory.search(WORD)}
    with psycopg.connect(str(server.get_uri()), autocommit=True) as connection:
        connection.execute("CHECKPOINT")
        (folder,) = connection.execute("SHOW data_directory").fetchone()
    pages = [file for file in Path(folder, "base").rglob("*") if file.is_file()]
    assert [file for file in pages if WORD[:6].encode() in file.read_bytes()] == []


def test_it_is_counted_how_often_a_stem_is_held(
    open_pair: Callable[[], tuple[hs.StepMemory, hs.StepMemory]], real_steps: list[hs.AgentStep]
) -> None:
    held, there = open_pair()
    there.add(real_steps)
    stems = ["flight", "book", "error", "zxqv"]
    for gone in (0, 200, 400):
        if gone:
            there.delete([step.id for step in real_steps[gone - 200 : gone]])
        for memory in (there, held):
            memory.search("flight")
        index = held.searcher._index.own.lexical
        store: Any = there._store
        with store.search_view(1) as view:
            counts = view.counts(stems)
        assert counts.holding == index.statistics(stems).frequencies
        assert counts.documents == len(index)
        assert counts.words / counts.documents == pytest.approx(index.average_length)
        if not gone:  # there removed ones count until they are many
            own = counts.own_words / counts.documents
            assert own == pytest.approx(index.average_own_length)


def test_a_memory_that_fits_its_budget_is_held(
    postgres_server: Any, real_steps: list[hs.AgentStep]
) -> None:
    address, namespace = str(postgres_server.get_uri()), uuid4().hex
    asked: dict[str, Any] = {"namespace": namespace, "embedder": "hashing"}
    with hs.StepMemory(address, memory_budget="1MB", **asked) as memory:
        memory.add(real_steps[:100])
        memory.search("flight")
        assert not in_database(memory)
        memory.add(real_steps[100:])
        memory.search("flight")
        memory.search("flight")
        assert in_database(memory)


def test_a_large_memory_has_a_graph_of_near_vectors(
    postgres_server: Any, real_steps: list[hs.AgentStep], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_tables, "GRAPH_FROM", 500)
    address, namespace = str(postgres_server.get_uri()), uuid4().hex
    asked: dict[str, Any] = {"namespace": namespace, "embedder": "hashing"}
    with hs.StepMemory(address, memory_budget=1, **asked) as memory:
        memory.add(real_steps)
        memory.flush()
        store: Any = memory._store
        assert not store.make_graph(memory.embedder.dimension)  # flush has made it
        with hs.StepMemory(address, **asked) as held:
            same = [
                {str(hit.step.id) for hit in memory.search(query, mode="dense")}
                & {str(hit.step.id) for hit in held.search(query, mode="dense")}
                for query in QUERIES[:3]
            ]
        assert sum(map(len, same)) >= 0.95 * 3 * 5


def test_a_graph_takes_its_time_and_is_made_alone_where_memory_is_not_shared(
    postgres_server: Any, real_steps: list[hs.AgentStep], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_tables, "GRAPH_FROM", 50)
    making = """DO $$ BEGIN
        IF current_setting('statement_timeout') <> '0' THEN RAISE 'it is timed'; END IF;
        IF current_setting('max_parallel_maintenance_workers') <> '0' THEN
            RAISE 'could not resize shared memory' USING ERRCODE = 'disk_full'; END IF;
        END $$"""
    monkeypatch.setattr(search_tables, "_GRAPH", making)
    address, namespace = str(postgres_server.get_uri()), uuid4().hex
    with hs.StepMemory(address, namespace=namespace, **SMALL) as memory:
        memory.add(real_steps[:60])
        memory.search("flight")
        store: Any = memory._store
        assert store.make_graph(memory.embedder.dimension)
        assert memory.search("flight")


def test_a_users_few_are_found_without_reading_whose_all_are(
    pair: tuple[hs.StepMemory, hs.StepMemory], monkeypatch: pytest.MonkeyPatch
) -> None:
    held, shared = pair
    read: list[Any] = []
    step_keys = PostgresStepStore.step_keys

    def noted(store: PostgresStepStore, names: Any, **asked: Any) -> Any:
        read.append(names)
        return step_keys(store, names, **asked)

    monkeypatch.setattr(PostgresStepStore, "step_keys", noted)
    asked: list[dict[str, Any]] = [
        {"user_id": "user-1"},
        {"user_id": "user-2", "status": "error"},
        {"user_id": "nobody"},
        {"user_id": "\ud800"},
        {"user_id": "user-1", "scope": "*", "since": "2020-01-01T00:00:00Z"},
    ]
    with hs.StepMemory(shared.address, namespace=shared.namespace, **SMALL) as there:
        there.search("flight")
        for where in asked[:3]:
            found = answers(there.search("refund the flight", where=where))
            assert read == []
            assert found == answers(held.search("refund the flight", where=where))
            read.clear()
        monkeypatch.setattr(database_index, "NARROW", 10)
        for where in asked:
            found = answers(there.search("refund the flight", where=where))
            assert read
            assert found == answers(held.search("refund the flight", where=where))


def test_a_search_does_with_one_connection_where_no_second_is_to_be_had(
    pair: tuple[hs.StepMemory, hs.StepMemory], monkeypatch: pytest.MonkeyPatch
) -> None:
    held, shared = pair
    expected = answers(held.search("refund the flight"))
    monkeypatch.setattr(database, "_MOST_CONNECTIONS", 1)
    with hs.StepMemory(shared.address, namespace=shared.namespace, **SMALL) as there:
        assert answers(there.search("refund the flight")) == expected
        assert in_database(there)


def test_rows_of_a_level_come_once_and_before_those_of_the_next(
    pair: tuple[hs.StepMemory, hs.StepMemory],
) -> None:
    _, there = pair
    there.search("flight")
    store: Any = there._store
    common = ["queri", "respons", "search"]
    asked = [
        Level([["refund"], ["cancel"]]),
        Level([common], newest=400),
        Level([common]),
        Level([["queri", "search"], ["respons", "search"]], one_by_one=True),
        Level([["queri"], ["respons"], ["search"]]),
    ]
    with store.search_view(there.embedder.dimension) as view:
        rows, words = view.holding(asked, 10_000, None)
        held = [{*text.split()} for text in words.split("\x01")]
        first, newest, *counts = (
            len(view.holding(asked[:count], 10_000, None)[0]) for count in range(1, 6)
        )
        assert 0 < first < newest < counts[0] < counts[1] < counts[2] == len(rows) == len({*rows})
        assert all({"refund", "cancel"} & each for each in held[:first])
        assert all({"queri", "search"} <= each for each in held[first : counts[0]])
        assert all("search" in each for each in held[counts[0] : counts[1]])
        for count in (1, first + 1, counts[0] + 1):
            assert view.holding(asked, count, None)[0].tolist() == rows[:count].tolist()


def test_words_in_most_rows_are_sought_in_the_newest_first() -> None:
    common = StemCounts(1_000_000, 0, 0, {"a": 700, "need": 600_000, "look": 700_000, "s": 10**6})
    rare, newest, *several = levels(["a", "need", "look", "s"], 1, 1_500, common)
    assert rare == Level([["a"]])
    assert newest.groups == [["need", "look"]]
    assert 1_500 / 0.42 < (newest.newest or 0) < 10_000
    assert several == [Level([["need", "look"]], one_by_one=True)]
    fewer = common._replace(holding={"need": 6_000, "look": 7_000})
    both, *each = levels(["need", "look"], 0, 1_500, fewer)
    assert both == Level([["need", "look"]])
    assert each == [Level([["need"], ["look"]], one_by_one=True)]


def test_vectors_are_not_counted_where_a_graph_stands(
    postgres_server: Any, real_steps: list[hs.AgentStep], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That reads all of them, beside the first search of each process."""
    monkeypatch.setattr(search_tables, "GRAPH_FROM", 50)
    address, namespace = str(postgres_server.get_uri()), uuid4().hex
    with hs.StepMemory(address, namespace=namespace, **SMALL) as memory:
        memory.add(real_steps[:100])
        memory.flush()
        store: Any = memory._store
        monkeypatch.setattr(search_tables, "_NEAR_COUNT", "this is no SQL")
        assert not store.make_graph(memory.embedder.dimension)


@pytest.mark.parametrize("how", ["another process", "an erasure", "an erasure elsewhere"])
def test_what_filters_read_is_kept_for_the_next_process(
    postgres_server: Any,
    real_steps: list[hs.AgentStep],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    how: str,
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(database_index, "WORTH_CACHING", 50)
    read: list[int] = []
    step_keys = PostgresStepStore.step_keys

    def counted(store: PostgresStepStore, names: Any, **asked: Any) -> Any:
        answer = step_keys(store, names, **asked)
        read.append(len(answer[0]))
        return answer

    monkeypatch.setattr(PostgresStepStore, "step_keys", counted)
    address, namespace = str(postgres_server.get_uri()), uuid4().hex
    asked: dict[str, Any] = {"where": {"exclude": [{"user_id": "user-1"}]}, "k": 20}
    steps = [s.model_copy(update={"user_id": f"user-{n % 3}"}) for n, s in enumerate(real_steps)]
    with hs.StepMemory(address, namespace=namespace, **SMALL) as memory:
        memory.add(steps[:200])
        expected = answers(memory.search("refund the flight", **asked))
        assert expected
    (columns,) = tmp_path.iterdir()
    assert b"user-1" in columns.read_bytes()
    if how == "an erasure elsewhere":
        monkeypatch.setenv(FOLDER_VARIABLE, "no")
        with hs.StepMemory(address, namespace=namespace, **SMALL) as memory:
            memory.delete(steps[0].id)
        monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    with hs.StepMemory(address, namespace=namespace, **SMALL) as memory:
        if how == "an erasure":
            memory.delete(steps[0].id)
            assert not columns.exists()
        read.clear()
        memory.search("refund the flight")
        assert columns.exists() == (how == "another process")
        found = answers(memory.search("refund the flight", **asked))
        assert in_database(memory)
        if how == "another process":
            assert found == expected
            assert sum(read) == 0
        memory.add(steps[200:])
        memory.search("refund the flight", **asked)
        assert memory.verify() == []
    assert columns.exists()


def test_new_vectors_wait_for_others_and_are_found_meanwhile(
    open_pair: Callable[[], tuple[hs.StepMemory, hs.StepMemory]],
    real_steps: list[hs.AgentStep],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(search_tables, "NOT_NEAR", 100)
    held, there = open_pair()
    store: Any = there._store

    def alike() -> int:
        for query in QUERIES:
            asked: dict[str, Any] = {"mode": "dense", "k": 20}
            held.search(query)
            assert answers(there.search(query, **asked)) == answers(held.search(query, **asked))
        assert in_database(there)
        near = "SELECT count(*) FROM near WHERE namespace = ?"
        return store._db.known(near, (store._namespace,))[0]

    there.add(real_steps[:400])
    assert alike() == 400
    there.add(real_steps[400:490])
    assert alike() == 400
    there.delete([step.id for step in real_steps[350:450]])
    assert alike() == 350
    there.add(real_steps[490:560])
    assert alike() == 460


def test_without_pgvector_the_index_is_held_which_is_said_once(
    open_pair: Callable[[], tuple[hs.StepMemory, hs.StepMemory]],
    real_steps: list[hs.AgentStep],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(search_tables, "_EXTENSION", b"SELECT 1 WHERE false")
    monkeypatch.setattr(search_tables, "_AVAILABLE", b"SELECT 1 WHERE false")
    held, there = open_pair()
    held.add(real_steps[:50])
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert answers(there.search("flight")) == answers(held.search("flight"))
    assert not in_database(there)
    assert [record for record in caplog.messages if "pgvector" in record] == caplog.messages
    assert len(caplog.messages) == 1


def test_who_may_not_make_indexes_holds_the_index_until_somebody_has(
    postgres_address: str, real_steps: list[hs.AgentStep], caplog: pytest.LogCaptureFixture
) -> None:
    psycopg = pytest.importorskip("psycopg")
    from hybridagi_steps.stores.postgres.roles import grant

    role = f"writer_{uuid4().hex[:8]}"
    with hs.StepMemory(postgres_address, embedder="hashing") as owner:
        owner.add(real_steps[:50])
    with psycopg.connect(postgres_address, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN")
        connection.execute("CREATE EXTENSION vector SCHEMA public")
    grant(postgres_address, role, "server")
    try:
        theirs = postgres_address.replace("://postgres", f"://{role}", 1)
        with hs.StepMemory(theirs, **SMALL) as memory, caplog.at_level(logging.WARNING):
            assert memory.search("flight")
            assert not in_database(memory)
            assert ["permission denied" in said for said in caplog.messages] == [True]
        with hs.StepMemory(postgres_address, **SMALL) as owner:
            owner.flush()
        with hs.StepMemory(theirs, **SMALL) as memory:
            memory.add(real_steps[50:400])
            assert memory.search("flight")
            assert in_database(memory)
    finally:
        with psycopg.connect(postgres_address, autocommit=True) as connection:
            connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.parametrize("budget", ["12 apples", "", "-1MB", 0, True, [], "1e400MB"])
def test_what_is_no_size_is_refused_before_anything_is_made(tmp_path: Path, budget: Any) -> None:
    with pytest.raises(InvalidSettingError, match="memory_budget"):
        hs.StepMemory("postgresql://nobody@127.0.0.1:1/x", memory_budget=budget)
    with pytest.raises(InvalidSettingError, match="memory_budget"):
        hs.StepMemory(tmp_path / "s.db", memory_budget=budget)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("address", [":memory:", "s.db"])
def test_a_file_has_no_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidSettingError, match="PostgreSQL"):
        hs.StepMemory(address, memory_budget="256MB")
    assert list(tmp_path.iterdir()) == []


def test_a_server_refuses_a_budget_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    address = "postgresql://nobody@127.0.0.1:1/x"
    assert main(["serve", "--db", address, "--memory-budget", "12 apples"]) == 2
    assert "memory_budget is a size such as '256MB'" in capsys.readouterr().err
