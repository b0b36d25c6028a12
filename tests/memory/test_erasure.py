"""What a purge of a user takes: all that user said, in any order of writing, in forks, too."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

pytest.importorskip("dbos", reason="queues need the extra `durable`")

from hybridagi_steps import (
    AgentSession,
    AgentStep,
    AgentStepType,
    SessionRepository,
    StepMemory,
    StepRunner,
)
from hybridagi_steps.context import compact
from hybridagi_steps.durable.session_runs import DurableRunner
from hybridagi_steps.errors import InvalidFilterError
from hybridagi_steps.exchange import export_file
from hybridagi_steps.planning.orchestrator import Orchestrator
from hybridagi_steps.planning.plan import Plan, PlanStep
from hybridagi_steps.planning.worker import Finished, Work
from hybridagi_steps.records.message import ERASED
from hybridagi_steps.records.store_values import Erased
from hybridagi_steps.workspace.workspace import Workspace

ANN, BOB = "annsaidx7f3", "bobsaidx7f3"


@pytest.fixture(params=["sqlite", "memory", "postgres"])
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StepMemory]:
    address = {"sqlite": str(tmp_path / "steps.db"), "memory": ":memory:"}.get(request.param)
    address = address or request.getfixturevalue("postgres_address")
    with StepMemory(address, embedder="hashing") as opened:
        yield opened


@pytest.fixture
def repo(memory: StepMemory) -> SessionRepository:
    return memory.repository()


def run(work: Any) -> Any:
    return asyncio.run(work)


def ask(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": text, **more}


def answer(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def step(user: str | None, session: str = "s", text: str = "") -> AgentStep:
    return AgentStep(
        step_type=AgentStepType.Action,
        user_id=user,
        session_id=session,
        inputs={"purpose": text or "p"},
    )


def texts(repo: SessionRepository, session: str) -> list[Any]:
    return [message.content for message in run(repo.get_steps(session))]


@pytest.mark.parametrize(
    "where",
    [
        {},
        {"exclude": []},
        {"exclude": {"until": "1970-01-01"}},
        {"exclude_run_id": ["none"], "scope": "*", "kinds": ["step", "message"]},
    ],
)
def test_a_purge_that_only_leaves_something_out_is_refused(
    memory: StepMemory, where: dict[str, Any]
) -> None:
    memory.add([step("ann"), step("bob")])
    with pytest.raises(InvalidFilterError, match="picks something"):
        memory.purge(where)
    assert len([*memory.iter_steps()]) == 2
    assert memory.purge({"until": "2100-01-01", "exclude": {"user_id": "bob"}}) == 1
    assert [left.user_id for left in memory.iter_steps()] == ["bob"]


def check_gone(memory: StepMemory, tmp_path: Path, *words: str) -> None:
    """Nothing in any file says these words, and what is left holds together."""
    assert memory.verify() == []
    memory.flush()
    for path in tmp_path.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert not [word for word in words if word.encode() in content], path


@pytest.mark.parametrize("order", list(itertools.permutations(["step", "ask", "answer"])))
def test_any_order_of_steps_and_messages(
    memory: StepMemory, repo: SessionRepository, tmp_path: Path, order: tuple[str, ...]
) -> None:
    write: dict[str, Callable[[], Any]] = {
        "step": lambda: memory.add(step("ann", text=ANN)),
        "ask": lambda: run(repo.append("s", [ask(ANN)])),
        "answer": lambda: run(repo.append("s", [answer(ANN)])),
    }
    for each in order:
        write[each]()
    memory.add(step("bob", "t", BOB))
    run(repo.append("t", [ask(BOB)]))
    assert memory.purge({"user_id": "ann"}) == 3
    assert [found.session_id for found in run(repo.sessions())] == ["t"]
    assert texts(repo, "t") == [BOB]
    check_gone(memory, tmp_path, ANN)


def test_steps_that_only_name_the_session_of_a_user_go_with_it(
    memory: StepMemory, repo: SessionRepository
) -> None:
    memory.add(step(None, text="recorded before the session had messages"))
    run(repo.commit("s", [ask("a question")], [step("ann")]))
    memory.purge({"user_id": "ann"})
    assert [*memory.iter_steps()] == []


@pytest.mark.parametrize("first", [True, False])
def test_in_a_fork_of_another_user_the_places_stay(
    memory: StepMemory, repo: SessionRepository, tmp_path: Path, first: bool
) -> None:
    call = {"id": ANN, "type": "function", "function": {"name": ANN, "arguments": "{}"}}
    if first:
        memory.add(step("ann"))
    run(repo.append("s", [ask(ANN), answer("", tool_calls=[call])]))
    run(repo.append("s", [{"role": "tool", "tool_call_id": ANN, "content": ANN}, answer(ANN)]))
    if not first:
        memory.add(step("ann"))
    fork = run(repo.fork("s", 4)).session_id
    run(repo.commit(fork, [ask(BOB), answer(BOB)], [step("bob", fork, BOB)]))
    memory.purge({"user_id": "ann"})
    assert texts(repo, fork) == [ERASED] * 4 + [BOB, BOB]
    kept = run(repo.get_steps(fork))
    assert [message.sequence for message in kept] == [1, 2, 3, 4, 5, 6]
    assert [message.role for message in kept[:4]] == ["user", *["assistant"] * 3]
    assert [str(found.user_id) for found in memory.iter_steps()] == ["bob"]
    assert [found.forked_from for found in run(repo.sessions())] == [None]
    check_gone(memory, tmp_path, ANN)
    assert memory.purge({"user_id": "bob"}) == 3  # the marks are nobody's words
    assert run(repo.sessions()) == []


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("answered", [True, False])
def test_of_a_shared_session_each_user_takes_their_turns(
    memory: StepMemory, repo: SessionRepository, tmp_path: Path, before: bool, answered: bool
) -> None:
    for user, text in [("ann", ANN), ("bob", BOB), ("ann", ANN)]:
        if before:
            memory.add(step(user))
        run(repo.append("s", [ask(text)]))
        if not before:
            memory.add(step(user))
        if answered:
            run(repo.append("s", [answer(text)]))
    memory.purge({"user_id": "ann"})
    expected = [ERASED, BOB, ERASED]
    times = 2 if answered else 1
    assert texts(repo, "s") == [text for text in expected for _ in range(times)]
    check_gone(memory, tmp_path, ANN)
    memory.purge({"user_id": "bob"})
    check_gone(memory, tmp_path, BOB)


def test_several_users_go_as_each_does(
    memory: StepMemory, repo: SessionRepository, tmp_path: Path
) -> None:
    for user, text in [("ann", ANN), ("bob", BOB)]:
        memory.add(step(user))
        run(repo.append("s", [ask(text)]))
        run(repo.commit(f"of {user}", [ask(text)], [step(user, f"of {user}", text)]))
    run(repo.commit("of cid", [ask("mine")], [step("cid", "of cid", "mine")]))
    revoked = memory.revoke({"user_id": ["bob", "dan"]})
    memory.reinstate(str(revoked.id))
    erased = memory.purge({"user_id": ["ann", "bob", "nobody"]})
    assert (erased.messages_left, erased.sessions_left) == (0, ())
    assert [found.session_id for found in run(repo.sessions())] == ["of cid"]
    assert [str(found.user_id) for found in memory.iter_steps()] == ["cid"]
    assert memory.revocations() == []
    check_gone(memory, tmp_path, ANN)
    check_gone(memory, tmp_path, BOB)


def test_a_fork_of_a_fork_whose_origins_are_gone(
    memory: StepMemory, repo: SessionRepository, tmp_path: Path
) -> None:
    run(repo.commit("s", [ask(ANN), answer(ANN)], [step("ann")]))
    run(repo.fork("s", 2, "middle"))
    run(repo.fork("middle", 2, "last"))
    run(repo.commit("last", [ask(BOB)], [step("bob", "last")]))
    for origin in ("s", "middle"):
        memory.purge({"session_id": origin})
    assert texts(repo, "last") == [ANN, ANN, BOB]
    [summary] = run(repo.sessions())
    assert (summary.forked_from, summary.forked_at) == (None, 2)
    memory.purge({"user_id": "ann"})
    assert texts(repo, "last") == [ERASED, ERASED, BOB]
    check_gone(memory, tmp_path, ANN)


def test_attempts_and_summaries_go_with_what_they_tell(
    memory: StepMemory, repo: SessionRepository, tmp_path: Path
) -> None:
    for user, text in [("ann", ANN), ("bob", BOB)]:
        run(repo.commit("s", [ask(text), answer(text)], [step(user)]))
    hidden = run(repo.branch_at("s", 2))
    run(repo.commit("s", [ask(ANN), answer(ANN)], [step("ann")], branch_id=hidden))
    summary = compact(run(repo.get_steps("s")), keep=1)
    run(repo.append("s", [summary]))
    memory.purge({"user_id": "ann"})
    assert texts(repo, "s") == [ERASED, ERASED, BOB, BOB, ERASED]
    check_gone(memory, tmp_path, ANN)


def test_a_purge_says_what_it_could_not_reach(tmp_path: Path) -> None:
    with StepMemory(tmp_path / "steps.db", embedder="hashing") as memory:
        memory.add(step("ann"))
        away = str(tmp_path / "away.runs")
        memory.note_queue(away)
        odd = tmp_path / "odd.runs"
        odd.write_bytes(b"no database at all" * 100)
        memory.note_queue(str(odd))
        memory.note_queue("postgresql://me@host/db")
        erased = memory.purge({"user_id": "ann"})
        assert isinstance(erased, Erased)
        assert erased == 1
        assert set(erased.unreached) == {away, str(odd), "postgresql://me@host/db"}
        assert set(memory.clear().unreached) == set(erased.unreached)
        memory.add(step("ann"))
        assert memory.purge({"tools": "x"}).unreached == ()


@pytest.mark.parametrize(
    "where",
    [
        {"trust": "imported"},
        {"scope": "*"},
        {"metadata": {}, "exclude_run_id": []},
        {"scope": "*", "trust": "imported"},
    ],
)
def test_a_filter_that_everything_passes_erases_and_revokes_nothing(
    memory: StepMemory, where: dict[str, Any]
) -> None:
    memory.add(step("ann"))
    for work in (memory.purge, memory.revoke):
        with pytest.raises(InvalidFilterError, match="condition"):
            work(where)
    assert len(memory.find().steps) == 1
    assert memory.purge({**where, "user_id": "ann"}) == 1


@pytest.mark.parametrize(
    "more", [{"scope": "*"}, {"trust": "imported"}, {"kinds": ["step", "message"]}]
)
@pytest.mark.parametrize("whose", [{"session_id": "s"}, {"user_id": "ann"}])
def test_a_condition_that_everything_passes_keeps_no_message(
    memory: StepMemory, repo: SessionRepository, whose: dict[str, Any], more: dict[str, Any]
) -> None:
    own = AgentStep(step_type=AgentStepType.Action, user_id="ann", session_id="s")
    run(repo.commit("s", [ask(ANN)], [own]))
    assert memory.purge({**whose, **more}) == 2
    assert repo.store.sessions(limit=9) == []


def test_a_purge_beside_a_reader_is_counted_and_names_the_database(tmp_path: Path) -> None:
    path = tmp_path / "steps.db"
    with StepMemory(path, embedder="hashing", timeout_seconds=0.2) as memory:
        memory.add([step("ann", text=ANN), step("bob", text=BOB)])
        assert memory.search(ANN)
        memory.flush()
        with closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            assert reader.execute("SELECT count(*) FROM agent_step").fetchone() == (2,)
            erased = memory.purge({"user_id": "ann"})
            assert (erased, erased.unreached) == (1, (str(path),))
            indexes = list(tmp_path.glob("*.index"))
            assert not [each for each in indexes if ANN.encode() in each.read_bytes()]
            memory.flush()
            assert [hit.step.user_id for hit in memory.search(ANN)] == ["bob"]
        assert memory.purge({"user_id": "ann"}).unreached == ()
    assert ANN.encode() not in everything(tmp_path)


def test_what_is_overwritten_leaves_copies_that_a_vacuum_drops(tmp_path: Path) -> None:
    """SQLite overwrites a deleted row where it stands, not where it stood before rows moved.

    A row in a thousand leaves such a copy: so a purge cannot do without writing the file anew.
    """
    chance = random.Random(0)

    def of_any_length(number: int) -> AgentStep:
        said, length = {"purpose": f"said{number}x7f3"}, chance.randrange(900)
        made = step(None).model_copy(update={"id": UUID(int=number + 1, version=4)})
        return made.model_copy(update={"inputs": said, "outputs": {"result": "y" * length}})

    path, left = tmp_path, list[int]()
    for batch in map(str, range(40)):
        (tmp_path / batch).mkdir()
        path = tmp_path / batch / "steps.db"
        gone = chance.sample(range(300), 150)
        with StepMemory(path, embedder="hashing") as memory:
            memory.add([of_any_length(number) for number in range(300)])
            for _ in range(3):
                memory.update([of_any_length(number) for number in chance.sample(range(300), 100)])
            memory.delete([str(UUID(int=number + 1, version=4)) for number in gone])
        held = everything(path.parent)
        if left := [number for number in gone if f"said{number}x7f3".encode() in held]:
            break
    assert left != []
    with StepMemory(path, embedder="hashing") as memory:
        memory.vacuum()
    held = everything(path.parent)
    assert [number for number in left if f"said{number}x7f3".encode() in held] == []


def test_a_damaged_index_keeps_nothing_that_was_deleted(tmp_path: Path) -> None:
    """Writing a file anew copies an index as it is, with what it lists and no row has."""
    path = tmp_path / "steps.db"
    bobs = step("bob").model_copy(update={"run_id": BOB})
    with StepMemory(path, embedder="hashing") as memory:
        memory.add([step("ann"), bobs])
        memory.flush()
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA writable_schema = ON")
        found = "FROM sqlite_master WHERE name = 'step_key_run'"
        index = database.execute(f"SELECT * {found}").fetchone()
        database.execute(f"DELETE {found}")
        database.execute("PRAGMA writable_schema = RESET")
        database.execute("DELETE FROM step_key WHERE run_id = ?", (BOB,))
        database.execute("PRAGMA writable_schema = ON")
        database.execute("INSERT INTO sqlite_master VALUES (?, ?, ?, ?, ?)", index)
    with StepMemory(path, embedder="hashing") as memory:
        memory.delete(str(bobs.id))
    assert BOB.encode() in everything(tmp_path)
    with StepMemory(path, embedder="hashing") as memory:
        memory.vacuum()
        assert memory.verify() == []
    assert BOB.encode() not in everything(tmp_path)


def test_a_lock_follows_the_permissions_of_its_database(tmp_path: Path) -> None:
    path, lock = tmp_path / "steps.db", tmp_path / "steps.db.lock"
    with StepMemory(path, embedder="hashing") as memory:
        memory.add(step("ann"))
    for mode in (0o660, 0o640, 0o600):
        path.chmod(mode)
        with StepMemory(path) as memory:
            memory.add(step("ann"))
        assert lock.stat().st_mode & 0o777 == mode


def test_nothing_known_of_an_author_stays(memory: StepMemory, repo: SessionRepository) -> None:
    run(repo.append("s", [ask("nobody said so")]))
    memory.add(step("ann", "t"))
    assert memory.purge({"user_id": "ann"}) == 1
    assert texts(repo, "s") == ["nobody said so"]


@pytest.fixture
def wide_mask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("wide_mask")
def test_files_are_their_owners_alone(tmp_path: Path) -> None:
    queue = pytest.importorskip("hybridagi_steps.durable.plan_steps", reason="needs `durable`")
    (tmp_path / "files").mkdir()
    workspace = Workspace(tmp_path / "files", state=tmp_path / "state")
    with StepMemory(tmp_path / "steps.db", embedder="hashing") as memory:
        memory.add(step("ann", text="words to find"))
        memory.search("words")
        memory.flush()
        durable = DurableRunner(memory=memory)
        run(durable.submit("s", "hello"))
        for form in ("jsonl", "otlp", "openai"):
            export_file(memory, tmp_path / f"out.{form}", format=form)
        durable.close()

        async def execute(work: Work, place: Workspace | None) -> Finished:
            assert place is not None
            place.write("made.txt", "made")
            return Finished(summary="s")

        plans = queue.DurableQueue(tmp_path / "plans.sqlite", poll_seconds=0.05)
        plan = Plan(name="p", description="d", steps=[PlanStep(id="a", goal="g")])
        made = Orchestrator(executor=execute, durable=plans, workspace=workspace, memory=memory)
        assert made.run(plan=plan).success
        plans.close()
        found = [path for path in tmp_path.rglob("*") if path.is_file()]
        own = [path for path in found if path.parent != tmp_path / "files"]
        names = {path.name for path in own}
        assert {"steps.db", "steps.db-wal", "steps.db.lock", "steps.db.runs"} <= names
        assert {"plans.sqlite", "out.jsonl", "lock"} <= names
        modes = {path.name: oct(path.stat().st_mode & 0o777) for path in own}
        assert set(modes.values()) == {"0o600"}, modes


@pytest.mark.usefixtures("wide_mask")
def test_files_that_are_there_keep_their_permissions(tmp_path: Path) -> None:
    path, out = tmp_path / "steps.db", tmp_path / "out.jsonl"
    with StepMemory(path, embedder="hashing") as memory:
        memory.add(step("ann"))
        export_file(memory, out)
    path.chmod(0o640)
    out.chmod(0o644)
    (tmp_path / "steps.db.lock").unlink()
    with StepMemory(path) as memory:
        memory.add(step("ann"))
        export_file(memory, out)
    modes = {each.name: oct(each.stat().st_mode & 0o777) for each in (path, out)}
    assert modes == {"steps.db": "0o640", "out.jsonl": "0o644"}
    assert (tmp_path / "steps.db.lock").stat().st_mode & 0o777 == 0o640


def everything(tmp_path: Path) -> bytes:
    """Return every byte of every file, the user's own left out."""
    own = (tmp_path / "files", tmp_path / "exports")
    found = [path for path in tmp_path.rglob("*") if path.is_file() and path.parent not in own]
    return b"".join(path.read_bytes() for path in found)


@pytest.mark.parametrize("how", ["user", "session", "run", "clear"])
def test_durable_runs_are_erased_from_another_process(tmp_path: Path, how: str) -> None:
    path = tmp_path / "steps.db"
    elsewhere = tmp_path / "queue of ann"

    async def program(messages: list[dict[str, Any]]) -> str:
        return str(messages[-1]["content"])

    async def ended(runner: DurableRunner) -> str:
        stop = threading.Event()
        session = AgentSession("s", "ann")
        ids = [await runner.submit(session, ANN), await runner.submit("t", BOB)]
        worker = threading.Thread(target=runner.run_worker, args=(stop,), daemon=True)
        worker.start()
        for run_id in ids:
            await asyncio.wait_for(runner.result(run_id), 60)
        stop.set()
        await asyncio.to_thread(worker.join, 30)
        await runner.submit(session, f"{ANN} again")  # stays in the queue
        return ids[0]

    with StepMemory(path, embedder="hashing") as memory:
        with DurableRunner(
            StepRunner(program, memory), database=elsewhere, poll_seconds=0.05
        ) as runner:
            run_id = run(ended(runner))
        memory.flush()
    assert ANN.encode() in elsewhere.read_bytes()
    with StepMemory(path) as memory:
        where = {"user": {"user_id": "ann"}, "session": {"session_id": "s"}}
        if how == "clear":
            assert memory.clear().unreached == ()
            memory.vacuum()
        elif how == "run":
            erased = memory.purge({"run_id": run_id})
            assert (erased > 0, erased.unreached) == (True, ())
            left = {step.session_id for step in memory.iter_steps()}
            assert left == {"t"}, "no AgentStep of the run stays, all of the other do"
            assert memory.purge({"run_id": run_id}) == 0
            assert run_id.encode() not in elsewhere.read_bytes()
            assert ANN.encode() in elsewhere.read_bytes(), "the run that waits is another one"
            memory.purge({"session_id": "s"})
        else:
            assert memory.purge(where[how]).unreached == ()
        memory.flush()
        assert memory.verify() == []
    assert ANN.encode() not in everything(tmp_path)
    assert (BOB.encode() in elsewhere.read_bytes()) == (how != "clear")
    with StepMemory(path) as memory, DurableRunner(memory=memory, database=elsewhere) as runner:
        assert run(runner.submit("u", "the queue still works"))


@pytest.mark.parametrize("how", ["session", "run", "clear"])
def test_durable_plans_are_erased_with_the_snapshots_of_their_workspace(
    tmp_path: Path, how: str
) -> None:
    durable = pytest.importorskip("hybridagi_steps.durable.plan_steps", reason="needs `durable`")
    path = tmp_path / "steps.db"
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "given.txt").write_text(ANN)
    workspace = Workspace(tmp_path / "files", state=tmp_path / "state")
    own = workspace.snapshot()

    async def execute(work: Work, place: Workspace | None) -> Finished:
        assert place is not None
        place.write("made.txt", f"made {work.requirement}")
        return Finished(summary=work.requirement, artifacts={"x": work.requirement})

    plan = Plan(name="p", steps=[PlanStep(id="a", goal=ANN, artifacts=["x"])])
    with StepMemory(path, embedder="hashing") as memory:
        queue = durable.DurableQueue(tmp_path / "plans.sqlite", poll_seconds=0.05)
        kinds: dict[str, Any] = {"executor": execute, "durable": queue, "workspace": workspace}
        made = Orchestrator(memory=memory, session_id="s", **kinds).run(ANN, plan=plan, key="k/1")
        (tmp_path / "files" / "made.txt").unlink()  # the other run's snapshot would hold it
        other = Orchestrator(memory=memory, session_id="t", **kinds).run(BOB, plan=plan, key="k")
        queue.close()
        assert made.success
        assert other.success
    assert ANN.encode() in (tmp_path / "plans.sqlite").read_bytes()
    with StepMemory(path) as memory:
        where = {"session": {"session_id": "s"}, "run": {"run_id": made.run_id}}
        erased = memory.clear() if how == "clear" else memory.purge(where[how])
        assert erased.unreached == ()
    left = (tmp_path / "plans.sqlite").read_bytes()
    assert b"k%2F1:" not in left
    assert f"made {ANN}".encode() not in everything(tmp_path)
    assert (BOB.encode() in left) == (how != "clear")
    snapshots = {each.stem for each in (tmp_path / "state" / "snapshots").iterdir()}
    assert snapshots == {own} | ({other.snapshot} if how != "clear" else set())


def test_a_durable_run_means_every_run_of_its_turn_and_no_other(
    memory: StepMemory, repo: SessionRepository
) -> None:
    asked = str(uuid4())
    first, taken_up = ask(ANN, id=asked, run_id="first"), answer("Hello", run_id="taken-up")
    run(repo.append("s", [first, taken_up, ask("And?", run_id="next")]))
    branch = run(repo.branch_at("s", 1))
    run(repo.adopt("s", branch))
    run(repo.append("s", answer("Hi", run_id="retried")))
    for name in ("first", "taken-up", "next", "retried"):
        memory.add(AgentStep(step_type=AgentStepType.Action, run_id=name))
    assert memory.purge({"run_id": asked}) == 2
    assert {each.run_id for each in memory.iter_steps()} == {"next", "retried"}


def test_a_queue_that_is_held_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridagi_steps.outside_files._BUSY_SECONDS", 0.05)
    with StepMemory(tmp_path / "steps.db", embedder="hashing") as memory:
        with DurableRunner(memory=memory) as durable:
            run(durable.submit(AgentSession("s", "ann"), ANN))
        held = sqlite3.connect(tmp_path / "steps.db.runs", isolation_level=None)
        held.execute("BEGIN IMMEDIATE")
        erased = memory.purge({"user_id": "ann"})
        assert erased.unreached == (str(tmp_path / "steps.db.runs"),)
        held.close()
        assert memory.purge({"user_id": "ann"}).unreached == ()
    assert ANN.encode() not in everything(tmp_path)


def test_a_purge_of_what_comes_after_a_date_leaves_what_was_before_it(memory: StepMemory) -> None:
    memory.add(AgentStep(step_type=AgentStepType.Action))
    assert memory.purge({"since": "29990101"}) == 0
    with pytest.raises(InvalidFilterError, match="2026-01-31"):
        memory.purge({"since": "2026"})
    assert memory.stats()["steps"] == 1
