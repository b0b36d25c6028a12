"""Who works on a memory, and on what: of a file, of several servers, of queues, over HTTP."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra server is not installed")
pytest.importorskip("dbos", reason="the extra durable is not installed")

from server_cases import Told, serving, until

from hybridagi_steps import StepMemory
from hybridagi_steps.durable.session_runs import DurableRunner
from hybridagi_steps.server.tokens import Caller, TokenScope
from hybridagi_steps.stores.address import is_server

ANN = "a-token-that-is-anns-alone"


@pytest.fixture(params=["file", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a memory is kept."""
    if request.param == "file":
        return str(tmp_path / "steps.db")
    return request.getfixturevalue("postgres_address")


def test_work_shows_servers_runs_and_queues(address: str) -> None:
    told, caller = Told(), Caller(frozenset({TokenScope.READ}), "ann")
    with (
        StepMemory(address, embedder="hashing") as memory,
        DurableRunner(memory=memory) as durable,
        serving(memory, told, {ANN: caller}) as served,
    ):
        assert served.client.get("/work").json()["queues"] == []
        for number in range(2):
            asyncio.run(durable.submit(f"queued-{number}", "hello"))
        asyncio.run(_begun(served.address, dict(served.client.headers)))
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


async def _begun(address: str, headers: dict[str, str]) -> None:
    """Begin a run, and let its reader go."""
    import httpx

    async with httpx.AsyncClient(base_url=address, headers=headers) as client:
        body = {"session_id": "talked", "message": "hello"}
        async with client.stream("POST", "/chat/stream/v2", json=body) as answer:
            assert answer.status_code == 200
