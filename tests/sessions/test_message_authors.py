"""Each message knows who said it: whose it is to find, and what a purge of a user takes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import hybridagi_steps as hs
from hybridagi_steps.errors import InvalidSettingError, NotAllowedError
from hybridagi_steps.records.message import ERASED


def said(user: str | None, content: str, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": content, "user_id": user}


def contents(memory: hs.StepMemory, session: str) -> list[Any]:
    return [each.content for each in memory.repository().store.messages(session)]


def share(memory: hs.StepMemory) -> None:
    """Let Ann and Bob talk in one session, with no AgentStep that says who they are."""
    talk = [
        said("ann", "I keep geckos"),
        said(None, "Geckos are fine", "assistant"),
        said("bob", "I keep newts"),
        said("bob", "Newts are fine", "assistant"),
    ]
    asyncio.run(memory.repository().append("shared", talk))


def test_a_session_is_the_first_users_and_shared_by_who_writes_there(memory: hs.StepMemory) -> None:
    share(memory)
    store = memory.repository().store
    assert store.session_owner("shared") == "ann"
    assert [each.user_id for each in store.messages("shared")] == ["ann", None, "bob", "bob"]
    assert [each.session_id for each in store.sessions(limit=9, user_id="ann")] == ["shared"]
    assert store.sessions(limit=9, user_id="bob") == []


def test_each_finds_what_each_has_said(memory: hs.StepMemory) -> None:
    share(memory)
    for user, own, others in (("ann", "geckos", "newts"), ("bob", "newts", "geckos")):
        where = {"user_id": user}
        for _ in range(2):  # as the store says, and as what is kept in memory does
            hits = memory.search(own, 9, where=where, mode="lexical")
            assert {hit.step.user_id for hit in hits} == {user}
            assert memory.search(others, 9, where=where, mode="lexical") == []


def test_a_purge_takes_a_users_words_from_a_shared_session(memory: hs.StepMemory) -> None:
    share(memory)
    memory.search("newts", 5)
    assert memory.purge({"user_id": "bob"}) == 2
    assert contents(memory, "shared") == ["I keep geckos", "Geckos are fine", ERASED, ERASED]
    assert memory.search("newts", 5, mode="lexical") == []
    assert memory.purge({"user_id": "ann"})  # nobody else has said anything that is left
    assert memory.repository().store.sessions(limit=9) == []


def test_it_takes_them_from_forks_and_attempts_too(memory: hs.StepMemory) -> None:
    share(memory)
    repo = memory.repository()
    asyncio.run(repo.fork("shared", 4, "fork"))
    asyncio.run(repo.append("fork", [said("bob", "and toads")]))
    asyncio.run(repo.delete_steps("shared", 3))
    memory.purge({"user_id": "bob"})
    assert contents(memory, "fork") == ["I keep geckos", "Geckos are fine", ERASED, ERASED, ERASED]
    assert contents(memory, "shared") == ["I keep geckos", "Geckos are fine"]


def test_what_a_run_says_names_its_user(memory: hs.StepMemory) -> None:
    def answer(question: str) -> str:
        return f"You asked: {question}"

    runner = hs.StepRunner(answer, memory)
    asyncio.run(runner.run(hs.AgentSession("s", "ann"), "Why?"))
    store = memory.repository().store
    assert [each.user_id for each in store.messages("s")] == ["ann", "ann"]
    assert store.session_owner("s") == "ann"


def test_a_fork_is_its_sources_or_whose_it_is_made(memory: hs.StepMemory) -> None:
    share(memory)
    store = memory.repository().store
    store.fork("shared", 2, "same")
    store.fork("shared", 2, "bobs", user_id="bob")
    assert [store.session_owner(each) for each in ("same", "bobs")] == ["ann", "bob"]
    reopened = [each.user_id for each in store.sessions(limit=9)]
    assert sorted(map(str, reopened)) == ["ann", "ann", "bob"]
    assert memory.verify() == []


def named_step(user: str | None, session: str, run: str = "r") -> hs.AgentStep:
    kind = hs.AgentStepType.Action
    return hs.AgentStep(step_type=kind, user_id=user, session_id=session, run_id=run)


def echo(messages: list[dict[str, Any]]) -> str:
    return messages[-1]["content"]


def refused(call: Any) -> None:
    with pytest.raises(NotAllowedError):
        asyncio.run(call)


def test_a_session_of_nobody_is_the_first_users_who_speaks_there(memory: hs.StepMemory) -> None:
    repo, seen = memory.repository(), list[str]()

    def answer(question: str) -> str:
        seen.append(question)
        return question

    asyncio.run(repo.append("s", [said(None, "Be kind", "system")]))
    assert repo.store.session_owner("s") is None
    asyncio.run(repo.append("s", [said("ann", "My PIN is 5678")]))
    memory.add(named_step("bob", "s"))  # that a step names it changes nothing
    runner = hs.StepRunner(answer, memory)
    refused(runner.run(hs.AgentSession("s", "bob"), "What was said?"))
    refused(memory.repository(user_id="bob").get_steps("s"))
    assert seen == []
    assert len(asyncio.run(memory.repository(user_id="ann").get_steps("s"))) == 2
    assert [each.session_id for each in asyncio.run(repo.sessions(user_id="ann"))] == ["s"]
    assert memory.verify() == []


def test_an_owner_stays_when_the_steps_go(memory: hs.StepMemory) -> None:
    repo, runner = memory.repository(), hs.StepRunner(echo, memory)
    asyncio.run(repo.append("s", [said(None, "hello")]))
    asyncio.run(runner.run(hs.AgentSession("s", "ann"), "My PIN is 5678"))
    asyncio.run(runner.run(hs.AgentSession("s", "bob", as_any_user=True), "hi"))
    [anns] = {step.run_id for step in memory.iter_steps({"user_id": "ann"})}
    assert memory.purge({"run_id": anns})
    refused(memory.repository(user_id="bob").get_steps("s"))
    assert repo.store.session_owner("s") == "ann"


def test_nobody_runs_where_steps_name_several(memory: hs.StepMemory) -> None:
    asyncio.run(memory.repository().append("s", [said(None, "hello")]))
    memory.add([named_step("ann", "s", "1"), named_step("bob", "s", "2")])
    runner = hs.StepRunner(echo, memory)
    for user in ("ann", "bob", "eve"):
        refused(memory.repository(user_id=user).get_steps("s"))
        refused(runner.run(hs.AgentSession("s", user), "hi"))
    asyncio.run(runner.run(hs.AgentSession("s", "eve", as_any_user=True), "hi"))


def test_nobody_begins_a_session_that_anothers_steps_name(memory: hs.StepMemory) -> None:
    memory.add(named_step("ann", "plan"))
    bobs = memory.repository(user_id="bob")
    refused(bobs.append("plan", [said(None, "mine")]))
    refused(hs.StepRunner(echo, memory).run(hs.AgentSession("plan", "bob"), "x"))
    asyncio.run(bobs.append("own", [said(None, "mine")]))
    refused(bobs.fork("own", 1, "plan"))
    asyncio.run(memory.repository(user_id="ann").append("plan", [said(None, "mine")]))


def test_a_repository_of_a_user_without_a_name_is_refused(memory: hs.StepMemory) -> None:
    share(memory)
    with pytest.raises(InvalidSettingError, match="user_id"):
        memory.repository(user_id="")
    assert asyncio.run(memory.repository().sessions(user_id="")) == []
