"""What a purge of a user takes: all that user said, in any order of writing, in forks, too."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hybridagi_steps import AgentStep, SessionRepository, StepMemory
from hybridagi_steps.context import compact
from hybridagi_steps.erasure import ERASED, Erased

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
        step_type="Action", user_id=user, session_id=session, inputs={"purpose": text or "p"}
    )


def texts(repo: SessionRepository, session: str) -> list[Any]:
    return [message.content for message in run(repo.get_steps(session))]


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


def test_nothing_known_of_an_author_stays(memory: StepMemory, repo: SessionRepository) -> None:
    run(repo.append("s", [ask("nobody said so")]))
    memory.add(step("ann", "t"))
    assert memory.purge({"user_id": "ann"}) == 1
    assert texts(repo, "s") == ["nobody said so"]


