"""What a cluster is tried with: by the tests on a small one, by `python -m tests.cluster --check`.

Everything goes through the doors that users have: HTTP with a token, addresses, signals.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import httpx

from hybridagi_steps.durable.session_runs import DurableRunner
from hybridagi_steps.errors import StorageError
from hybridagi_steps.running.stored_events import RunResult
from tests.cluster.cluster import ROOT, Cluster, Shape, started
from tests.cluster.deployment import copied_paths, installed_extras
from tests.cluster.failover import failover
from tests.cluster.postgres import PATIENCE_SECONDS
from tests.cluster.streams import check_killed

STREAMS = 200
TRIES = 30
"""How often something is asked of a server while a standby takes over."""
_PAUSE_SECONDS = 0.5


def say(client: httpx.Client, session_id: str, message: str) -> None:
    """Say something to the program of a server, and wait for the answer."""
    body = {"session_id": session_id, "message": message}
    answer = client.post("/chat/stream/v2", json=body).raise_for_status()
    assert "event: run_completed" in answer.text, answer.text


def messages(client: httpx.Client, session_id: str) -> list[str]:
    """Return what was said in a session, as a server has it."""
    answer = client.get(f"/sessions/{session_id}/steps").raise_for_status().json()
    return [str(step["content"]) for step in answer["steps"]]


def check_doors(cluster: Cluster) -> None:
    """Each server lives, shows its figures to whoever has the token, under its name alone."""
    with cluster.clients() as clients:
        for server, client in zip(cluster.servers, clients, strict=True):
            for path in ("/healthz", "/readyz"):
                client.get(path, headers={"Authorization": ""}).raise_for_status()
            scraped = client.get("/metrics", headers={"Host": f"{server.name}:8377"})
            assert "hybridagi_steps_stored" in scraped.raise_for_status().text
            nobody = client.get("/metrics", headers={"Authorization": "Bearer somebody-else's"})
            assert nobody.status_code == httpx.codes.UNAUTHORIZED
            foreign = client.get("/healthz", headers={"Host": "elsewhere.example"})
            assert foreign.status_code == httpx.codes.MISDIRECTED_REQUEST


def check_one_memory(cluster: Cluster) -> None:
    """A session that is begun at one server goes on at the next, and every server finds it."""
    with cluster.clients() as clients:
        said: list[str] = []
        for number, client in enumerate(clients):
            asked = f"harbour of Lisbon, part {number}"
            say(client, "tour", asked)
            said += [asked, f"You said: {asked}"]
        for client in clients:
            assert messages(client, "tour") == said
            found = client.get("/search", params={"q": "harbour of Lisbon"}).raise_for_status()
            assert len(found.json()["hits"]) > 0


def check_followed(cluster: Cluster) -> None:
    """A run that is begun at one server is followed at the next, numbered alike, to its end.

    The other server tells of whole messages; pieces of them stay where they are made.
    """
    body = {"session_id": "followed", "message": f"a long answer{' piece' * 20}"}
    with (
        cluster.clients() as [first, second, *_],
        first.stream("POST", "/chat/stream/v2", json=body) as answer,
    ):
        chunks = answer.raise_for_status().iter_bytes()
        begun = next(chunks).decode()
        run_id = begun.partition("id: ")[2].partition(":")[0]
        followed = second.get(f"/runs/{run_id}/events").raise_for_status().text
        whole = begun + b"".join(chunks).decode()
    ids, others = (re.findall(r"^id: (.+)$", text, re.MULTILINE) for text in (whole, followed))
    assert others == [one for one in ids if one in others]
    assert others[-1] == ids[-1], followed
    assert "event: run_completed" in followed


def check_takeover(cluster: Cluster) -> float:
    """Kill the primary and promote the standby; return after how many seconds all servers write."""
    assert cluster.standby is not None
    with cluster.clients() as clients:
        before = messages(clients[0], "tour")
        cluster.primary.kill()
        killed = time.monotonic()
        cluster.standby.promote()
        asked = [f"part {number} after the takeover" for number in range(len(clients))]
        for client, message in zip(clients, asked, strict=True):
            _say_once(client, "tour", message)
        took = time.monotonic() - killed
        after = [text for message in asked for text in (message, f"You said: {message}")]
        for client in clients:
            assert messages(client, "tour") == [*before, *after]
    return took


@contextmanager
def queued(cluster: Cluster, session: str, runs: int = 20) -> Generator[None]:
    """Hand out runs, and check after the block that workers have done each of them once."""
    with DurableRunner(memory=cluster.address) as durable:

        async def submit() -> list[str]:
            return [await durable.submit(f"{session}-{n}", asked(n)) for n in range(runs)]

        def asked(number: int) -> str:
            return f"run {number}, which takes a while{' because' * 20}"

        ids = asyncio.run(submit())
        yield
        for number, run_id in enumerate(ids):
            result = asyncio.run(_result(durable, run_id))
            assert result.status == "completed", result
            with cluster.clients() as [client, *_]:
                said = messages(client, f"{session}-{number}")
            assert said == [asked(number), f"You said: {asked(number)}"]


async def _result(durable: DurableRunner, run_id: str) -> RunResult:
    """Wait for a run; its database may be away for a while."""
    for _ in range(TRIES):
        try:
            return await asyncio.wait_for(durable.result(run_id), PATIENCE_SECONDS)
        except StorageError:
            await asyncio.sleep(_PAUSE_SECONDS)
    raise AssertionError(f"run {run_id} cannot be asked for in {TRIES} tries")


def check(workers: int) -> int:
    """Try a cluster of an installed wheel, and both kinds of takeover; print what happened."""
    with installed_wheel() as environment:
        shape = Shape(databases=1, synchronous=True, workers=workers, environment=environment)
        _tell("the processes of compose.yaml, of a wheel in an environment of its own")
        with started(shape, tell=lambda name: _tell(f"  {name} runs")) as cluster:
            check_doors(cluster)
            check_one_memory(cluster)
            check_followed(cluster)
            _tell("  sessions, streams, search and metrics: as they should be")
            if workers:
                with queued(cluster, "worker-killed"):
                    cluster.workers[0].process.kill()
                _tell("  a worker killed: the other one has done all that was queued, once")
            with queued(cluster, "takeover") if workers else nullcontext():
                took = check_takeover(cluster)
                check_followed(cluster)
            _tell(f"  the primary killed: every server writes again after {took:.1f} s")
    killed = check_killed(STREAMS)
    _tell(f"a server killed under {killed}")
    assert (killed.gaps, killed.repeats) == (0, 0)
    for synchronous in (True, False):
        outcome = failover(synchronous=synchronous, writers=8)
        _tell(f"{'' if synchronous else 'a'}synchronous standby, 8 writers: {outcome}")
        assert not (outcome.lost and synchronous)
        assert (outcome.differing, outcome.untold, outcome.damage) == (0, 0, []), outcome
    return 0


@contextmanager
def installed_wheel() -> Generator[Path]:
    """Build the wheel from what the Dockerfile takes along, and install it as that does.

    Dependencies come from where pip finds them, into a new virtual environment.
    """
    pip = ["-m", "pip", "--disable-pip-version-check", "-q"]
    with tempfile.TemporaryDirectory(prefix="wheel-") as name:
        source, wheels, environment = (Path(name, part) for part in ("source", "wheels", "venv"))
        for path in copied_paths():
            target = source / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(path, target) if path.is_dir() else shutil.copy(path, target)
        build = [sys.executable, *pip, "wheel", "--no-deps", "--wheel-dir", wheels, source]
        subprocess.run(build, check=True)
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        [wheel], constraints = wheels.glob("*.whl"), ROOT / ".ci" / "constraints.txt"
        wanted = f"{wheel}[{','.join(installed_extras())}]"
        python = environment / "bin" / "python"
        subprocess.run([python, *pip, "install", "-c", constraints, wanted], check=True)
        yield environment


def _say_once(client: httpx.Client, session_id: str, message: str) -> None:
    """Say something until it is answered, under one key, so that it is said once."""
    headers = {"Idempotency-Key": message.replace(" ", "-")}
    body = {"session_id": session_id, "message": message}
    said = ""
    for _ in range(TRIES):
        answer = client.post("/chat/stream/v2", json=body, headers=headers)
        said = f"{answer.status_code} {answer.text}"
        if answer.is_success and "event: run_completed" in said:
            return
        time.sleep(_PAUSE_SECONDS)
    raise AssertionError(f"not answered in {TRIES} tries: {said}")


def _tell(line: str) -> None:
    print(line, flush=True)
