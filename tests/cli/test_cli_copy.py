"""`hybridagi-steps copy`: what it says, and one plain line for whatever cannot be copied."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest
from copied_memories import everything, fill, some_steps

from hybridagi_steps import StepMemory
from hybridagi_steps.cli import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command line in a folder with a filled memory, a.db."""
    monkeypatch.chdir(tmp_path)
    with StepMemory("a.db", embedder="hashing") as memory:
        fill(memory, 20)

    def running(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        said = capsys.readouterr()
        return code, said.out, said.err

    return running


def test_a_file_is_copied_to_a_server_and_back(run: Run, postgres_address: str) -> None:
    code, out, err = run("copy", "a.db", postgres_address)
    assert (code, err) == (0, "")
    assert "sessions of a.db are in postgresql://" in out
    assert "counts and sums are equal" in out
    code, out, _ = run("copy", postgres_address, "b.db", "--json")
    report = json.loads(out)
    with StepMemory("a.db") as memory, StepMemory("b.db") as copy:
        assert everything(copy) == everything(memory)
        assert (code, report["steps"]) == (0, memory.stats()["steps"])
    assert report["as_of"].startswith("20")
    assert run("verify", "--db", "b.db")[0] == 0


def test_other_namespaces_are_named(run: Run) -> None:
    with StepMemory("a.db", namespace="other") as memory:
        memory.add(some_steps("other", 1))
    assert run("copy", "a.db", "b.db")[2] == "other namespaces there, not copied: other\n"
    assert run("copy", "a.db", "b.db", "--namespace", "other")[0] == 0


def test_bad_input_is_one_line(run: Run, tmp_path: Path, postgres_address: str) -> None:
    (tmp_path / "text.db").write_text("no memory at all, but long enough to be read as a page")
    (tmp_path / "empty.db").touch()
    with StepMemory("older.db") as memory:
        memory.add(some_steps("older", 1))
    with closing(sqlite3.connect("older.db")) as file, file:
        file.execute("PRAGMA user_version = 8")
    with StepMemory("other.db", embedder="hashing") as memory:
        memory.add(some_steps("other", 1))
    before = Path("older.db").read_bytes()
    for source, target, said in (
        ("nowhere.db", "b.db", "no memory file nowhere.db"),
        ("text.db", "b.db", "text.db"),
        ("empty.db", "b.db", "empty.db holds no step memory"),
        ("older.db", "b.db", "older.db has schema version 8"),
        (postgres_address, "b.db", "holds no step memory"),
        ("postgresql://127.0.0.1:1/none", "b.db", "cannot be reached"),
        ("a.db", "a.db", "are the same memory"),
        ("a.db", str(tmp_path / "." / "a.db"), "are the same memory"),
        ("a.db", "other.db", "holds something"),
        ("a.db", "text.db", "text.db"),
        ("a.db", ":memory:", "gone at once"),
        ("a.db", "no folder/b.db", "no folder"),
        ("a.db", "postgresql://127.0.0.1:1/none", "cannot be reached"),
        ("a.db", "mysql://there", "no store serves"),
    ):
        code, out, err = run("copy", source, target)
        assert (code, out, err.count("\n")) == (2, "", 1), (source, target, err)
        assert said in err
        assert not Path("b.db").exists(), source
    code, _, err = run("copy", "a.db", "b.db", "--namespace", "typo")
    assert (code, "no namespace 'typo'; it has 'default'." in err) == (2, True)
    assert Path("older.db").read_bytes() == before


def test_a_target_without_rights_is_one_line(run: Run, postgres_address: str) -> None:
    import psycopg

    name = f"reader_{uuid4().hex[:8]}"
    with psycopg.connect(postgres_address, autocommit=True) as server:
        server.execute(f"CREATE ROLE {name} LOGIN".encode())
        try:
            theirs = postgres_address.replace("postgres:@", f"{name}:@")
            code, out, err = run("copy", "a.db", theirs)
            assert (code, out, err.count("\n")) == (2, "", 1)
            assert "refuses this role" in err
            assert run("copy", "a.db", postgres_address)[0] == 0
            server.execute(f"GRANT USAGE ON SCHEMA hybridagi_steps TO {name}".encode())
            rights = f"GRANT SELECT ON ALL TABLES IN SCHEMA hybridagi_steps TO {name}"
            server.execute(rights.encode())
            code, out, err = run("copy", "a.db", theirs)
            assert (code, out, err.count("\n")) == (2, "", 1), err
            assert "refuses this role" in err
        finally:
            server.execute(f"DROP OWNED BY {name}".encode())
            server.execute(f"DROP ROLE {name}".encode())
