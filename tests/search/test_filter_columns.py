"""Filters answered from memory: the same rows as the store gives, whatever happens to the steps."""

# Hypothesis's rules are of no type that pyright could name.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conformance.filter_contract import FilterContract
from conformance.filter_oracle import FEW, FILTERS, IDS, NOON, STEPS
from conformance.samples import SessionStepStore, message, step
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from hybridagi_steps.embedders import HashingEmbedder
from hybridagi_steps.errors import StorageError
from hybridagi_steps.memory import StepMemory
from hybridagi_steps.protocols import MessageIndex, StepKey, StepStore, ValuedStore
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.records.store_values import Rows
from hybridagi_steps.search import step_index
from hybridagi_steps.search.columns import filter_index as filter_columns
from hybridagi_steps.search.columns import held_columns, key_columns
from hybridagi_steps.search.indexing import Deriver
from hybridagi_steps.search.step_index import StepIndex
from hybridagi_steps.stores import open_store
from hybridagi_steps.stores.sqlite import SqliteStepStore
from hybridagi_steps.stores.waiting import Patience

SESSIONS = st.sampled_from(["a", "b", "ä"])
OFTEN: list[dict[str, Any]] = [
    {"user_id": "a"},
    {"status": "ok", "scope": "*"},
    {"tools": ["a", "b"]},
    {"predictors": ["a", "ä"]},
    {"program": "a"},
    {"min_score": 0.5},
    {"metadata": {"a": 1}},
    {"scope": "abandoned"},
    {"scope": "revoked", "sources": ["f", "openai"]},
    {"exclude": [{"metadata": {"a": 1}}, {"metadata": {"b": None}, "since": NOON}]},
    {"scope": "* but revoked", "trust": "team"},
    {},
]
"""Asked again and again, so that what is kept of an answer must follow what happens."""


class Follower:
    """An index that follows a store, as a search does."""

    def __init__(self, store: StepStore, cache: Path | None = None) -> None:
        self.store, self.cache = store, cache
        self.begin()

    def begin(self) -> None:
        """Begin as a process does, with what an earlier one has saved."""
        self.index = StepIndex(self.store, self.store.identity().store_id, self.cache)

    def agrees(self, where: StepFilter) -> Rows:
        """Return the rows of a filter, which must be those that the store gives."""
        for _ in Deriver(self.store, lambda _: HashingEmbedder(), Patience(30)).save_all(
            vectors=False
        ):
            continue
        self.index.follow("", 0)
        found = self.index.filters.rows(where)
        messages = self.store.message_rows(where) if isinstance(self.store, MessageIndex) else []
        assert found.tolist() == [*self.store.rows(where).tolist(), *messages]
        assert found.dtype == np.int64
        return found


class TestInMemory(FilterContract):
    """What stores promise about filters holds for those answered beside them."""

    @pytest.fixture
    def store(self) -> Iterator[StepStore]:
        store = SqliteStepStore(":memory:")
        self.follower = Follower(store)
        yield store
        store.close()

    def matching(self, store: StepStore, **where: Any) -> list[str]:
        self.follower.agrees(StepFilter.of(where))
        return super().matching(store, **where)


class TestSqlite(TestInMemory):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[StepStore]:
        store = SqliteStepStore(tmp_path / "steps.db", durability="normal")
        self.follower = Follower(store)
        yield store
        store.close()


class TestPostgres(TestInMemory):
    @pytest.fixture
    def store(self, postgres_address: str) -> Iterator[StepStore]:
        store = open_store(postgres_address)
        self.follower = Follower(store)
        yield store
        store.close()

    def test_scores_and_metadata_are_columns_too(
        self, store: StepStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """So the server is not asked by each filter."""
        values = ["a", 1, 2.5, True, None, [1], "ä", 2**63]
        store.append([step(id=f"{n}", metadata={'k"': each}) for n, each in enumerate(values)])
        store.append([step(id="good", score=0.75, metadata={'k"x': "a"})])
        assert isinstance(store, ValuedStore)
        for each in values:
            if not isinstance(each, list):
                assert len(self.follower.agrees(StepFilter(metadata={'k"': each}))) == 1
        assert len(self.follower.agrees(StepFilter(min_score=0.5))) == 1

        def refused(*_: Any) -> Any:
            raise AssertionError("the server was asked")

        monkeypatch.setattr(type(store), "rows", refused)
        filters = self.follower.index.filters
        assert len(filters.rows(StepFilter(metadata={'k"': 2.5}, min_score=0.0))) == 0
        assert len(filters.rows(StepFilter(metadata={'k"': "a"}))) == 1


class Histories(RuleBasedStateMachine):
    """Two writers of one file, each with an index, beside one that lives in memory."""

    @initialize(page=st.sampled_from([1, 2, 50_000]), kept=st.sampled_from([0, 2, 99]))
    def begin(self, page: int, kept: int) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(held_columns, "PAGE", page)
        self.patch.setattr(key_columns, "LIST_COSTS", 0)
        self.patch.setattr(key_columns, "POSITIONS_KEPT", kept)
        self.patch.setattr(key_columns, "WIDE", 1)
        self.folder = tempfile.TemporaryDirectory()
        path = str(Path(self.folder.name) / "steps.db")
        opened: list[Any] = [open_store(path, durability="normal") for _ in range(2)]
        self.files: list[SessionStepStore] = opened
        memory: Any = SqliteStepStore(":memory:")
        self.memory: SessionStepStore = memory
        self.patch.setattr(step_index, "_WORTH_CACHING", 1)
        self.followers = [Follower(store, Path(f"{path}.index")) for store in self.files]
        self.followers.append(Follower(self.memory))
        self.said = 0

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            for store in (*self.files, self.memory):
                store.close()
            self.folder.cleanup()
            self.patch.undo()

    def within(self, store: SessionStepStore, session: str, after: int) -> int:
        return min(after, store.session_end(session).sequence)

    def writers(self, turn: bool) -> list[SessionStepStore]:
        return [self.files[turn], self.memory]

    @rule(turn=st.booleans(), steps=st.lists(STEPS, max_size=4, unique_by=lambda s: s["id"]))
    def write(self, turn: bool, steps: list[dict[str, Any]]) -> None:
        for store in self.writers(turn):
            store.append([step(**values) for values in steps], replace=True)

    @rule(turn=st.booleans(), ids=st.sets(st.sampled_from(IDS), max_size=3))
    def delete(self, turn: bool, ids: set[str]) -> None:
        for store in self.writers(turn):
            store.delete(sorted(ids))

    @rule(turn=st.booleans(), run_id=FEW, score=st.floats(0, 1))
    def score(self, turn: bool, run_id: str, score: float) -> None:
        for store in self.writers(turn):
            if store.rows(StepFilter(run_id=run_id, scope="*")).size:
                store.score_run(run_id, score, None)

    @rule(turn=st.booleans(), ids=st.sets(st.sampled_from(IDS), max_size=3), score=st.floats(0, 1))
    def score_steps(self, turn: bool, ids: set[str], score: float) -> None:
        for store in self.writers(turn):
            there = {str(found.id) for found in store.find(StepFilter(scope="*"), limit=99)}
            store.score_steps(dict.fromkeys(ids & there, score))

    @rule(turn=st.booleans(), session=SESSIONS, values=STEPS)
    def talk(self, turn: bool, session: str, values: dict[str, Any]) -> None:
        self.said += 1
        for store in self.writers(turn):
            keys = {name: values[name] for name in ("run_id", "created_at")}
            keys["metadata"] = {  # a message holds no longer integer
                key: 2**63 if value == 2**64 else value
                for key, value in (values["metadata"] or {}).items()
            }
            said = [message("x", id=f"m{self.said}", **keys), message("y", id=f"n{self.said}")]
            made = step(**{**values, "id": f"said-{self.said}", "session_id": session})
            store.commit(session, said, [made])

    @rule(turn=st.booleans(), session=SESSIONS, after=st.integers(0, 2), how=st.integers(0, 3))
    def branch(self, turn: bool, session: str, after: int, how: int) -> None:
        for store in self.writers(turn):
            if session not in {known.session_id for known in store.sessions(limit=99)}:
                continue
            if how == 0:
                store.hide_from(session, after + 1)
            elif how == 1:
                store.delete_session(session)
            elif how == 2:
                store.adopt(session, store.branch_at(session, self.within(store, session, after)))
            else:
                store.vacuum()

    @rule(turn=st.booleans(), session=SESSIONS, after=st.integers(0, 2))
    def fork(self, turn: bool, session: str, after: int) -> None:
        self.said += 1
        for store in self.writers(turn):
            if session in {known.session_id for known in store.sessions(limit=99)}:
                store.fork(session, self.within(store, session, after), f"fork-{self.said}")

    @rule(turn=st.booleans(), user_id=FEW, undo=st.booleans())
    def revoke(self, turn: bool, user_id: str, undo: bool) -> None:
        for store in self.writers(turn):
            done = store.revoke(StepFilter(user_id=user_id, scope="*"), None)
            if undo and done.id is not None:
                store.reinstate(store.revocations()[0].id or "")

    @rule(turn=st.booleans(), clear=st.booleans())
    def begin_anew(self, turn: bool, clear: bool) -> None:
        for store in self.writers(turn):
            if clear:
                store.clear()
            else:
                store.set_embedder(f"model-{self.said}", 3)

    @rule(which=st.integers(0, 2), read_first=st.booleans())
    def begin_again(self, which: int, read_first: bool) -> None:
        """Both processes with a file save to the same place; now one ends, and another begins."""
        follower = self.followers[which]
        if read_first:
            follower.agrees(StepFilter())
        follower.index.save()
        follower.begin()

    @rule(where=st.sampled_from(OFTEN) | FILTERS, which=st.sets(st.integers(0, 2), min_size=1))
    def ask(self, where: dict[str, Any], which: set[int]) -> None:
        for number in which:
            for asked in (where, *OFTEN):
                self.followers[number].agrees(StepFilter.of(asked))


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=60,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@settings(max_examples=40, deadline=None)
@given(st.lists(STEPS, max_size=30), st.lists(FILTERS, max_size=5))
def test_any_filter_on_any_steps(steps: list[dict[str, Any]], wheres: list[dict[str, Any]]) -> None:
    follower = Follower(store := SqliteStepStore(":memory:"))
    store.append([step(**{**values, "id": f"id-{n}"}) for n, values in enumerate(steps)])
    for where in wheres:
        follower.agrees(StepFilter.of(where))


def test_filters_asked_in_turn_are_remembered_until_rows_come_or_go() -> None:
    users = [StepFilter(user_id=f"u{number}") for number in range(200)]
    with closing(open_store(":memory:")) as store:
        rows = store.append([step(id=f"{n}", user_id=f"u{n % 200}") for n in range(2_000)])
        columns = filter_columns.FilterColumns(store)
        columns.follow(np.array(rows), np.empty(0, np.int64))
        few = users[: key_columns.ANSWERS_KEPT]
        before = [columns.rows(where) for where in few]
        assert all(columns.rows(where) is found for where, found in zip(few, before, strict=True))
        assert [columns.rows(where).tolist() for where in users] == [
            rows[number::200] for number in range(200)
        ]
        assert columns.rows(users[0]) is not before[0]
        columns.follow(np.empty(0, np.int64), np.array(rows[1:2]))
        assert columns.rows(users[1]).tolist() == rows[201::200]


def test_a_key_first_asked_for_after_a_filter_of_none() -> None:
    follower = Follower(store := SqliteStepStore(":memory:"))
    store.append([made(1, scope="compile:1"), made(2)])
    assert len(follower.agrees(StepFilter(scope="*"))) == 2
    assert len(follower.agrees(StepFilter(scope="compile:1"))) == 1


def made(number: int, **values: Any) -> AgentStep:
    inputs = {"purpose": f"refund ticket {number}", "tool": "refund"}
    return step(id=f"s{number}", inputs=inputs, **values)


def found(memory: StepMemory, **where: Any) -> set[str]:
    return {str(hit.step.id) for hit in memory.search("refund ticket", k=50, where=where)}


@pytest.fixture(params=["file", "memory"])
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StepMemory]:
    address = ":memory:" if request.param == "memory" else tmp_path / "steps.db"
    with StepMemory(address, embedder="hashing") as opened:
        yield opened


def test_a_search_finds_what_was_added_replaced_and_deleted_since_the_last(
    memory: StepMemory,
) -> None:
    memory.add([made(n, user_id=f"u{n % 2}") for n in range(4)])
    assert found(memory, user_id="u1") == {"s1", "s3"}
    memory.add(made(4, user_id="u1"))
    memory.update(made(3, user_id="u0"))
    memory.delete(["s1"])
    assert found(memory, user_id="u1") == {"s4"}
    assert found(memory, user_id="u0") == {"s0", "s2", "s3"}
    memory.clear()
    assert found(memory, user_id="u1") == set()
    memory.add(made(5, user_id="u1", status="error"))
    assert found(memory, user_id="u1", status="error") == {"s5"}


def test_a_search_with_a_filter_finds_what_another_process_wrote(tmp_path: Path) -> None:
    path = tmp_path / "steps.db"
    script = """
import sys
from hybridagi_steps import AgentStep, StepMemory
from hybridagi_steps.stores.waiting import Patience
with StepMemory(sys.argv[1], embedder="hashing") as memory:
    memory.add(AgentStep(id="s9", step_type="Action", user_id="u1",
                         inputs={"purpose": "refund ticket 9"}))
    memory.delete(["s1"])
"""
    with StepMemory(path, embedder="hashing") as memory:
        memory.add([made(1, user_id="u1"), made(2, user_id="u1"), made(3, user_id="u2")])
        assert found(memory, user_id="u1") == {"s1", "s2"}
        subprocess.run([sys.executable, "-c", script, str(path)], check=True)
        assert found(memory, user_id="u1") == {"s2", "s9"}


def test_a_read_that_fails_leaves_nothing_half_read() -> None:
    class Failing(SqliteStepStore):
        pages_left = 99

        def step_keys(
            self, names: Any, *, after: int, limit: int
        ) -> tuple[Rows, dict[StepKey, list[str | None]]]:
            self.pages_left -= 1
            if self.pages_left < 0:
                raise StorageError("the disk is gone")
            return super().step_keys(names, after=after, limit=limit)

    store = Failing(":memory:")
    follower = Follower(store)
    store.append([made(n, user_id=f"u{n % 2}", status="ok") for n in range(9)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(held_columns, "PAGE", 2)
        for where in ({"user_id": "u1"}, {"status": "ok"}, {"user_id": "u1", "status": "ok"}):
            store.pages_left = 2
            with pytest.raises(StorageError):
                follower.agrees(StepFilter.of(where))
            store.pages_left = 99
            assert len(follower.agrees(StepFilter.of(where)))


def test_keys_and_answers_take_at_most_72_bytes_per_step() -> None:
    store = SqliteStepStore(":memory:")
    store.append([made(n, user_id=f"u{n % 50}", run_id=f"r{n // 20}") for n in range(5_000)])
    columns = filter_columns.FilterColumns(store)
    where = {"tools": "refund", "status": "ok", "step_types": "Action", "since": "2000-01-01"}
    columns.rows(StepFilter.of({**where, "program": "none"}))
    asked = [StepFilter.of({**where, "user_id": f"u{number}"}) for number in range(50)]
    expected = [store.rows(each).tolist() for each in asked]  # what a connection keeps is no key
    tracemalloc.start()
    columns = filter_columns.FilterColumns(store)
    for each, rows in zip(asked, expected, strict=True):
        assert columns.rows(each).tolist() == rows != []
    columns.rows(StepFilter.of({**where, "program": "none"}))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held <= 72 * 5_000  # twelve of them are the rows of filters that are remembered


def talk(memory: StepMemory, session: str, run: str) -> None:
    said = [
        {"role": role, "content": f"{role}: refund ticket of {run}", "run_id": run}
        for role in ("user", "assistant")
    ]
    asyncio.run(memory.repository().append(session, said))


def test_whose_messages_are_is_looked_up_in_new_steps_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A filter by user after an addition must not walk through all steps again."""
    looked_at: list[int] = []
    unique = np.unique

    def counted(values: Any, *args: Any, **named: Any) -> Any:
        looked_at.append(len(values))
        return unique(values, *args, **named)

    with StepMemory(":memory:", embedder="hashing") as memory:
        memory.add([made(n, user_id=f"u{n % 2}", run_id=f"r{n}") for n in range(600)])
        for n in range(4):
            talk(memory, f"s{n}", f"r{n}")
        asked = {"user_id": "u1", "kinds": "message"}
        assert len(memory.search("refund", 9, where=asked)) == 2
        memory.add(made(1_000, user_id="u1", run_id="later"))
        talk(memory, "s9", "later")
        monkeypatch.setattr(filter_columns.np, "unique", counted)
        assert len(memory.search("refund", 9, where=asked)) == 3
        assert max(looked_at, default=0) < 100
        memory.add(made(1_001, user_id="u2", run_id="later"))
        assert len(memory.search("refund", 9, where=asked)) == 2


def test_of_a_memory_without_messages_no_key_is_read_that_tells_whose_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[StepKey] = []
    step_keys = SqliteStepStore.step_keys

    def noted(store: SqliteStepStore, names: Sequence[StepKey], **asked: Any) -> Any:
        read.extend(names)
        return step_keys(store, names, **asked)

    monkeypatch.setattr(SqliteStepStore, "step_keys", noted)
    with StepMemory(":memory:", embedder="hashing") as memory:
        memory.add([made(n, user_id=f"u{n % 2}", run_id=f"r{n}") for n in range(9)])
        assert len(memory.search("refund", 9, where={"user_id": "u1"})) == 4
    assert {*read} == {"user_id", "scope"}


def test_what_is_kept_of_values_outlives_a_delete(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step fewer makes no list of places anew, until a tenth is gone."""
    store = SqliteStepStore(":memory:")
    store.append([made(n, user_id=f"u{n % 10}") for n in range(1_000)])
    columns = filter_columns.FilterColumns(store)
    columns.follow(store.rows(StepFilter())[-1:], np.empty(0, np.int64))
    asked = StepFilter(user_id="u3")
    rows = columns.rows(asked)
    scanned: list[int] = []
    flatnonzero = np.flatnonzero

    def counted(values: Any) -> Any:
        scanned.append(len(values))
        return flatnonzero(values)

    monkeypatch.setattr(filter_columns.np, "flatnonzero", counted)
    for row in rows[:50].tolist():
        columns.follow(rows[:0], np.array([row]))
        assert row not in columns.rows(asked)
    assert scanned == []
    columns.follow(rows[:0], rows[50:60])
    columns.follow(rows[:0], columns.rows(StepFilter(user_id="u4")))
    assert columns.rows(asked).tolist() == rows[60:].tolist()
    assert scanned
    assert len(columns.rows(StepFilter(user_id="u4"))) == 0
