"""Both stores keep one contract, resolve from an address, and are followed without a gap."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conformance import filter_oracle
from conformance.samples import EVERYTHING, ids, step
from conformance.step_store import WholeContract
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hybridagi_steps.stores as stores
from hybridagi_steps.errors import (
    InvalidSettingError,
    MemoryNotPicklableError,
    StorageError,
    UnsupportedAddressError,
)
from hybridagi_steps.protocols import StepStore
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.records.store_values import Position, TextRow, VectorRow
from hybridagi_steps.stores.sqlite import SqliteStepStore

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.none() | st.dictionaries(st.text(), JSON, max_size=4)
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=40)
IDS = st.uuids() | st.uuids().map(str) | NAMES
STEPS = st.builds(
    AgentStep,
    id=IDS,
    parent_id=st.none() | IDS,
    hop=st.integers(0, 2**31),
    step_type=st.sampled_from(["Action", "Decision", "ProgramCall", "ProgramEnd"]),
    inputs=OBJECTS,
    outputs=OBJECTS,
    metadata=OBJECTS,
    # At either end of the calendar some zones have no UTC.
    created_at=st.datetimes(timezones=st.none() | st.timezones()).filter(
        lambda moment: 1 < moment.year < 9999
    ),
    run_id=st.none() | NAMES,
    score=st.none() | st.floats(allow_nan=False, allow_infinity=False),
)
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["append", "replace", "delete", "texts", "vectors", "clear", "embedder"]),
        st.integers(0, 5),
        st.booleans(),
    ),
    max_size=25,
)
SLOW_OK = settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


class TestInMemory(WholeContract):
    @pytest.fixture
    def store(self) -> Iterator[StepStore]:
        store = SqliteStepStore(":memory:")
        yield store
        store.close()

    @pytest.fixture
    def other(self) -> Iterator[StepStore]:
        store = SqliteStepStore(":memory:", namespace="other")
        yield store
        store.close()


class TestSqliteStepStore(WholeContract):
    one_file = True

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[StepStore]:
        store = SqliteStepStore(tmp_path / "steps.db", durability="normal")
        yield store
        store.close()

    @pytest.fixture
    def other(self, tmp_path: Path) -> Iterator[StepStore]:
        store = SqliteStepStore(tmp_path / "steps.db", namespace="other", durability="normal")
        yield store
        store.close()


class TestSqliteStepStoreWithKeysWritten(TestSqliteStepStore):
    """The same contract when no step is left in the tail: filters then read `step_key`."""

    @pytest.fixture(autouse=True)
    def keys_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("hybridagi_steps.stores.sqlite.steps._LONGEST_TAIL", 0)


class TestPostgresStepStore(WholeContract):
    one_file = True

    @pytest.fixture
    def store(self, postgres_address: str) -> Iterator[StepStore]:
        store = stores.open_store(postgres_address, durability="normal")
        yield store
        store.close()

    @pytest.fixture
    def other(self, postgres_address: str) -> Iterator[StepStore]:
        store = stores.open_store(postgres_address, namespace="other", durability="normal")
        yield store
        store.close()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def new_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], StepStore]]:
    """Makes empty stores, as many as a property test wants."""
    made: list[StepStore] = []
    addresses = {"memory": ":memory:", "sqlite": str(tmp_path / "steps.db")}
    if request.param == "postgres":
        addresses["postgres"] = request.getfixturevalue("postgres_address")

    def make() -> StepStore:
        address = addresses[request.param]
        namespace = str(len(made))
        made.append(stores.open_store(address, namespace=namespace, durability="normal"))
        return made[-1]

    yield make
    for store in made:
        store.close()


@SLOW_OK
@given(given_step=STEPS)
def test_any_step_comes_back_equal(
    new_store: Callable[[], StepStore], given_step: AgentStep
) -> None:
    store = new_store()
    store.append([given_step])
    [found] = store.get([str(given_step.id)])
    assert found == given_step
    assert found.model_dump() == given_step.model_dump()
    assert list(store.iter_steps(EVERYTHING)) == [given_step]
    store.close()


class Follower:
    """Follows a store as an index does."""

    def __init__(self) -> None:
        self.position = Position(0, 0, 0, 0, 0)
        self.texts: dict[int, TextRow] = {}
        self.vectors: dict[int, tuple[float, ...] | None] = {}

    def follow(self, store: StepStore, limit: int) -> None:
        while store.frontier().position != self.position:
            changes = store.changes(self.position, limit=limit)
            if changes.position.epoch != self.position.epoch:
                self.texts.clear()
                self.vectors.clear()
            self.texts.update((row.row, row) for row in changes.texts)
            self.vectors.update((row.row, _floats(row)) for row in changes.vectors)
            for row in changes.removed:
                self.texts.pop(row, None)
                self.vectors.pop(row, None)
            self.position = changes.position


def _floats(row: VectorRow) -> tuple[float, ...] | None:
    return None if row.vector is None else tuple(row.vector.tolist())


def _change(store: StepStore, kind: str, number: int, first: bool) -> None:
    name = str(number)
    if kind in {"append", "replace"} and (kind == "replace" or not store.get([name])):
        parent = str(number + 1) if first else None
        vector = [float(number)] if number % 2 else None
        new = step(id=name, parent_id=parent, run_id="r", hop=number, vector=vector)
        store.append([new], replace=kind == "replace")
    elif kind == "delete":
        store.delete([name])
    elif kind == "texts":
        pending = store.pending_texts(number + 1)
        words = [
            TextRow(p.row, p.parent_row, f"{p.row} {p.parent_row}", 1, 2, False) for p in pending
        ]
        store.save_derived(words, [])
    elif kind == "vectors":
        rows = [row for row, _ in store.pending_vectors(number + 1)]
        blank = None if first else np.array([number], np.float32)
        store.save_derived([], [VectorRow(row, 1, blank, False) for row in rows])
    elif kind == "clear" and number == 0:
        store.clear()
    elif kind == "embedder" and number == 0:
        store.set_embedder(f"model {first}", 1)


@SLOW_OK
@given(changes=CHANGES, limit=st.integers(1, 3))
def test_whoever_follows_ends_where_a_new_reader_begins(
    new_store: Callable[[], StepStore], changes: list[tuple[str, int, bool]], limit: int
) -> None:
    store, faithful = new_store(), Follower()
    for change in changes:
        _change(store, *change)
        faithful.follow(store, limit)
    late = Follower()
    late.follow(store, 100)
    assert (faithful.texts, faithful.vectors) == (late.texts, late.vectors)
    living = set(store.rows(EVERYTHING).tolist())
    assert faithful.texts.keys() | faithful.vectors.keys() <= living
    assert store.verify() == []
    store.close()


@SLOW_OK
@given(
    steps=st.lists(filter_oracle.STEPS, max_size=20),
    wheres=st.lists(filter_oracle.FILTERS, min_size=1, max_size=5),
    scores=st.dictionaries(filter_oracle.FEW, st.floats(0, 1), max_size=2),
    revoke=st.none() | filter_oracle.FILTERS,
)
def test_any_filter_finds_what_plain_python_finds(
    new_store: Callable[[], StepStore],
    steps: list[dict[str, Any]],
    wheres: list[dict[str, Any]],
    scores: dict[str, float],
    revoke: dict[str, Any] | None,
) -> None:
    store = new_store()
    stored = [step(**{**values, "id": f"id-{n}"}) for n, values in enumerate(steps)]
    store.append(stored)
    runs = {found.run_id for found in stored}
    scores = {run_id: score for run_id, score in scores.items() if run_id in runs}
    for run_id, score in scores.items():
        store.score_run(run_id, score, None)
    revoked: list[str] = []
    if revoke is not None:
        revoked = store.revoke(StepFilter.of(revoke), None).step_ids
    for asked in wheres:
        where = StepFilter.of(asked)
        expected = filter_oracle.matching(stored, where, run_scores=scores, revoked=revoked)
        assert ids(list(store.iter_steps(where))) == expected
    store.close()


def test_a_fork_can_go_on_with_both_stores(new_store: Callable[[], StepStore]) -> None:
    store = new_store()
    store.append([step(id="before")])
    child = os.fork()
    if child == 0:
        failed = 1
        try:
            store.append([step(id="child")])
            failed = int(ids(store.find(EVERYTHING, limit=9)) != ["before", "child"])
        finally:
            os._exit(failed)
    assert os.waitpid(child, 0)[1] == 0
    store.append([step(id="parent")])
    assert ids(store.get(["before", "parent"])) == ["before", "parent"]
    assert store.verify() == []


def test_an_address_finds_its_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    memory = stores.open_store(":memory:")
    memory.append([step()])
    assert memory.stats()["backend"] == "in_memory"
    assert list(tmp_path.iterdir()) == []
    file = stores.open_store("odd name #?%20.db", namespace="n", durability="normal")
    assert isinstance(file, SqliteStepStore)
    assert (tmp_path / "odd name #?%20.db").exists()
    file.close()


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("redis://host", "redis://"),
        ("file:///tmp/x.db", "path itself"),
    ],
)
def test_an_address_nobody_serves(address: str, words: str) -> None:
    with pytest.raises(UnsupportedAddressError, match=words):
        stores.open_store(address)


@pytest.mark.parametrize("address", ["", "a\x00.db", "\ud800.db", None, 7, b"steps.db"])
def test_what_is_no_address(address: Any) -> None:
    with pytest.raises(UnsupportedAddressError, match="address"):
        stores.open_store(address)


def test_a_path_is_an_address(tmp_path: Path) -> None:
    assert stores.address_text(tmp_path / "s.db") == str(tmp_path / "s.db")
    assert stores.address_text(":memory:") == ":memory:"


@pytest.mark.parametrize("name", ["x" * 300 + ".db", "x" * 252 + ".db", "x" * 300 + "/s.db"])
def test_a_name_too_long_for_the_system(tmp_path: Path, name: str) -> None:
    with pytest.raises(StorageError):
        stores.open_store(str(tmp_path / name))


@pytest.mark.parametrize("address", [":memory:", "s.db"])
@pytest.mark.parametrize(
    ("option", "value"),
    [
        *[("namespace", value) for value in (None, 5, "", "\ud800", "a\x00", "n" * 129)],
        *[("durability", value) for value in ("x", None, "FULL", 1)],
    ],
)
def test_options_are_checked_alike_on_every_back_end(
    tmp_path: Path, address: str, option: str, value: Any
) -> None:
    at: Any = address if address == ":memory:" else str(tmp_path / address)
    with pytest.raises(InvalidSettingError, match=option):
        stores.open_store(at, **{option: value})
    assert list(tmp_path.iterdir()) == []


def test_another_package_may_bring_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = EntryPoint(
        "ram", "hybridagi_steps.stores.sqlite:SqliteStepStore", stores.ENTRY_POINT_GROUP
    )

    def found(*, group: str, name: str) -> list[EntryPoint]:
        return [plugin] if (group, name) == (plugin.group, plugin.name) else []

    monkeypatch.setattr(stores, "entry_points", found)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ram:").mkdir()
    assert isinstance(stores.open_store("ram://anything"), SqliteStepStore)


def test_an_in_memory_store_cannot_be_pickled() -> None:
    with pytest.raises(MemoryNotPicklableError):
        pickle.dumps(SqliteStepStore(":memory:"))
