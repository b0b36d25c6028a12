"""What calls cost a PostgreSQL server, bounded in round trips and in the rows its plans look at."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from conformance.samples import message, step

from hybridagi_steps import AgentStep, AgentStepType, StepMemory
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.records.store_values import MESSAGE_ROWS
from hybridagi_steps.stores.sql.derived import DerivedTables
from hybridagi_steps.stores.sql.tables import Values

psycopg = pytest.importorskip("psycopg", reason="the extra postgres is not installed")

from hybridagi_steps.stores.postgres import PostgresStepStore  # noqa: E402
from hybridagi_steps.stores.postgres.spelling import SpellingConnection, spelled, teach  # noqa: E402

MANY = 3_000


class Work:
    """How often a server was asked and answered, and what it was asked."""

    def __init__(self) -> None:
        self.round_trips = 0
        self.queries: list[tuple[str, Values]] = []
        self._together = False

    def of(self, call: Callable[[], Any]) -> int:
        """Return the round trips of one call."""
        self.round_trips = 0
        self.queries.clear()
        call()
        return self.round_trips

    @contextmanager
    def asked(self, times: int = 1) -> Generator[None]:
        """Count what is sent together once, whatever is asked inside."""
        if self._together:
            yield
            return
        self.round_trips += times
        self._together = True
        try:
            yield
        finally:
            self._together = False


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    """Watches every connection of the driver."""
    watched = Work()

    def watch(owner: Any, name: str, times: int) -> None:
        real = getattr(owner, name)

        def called(*args: Any, **options: Any) -> Any:
            with watched.asked(times):
                return real(*args, **options)

        monkeypatch.setattr(owner, name, called)

    watch(psycopg.Connection, "execute", 1)
    watch(psycopg.Cursor, "execute", 1)
    watch(psycopg.Cursor, "executemany", 1)
    watch(psycopg.Cursor, "copy", 2)  # the server says that it is ready, and that it has all
    pipeline, execute = psycopg.Connection.pipeline, SpellingConnection.execute

    @contextmanager
    def pipelined(connection: Any) -> Generator[Any]:
        with watched.asked(), pipeline(connection) as made:
            yield made

    def noted(connection: SpellingConnection, sql: str, values: Values = (), /) -> Any:
        if sql.startswith(("SELECT", "UPDATE", "WITH")):
            watched.queries.append((sql, values))
        return execute(connection, sql, values)

    monkeypatch.setattr(psycopg.Connection, "pipeline", pipelined)
    monkeypatch.setattr(SpellingConnection, "execute", noted)
    return watched


def made(number: int, **fields: Any) -> AgentStep:
    inputs = {"purpose": f"refund order {number} of the customer", "tool": "refund"}
    place: dict[str, Any] = {"run_id": f"r{number // 10}", "hop": number % 10, **fields}
    return AgentStep(step_type=AgentStepType.Action, inputs=inputs, outputs={"r": "done"}, **place)


@pytest.fixture
def memory(work: Work, postgres_address: str) -> Iterator[StepMemory]:
    assert work.queries == []
    with StepMemory(postgres_address, embedder="hashing") as opened:
        opened.add([made(n) for n in range(200)])
        opened.flush()
        opened.search("refund the order")
        yield opened


@pytest.mark.parametrize("place", [{}, {"session_id": "new"}, {"session_id": "said"}])
def test_one_step_is_one_round_trip(memory: StepMemory, work: Work, place: dict[str, Any]) -> None:
    store: Any = memory._open_store
    store.commit("said", [message("hello")], [])
    memory.add(made(1_000, **place))
    assert work.of(lambda: memory.add(made(1_001, **place))) == 1
    with store.waiting(1):  # a shorter wait for others must be said to the server
        assert work.of(lambda: memory.add(made(1_002, **place))) == 1


def test_a_step_that_waited_sees_what_was_written_meanwhile(postgres_address: str) -> None:
    """Else it would be pinned to a branch that is gone."""
    first, second = PostgresStepStore(postgres_address), PostgresStepStore(postgres_address)
    first.commit("s", [message("one")], [])
    with first._db.writing() as connection:
        late = threading.Thread(target=lambda: second.append([step(id="late", session_id="s")]))
        late.start()
        with psycopg.connect(postgres_address, autocommit=True) as watching:
            waiting = b"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            while watching.execute(waiting).fetchone() != (1,):
                pass
        connection.execute("DELETE FROM session")
        connection.execute("DELETE FROM message")
        connection.execute("DELETE FROM branch")
    late.join()
    assert first.verify() == []
    first.commit("s", [message("two")], [])
    second.append([step(id="later", session_id="s")])
    assert first.pinned_steps("s") == [(2, "later")]
    first.close()
    second.close()


def test_a_large_batch_takes_as_many_round_trips_as_a_small_one(
    memory: StepMemory, work: Work
) -> None:
    def batch(first: int, count: int) -> int:
        steps = [made(first + n, session_id=f"s{n % 40}") for n in range(count)]
        return work.of(lambda: memory._open_store.append(steps))

    few, lots = batch(10_000, 2), batch(20_000, 2_000)
    assert few == lots == 5


def test_a_new_step_and_a_search_take_few_round_trips(memory: StepMemory, work: Work) -> None:
    def add_and_search(first: int, count: int) -> int:
        memory.add([made(first + n) for n in range(count)])
        return work.of(lambda: memory.search("refund the order"))

    add_and_search(1_000, 1)
    assert add_and_search(2_000, 1) <= 24
    assert add_and_search(3_000, 20) <= 28
    memory.search("refund the order")
    assert work.of(lambda: memory.search("refund the order")) <= 2


def test_a_search_that_finds_answers_asks_once_for_all_questions(
    memory: StepMemory, work: Work
) -> None:
    call, end = AgentStepType.ProgramCall, AgentStepType.ProgramEnd
    for n in range(5):
        inputs = {"program": "agent", "purpose": f"Where is parcel {n}?"}
        asked = AgentStep(step_type=call, inputs=inputs, run_id=f"p{n}")
        place: dict[str, Any] = {"program_id": str(asked.id), "run_id": f"p{n}"}
        answer = {"answer": f"Parcel {n} is in Oslo."}
        memory.add([asked, AgentStep(step_type=end, inputs=inputs, outputs=answer, **place)])
        memory._open_store.score_run(f"p{n}", 0.5, "good")
    memory.search("parcel in Oslo")
    found = memory.search("parcel in Oslo", k=3)
    assert {(hit.step.step_type, hit.step.score, hit.feedback) for hit in found} == {
        (AgentStepType.ProgramEnd, 0.5, "good")
    }
    assert work.of(lambda: memory.search("parcel in Oslo", k=3)) == 4


def test_what_is_new_is_one_statement(memory: StepMemory, work: Work) -> None:
    """However it is read, it is the same."""
    store: Any = memory._open_store
    since = [store.frontier().position]
    for n in (1, 3, 600):
        steps = [made(7_000 + 1_000 * n + each, score=0.5) for each in range(n)]
        memory.add(steps)
        memory.flush()
        memory.delete([str(steps[0].id)])
        since.append(store.frontier().position)
    for each in since:
        few, lots = store.changes(each), DerivedTables.changes(store, each)
        assert few.position == lots.position == since[-1]
        assert (few.texts, few.removed) == (lots.texts, lots.removed)
        assert [str(one) for one in few.vectors] == [str(one) for one in lots.vectors]
    assert work.of(lambda: store.changes(since[-1])) == 1
    assert work.of(lambda: store.changes(since[-2])) > 1  # more than one statement is for


def rows_of(node: dict[str, Any]) -> float:
    """Return how many rows went through a plan, those that it threw away as well."""
    removed = sum(count for name, count in node.items() if name.startswith("Rows Removed"))
    own = (node["Actual Rows"] + removed) * node["Actual Loops"]
    return own + sum(rows_of(child) for child in node.get("Plans", []))


def rows_read(address: str, queries: Sequence[tuple[str, Values]], *settings: str) -> float:
    """Return how many rows a server looks at to do what it was asked, which is undone."""
    read = 0.0
    with psycopg.connect(address) as connection:
        connection.execute("SET search_path TO hybridagi_steps")
        for setting in settings:
            connection.execute(f"SET LOCAL {setting}".encode())
        teach(connection)
        for sql, values in queries:
            explain = b"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) " + spelled(sql)
            [[[plan]]] = connection.execute(explain, values or None).fetchall()
            read += rows_of(plan["Plan"])
        connection.rollback()
    return read


@pytest.mark.parametrize("analysed", [False, True])
def test_what_a_search_after_an_add_reads_does_not_grow_with_the_memory(
    memory: StepMemory, work: Work, postgres_address: str, analysed: bool
) -> None:
    with psycopg.connect(postgres_address, autocommit=True) as connection:
        for table in ("agent_step", "step_text", "embedding"):  # statistics are ours to decide
            connection.execute(
                f"ALTER TABLE hybridagi_steps.{table} SET (autovacuum_enabled = off)".encode()
            )
    read: list[tuple[float, float]] = []
    for first in (MANY, 3 * MANY):
        memory.add([made(first + n, parent_id=f"gone{n}") for n in range(first)])
        memory.flush()
        if analysed:
            assert memory.verify() == []
        memory.search("refund the order")  # which reads the whole index, where nobody did before
        memory.add(made(100 * first))
        work.of(lambda: memory.search("refund the order"))
        memory.add(made(100 * first + 1))  # else nothing is pending any more
        newest = {"through": MESSAGE_ROWS - 1}
        pending = [
            (sql, {**values, **newest} if "through" in values else values)
            for sql, values in work.queries
            if "NOT EXISTS" in sql and isinstance(values, dict)
        ]
        assert len(pending) >= 3
        # As the planner joins where it believes that much is pending.
        merged = rows_read(
            postgres_address, pending, "enable_nestloop = off", "enable_hashjoin = off"
        )
        read.append((rows_read(postgres_address, work.queries), merged))
    for few, lots in zip(*read, strict=True):
        assert lots <= 1.5 * few, read


@pytest.mark.parametrize("analysed", [False, True])
def test_a_page_of_runs_or_sessions_reads_no_others(
    work: Work, postgres_address: str, analysed: bool
) -> None:
    """As SQLite's machine in test_store_work.py; without statistics the planner guesses."""
    store, read = PostgresStepStore(postgres_address, durability="normal"), list[float]()
    with psycopg.connect(postgres_address, autocommit=True) as connection:
        connection.execute(b"ALTER TABLE hybridagi_steps.agent_step SET (autovacuum_enabled = off)")
    for first in (0, 8_000):
        asked = range(first, first + 8_000)
        store.append([made(n, session_id=f"s{n // 20}", user_id=f"u{n // 20 % 3}") for n in asked])
        if analysed:
            assert store.verify() == []
        queries: list[tuple[str, Values]] = []
        for where in (StepFilter(), StepFilter(user_id="u1"), StepFilter(run_id="r3")):
            work.of(lambda where=where: store.runs(limit=3, where=where))
            queries += work.queries
        work.of(lambda: store.sessions(limit=3, recorded=True))
        read.append(rows_read(postgres_address, queries + work.queries))
    store.close()
    assert read[1] <= 1.1 * read[0], read
