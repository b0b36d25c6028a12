"""What calls cost the store, bounded in statements, transactions and steps of SQLite's machine."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from conformance.samples import message, said, save_pending, step
from conformance.samples import text as words_of

from hybridagi_steps import AgentStep, AgentStepType, StepMemory
from hybridagi_steps.context import ContextBuilder
from hybridagi_steps.exchange import export_file
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.records.message import Step
from hybridagi_steps.running.limits import AgentSession
from hybridagi_steps.running.runner import StepRunner
from hybridagi_steps.stores.body import decode_message
from hybridagi_steps.stores.sql import lineage, message_filter, message_units
from hybridagi_steps.stores.sqlite import SqliteStepStore
from hybridagi_steps.stores.sqlite.database import Reader

MACHINE_STEPS = 100
"""Of SQLite's virtual machine, after which it is counted."""


class Work:
    """What SQLite was told, and how long its machine ran for it."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.ran = 0

    def of(self, call: Callable[[], Any]) -> list[str]:
        """Return the statements of one call."""
        self.statements.clear()
        self.ran = 0
        call()
        return list(self.statements)

    def count_steps(self) -> int:
        self.ran += 1
        return 0


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    """Watches every connection that is opened from here on."""
    watched, begin = Work(), Reader.__init__

    def opened(reader: Reader, *args: Any, **options: Any) -> None:
        begin(reader, *args, **options)
        reader.set_trace_callback(watched.statements.append)
        reader.set_progress_handler(watched.count_steps, MACHINE_STEPS)

    monkeypatch.setattr(Reader, "__init__", opened)
    return watched


def made(number: int, **fields: Any) -> AgentStep:
    inputs = {"purpose": f"refund order {number} of the customer", "tool": "refund"}
    outputs = {"result": f"order {number} is refunded"}
    place: dict[str, Any] = {"run_id": f"r{number // 10}", "hop": number % 10, **fields}
    return AgentStep(step_type=AgentStepType.Action, inputs=inputs, outputs=outputs, **place)


@pytest.fixture
def memory(work: Work, tmp_path: Path) -> Iterator[StepMemory]:
    assert work.statements == []
    with StepMemory(tmp_path / "steps.db", embedder="hashing") as opened:
        opened.add([made(n) for n in range(200)])
        opened.flush()
        opened.search("refund the order")
        yield opened


def transactions(statements: list[str]) -> int:
    return sum(one.startswith("BEGIN") for one in statements)


@pytest.mark.parametrize("mode", ["hybrid", "lexical"])
@pytest.mark.parametrize("where", [None, {"run_id": "r3"}, {"scope": "*"}])
def test_a_search_with_nothing_new_reads_its_hits_and_little_else(
    memory: StepMemory, work: Work, mode: Any, where: Any
) -> None:
    for _ in range(2):
        memory.search("refund the order", mode=mode, where=where)
    statements = work.of(lambda: memory.search("refund the order", mode=mode, where=where))
    asked_by_run = where == {"run_id": "r3"}
    assert len(statements) <= 6 + 8 * asked_by_run
    assert transactions(statements) <= 1 + 2 * asked_by_run


def test_a_new_step_is_indexed_in_one_reading_and_one_writing(
    memory: StepMemory, work: Work
) -> None:
    def add_and_search(count: int) -> list[str]:
        memory.add([made(next(numbers)) for _ in range(count)])
        return work.of(lambda: memory.search("refund the order"))

    numbers = iter(range(1_000, 2_000))
    add_and_search(1)
    one, twenty = add_and_search(1), add_and_search(20)
    assert len(one) <= 51
    assert transactions(one) <= 4
    assert sum(text.startswith("COMMIT") for text in one) == 1
    assert len(twenty) - len(one) <= 5 * 19


def test_a_flush_leaves_it_to_the_next_search_to_follow_a_step(
    memory: StepMemory, work: Work
) -> None:
    memory.add([made(n) for n in range(1_000, 3_000)])
    memory.flush()
    memory.search("refund the order")
    memory.add(made(5_000))
    statements = work.of(memory.flush)
    assert len(statements) <= 33
    assert transactions(statements) <= 2
    (hit,) = memory.search("refund order 5000 of the customer", k=1)
    assert hit.step.purpose == made(5_000).purpose
    memory.add([made(n) for n in range(6_000, 6_400)])
    cache = next(Path(memory.address).parent.glob("*.db.????????.index"))
    before = cache.read_bytes()
    memory.flush()
    assert cache.read_bytes() != before


@pytest.mark.parametrize("in_one", [True, False])
def test_indexing_a_message_takes_as_much_however_many_there_are(
    memory: StepMemory, work: Work, in_one: bool
) -> None:
    store, ran = memory.repository().store, dict[int, int]()
    for count in (300, 1_200):
        for first in range(0, count, 20):
            name = f"{count}" if in_one else f"{count}-{first}"
            run = made(first, session_id=name, run_id=f"{name}-{first}")
            store.commit(name, said(20), [run])
        statements = work.of(memory.flush)
        ran[count] = work.ran
        assert len(statements) <= 200 + 10 * count
    assert ran[1_200] <= 1.5 * 4 * ran[300]


def test_a_batch_of_a_backlog_takes_as_much_however_long_that_is(
    work: Work, tmp_path: Path
) -> None:
    ran = list[int]()
    with closing(SqliteStepStore(tmp_path / "steps.db")) as store:
        for count in (200, 4_000):
            store.append([made(n, run_id=f"{count}-{n // 10}") for n in range(count)])
            first = [words_of(one.row, one.parent_row) for one in store.pending_texts(50)]
            store.save_derived(first, [])  # which writes the keys of all there are
            work.of(lambda: store.pending_texts(50))
            ran.append(work.ran)
    few, many = ran
    assert 0 < many < 1.5 * few


def test_an_export_of_a_run_asks_for_no_other(
    memory: StepMemory, work: Work, tmp_path: Path
) -> None:
    """The scores of all runs were read for it."""
    asked, file = list[int](), tmp_path / "out.jsonl"
    for first in (10_000, 20_000):
        memory.add([made(first + n) for n in range(2_000)])
        memory.score("r3", 0.5)
        memory.flush()
        asked.append(len(work.of(lambda: export_file(memory, file, where={"run_id": "r3"}))))
        assert b'"run_score":{"value":0.5}' in file.read_bytes()
    assert asked[1] == asked[0] < 20


@pytest.mark.parametrize("name", ["stats", "flush", "search"])
def test_what_finds_nothing_new_does_not_grow_with_the_memory(
    memory: StepMemory, work: Work, name: str
) -> None:
    call = {"search": lambda: memory.search("refund", k=1), "stats": memory.stats}
    ran: list[int] = []
    for first in (10_000, 20_000):
        memory.add([made(first + n, parent_id="gone", session_id=f"s{n}") for n in range(900)])
        memory.flush()
        for _ in range(2):
            memory.search("refund", k=1)
            memory.stats()
        work.of(call.get(name, memory.flush))
        ran.append(work.ran)
    assert ran[1] <= ran[0] + 2


@pytest.mark.parametrize("name", ["delete", "update"])
def test_what_goes_is_counted_off_and_the_rest_not_counted_anew(
    memory: StepMemory, work: Work, name: str
) -> None:
    def remove(first: int) -> None:
        if name == "delete":
            memory.delete([f"{first + 7}", f"{first + 8}"])
        else:
            memory.update(made(first + 7, id=f"{first + 7}"))

    ran = list[tuple[int, int]]()
    for first in (10_000, 20_000):
        memory.add([made(first + n, id=f"{first + n}", session_id=f"s{n}") for n in range(2_000)])
        memory.flush()
        before = memory.stats()["steps"]
        work.of(lambda first=first: remove(first))
        removing = work.ran
        memory.flush()
        work.of(memory.stats)
        ran.append((removing, work.ran))
        assert memory.stats()["steps"] == before - (2 if name == "delete" else 0)
    for more in (0, 1):
        assert ran[1][more] <= ran[0][more] + 20  # to look at 2,000 more rows takes at least 60


def test_where_nothing_is_revoked_no_step_is_read_for_what_was(
    memory: StepMemory, work: Work
) -> None:
    memory.add([made(10_000 + n) for n in range(2_000)])
    memory.flush()
    work.of(memory.revocations)
    assert work.ran <= 2


def test_a_search_among_messages_reads_no_other_conversation(
    memory: StepMemory, work: Work
) -> None:
    """Whose a message is, its run and session say; SQLite read every step there was for that."""
    sessions, ran = memory.repository(), list[int]()
    for first in (0, 400):
        for n in range(first, first + 400):
            asked = made(30_000 + n, run_id=f"chat-{n}", user_id=f"u{n}")
            answer = message(f"{n} is booked", "assistant", run_id=f"chat-{n}")
            sessions.store.commit(f"s{n}", [message(f"book {n}"), answer], [asked])
        memory.flush()
        for _ in range(2):
            assert memory.search("book 7 is booked", where={"kinds": ["message"]})
        work.of(lambda: memory.search("book 7 is booked", where={"kinds": ["message"]}))
        ran.append(work.ran)
    assert ran[1] <= ran[0] + 3  # hundreds; each statement begins to count anew


def _talk(address: str | Path) -> None:
    """Write three hundred short conversations, and one that is long."""
    with StepMemory(address, embedder="hashing", durability="normal") as memory:
        for n in range(300):
            keys: dict[str, Any] = {"metadata": {"mood": ["glad", "sad"][n % 2]}}
            said = [message(f"book {n}", **keys), message(f"{n} is booked", **keys)]
            memory.repository().store.commit(f"s{n}", said)
        long = [message(f"no book {n}", metadata={"mood": "long"}) for n in range(1_200)]
        memory.repository().store.commit("long", long)
        memory.flush()


@pytest.fixture(scope="module")
def talks_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of conversations, which tests copy."""
    path = tmp_path_factory.mktemp("talks") / "steps.db"
    _talk(path)
    return path


@pytest.fixture(scope="module")
def copy_of_talks(postgres_database: str) -> Iterator[Callable[[], str]]:
    """Makes databases of the same conversations; returns their addresses."""
    psycopg = pytest.importorskip("psycopg", reason="the extra postgres is not installed")
    names = [f"talks_{uuid4().hex}"]

    def address() -> str:
        return postgres_database.replace("/postgres?", f"/{names[-1]}?")

    def make() -> str:
        names.append(f"talks_{uuid4().hex}")
        server.execute(f"CREATE DATABASE {names[-1]} TEMPLATE {names[0]}".encode())
        return address()

    with psycopg.connect(postgres_database, autocommit=True) as server:
        server.execute(f"CREATE DATABASE {names[0]}".encode())
        _talk(address())
        yield make  # they go with the server: dropping each would wait for a checkpoint


@pytest.fixture(params=["talks_file", "copy_of_talks"])
def talks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StepMemory]:
    """A copy of the conversations."""
    address = str(tmp_path / "steps.db")
    if request.param == "talks_file":
        shutil.copy(request.getfixturevalue("talks_file"), address)
    else:
        address = str(request.getfixturevalue("copy_of_talks")())
    with StepMemory(address, embedder="hashing", durability="normal") as memory:
        yield memory


def test_a_long_turn_is_read_once_for_all_that_is_found_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = said(3)
    for n in range(150):
        call = {"id": f"c{n}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        line += [
            message(None, "assistant", tool_calls=[call]),
            message(f"found {n}", "tool", tool_call_id=f"c{n}", id=f"found{n}"),
        ]
    decoded = list[object]()

    def decoding(*given: Any) -> Step:
        decoded.append(given)
        return decode_message(*given)

    monkeypatch.setattr(message_units, "decode_message", decoding)
    with closing(SqliteStepStore(tmp_path / "steps.db")) as store:
        store.commit("s", line)
        rows = [*store.rows_of_messages([f"found{n}" for n in range(0, 150, 10)]).values()]
        alone = {row: store.read([row])[row] for row in rows}
        decoded.clear()
        assert store.read(rows) == alone
    assert len(decoded) <= len(line)


@pytest.mark.parametrize(
    ("first", "then", "finds"),
    [
        ({"metadata": {"mood": "glad"}}, {"metadata": {"mood": "sad"}}, 300),
        ({"metadata": {"mood": "glad"}}, {"exclude": {"metadata": {"mood": "sad"}}}, 1_500),
        ({"metadata": {"mood": 1}}, {"exclude": [{"metadata": {"mood": "long"}}]}, 600),
        ({"sources": "x"}, {"exclude": {"sources": "y"}, "trust": "team"}, 1_800),
        ({"since": "2001-01-01"}, {"since": "2002-01-01", "until": "2100-01-01"}, 1_800),
        ({"scope": "abandoned"}, {"scope": "revoked"}, 0),
        ({"exclude": {"session_id": "s1"}}, {"exclude": {"session_id": "long"}}, 600),
        ({"session_id": "long", "since": "2001-01-01"}, {"session_id": "long"}, 1_200),
        (
            {"session_id": "long", "since": "2001-01-01"},
            {"session_id": "long", "until": "2100-01-01"},
            1_200,
        ),
    ],
)
def test_a_filter_asked_with_another_value_reads_no_message_again(
    talks: StepMemory, monkeypatch: pytest.MonkeyPatch, first: Any, then: Any, finds: int
) -> None:
    read, fields = list[Any](), message_filter.fields_of

    def counted(body: Any) -> dict[str, Any]:
        read.append(body)
        return fields(body)

    monkeypatch.setattr(message_filter, "fields_of", counted)
    talks.search("book", where=first)
    asked = len(read)
    assert len(talks.search("book", k=2_000, where=then)) == finds
    assert len(read) == asked
    talks.repository().store.commit("s1", [message("book", metadata={"mood": "sad"})])
    talks.search("book", where=then)
    assert len(read) - asked <= 6


LISTED: dict[str, Callable[[SqliteStepStore], list[Any]]] = {
    "runs": lambda store: store.runs(limit=10),
    "own runs": lambda store: store.runs(limit=10, where=StepFilter()),
    "of a user": lambda store: store.runs(limit=10, where=StepFilter(user_id="u3")),
    "of a rare user": lambda store: store.runs(limit=10, where=StepFilter(user_id="rare")),
    "of nobody": lambda store: store.runs(limit=10, where=StepFilter(user_id="nobody")),
    "of a session": lambda store: store.runs(limit=10, where=StepFilter(session_id="s3")),
    "a run": lambda store: store.runs(limit=1, where=StepFilter(run_id="r3")),
    "failed": lambda store: store.runs(limit=10, where=StepFilter(status="error")),
    "sessions": lambda store: store.sessions(limit=10, recorded=True),
    "earlier sessions": lambda store: store.sessions(limit=10, offset=100, recorded=True),
    "sessions of nobody": lambda store: store.sessions(limit=10, user_id="nobody", recorded=True),
    "a user's sessions": lambda store: store.sessions(limit=10, user_id="u3", recorded=True),
}


def test_a_page_of_runs_or_sessions_reads_no_others(work: Work, tmp_path: Path) -> None:
    """They are among the newest steps, or an index has them; each was looked for in all steps."""
    ran = {name: list[int]() for name in LISTED}
    with closing(SqliteStepStore(tmp_path / "steps.db", durability="normal")) as store:
        for first, last in ((0, 20_000), (20_000, 40_000)):
            names = [(f"s{n // 20}", f"u{n // 20 % 5}") for n in range(first, last)]
            if not first:
                names[0] = ("s0", "rare")
            status = ["error" if n % 20 == 7 else "ok" for n in range(first, last)]
            asked = zip(range(first, last), names, status, strict=True)
            store.append(
                [made(n, session_id=s, user_id=u, status=ended) for n, (s, u), ended in asked]
            )
            for name, call in LISTED.items():
                call(store)
                work.of(lambda call=call: call(store))
                ran[name].append(work.ran)
    assert {name: runs for name, runs in ran.items() if runs[1] > 1.1 * runs[0] + 2} == {}


def test_sessions_with_messages_are_no_work_for_a_page_of_recorded_ones(
    work: Work, tmp_path: Path
) -> None:
    ran = list[int]()
    with closing(SqliteStepStore(tmp_path / "steps.db", durability="normal")) as store:
        store.append([made(n, session_id=f"s{n}") for n in range(20)])
        for first in (0, 5_000):
            asked = [made(n, run_id=f"t{n}") for n in range(first, first + 5_000)]
            store.commit("talk", [message()], asked)
            for _ in range(2):
                work.of(lambda: store.sessions(limit=10, recorded=True))
            ran.append(work.ran)
    assert ran[1] <= ran[0] + 2


def test_words_wait_for_no_disk_and_steps_do(
    memory: StepMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As SQLite is told at each commit: 1 is NORMAL, 2 is FULL."""
    execute, told = Reader.execute, Counter[int]()

    def executed(reader: Reader, sql: str, *values: Any) -> Any:
        if sql == "COMMIT":
            told[execute(reader, "PRAGMA synchronous").fetchone()[0]] += 1
        return execute(reader, sql, *values)

    monkeypatch.setattr(Reader, "execute", executed)
    memory.add([made(n) for n in range(300, 303)])
    assert told == {2: 1}
    memory.search("refund the order")
    assert told == {2: 1, 1: 1}
    memory.add([made(n) for n in range(303, 305)])
    assert told == {2: 2, 1: 1}


def test_an_index_is_kept_only_of_what_a_power_loss_leaves(memory: StepMemory, work: Work) -> None:
    """Else the cache says that it has rows which were taken back and numbered anew."""
    memory.add([made(n) for n in range(2_000, 4_200)])
    statements = work.of(memory.flush)
    assert memory.searcher._index._cache is not None  # pyright: ignore[reportPrivateUsage]
    assert Path(f"{memory.searcher._index._cache}").exists()  # pyright: ignore[reportPrivateUsage]
    last = max(n for n, text in enumerate(statements) if text.startswith("COMMIT"))
    begun = max(n for n, text in enumerate(statements[:last]) if text.startswith("BEGIN IMMEDIATE"))
    assert "UPDATE namespace SET epoch = epoch WHERE" in statements[begun + 1]
    set_to = [text for text in statements[:begun] if text.startswith("PRAGMA synchronous")]
    assert set_to[-1] == "PRAGMA synchronous = FULL"


def test_messages_that_show_revoked_steps_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(n: int) -> Step:
        return message(f"answer {n}", "assistant", agent_step_id=f"a{n}")

    parse, parsed = lineage._shown_ids, list[Any]()  # pyright: ignore[reportPrivateUsage]

    def counted(body: Any) -> list[str]:
        parsed.append(body)
        return parse(body)

    monkeypatch.setattr(lineage, "_shown_ids", counted)
    with closing(SqliteStepStore(tmp_path / "steps.db", durability="normal")) as store:
        store.commit(
            "s", [answer(n) for n in range(20)], [step(id=f"a{n}", run_id="bad") for n in range(20)]
        )
        store.commit("s", said(30))
        save_pending(store)
        store.revoke(StepFilter(run_id="bad"), None)
        assert len(store.hidden_messages().revoked) == 20
        assert len(parsed) == 20
        store.commit("other", [answer(3), answer(20)], [step(id="a20")])
        assert len(store.hidden_messages().revoked) == 21
        assert len(parsed) == 22
        store.delete_session("other")
        assert len(store.hidden_messages().revoked) == 20


@pytest.fixture
def round_trips(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], int]:
    """Returns what counts how often a call asks PostgreSQL."""
    psycopg = pytest.importorskip("psycopg", reason="the extra postgres is not installed")
    asked: list[Any] = []

    def counted(name: str) -> None:
        ask = getattr(psycopg.Cursor, name)

        def noted(*args: Any, **named: Any) -> Any:
            asked.append(name)
            return ask(*args, **named)

        monkeypatch.setattr(psycopg.Cursor, name, noted)

    counted("execute")
    counted("executemany")

    def of(call: Callable[[], Any]) -> int:
        asked.clear()
        call()
        return len(asked)

    return of


def test_postgresql_is_asked_as_often_for_twenty_steps_as_for_one(
    postgres_address: str, round_trips: Callable[[Callable[[], Any]], int]
) -> None:
    with StepMemory(postgres_address, embedder="hashing", durability="normal") as memory:
        memory.add([made(n) for n in range(50)])
        memory.flush()
        for _ in range(2):
            memory.search("refund the order")
        assert round_trips(lambda: memory.search("refund the order")) <= 6
        assert round_trips(memory.flush) <= 7
        assert round_trips(lambda: memory.add(made(60))) == 1
        one = round_trips(lambda: memory.search("refund the order"))
        memory.add([made(n) for n in range(70, 90)])
        assert one <= 42
        assert round_trips(lambda: memory.search("refund the order")) <= one + 3


def blocks_read(asked: list[tuple[str, Any]], address: str) -> int:
    """Return how many blocks PostgreSQL reads for some queries, asked once more."""
    import psycopg

    from hybridagi_steps.stores.postgres.schema import SCHEMA
    from hybridagi_steps.stores.postgres.spelling import spelled, teach

    found = 0
    with psycopg.connect(address) as connection:
        teach(connection)
        connection.execute(f"SET search_path TO {SCHEMA}".encode())
        for sql, values in asked:
            explain = b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + spelled(sql)
            ((plans,),) = connection.execute(explain, values or None).fetchall()
            plan = plans[0]["Plan"]
            found += plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    return found


def test_what_postgresql_reads_for_new_steps_does_not_grow_with_the_memory(
    postgres_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hybridagi_steps.stores.postgres.spelling import SpellingConnection

    execute, asked = SpellingConnection.execute, list[tuple[str, Any]]()

    def noted(connection: SpellingConnection, sql: str, values: Any = ()) -> Any:
        if sql.lstrip().startswith("SELECT") and "pg_advisory" not in sql:
            asked.append((sql, values))
        return execute(connection, sql, values)

    monkeypatch.setattr(SpellingConnection, "execute", noted)
    read: list[int] = []
    with StepMemory(postgres_address, embedder="hashing", durability="normal") as memory:
        for first, count in ((0, 500), (10_000, 4_500)):
            memory.add([made(first + n) for n in range(count)])
            memory.flush()
            memory.search("refund")
            memory.add([made(90_000 + first + n) for n in range(20)])
            asked.clear()
            memory.search("refund", mode="lexical", k=1)
            memory.search("refund", k=1)
            read.append(blocks_read(list(asked), postgres_address))
    assert read[1] <= 1.15 * read[0], read


class TestATurn:
    """A message of a plain callable: its question, its answer, two AgentSteps."""

    @staticmethod
    def statements_of(work: Work, memory: StepMemory, session: Any = "chat") -> list[str]:
        def heard(messages: list[Any]) -> str:
            return f"heard {len(messages)}"

        runner = StepRunner(heard, memory)
        for _ in range(3):
            asyncio.run(runner.run(session, "Hello"))
        asked = work.of(lambda: asyncio.run(runner.run(session, "Hello")))
        assert "heard 7" in str(memory.repository().store.messages("chat", 8))
        return asked

    def test_it_asks_once_and_commits_twice(self, memory: StepMemory, work: Work) -> None:
        asked = self.statements_of(work, memory)
        assert transactions(asked) == 2
        assert len(asked) <= 12, "those that begin and end the two counted, and look at the schema"

    def test_whose_it_is_costs_a_question(self, memory: StepMemory, work: Work) -> None:
        nobodys = self.statements_of(work, memory)
        memory.clear()
        anns = self.statements_of(work, memory, AgentSession("chat", "ann"))
        assert len(anns) == len(nobodys) + 1, "whether it is hers"
        assert len(self.statements_of(work, memory)) == len(nobodys)

    def test_a_context_asks_one_question(self, memory: StepMemory, work: Work) -> None:
        self.statements_of(work, memory)
        builder = ContextBuilder(memory, k=0)
        builder.build(session_id="chat")
        assert len(work.of(lambda: builder.build(session_id="chat"))) == 1
