"""Files of the schema before sessions had owners: whose their sessions are once they are opened."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from store_files import made_old

from hybridagi_steps import AgentSession, StepMemory, StepRunner
from hybridagi_steps.errors import NotAllowedError


def echo(question: str) -> str:
    return f"You asked: {question}"


def write(address: str | Path) -> None:
    """Write sessions of one user, of two, of nobody; and forks."""
    with StepMemory(address, embedder="hashing", durability="normal") as memory:
        repo, runner = memory.repository(), StepRunner(echo, memory)

        def speak(session: str, user: str) -> None:
            asyncio.run(runner.run(AgentSession(session, user, as_any_user=True), f"of {user}"))

        speak("anns", "ann")
        asyncio.run(repo.fork("anns", 1, "fork"))
        asyncio.run(repo.fork("fork", 1, "fork of a fork"))
        asyncio.run(repo.fork("anns", 2, "bobs fork"))
        speak("bobs fork", "bob")
        speak("shared", "ann")
        speak("shared", "bob")
        asyncio.run(repo.append("nobodys", [{"role": "user", "content": "hi"}]))


def old_file(path: Path) -> str | Path:
    write(path)
    made_old(path, 7)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE message SET checksum = NULL, said_checksum = NULL")
        connection.execute("UPDATE message SET body = json_remove(body, '$.user_id')")
    return path


def old_database(address: str) -> str | Path:
    import psycopg

    write(address)
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("SET search_path TO hybridagi_steps")
        connection.execute("DROP TABLE access, search_state, stem_count CASCADE")
        connection.execute("DROP FUNCTION stems, talk, count_texts, texts_gone CASCADE")
        connection.execute("DROP FUNCTION isolate, isolate_tables, grant_rights, admit, expel")
        connection.execute("DROP TABLE prompt, prompt_part, prompt_use")
        connection.execute("DROP INDEX session_of_user, agent_step_user")
        connection.execute("ALTER TABLE session DROP COLUMN user_id")
        connection.execute("UPDATE session SET checksum = NULL")
        connection.execute(
            """UPDATE message SET checksum = NULL, said_checksum = NULL,
            body = (body::jsonb - 'user_id')::text"""
        )
        connection.execute("UPDATE meta SET value = '7' WHERE key = 'schema_version'")
    return address


@pytest.fixture(params=["file", "PostgreSQL"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> str | Path:
    """A memory of before."""
    if request.param == "file":
        return old_file(tmp_path / "steps.db")
    return old_database(request.getfixturevalue("postgres_address"))


def test_sessions_of_before_have_the_owner_that_their_steps_name(old: str | Path) -> None:
    owners = {
        "anns": "ann",
        "fork": "ann",
        "fork of a fork": "ann",
        "bobs fork": "",
        "shared": "",
        "nobodys": None,
    }
    with StepMemory(old, embedder="hashing") as memory:
        store, bobs = memory.repository().store, memory.repository(user_id="bob")
        assert {name: store.session_owner(name) for name in owners} == owners
        anns = asyncio.run(memory.repository(user_id="ann").sessions())
        assert sorted(each.session_id for each in anns) == ["anns", "fork", "fork of a fork"]
        assert {each.user_id for each in asyncio.run(memory.repository().sessions())} == {
            "ann",
            None,
        }
        assert store.sessions(limit=9, user_id="") == []
        for run in memory.runs(user_id="ann"):
            memory.purge({"run_id": run.run_id})
        for name in owners:  # those where nobody is named any more as well
            with pytest.raises(NotAllowedError):
                asyncio.run(bobs.get_steps(name))
        with pytest.raises(NotAllowedError):
            asyncio.run(StepRunner(echo, memory).run(AgentSession("shared", "bob"), "hi"))
        assert len(asyncio.run(memory.repository(user_id="ann").get_steps("fork"))) == 1
        assert memory.verify() == []
        memory.vacuum()
        assert memory.verify() == []
