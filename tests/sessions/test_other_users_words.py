"""No search, context or retriever of one user holds what another user said."""

from __future__ import annotations

import asyncio
import random
import re
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from typing import Any

import pytest

import hybridagi_steps as hs
from hybridagi_steps.context.builder import ContextBuilder
from hybridagi_steps.protocols import MessageIndex
from hybridagi_steps.records.store_values import Position

USERS = ("ann", "bob", "cy")
SAID = re.compile(r"secret(\w+?)x\d+")


def said(content: str, user: str | None = None, role: str = "user", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, "user_id": user, **more}


def append(memory: hs.StepMemory, session: str, *messages: dict[str, Any]) -> None:
    asyncio.run(memory.repository().append(session, list(messages)))


def index_of(memory: hs.StepMemory) -> Any:
    store = memory.repository().store
    assert isinstance(store, MessageIndex)
    return store


def text_of(hits: Iterable[hs.StepHit]) -> str:
    """Return everything that hits show."""
    shown: list[object] = []
    for hit in hits:
        for step in (hit.step, *hit.context):
            shown += [step.inputs, step.outputs, step.metadata]
        shown.append(hit.why)
    return str(shown)


def test_a_question_of_one_user_and_the_answer_of_another_are_told_apart(
    memory: hs.StepMemory,
) -> None:
    question = said("my door code is 4711", "bob")
    append(memory, "room", question, said("I noted the door code", "ann", "assistant"))
    [anns] = memory.search("door code 4711", where={"user_id": "ann"})
    [bobs] = memory.search("door code 4711", where={"user_id": "bob"})
    assert (anns.sequence, anns.step.purpose, bobs.sequence) == (2, "", 1)
    assert "4711" not in anns.why
    assert memory.search("4711", where={"user_id": "ann"}, mode="lexical") == []
    [alone] = memory.search("door code", where={"exclude": {"user_id": "bob"}})
    assert alone.sequence == 2
    assert "4711" not in text_of([alone])


def test_an_answer_that_names_nobody_is_of_whom_it_answers(memory: hs.StepMemory) -> None:
    append(
        memory,
        "room",
        said("my door code is 4711", "bob"),
        said("noted the door code", None, "assistant"),
        said("my door code is 1111", "ann"),
        said("noted this door code", None, "assistant"),
    )
    for _ in range(2):  # as the store says, and as what is kept in memory does
        found = {
            user: {(h.sequence, h.step.purpose[-4:]) for h in memory.search("door code", where=w)}
            for user, w in (
                ("ann", {"user_id": "ann"}),
                ("bob", {"user_id": "bob"}),
                ("cy", {"user_id": "cy"}),
                ("nobody", {"trust": "own"}),
                ("all but bob", {"exclude": {"user_id": "bob"}}),
            )
        }
        anns, bobs = {(4, "1111")}, {(2, "4711")}
        assert found == {
            "ann": anns,
            "bob": bobs,
            "cy": set(),
            "nobody": set(),
            "all but bob": anns,
        }


def test_an_answer_of_another_run_is_of_nobody_who_is_not_known(memory: hs.StepMemory) -> None:
    question = said("my door code is 4711", "bob", run_id="one")
    append(memory, "room", question, said("door code noted", None, "assistant", run_id="two"))
    for where in ({"user_id": "ann"}, {"trust": "own"}, {"exclude": {"user_id": "bob"}}):
        assert memory.search("door code", where=where) == []
    kind = hs.AgentStepType.Action
    memory.add(hs.AgentStep(step_type=kind, user_id="ann", run_id="two", session_id="other"))
    [anns] = memory.search("door code", where={"user_id": "ann", "kinds": "message"})
    assert (anns.sequence, anns.step.purpose) == (2, "")


def test_what_several_users_may_have_said_is_excluded_with_each(memory: hs.StepMemory) -> None:
    append(memory, "room", said("the door code is 4711"), said("noted", None, "assistant"))
    append(memory, "hall", said("the door code is 1111"), said("noted", None, "assistant"))
    kind = hs.AgentStepType.Action
    for user in ("ann", "bob"):
        memory.add(hs.AgentStep(step_type=kind, user_id=user, session_id="room"))
    for user, sessions in (("bob", {"hall"}), ("cy", {"hall", "room"})):
        where = {"kinds": "message", "exclude": {"user_id": user}}
        assert {hit.session_id for hit in memory.search("door code", where=where)} == sessions
        rows = index_of(memory).message_rows(hs.StepFilter.of(where)).tolist()
        assert len(rows) == 2 * len(sessions)
    where = {"kinds": "message", "exclude": {"user_id": ["cy", "bob"]}}
    assert {hit.session_id for hit in memory.search("door code", where=where)} == {"hall"}
    assert len(index_of(memory).message_rows(hs.StepFilter.of(where))) == 2


def test_several_users_find_what_each_finds(memory: hs.StepMemory) -> None:
    kind = hs.AgentStepType.Action
    for user in ("ann", "bob", "cid"):
        append(memory, user, said(f"the door code of {user}"), said("noted", None, "assistant"))
        memory.add(hs.AgentStep(step_type=kind, user_id=user, session_id=user))
    append(memory, "room", said("the door code of all"), said("noted", None, "assistant"))
    for user in ("ann", "bob"):
        memory.add(hs.AgentStep(step_type=kind, user_id=user, session_id="room"))
    where = {"user_id": ["ann", "bob"], "kinds": "message"}
    assert {hit.session_id for hit in memory.search("door code", 9, where=where)} == {"ann", "bob"}
    assert len(index_of(memory).message_rows(hs.StepFilter.of(where))) == 4
    [found] = memory.search("code of ann", 1, where={"user_id": ["ann", "bob"]}, expand="following")
    assert {step.user_id for step in found.context} <= {"ann", "bob"}


def test_a_retried_answer_does_not_tell_the_question_of_another(memory: hs.StepMemory) -> None:
    def answer(question: str) -> str:
        return "The door code is noted."

    repo, runner = memory.repository(), hs.StepRunner(answer, memory)

    async def talk() -> None:
        await runner.run(hs.AgentSession("room", "ann"), "hello")
        bob = hs.AgentSession("room", "bob", as_any_user=True)
        await runner.run(bob, "my door code is 4711")
        async for _ in hs.retry_from_sequence(hs.AgentSession("room", "ann"), 4, repo, runner):
            pass

    asyncio.run(talk())
    hits = memory.search("door code", 9, where={"user_id": "ann", "kinds": "message"})
    assert {hit.sequence for hit in hits} >= {4}
    assert "4711" not in text_of(hits)


def secrets(text: str) -> set[str]:
    """Return whose secrets a text holds."""
    return set(SAID.findall(text)) - {"None"}


@pytest.mark.parametrize("seed", range(3))
def test_nobody_sees_or_scores_by_what_another_named_user_said(
    memory: hs.StepMemory, seed: int
) -> None:
    chance, repo = random.Random(seed), memory.repository()
    count = iter(range(10_000))

    def message(role: str, **more: Any) -> dict[str, Any]:
        user = chance.choice([*USERS, None])
        run = chance.choice([None, "one", "two"])
        return said(f"secret{user}x{next(count)} parcel code", user, role, run_id=run, **more)

    def exchange() -> list[dict[str, Any]]:
        call = {"id": "c", "type": "function", "function": {"name": "find", "arguments": "{}"}}
        asked = message("assistant", tool_calls=[call])
        tool = [asked, message("tool", tool_call_id="c")] if chance.random() < 0.3 else []
        return [message("user"), *tool, message("assistant")]

    for n in range(12):
        append(memory, f"s{n}", *exchange(), *exchange(), *exchange())
        if n % 3 == 0:
            at = chance.randrange(1, 6)
            fork = asyncio.run(hs.fork_session(f"s{n}", at, repo))
            append(memory, fork, message("assistant"), *exchange())
    store = index_of(memory)
    options: list[dict[str, Any]] = [
        {},
        {"expand": "parents"},
        {"expand": "following"},
        {"expand": "program"},
        {"mode": "lexical"},
        {"mode": "dense"},
        {"aim": "episode"},
    ]
    wheres: list[tuple[set[str], dict[str, Any]]] = [({u}, {"user_id": u}) for u in USERS]
    wheres += [(set(), {"trust": "own"})]
    for allowed, where in wheres:
        for option in options:
            for query in ("parcel code", "secretbobx1 secretannx2 secretcyx3"):
                hits = memory.search(query, 80, where=where, **option)
                assert secrets(text_of(hits)) <= allowed, (where, option)
        rows = store.message_rows(hs.StepFilter.of({**where, "kinds": "message"})).tolist()
        read = store.read(rows)
        assert secrets(str([(s.inputs, s.outputs) for s in read.values()])) <= allowed
    for user in USERS:
        hits = memory.search("parcel code", 80, where={"exclude": {"user_id": user}})
        assert user not in secrets(text_of(hits))
    for user in (*USERS, None):
        append(memory, f"new{user}", said("which parcel code?", user))
        where = {} if user is None else {"user_id": user}
        context = ContextBuilder(memory, budget=4000, where=where).build(session_id=f"new{user}")
        assert secrets(str(context.messages)) <= {user}
    for user in USERS:
        with hs.record(memory, user_id=user):
            found = hs.StepRetriever(memory, k=40)("parcel code")
        assert secrets(str(found.steps)) <= {user}


def test_no_derived_word_is_of_another_owner(memory: hs.StepMemory) -> None:
    append(
        memory,
        "room",
        said("zebra", "bob"),
        said("yak", "ann", "assistant"),
        said("walrus", "ann"),
        said("vulture", None, "assistant"),
        said("tapir", "bob"),
    )
    memory.flush()
    texts = index_of(memory).changes(Position(0, 0, 0, 0, 0)).texts
    words = [{w for w in text.tokens.split() if w in WORDS} for text in texts]
    assert words == [{"zebra"}, {"yak"}, {"yak", "walru"}, {"yak", "walru", "vultur"}, {"tapir"}]


WORDS = {"zebra", "yak", "walru", "vultur", "tapir"}


def foretell(path: str) -> None:
    """Leave of a memory what an earlier version would have written of a shared session."""
    script = """UPDATE step_text SET checksum = NULL, tokens = 'yak\tzebra'
        WHERE row > 1099511627776;"""
    if "://" not in path:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.executescript(
                f"{script} DROP INDEX step_key_user; PRAGMA user_version = 10;"
            )
        return
    import psycopg

    with psycopg.connect(path, autocommit=True) as connection:
        connection.execute("SET search_path TO hybridagi_steps")
        connection.execute(script.encode())
        connection.execute("DROP INDEX agent_step_user")
        connection.execute("UPDATE meta SET value = '13' WHERE key = 'schema_version'")


def test_words_of_others_that_an_earlier_version_wrote_are_made_anew(address: str) -> None:
    if address == ":memory:":
        pytest.skip("a memory that is in no file has no earlier version")
    sessions = {
        "room": [said("tapir", "bob"), said("yak", "ann", "assistant")],
        "alone": [said("tapir", "cy"), said("yak", None, "assistant")],
    }
    with hs.StepMemory(address, embedder="hashing") as memory:
        for session, messages in sessions.items():
            append(memory, session, *messages)
        fork = asyncio.run(hs.fork_session("alone", 1, memory.repository()))
        append(memory, fork, said("yak", "dan", "assistant"))
        memory.flush()
    foretell(address)
    with hs.StepMemory(address, embedder="hashing") as memory:
        found = {
            user: len(memory.search("zebra", mode="lexical", where={"user_id": user}))
            for user in ("ann", "bob", "cy", "dan")
        }
        assert found == {"ann": 0, "bob": 0, "cy": 1, "dan": 0}  # alone: as it was
        assert memory.search("yak", where={"user_id": "dan"})[0].step.purpose == ""
        assert memory.verify() == []
