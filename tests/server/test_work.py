"""Who works on a memory, and on what: of a file, of several servers, of queues, over HTTP."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra server is not installed")
pytest.importorskip("dbos", reason="the extra durable is not installed")

import httpx
from server_cases import TOKEN, Served, Told, echo, problem, serving, until

from hybridagi_steps import AgentStep, StepMemory
from hybridagi_steps.durable.session_runs import DurableRunner
from hybridagi_steps.records.agent_step import AgentStepType
from hybridagi_steps.server.slots import RequestRates
from hybridagi_steps.server.tokens import Caller, TokenScope
from hybridagi_steps.stores.address import is_server

ANN, BOB = "a-token-that-is-anns-alone", "a-token-that-is-bobs-alone"
CALLERS = {
    token: Caller(frozenset({TokenScope.READ, TokenScope.APPEND}), user)
    for token, user in ((ANN, "ann"), (BOB, "bob"))
}


@pytest.fixture(params=["file", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a memory is kept."""
    if request.param == "file":
        return str(tmp_path / "steps.db")
    return request.getfixturevalue("postgres_address")


def test_work_shows_servers_runs_and_queues(address: str) -> None:
    told = Told()
    with (
        StepMemory(address, embedder="hashing") as memory,
        DurableRunner(memory=memory) as durable,
        serving(memory, told, CALLERS) as served,
    ):
        assert served.client.get("/work").json()["queues"] == []
        for number in range(2):
            asyncio.run(durable.submit(f"queued-{number}", "hello"))
        asyncio.run(begun(served.address, dict(served.client.headers)))
        until(lambda: served.client.get("/work").json()["runs"])
        work = served.client.get("/work").json()
        [server] = work["servers"]
        assert (server["process"], work["workers"]) == (os.getpid(), [])
        [run] = work["runs"]
        assert (run["session_id"], run["server"]) == ("talked", server["name"])
        [queue] = work["queues"]
        assert queue.pop("oldest_wait_seconds") >= 0
        assert queue == {"name": "session-runs:default", "queued": 2, "running": 0, "failed": 0}
        refused = served.client.get("/work", headers={"Authorization": f"Bearer {ANN}"})
        assert refused.status_code == 403
        if is_server(address):
            with StepMemory(address, embedder="hashing") as same, serving(same) as other:
                both = other.client.get("/work").json()
                assert server["name"] in [each["name"] for each in both["servers"]]
                assert len(both["servers"]) == 2
                assert both["runs"] == [run]
        told.say("that is all")
        told.end()
        until(lambda: not served.client.get("/work").json()["runs"])


def test_runs_of_a_user_are_counted_on_all_servers_together(address: str) -> None:
    def begin(served: Served, token: str, session: str) -> int:
        return asyncio.run(begun(served.address, {"Authorization": f"Bearer {token}"}, session))

    told = Told()
    with (
        StepMemory(address, embedder="hashing") as memory,
        serving(memory, told, CALLERS, max_user_runs=2) as first,
        ExitStack() as stack,
    ):
        second = first
        if is_server(address):
            other = stack.enter_context(StepMemory(address, embedder="hashing"))
            second = stack.enter_context(serving(other, told, CALLERS, max_user_runs=2))
        assert [begin(first, ANN, "one"), begin(second, ANN, "two")] == [200, 200]
        assert [begin(first, ANN, "three"), begin(second, ANN, "three")] == [429, 429]
        assert begin(second, BOB, "four") == 200
        assert first.client.get("/metrics").text.count('refused_total{kind="user_runs"}') == 1
        told.end()
        until(lambda: begin(second, ANN, "three") == 200)


def test_requests_of_a_user_are_counted_on_all_servers_together(address: str) -> None:
    def ask(served: Served, token: str) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"}
        return served.client.get("/sessions", headers=headers)

    def begin(served: Served, user_id: str, path: str = "/chat/stream/v2") -> httpx.Response:
        body: dict[str, Any] = {"message": "hello", "user_id": user_id}
        if path != "/chat/stream/v2":
            said = [{"role": "user", "content": "hello"}]
            body = {"model": "echo", "messages": said, "user": user_id}
        return served.client.post(path, json=body)

    with (
        StepMemory(address, embedder="hashing") as memory,
        serving(memory, echo, CALLERS, requests_per_minute=3) as first,
        ExitStack() as stack,
    ):
        second = first
        if is_server(address):
            other = stack.enter_context(StepMemory(address, embedder="hashing"))
            second = stack.enter_context(serving(other, echo, CALLERS, requests_per_minute=3))
        assert [ask(each, ANN).status_code for each in (first, second, first)] == [200] * 3
        for served in (first, second):
            refused = ask(served, ANN)
            told = problem(refused, 429)
            assert told["error"] == "RateLimitedError"
            assert told["detail"].startswith("this user may ask 3 times a minute")
            assert 1 <= int(refused.headers["Retry-After"]) <= 20
        assert ask(second, BOB).status_code == 200
        assert [ask(first, TOKEN).status_code for _ in range(5)] == [200] * 5, "nobody's token"
        assert problem(begin(first, "ann"), 429)["error"] == "RateLimitedError"
        refused = begin(first, "ann", "/v1/chat/completions")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "RateLimitedError")
        assert "Retry-After" in refused.headers
        assert [begin(second, "carl").status_code for _ in range(3)] == [200] * 3
        assert begin(first, "carl").status_code == 429
        assert 'refused_total{kind="requests"} ' in first.client.get("/metrics").text
        health = {"Authorization": f"Bearer {ANN}"}
        assert first.client.get("/healthz", headers=health).status_code == 200


def test_a_bucket_holds_a_minutes_requests_and_fills_evenly() -> None:
    now = 5 * 10**9
    rates = RequestRates(lambda: now)
    assert [rates.admit("ann", 7) for _ in range(7)] == [None] * 7
    assert rates.admit("ann", 7) == pytest.approx(60 / 7)
    now += 60 * 10**9 // 7
    assert [rates.admit("ann", 7), rates.admit("ann", 7) is None] == [None, False]
    assert [rates.admit(f"user {n}", 7) for n in range(3_000)] == [None] * 3_000
    now += 60 * 10**9
    assert [rates.admit(f"user {n}", 7) for n in range(3_000)] == [None] * 3_000
    assert rates.admit("ann", 7) is None


def test_a_table_holds_the_same_and_a_purge_erases_whose_it_is(postgres_address: str) -> None:
    def known() -> list[str]:
        with psycopg.connect(postgres_address) as raw:
            found = raw.execute(f"SELECT user_id FROM {WORK_SCHEMA}.request_rate ORDER BY 1")
            return [user_id for (user_id,) in found]

    psycopg = pytest.importorskip("psycopg", reason="the extra postgres is not installed")
    from hybridagi_steps.stores.postgres.live_runs import LiveRuns
    from hybridagi_steps.stores.postgres.work_tables import WORK_SCHEMA

    with StepMemory(postgres_address, embedder="hashing") as memory:
        runs, other = LiveRuns(postgres_address, "default"), LiveRuns(postgres_address, "other")
        assert [runs.admit("ann", 2), runs.admit("ann", 2)] == [None, None]
        wait = runs.admit("ann", 2)
        assert wait is not None
        assert 0 < wait <= 30
        back = f"UPDATE {WORK_SCHEMA}.request_rate SET full_at = full_at - interval '30 s'"
        with psycopg.connect(postgres_address, autocommit=True) as raw:
            raw.execute(back)
        assert [runs.admit("ann", 2), runs.admit("ann", 2) is None] == [None, False]
        with ThreadPoolExecutor(8) as pool:
            admitted = list(pool.map(other.admit, ["ann"] * 40, [5] * 40))
        assert admitted.count(None) == 5
        assert [runs.admit("bob", 2), runs.admit("c\0", 2)] == [None, None]
        assert len(known()) == 4
        memory.add(AgentStep(step_type=AgentStepType.Action, run_id="r", user_id="bob"))
        memory.purge({"run_id": "r"})
        assert len(known()) == 4, "who erases something else may not ask more often"
        memory.purge({"user_id": "bob"})
        assert "bob" not in known()
        memory.clear()
        assert known() == ["ann"], "of the other namespace"
        runs.close()
        other.close()


async def begun(address: str, headers: dict[str, str], session: str = "talked") -> int:
    """Begin a run, and let its reader go; return the status."""
    async with httpx.AsyncClient(base_url=address, headers=headers) as client:
        body = {"session_id": session, "message": "hello"}
        async with client.stream("POST", "/chat/stream/v2", json=body) as answer:
            return answer.status_code
