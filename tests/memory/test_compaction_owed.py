"""A purge that finds nothing rewrites nothing, unless what was deleted is still in a file."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from conformance.samples import message as sample_message
from store_files import made_old

from hybridagi_steps import AgentStep, AgentStepType, StepMemory
from hybridagi_steps.erasure import erase as erase_rows
from hybridagi_steps.errors import DuplicateStepError
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.stores.sqlite.database import Database

CANARY = "qzx9917"
NOTHING = {"run_id": "nothing-has-this"}


def said(**fields: Any) -> AgentStep:
    words = {"purpose": "find the booking", "tool": "find"}
    outputs = {"result": f"passport {CANARY}"}
    return AgentStep(step_type=AgentStepType.Action, inputs=words, outputs=outputs, **fields)


def told(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir() if CANARY.encode() in file.read_bytes().lower()]


def index_of(path: Path) -> Path:
    (cache,) = (file for file in path.parent.glob("*.index") if ".keys." not in file.name)
    return cache


@pytest.fixture
def rewritten(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Whatever was rewritten, in order."""
    done: list[str] = []
    compact = Database.compact

    def counted(database: Database, afterwards: str) -> None:
        done.append(database.path.name)
        compact(database, afterwards)

    monkeypatch.setattr(Database, "compact", counted)
    return done


def store_of(memory: StepMemory) -> Any:
    return memory._store  # pyright: ignore[reportPrivateUsage]


def owed(memory: StepMemory) -> bool:
    return store_of(memory).compaction_owed()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A memory of enough steps for an index, with a canary, of which nothing was deleted."""
    path = tmp_path / "s.db"
    with StepMemory(path, embedder="hashing") as memory:
        memory.add(AgentStep(step_type=AgentStepType.Action, inputs={"n": n}) for n in range(2_100))
        memory.add(said(id="first", run_id="r", session_id="s"))
        memory.flush()
    return path


def test_a_purge_of_nothing_rewrites_neither_file_nor_index(
    path: Path, rewritten: list[str]
) -> None:
    cache = index_of(path)
    before = cache.stat().st_ino, cache.stat().st_mtime_ns
    with StepMemory(path) as memory:
        memory.add(said(id="later"))
        for where in (NOTHING, {"user_id": "nobody"}, {"session_id": "none"}, {"tools": "none"}):
            assert memory.purge(where) == 0
        assert rewritten == []
        assert memory.purge({"run_id": "r"}) == 1
        assert rewritten == ["s.db"]
        assert memory.purge(NOTHING) == 0
        assert rewritten == ["s.db"]
        memory.delete("later")
    assert not cache.exists() or (cache.stat().st_ino, cache.stat().st_mtime_ns) != before


def test_a_purge_of_nothing_erases_what_was_rolled_back(path: Path, rewritten: list[str]) -> None:
    """Of a batch that was refused as a whole pages may stand in the log, longer than its cache."""
    refused = [said(id=f"x{n}", metadata={"note": "n" * 3_000}) for n in range(2_000)]
    with StepMemory(path) as memory:
        memory.purge({"run_id": "r"})
        memory.add(AgentStep(id="kept", step_type=AgentStepType.Action))
        with pytest.raises(DuplicateStepError):
            memory.add([*refused, said(id="kept")])
        assert told(path.parent) == ["s.db-wal"]
        memory.purge(NOTHING)
        assert told(path.parent) == []
        assert rewritten == ["s.db"]


def feedback(memory: StepMemory) -> None:
    memory.score("r", 0.5, f"good, {CANARY}")
    memory.score("r", 0.5, "good")


def session(memory: StepMemory) -> None:
    store_of(memory).commit("talk", [sample_message(CANARY)])
    store_of(memory).delete_session("talk")


DELETING: dict[str, Callable[[StepMemory], Any]] = {
    "delete": lambda memory: memory.delete("first"),
    "forget": lambda memory: memory.forget({"run_id": "r"}),
    "update": lambda memory: memory.update(said(id="first").model_copy(update={"outputs": {}})),
    "feedback": feedback,
    "session": session,
    "revocation": lambda memory: (
        memory.revoke({"run_id": "r"}, reason=CANARY),
        memory.delete("first"),
    ),
}


@pytest.mark.parametrize("name", DELETING)
def test_whatever_deletes_has_the_next_purge_rewrite_the_file(
    path: Path, rewritten: list[str], name: str
) -> None:
    with StepMemory(path) as memory:
        assert not owed(memory)
        DELETING[name](memory)
        assert owed(memory)
    with StepMemory(path) as memory:
        memory.purge(NOTHING)
        assert rewritten == ["s.db"]
        assert not owed(memory)
        if name in ("delete", "forget", "update"):
            assert told(path.parent) == []


@pytest.mark.parametrize("when", ["erased", "compacting", "compacted"])
def test_a_purge_that_was_killed_is_finished_by_one_that_finds_nothing(
    path: Path, when: str
) -> None:
    assert told(path.parent)
    child = os.fork()
    if not child:
        memory = StepMemory(path)
        if when == "erased":
            erase_rows(store_of(memory), StepFilter(run_id="r"), "default", str(path), None)
            os.kill(os.getpid(), signal.SIGKILL)
        compact = Database.compact

        def killed(self: Database, afterwards: str) -> None:
            if when == "compacting":
                os.kill(os.getpid(), signal.SIGKILL)
            compact(self, afterwards)
            os.kill(os.getpid(), signal.SIGKILL)

        Database.compact = killed
        memory.purge({"run_id": "r"})
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    with StepMemory(path) as memory:
        assert memory.purge(NOTHING) == 0
        assert told(path.parent) == []
    assert told(path.parent) == []


def test_a_cache_that_a_killed_writer_left_is_erased_by_a_purge_of_nothing(path: Path) -> None:
    cache = index_of(path)
    old = cache.read_bytes()
    with StepMemory(path) as memory:
        memory.purge({"run_id": "r"})
    for file in (cache, cache.with_name(f".{cache.name}.x.tmp")):
        with StepMemory(path) as memory:
            file.write_bytes(old)
            assert told(path.parent) == [file.name]
            assert memory.purge(NOTHING) == 0
            assert told(path.parent) == []


def test_a_file_of_before_counts_as_one_of_which_something_was_deleted(
    path: Path, rewritten: list[str]
) -> None:
    made_old(path, 12)
    with StepMemory(path) as memory:
        assert owed(memory)
        memory.purge(NOTHING)
        assert not owed(memory)
        memory.purge(NOTHING)
    assert rewritten == ["s.db"]


def test_who_cannot_rewrite_the_file_leaves_it_owed(path: Path) -> None:
    with StepMemory(path, timeout_seconds=0.1) as memory:
        with closing(sqlite3.connect(path)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM agent_step").fetchone()
            assert memory.purge({"run_id": "r"}).unreached == (str(path),)
            assert owed(memory)
        assert memory.purge(NOTHING).unreached == ()
        assert not owed(memory)
    assert told(path.parent) == []


# -- PostgreSQL: one note for all namespaces of a database


def sql(address: str, *statements: str) -> list[Any]:
    """Run statements, each by itself; return the rows of the last."""
    psycopg: Any = import_module("psycopg")
    rows: list[Any] = []
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("SET search_path TO hybridagi_steps")
        for statement in statements:
            cursor = connection.execute(statement)
            rows = cursor.fetchall() if cursor.description else []
    return rows


@pytest.fixture
def rewriting(postgres_address: str, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], Any]]:
    """Whatever rewrites tables takes one of these, and calls it when it is done with them."""
    module = import_module("hybridagi_steps.stores.postgres.store")
    rewrite, calls = module.rewrite, list[Callable[[], Any]]()

    def counted(*args: Any, **options: Any) -> None:
        afterwards = calls.pop()  # IndexError: nobody expects it
        rewrite(*args, **options)
        afterwards()

    monkeypatch.setattr(module, "rewrite", counted)
    with StepMemory(postgres_address, embedder="hashing") as memory:
        assert not owed(memory)
        memory.add([said(id=f"{n}", run_id="other") for n in range(3)])
        memory.add(said(id="first", run_id="r", session_id="s"))
        memory.flush()
    return calls


def nothing() -> None:
    pass


def test_a_purge_of_nothing_rewrites_no_table(
    postgres_address: str, rewriting: list[Callable[[], Any]]
) -> None:
    with StepMemory(postgres_address) as memory:
        memory.add(said(id="later"))
        memory.score("other", 0.5, "good")
        for where in (NOTHING, {"user_id": "nobody"}, {"session_id": "none"}, {"tools": "none"}):
            assert memory.purge(where) == 0
        rewriting.append(nothing)
        assert memory.purge({"run_id": "r"}) == 1
        assert not owed(memory)
        assert memory.purge(NOTHING) == 0


@pytest.mark.parametrize("name", DELETING)
def test_whatever_deletes_has_the_next_purge_rewrite_the_tables(
    postgres_address: str, rewriting: list[Callable[[], Any]], name: str
) -> None:
    with StepMemory(postgres_address, namespace="beside", embedder="hashing") as other:
        with StepMemory(postgres_address) as memory:
            DELETING[name](memory)
            assert owed(memory)
        rewriting.append(nothing)
        other.purge(NOTHING)
        assert rewriting == []
        assert not owed(other)


def test_what_is_deleted_beside_a_rewriting_stays_owed(
    postgres_address: str, rewriting: list[Callable[[], Any]]
) -> None:
    """It may be in a table that was rewritten before."""
    with StepMemory(postgres_address) as memory, StepMemory(postgres_address) as other:
        rewriting.append(lambda: other.delete("0"))
        assert memory.purge({"run_id": "r"}) == 1
        assert owed(memory)
        rewriting.append(nothing)
        assert memory.purge(NOTHING) == 0
        assert not owed(memory)


def test_who_was_stopped_while_rewriting_leaves_it_owed(
    postgres_address: str, rewriting: list[Callable[[], Any]]
) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with StepMemory(postgres_address) as memory:
        rewriting.append(stop)
        with suppress(KeyboardInterrupt):
            memory.purge({"run_id": "r"})
        assert rewriting == []
        assert owed(memory)


def test_numbers_that_an_earlier_version_kept_go_and_owe_a_rewriting(path: Path) -> None:
    with closing(sqlite3.connect(path)) as file:
        file.execute(
            """CREATE TRIGGER owed_for_forgotten AFTER DELETE ON meta
            WHEN old.key LIKE 'learned:%' BEGIN
                UPDATE meta SET value = 1 WHERE key = 'compaction_owed' AND value = 0;
            END"""
        )
        file.execute("INSERT INTO meta VALUES ('learned:1:rank', '[1]')")
        file.execute("PRAGMA user_version = 13")
        file.commit()
    with StepMemory(path) as memory:
        assert owed(memory)
        assert memory.verify() == []
    with closing(sqlite3.connect(path)) as file:
        (count,) = file.execute("SELECT count(*) FROM meta WHERE value = '[1]'").fetchone()
        triggers = "SELECT count(*) FROM sqlite_master WHERE name = 'owed_for_forgotten'"
        assert (count, file.execute(triggers).fetchone()) == (0, (0,))


def test_numbers_that_an_earlier_version_kept_in_tables_go(postgres_address: str) -> None:
    with StepMemory(postgres_address, embedder="hashing"):
        pass
    sql(
        postgres_address,
        "INSERT INTO meta VALUES ('learned:1:rank', '[1]')",
        """CREATE TRIGGER owed_after_delete AFTER DELETE ON meta FOR EACH ROW
        WHEN (old.key LIKE 'learned:%') EXECUTE FUNCTION owe_compaction()""",
        "UPDATE meta SET value = '16' WHERE key = 'schema_version'",
    )
    with StepMemory(postgres_address) as memory:
        assert owed(memory)
    triggers = "SELECT FROM pg_trigger WHERE tgrelid = 'meta'::regclass AND NOT tgisinternal"
    assert sql(postgres_address, "SELECT FROM meta WHERE value = '[1]'") == []
    assert sql(postgres_address, triggers) == []


def test_tables_of_before_count_as_such_of_which_something_was_deleted(
    postgres_address: str, rewriting: list[Callable[[], Any]]
) -> None:
    sql(
        postgres_address,
        "DROP FUNCTION owe_compaction CASCADE",
        "DROP FUNCTION compaction_owed",
        "DELETE FROM meta WHERE key = 'rewritings'",
        "UPDATE meta SET value = '15' WHERE key = 'schema_version'",
    )
    rewriting.append(nothing)
    with StepMemory(postgres_address) as memory:
        assert owed(memory)
        memory.purge(NOTHING)
        assert not owed(memory)
        assert memory.delete("0") == 1
        assert owed(memory)
