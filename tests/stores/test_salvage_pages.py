"""`export --salvage` of files that SQLite does not open, or whose tables it does not find."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hybridagi_steps import StepMemory
from hybridagi_steps.cli.app import application
from hybridagi_steps.errors import StorageError
from hybridagi_steps.exchange import import_file, salvage_file
from hybridagi_steps.stores.sqlite import SqliteStepStore
from hybridagi_steps.testing.conformance.samples import EVERYTHING, message, step

PAGE_BYTES = 4096
STEPS = 200
LONG = "a long answer " * 2_000


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A memory of 200 steps, two of them on many pages, and two sessions of 40 messages."""
    path = tmp_path_factory.mktemp("salvage") / "steps.db"
    with closing(SqliteStepStore(path, durability="normal")) as store:
        store.append(
            [
                step(id=f"step-{n}", run_id=f"run-{n // 5}", outputs={"answer": f"answer {n}"})
                for n in range(STEPS)
            ]
        )
        store.append([step(id=f"long-{n}", outputs={"answer": f"{n} {LONG}"}) for n in range(2)])
        for name in ("a", "b"):
            said = [
                message(f"{name} says {n} at length {n:0300}", id=f"{name}{n}") for n in range(40)
            ]
            store.commit(name, said, [step(id=f"{name}.1")], after=[1])
        store.score_run("run-1", 0.5, "fine")
    return path


def roots(path: Path) -> dict[str, int]:
    with closing(sqlite3.connect(path)) as connection:
        return dict(connection.execute("SELECT name, rootpage FROM sqlite_master"))


def without_page(path: Path, number: int) -> None:
    with path.open("r+b") as file:
        file.seek((number - 1) * PAGE_BYTES)
        file.write(bytes(PAGE_BYTES))


def without_table(name: str) -> Callable[[Path], None]:
    return lambda path: without_page(path, roots(path)[name])


def without_first_page(path: Path) -> None:
    without_page(path, 1)


def without_definitions(path: Path) -> None:
    """Lose the pages below the first that hold the definitions of tables."""
    with path.open("rb") as file:
        head = file.read(PAGE_BYTES)
    for at in range(112, 112 + 2 * int.from_bytes(head[103:105]), 2):
        cell = int.from_bytes(head[at : at + 2])
        without_page(path, int.from_bytes(head[cell : cell + 4]))


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size - PAGE_BYTES)


def copied(source: Path, folder: Path) -> Path:
    path = folder / "damaged.db"
    shutil.copy(source, path)
    return path


def salvaged(
    path: Path, folder: Path, namespace: str = "default"
) -> tuple[list[str], SqliteStepStore]:
    """Export what is whole into a fresh memory; return what was named, and its store."""
    named: list[str] = []
    lines, target = folder / "whole.jsonl", folder / f"{namespace}-new.db"
    salvage_file(path, lines, damaged=named.append, namespace=namespace)
    with StepMemory(target) as memory:
        assert import_file(memory, lines).skipped == []
    return named, SqliteStepStore(target)


TABLES = ("sqlite_stat1", "agent_step", "message", "branch", "namespace", "meta", "session")


NO_SCORES = without_table("run")


@pytest.mark.parametrize(
    "damage",
    [
        *(pytest.param(without_table(name), id=name) for name in TABLES),
        NO_SCORES,
        pytest.param(without_table("sqlite_autoindex_namespace_1"), id="index"),
        without_first_page,
        without_definitions,
        cut_short,
    ],
)
def test_a_file_that_lost_a_page_is_salvaged_but_for_what_stood_there(
    source: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    path = copied(source, tmp_path)
    damage(path)
    named, store = salvaged(path, tmp_path)
    with closing(store):
        steps = {str(one.id): one for one in store.iter_steps(EVERYTHING)}
        sessions = {one.session_id: one.messages for one in store.sessions(limit=9)}
        scores = {run.run_id: run.score for run in store.runs(limit=99) if run.score is not None}
    if damage is cut_short:
        assert named
        assert len(steps) > STEPS / 2
    else:
        assert len(steps) == STEPS + 4
        assert steps["long-1"].outputs == {"answer": f"1 {LONG}"}
        assert sum(sessions.values()) == 80
        assert scores == ({} if damage is NO_SCORES else {"run-1": 0.5})


def test_what_was_deleted_is_not_salvaged(source: Path, tmp_path: Path) -> None:
    path = copied(source, tmp_path)
    with closing(SqliteStepStore(path, durability="normal")) as store:
        store.delete([f"step-{n}" for n in range(0, STEPS, 2)] + ["long-0"])
        store.delete([f"step-{n}" for n in range(101)])
    without_first_page(path)
    _, store = salvaged(path, tmp_path)
    with closing(store):
        kept = {str(one.id) for one in store.iter_steps(EVERYTHING)}
    assert kept == {f"step-{n}" for n in range(101, STEPS, 2)} | {"long-1", "a.1", "b.1"}


def test_commits_in_the_log_are_salvaged(source: Path, tmp_path: Path) -> None:
    path, live = tmp_path / "copy.db", copied(source, tmp_path)
    with closing(SqliteStepStore(live, durability="normal")) as store:
        store.append([step(id="late")])
        for end in ("", "-wal"):
            shutil.copy(f"{live}{end}", f"{path}{end}")
    without_first_page(path)
    _, store = salvaged(path, tmp_path)
    with closing(store):
        assert [str(one.id) for one in store.get(["late"])] == ["late"]


def test_namespaces_stay_apart_where_their_names_are_lost(tmp_path: Path) -> None:
    path = tmp_path / "steps.db"
    for name in ("ann", "ben"):
        with closing(SqliteStepStore(path, namespace=name)) as store:
            store.append([step(id=f"of {name}")])
    damage = roots(path)
    without_page(path, damage["namespace"])
    without_page(path, damage["sqlite_autoindex_namespace_1"])
    for asked, expected in (("ann", []), ("namespace-1", ["of ann"]), ("namespace-2", ["of ben"])):
        named: list[str] = []
        salvage_file(path, tmp_path / "whole.jsonl", damaged=named.append, namespace=asked)
        text = (tmp_path / "whole.jsonl").read_text()
        assert [name for name in ("of ann", "of ben") if name in text] == expected
        assert any("namespace-1, namespace-2" in line for line in named)


@pytest.mark.parametrize(
    "content", [b"notes, no database at all", b"SQLite format 3\0" + bytes(9000)]
)
def test_a_file_with_nothing_of_a_memory_says_so(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.db"
    path.write_bytes(content)
    with pytest.raises(StorageError, match=r"no page of .* holds a step") as caught:
        salvage_file(path, tmp_path / "whole.jsonl", damaged=print)
    assert "--salvage" not in str(caught.value)
    with pytest.raises(StorageError, match="there is no memory file"):
        salvage_file(tmp_path / "missing.db", tmp_path / "whole.jsonl", damaged=print)
    assert not (tmp_path / "missing.db").exists()


def test_the_command_salvages_what_does_not_open(source: Path, tmp_path: Path) -> None:
    path = copied(source, tmp_path)
    without_table("sqlite_stat1")(path)
    arguments = ["export", str(tmp_path / "whole.jsonl"), "--salvage", "--db", str(path)]
    result = CliRunner().invoke(application(), arguments)
    assert result.exit_code == 1
    assert f"{STEPS + 4} steps written" in result.stderr
    assert "does not open" in result.stderr
