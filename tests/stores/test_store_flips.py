"""Single bits are flipped all over a file: nothing reads as something else than was written."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from conformance.samples import EVERYTHING, message, step
from exchange_shelf import unsourced
from store_files import made_old
from typer.testing import CliRunner

from hybridagi_steps import StepMemory
from hybridagi_steps.cli.app import application
from hybridagi_steps.embedders.hashing import HashingEmbedder
from hybridagi_steps.errors import DamagedFileError, StepsError
from hybridagi_steps.exchange import import_file, salvage_file
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.records.store_values import Position
from hybridagi_steps.search.indexing import Deriver
from hybridagi_steps.stores.sqlite import SqliteStepStore
from hybridagi_steps.stores.waiting import Patience

FLIPS = 400
PAGE_BYTES = 4096
STEPS = [f"step-{n}" for n in range(40)]
SESSIONS = ("a", "b", "c", "d")
Answers = dict[str, Any]


def fill(path: Path) -> None:
    """Write steps, sessions with a fork, scores, words and vectors; the last steps underived."""
    embedder = HashingEmbedder(16)
    steps = [
        step(
            id=name,
            inputs={"tool": f"tool{n % 3}", "purpose": f"refund ticket {n}"},
            outputs={"answer": f"the answer to question {n}"},
            run_id=f"run-{n // 5}",
            hop=n % 5,
            user_id=f"user-{n % 3}",
            status="error" if n % 7 == 0 else "ok",
            metadata={"k": n % 4},
        )
        for n, name in enumerate(STEPS)
    ]
    with closing(SqliteStepStore(path, durability="normal")) as store:
        store.append(steps[:30])
        store.set_embedder(embedder.model_id, embedder.dimension)
        assert sum(Deriver(store, lambda _: embedder, Patience(30)).save_all(vectors=True))
        for name in ("a", "b"):
            said = [message(f"{name} says {n}", id=f"{name}{n}") for n in range(1, 10)]
            pinned = [step(id=f"{name}.{n}", run_id=f"run-{name}") for n in range(3)]
            store.commit(name, said, pinned, after=[1, 3, 5])
        store.fork("a", 4, "c")
        store.commit("c", [message("goes on", id="c5")])
        store.fork("a", 6, "d")
        store.score_run("run-1", 0.5, "fine")
        store.append(steps[30:])


def reads(store: SqliteStepStore) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield every way to read content: what it answers is steps, messages, scores and words."""
    filters = (
        *({"run_id": "run-1"}, {"user_id": "user-1"}, {"status": ["error"]}, {"tools": ["tool1"]}),
        *({"metadata": {"k": 1}}, {"session_id": "a"}, {"min_score": 0.3}, {"scope": "*"}),
    )
    for name in STEPS:
        yield f"step {name}", lambda name=name: store.get([name])
    for where in filters:
        found = StepFilter.of(where)
        yield f"find {where}", lambda found=found: store.find(found, limit=99)
    yield "vectors", lambda: [found.vector for found in store.get(STEPS, vectors=True)]
    yield "iter_steps", lambda: list(store.iter_steps(EVERYTHING))
    yield "children", lambda: store.children(["step-1"])
    yield "pending", lambda: [item.step for item in store.pending_texts(99)]
    for name in SESSIONS:
        yield f"messages {name}", lambda name=name: store.messages(name)
        yield f"dicts {name}", lambda name=name: store.message_dicts(name)
        yield f"pinned {name}", lambda name=name: store.pinned_steps(name)
        yield f"attempts {name}", lambda name=name: store.attempts(name)
    yield "sessions", lambda: store.sessions(limit=9)
    yield "runs", lambda: store.runs(limit=99)
    yield "changes", lambda: repr(store.changes(Position(0, 0, 0, 0, 0)))


def answers(path: Path) -> tuple[Answers, list[str]]:
    """Return what each read says, or raises, and what `verify` says."""
    found: Answers = {}
    try:
        store = SqliteStepStore(path, durability="normal")
    except StepsError as error:
        return {"open": error}, [str(error)]
    with closing(store):
        for name, read in reads(store):
            try:
                found[name] = read()
            except StepsError as error:  # anything else is no answer to a damaged file
                found[name] = error
        return found, store.verify()


def items_of(answer: Any) -> dict[Any, Any]:
    """Return the steps, messages and dicts in a list, by what they are."""
    listed = cast("list[Any]", answer) if isinstance(answer, list) else []
    return {getattr(item, "id", None) or repr(item): item for item in listed}


def unscored(item: Any) -> Any:
    return item.model_copy(update={"score": None}) if hasattr(item, "score") else item


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("flips") / "steps.db"
    fill(path)
    return path.read_bytes()


def damaged_file(folder: Path, content: bytes | bytearray, number: int = 0) -> Path:
    path = folder / f"flipped{number}.db"
    path.write_bytes(content)
    return path


def test_no_flipped_bit_changes_what_is_read_unseen(whole: bytes, tmp_path: Path) -> None:
    chance = random.Random(5)
    expected, problems = answers(damaged_file(tmp_path, whole))
    assert problems == []
    seen = 0
    for number in range(1, FLIPS + 1):
        content = bytearray(whole)
        place, bit = chance.randrange(100, len(whole)), chance.randrange(8)
        content[place] ^= 1 << bit
        path = damaged_file(tmp_path, content, number)
        found, problems = answers(path)
        path.unlink()
        where = f"bit {bit} of byte {place}"
        others = {name: found[name] for name in found if found[name] != expected.get(name)}
        seen += bool(others)
        assert problems or not others, f"{where}: verify is silent, {others.keys()} differ"
        for name, answer in others.items():
            known = items_of(expected.get(name))
            for key, item in items_of(answer).items():
                # A damaged index or filter may leave a step out, or list one more; what is shown
                # of a step or message is what was written, wherever it is shown.
                if name.startswith(("step", "find", "iter", "children", "messages")):
                    same = known.get(key) or items_of(expected["iter_steps"]).get(key)
                    if getattr(item, "score", None) is None:  # lost with the row of its run
                        same = unscored(same)
                    assert item == same, f"{where}: {name} changed"
                if name.startswith("dicts"):
                    assert key in known, f"{where}: {name} changed"
    assert seen > FLIPS / 10


def flip_text(path: Path, table: str, column: str, which: str) -> None:
    """Change one letter of a stored text, as a disk would: SQLite knows of nothing."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            f"UPDATE {table} SET {column} = replace({column}, 'a', 'b') WHERE {which}"
        )


def test_a_damaged_step_raises_and_the_others_go_on(whole: bytes, tmp_path: Path) -> None:
    path = damaged_file(tmp_path, whole)
    flip_text(path, "agent_step", "body", "id = 'step-7'")
    with StepMemory(path) as memory:
        with pytest.raises(DamagedFileError, match=r"row 8 .*export --salvage"):
            memory.get_steps(["step-7"])
        with pytest.raises(DamagedFileError, match="row 8"):
            memory.find(limit=99)
        assert len(memory.find({"run_id": "run-3"}).steps) == 5
        assert [str(found.id) for found in memory.get_steps(["step-6", "step-8"])] == [
            "step-6",
            "step-8",
        ]
        assert any("a step that is not as it was written: 1 rows (8" in p for p in memory.verify())


@pytest.mark.parametrize("changed", ["'{'", "x'ff'", "replace(body, 'refund', 'refuse')"])
def test_a_damaged_new_step_keeps_nobody_from_searching(tmp_path: Path, changed: str) -> None:
    path = tmp_path / "steps.db"
    with StepMemory(path, embedder="hashing") as memory:
        memory.add(step(id=name, inputs={"purpose": f"refund {name}"}) for name in ("x", "y", "z"))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE agent_step SET body = {changed} WHERE id = 'y'")
    with StepMemory(path, embedder="hashing") as memory:
        assert {str(hit.step.id) for hit in memory.search("refund", k=2)} == {"x", "z"}
        with pytest.raises(DamagedFileError, match="row 2"):
            memory.get_steps(["y"])
        assert memory.verify() != []


@pytest.mark.parametrize("column", ["said", "body", "id"])
def test_a_damaged_message_is_named(whole: bytes, tmp_path: Path, column: str) -> None:
    path = damaged_file(tmp_path, whole)
    with closing(sqlite3.connect(path)) as connection, connection:
        update = f"UPDATE message SET {column} = replace({column}, 'e', 'f') || ' '"
        connection.execute(f"{update} WHERE id = 'a3'")
    with closing(SqliteStepStore(path)) as store:
        for name in ("a", "c"):
            with pytest.raises(DamagedFileError, match="message 3 of branch 1"):
                store.messages(name)
        assert len(store.messages("a", 4)) == 6
        assert len(store.message_dicts("b")) == 9
        assert any("a message that is not as it was written" in line for line in store.verify())


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE message SET sequence = 'x' WHERE id = 'a5'",
        "UPDATE message SET branch_id = 'x' WHERE id = 'a5'",
        "UPDATE branch SET session_id = x'00' WHERE session_id = 'a'",
    ],
)
def test_a_message_in_a_damaged_place_keeps_nobody_from_searching(
    whole: bytes, tmp_path: Path, damage: str
) -> None:
    path = damaged_file(tmp_path, whole)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(damage)
    with StepMemory(path) as memory:
        found = memory.search("b says 3", where={"kinds": "message"}, k=3)
        assert next(str(hit.step.id) for hit in found) == "b3"
    with closing(SqliteStepStore(path)) as store:
        assert store.verify() != []


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("a", "UPDATE session SET branch_id = 2 WHERE id = 'a'"),
        ("c", "UPDATE branch SET fork_sequence = 5 WHERE session_id = 'c'"),
        ("c", "UPDATE branch SET parent_id = 2 WHERE session_id = 'c'"),
        ("c", "UPDATE branch SET parent_id = id WHERE session_id = 'c'"),
        ("c", "DELETE FROM branch WHERE session_id = 'a'"),
        ("a", "DELETE FROM message WHERE id = 'a2'"),
        ("c", "DELETE FROM message WHERE id = 'a4'"),  # the last that c shares
    ],
)
def test_a_session_never_shows_another_line(
    whole: bytes, tmp_path: Path, name: str, damage: str
) -> None:
    path = damaged_file(tmp_path, whole)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(damage)
    with closing(SqliteStepStore(path)) as store:
        for read in (store.messages, store.message_dicts):
            with pytest.raises(DamagedFileError, match="export --salvage"):
                read(name)
        assert len(store.messages("b")) == 9


def test_a_step_that_is_listed_twice_is_named(whole: bytes, tmp_path: Path) -> None:
    path = damaged_file(tmp_path, whole)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TEMP TABLE known AS SELECT * FROM step_key")
        connection.execute("DROP TABLE step_key")
        connection.execute("CREATE TABLE step_key AS SELECT * FROM known")
        connection.execute("INSERT INTO step_key SELECT * FROM known WHERE row = 8")
    with (
        closing(SqliteStepStore(path)) as store,
        pytest.raises(DamagedFileError, match="step in row 8"),
    ):
        store.find(StepFilter.of({"tools": ["tool0", "tool1"]}), limit=99)


def test_a_damaged_score_is_named(whole: bytes, tmp_path: Path) -> None:
    path = damaged_file(tmp_path, whole)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE run SET score = 0.75")
    with closing(SqliteStepStore(path)) as store:
        with pytest.raises(DamagedFileError, match="run-1"):
            store.runs(limit=9)
        with pytest.raises(DamagedFileError, match="run-1"):
            store.get(["step-5"])


def test_words_without_a_number_are_named(
    whole: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = damaged_file(tmp_path, whole)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE step_text SET text_hash = 'x', checksum = NULL WHERE row = 3")
    with StepMemory(path) as memory:
        assert memory.search("refund")
        assert "the words of step step-2 in row 3" in caplog.text


def test_a_row_that_has_no_number_is_named(whole: bytes, tmp_path: Path) -> None:
    path = damaged_file(tmp_path, whole)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute("UPDATE step_key SET row = 'x' WHERE row = 8")
    with (
        closing(SqliteStepStore(path)) as store,
        pytest.raises(DamagedFileError, match="export --salvage"),
    ):
        store.rows(StepFilter.of({"user_id": "user-1"}))


def test_keys_that_are_not_the_steps_are_named(whole: bytes, tmp_path: Path) -> None:
    path = damaged_file(tmp_path, whole)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE step_key SET status = 'ok' WHERE row = 1")
    with closing(SqliteStepStore(path)) as store:
        assert any("keys that are not what the step says: 1 rows (1" in p for p in store.verify())


@pytest.mark.parametrize("version", [1, 2])
def test_an_old_file_gains_checksums_by_vacuum(tmp_path: Path, version: int) -> None:
    path, fresh = tmp_path / "steps.db", tmp_path / "fresh.db"
    for file in (path, fresh):
        fill(file)
    made_old(path, version)
    unchecked = "SELECT count(*) FROM agent_step WHERE checksum IS NULL"
    expected, _ = answers(fresh)
    found, problems = answers(path)
    assert problems == []
    with closing(SqliteStepStore(path)) as store:
        store.append([step(id="new")])
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute(unchecked).fetchone() == (46,)  # all but the new one
        store.vacuum()
        assert store.verify() == []
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute(unchecked).fetchone() == (0,)
        assert [str(one.id) for one in store.find(EVERYTHING, limit=99)][:40] == STEPS[:30] + [
            str(one.id) for one in expected["iter_steps"]
        ][30:40]
    assert [m.content for m in found["messages c"]] == [m.content for m in expected["messages c"]]
    flip_text(path, "message", "said", "id = 'a3'")
    with closing(SqliteStepStore(path)) as store, pytest.raises(DamagedFileError):
        store.messages("a")


def salvaged(path: Path, folder: Path) -> tuple[list[str], SqliteStepStore]:
    """Export what is whole into a fresh memory; return what was named, and its store."""
    named: list[str] = []
    lines, target = folder / "whole.jsonl", folder / f"{path.stem}-new.db"
    with StepMemory(path) as memory:
        salvage_file(memory, lines, damaged=named.append)
    with StepMemory(target) as memory:
        if lines.stat().st_size:
            assert import_file(memory, lines).skipped == []
    return named, SqliteStepStore(target)


@pytest.mark.parametrize("rows_at_once", [2_000, 3])
def test_a_salvage_of_a_whole_file_loses_nothing(
    whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_at_once: int
) -> None:
    monkeypatch.setattr("hybridagi_steps.stores.sql.salvage._WINDOW", rows_at_once)
    path = damaged_file(tmp_path, whole)
    named, store = salvaged(path, tmp_path)
    with closing(store), closing(SqliteStepStore(path)) as old:
        assert named == []
        assert {str(s.id): unsourced(s) for s in store.iter_steps(EVERYTHING)} == {
            str(s.id): s for s in old.iter_steps(EVERYTHING)
        }
        for name in SESSIONS:
            assert [unsourced(found) for found in store.messages(name)] == old.messages(name)
            pinned = store.pinned_steps(name)
            assert [unsourced(found) for found in pinned] == old.pinned_steps(name)
        assert store.runs(limit=99)[0].run_id
        assert {r.run_id: r.score for r in store.runs(limit=99)} == {
            r.run_id: r.score for r in old.runs(limit=99)
        }


def test_a_salvage_cuts_a_session_at_what_is_lost(whole: bytes, tmp_path: Path) -> None:
    path = damaged_file(tmp_path, whole)
    flip_text(path, "message", "said", "id = 'a3'")
    flip_text(path, "agent_step", "body", "id = 'step-7'")
    named, store = salvaged(path, tmp_path)
    with closing(store):
        lines = {one.session_id: store.messages(one.session_id) for one in store.sessions(limit=9)}
        assert store.get(["step-7"]) == []
        assert len(list(store.iter_steps(EVERYTHING))) == 45
    told = {name: [found.content for found in found_] for name, found_ in lines.items()}
    rest = ["a says 4", "a says 5", "a says 6", "a says 7", "a says 8", "a says 9"]
    assert told["a"] == told["c"] == told["d"] == ["a says 1", "a says 2"]
    assert told["a~4"] == rest
    assert told["c~4"] == ["a says 4", "goes on"]
    assert told["d~4"] == rest[:3]
    assert len(told["b"]) == 9
    text = "\n".join(named)
    for words in ("step 'step-7' in row 8", "message 'a3' in row 5", "'c' lacks its message 3"):
        assert words in text


def test_a_salvage_keeps_a_session_whose_branch_is_lost(whole: bytes, tmp_path: Path) -> None:
    path = damaged_file(tmp_path, whole)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM branch WHERE session_id = 'b'")
    _, store = salvaged(path, tmp_path)
    with closing(store):
        assert [one.content for one in store.messages("b")] == [f"b says {n}" for n in range(1, 10)]


def test_a_salvage_reads_around_damaged_pages(whole: bytes, tmp_path: Path) -> None:
    chance = random.Random(11)
    with closing(SqliteStepStore(damaged_file(tmp_path, whole))) as store:
        steps = {str(found.id): found for found in store.iter_steps(EVERYTHING)}
        said = {m.id: m.content for name in SESSIONS for m in store.messages(name)}
    opened = 0
    for number in range(1, 31):
        content = bytearray(whole)
        page = chance.randrange(5, len(whole) // PAGE_BYTES) * PAGE_BYTES
        content[page : page + PAGE_BYTES] = chance.randbytes(PAGE_BYTES)
        path = damaged_file(tmp_path, content, number)
        try:
            named, store = salvaged(path, tmp_path)
        except DamagedFileError:
            continue  # the tables' definitions themselves
        opened += 1
        with closing(store):
            found = {str(one.id): one for one in store.iter_steps(EVERYTHING)}
            lines = [store.messages(one.session_id) for one in store.sessions(limit=99)]
        for name, one in found.items():
            assert one.outputs == steps[name].outputs
            assert one.inputs == steps[name].inputs
        heard = {m.id: m.content for line in lines for m in line}
        assert heard.items() <= said.items()
        assert named or (len(found), len(heard)) == (len(steps), len(said)), f"page {page}: silent"
    assert opened > 20


def test_the_command_says_what_is_not_whole(whole: bytes, tmp_path: Path) -> None:
    path, target = damaged_file(tmp_path, whole), tmp_path / "whole.jsonl"
    arguments = ["export", str(target), "--salvage", "--db", str(path)]
    result = CliRunner().invoke(application(), arguments)
    assert (result.exit_code, result.stderr) == (0, f"46 steps written to {target}.\n")
    flip_text(path, "agent_step", "body", "id = 'step-7'")
    result = CliRunner().invoke(application(), arguments)
    assert result.exit_code == 1
    assert "the step 'step-7' in row 8 is not whole" in result.stderr
    assert "45 steps written" in result.stderr
    refused = CliRunner().invoke(application(), [*arguments, "--run", "run-1"])
    assert refused.exit_code == 2
