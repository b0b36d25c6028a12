"""Who works on a memory, and on what: of a file, of several servers, of queues, over HTTP."""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra server is not installed")
pytest.importorskip("dbos", reason="the extra durable is not installed")

from server_cases import Served, Told, serving, until

from hybridagi_steps import StepMemory
from hybridagi_steps.durable.session_runs import DurableRunner
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


async def begun(address: str, headers: dict[str, str], session: str = "talked") -> int:
    """Begin a run, and let its reader go; return the status."""
    import httpx

    async with httpx.AsyncClient(base_url=address, headers=headers) as client:
        body = {"session_id": session, "message": "hello"}
        async with client.stream("POST", "/chat/stream/v2", json=body) as answer:
            return answer.status_code
