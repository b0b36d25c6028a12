"""What a server answers a second over HTTP, beside a bare FastAPI app that returns the same bytes.

Both servers are processes of their own, ours started as people start it; clients are bare sockets
that stay open. They take turns of seconds. Rates and delays are of this machine as busy as it is,
clients included; CPU of a server for each request, and its ratio to the bare one's, are its own.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from itertools import count, product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from urllib.parse import quote

import orjson
import psutil

from hybridagi_steps import StepMemory
from tests.benchmarks.conditions import conditions
from tests.benchmarks.corpus import made_step, made_steps
from tests.benchmarks.tables import Table, number, print_json, print_tables

_TOKEN = "a-token-of-this-measurement"  # noqa: S105 - the server lives for seconds, on loopback
_PROGRAM = """
def say(messages):
    return "You said: " + messages[-1]["content"]
"""
_BARE = """
import socket
import sys
import uvicorn
from fastapi import FastAPI, Response
from pathlib import Path

app = FastAPI()
search, chat = Path("search").read_bytes(), Path("chat").read_bytes()

@app.get("/search")
async def find(q: str, k: int):
    return Response(search, media_type="application/json")

@app.post("/chat/stream/v2")
async def say(body: dict):
    return Response(chat, media_type="text/event-stream")

config = uvicorn.Config(app, port=0, log_level="error", access_log=False)
server = uvicorn.Server(config)
listening = config.bind_socket()
listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else a body waits for an ACK
print("token")
print("http://127.0.0.1:%d/#" % listening.getsockname()[1], flush=True)
server.run(sockets=[listening])
"""
_QUESTIONS = 200
_TURNS = 10
"""Turns of a session; then a client begins the next."""
_HEAD = (
    "{} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer " + _TOKEN + "\r\n"
    "Content-Type: application/json\r\nContent-Length: {}\r\n\r\n"
)
_GOALS = {"search": "300/s, p99 40 ms", "chat": "100/s, p99 120 ms"}


def report(json_output: bool = False, **options: Any) -> None:
    """Print what a server answers a second; options are those of `measure`."""
    result = measure(**options)
    if json_output:
        print_json(result)
    else:
        print_tables([_table(result)], result)


def measure(
    steps: int = 10_000,
    clients: int = 8,
    seconds: float = 3.0,
    rounds: int = 5,
    embedder: str = "wordllama",
    memory: str = "",
) -> dict[str, Any]:
    """Return rates, delays and CPU of searches and chat turns.

    Args:
        steps: How many the memory holds.
        clients: Connections that send the next request when the last is answered.
        seconds: How long each turn takes.
        rounds: Turns of each server with each kind of request.
        embedder: What makes the memory's vectors.
        memory: A file to serve in place of made-up steps; chats are added to it.
    """
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        memory = memory or _filled(folder / "steps.db", steps, embedder)
        (folder / "measured_program.py").write_text(_PROGRAM)
        (folder / "bare.py").write_text(_BARE)
        serve = [
            "-m",
            "hybridagi_steps",
            "serve",
            "--db",
            str(Path(memory).resolve()),
            "--port",
            "0",
        ]
        ours = stack.enter_context(_process(folder, [*serve, "--program", "measured_program:say"]))
        for kind, ask in _kinds().items():
            (folder / kind).write_bytes(asyncio.run(_once(ours, ask(0))))
        bare = stack.enter_context(_process(folder, ["bare.py"]))
        load = {
            (server, kind): _Load(ours if server == "ours" else bare, ask)
            for server in ("ours", "bare")
            for kind, ask in _kinds().items()
        }
        for kind in _kinds():  # searches first: what is said would have to be indexed before them
            for turn, server in product(range(rounds + 1), ("ours", "bare")):
                asyncio.run(load[server, kind].turn(clients, seconds, counts=turn > 0))
        return {
            **conditions(steps=steps, clients=clients, seconds=seconds, rounds=rounds),
            **{
                kind: {server: load[server, kind].found() for server in ("ours", "bare")}
                for kind in _kinds()
            },
        }


def _filled(path: Path, steps: int, embedder: str) -> str:
    with StepMemory(path, embedder=embedder, timeout_seconds=600) as memory:
        memory.add(list(made_steps(steps)))
        memory.search("ready", 1)  # all is indexed then
    return str(path)


def _kinds() -> dict[str, Callable[[int], bytes]]:
    questions = [str((made_step(n * 7).inputs or {})["purpose"])[:80] for n in range(_QUESTIONS)]

    def search(n: int) -> bytes:
        return _HEAD.format(f"GET /search?q={quote(questions[n % _QUESTIONS])}&k=5", 0).encode()

    def chat(n: int) -> bytes:
        said = {"session_id": f"session-{n // _TURNS}", "message": questions[n % _QUESTIONS]}
        body = orjson.dumps(said)
        return _HEAD.format("POST /chat/stream/v2", len(body)).encode() + body

    return {"search": search, "chat": chat}


class _Server(NamedTuple):
    process: psutil.Process
    port: int

    def cpu(self) -> float:
        """Seconds of the processor that it has taken."""
        taken = self.process.cpu_times()
        return taken.user + taken.system


@contextmanager
def _process(folder: Path, words: list[str]) -> Generator[_Server]:
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "HYBRIDAGI_STEPS_TOKEN": _TOKEN,
            "DSPY_CACHEDIR": str(folder),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        },
    )
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        port = int(said.strip().strip("/").rpartition(":")[2])
        yield _Server(psutil.Process(process.pid), port)
    finally:
        process.terminate()
        process.communicate(timeout=60)


class _Load:
    """Requests of one kind to one server, and what they took."""

    def __init__(self, server: _Server, ask: Callable[[int], bytes]) -> None:
        self._server, self._ask, self._numbers = server, ask, count()
        self._delays: list[float] = []
        self._rates: list[float] = []
        self._cpu_ms: list[float] = []
        self._refused = 0

    async def turn(self, clients: int, seconds: float, *, counts: bool) -> None:
        """Let clients ask for some seconds."""
        first = next(self._numbers) // _TURNS * _TURNS + _TURNS
        places = [count(first + client * _TURNS * 1_000) for client in range(clients)]
        begun, before = time.perf_counter(), self._server.cpu()
        delays = await asyncio.gather(*(self._client(place, begun + seconds) for place in places))
        taken, cpu = time.perf_counter() - begun, self._server.cpu() - before
        self._numbers = count(first + clients * _TURNS * 1_000)
        if counts:
            found = [delay for each in delays for delay in each]
            self._delays += found
            self._rates.append(len(found) / taken)
            self._cpu_ms.append(cpu / len(found) * 1e3)

    async def _client(self, numbers: count[int], until: float) -> list[float]:
        stream, writer = await asyncio.open_connection("127.0.0.1", self._server.port, limit=2**20)
        delays: list[float] = []
        while (begun := time.perf_counter()) < until:
            writer.write(self._ask(next(numbers)))
            if await _answer(stream) is None:
                self._refused += 1
                continue
            delays.append(time.perf_counter() - begun)
        writer.close()
        return delays

    def found(self) -> dict[str, float]:
        """What was measured: medians over turns, delays of all requests."""
        delays = sorted(self._delays)
        return {
            "requests": len(delays),
            "refused": self._refused,
            "per_second": median(self._rates),
            "p50_ms": delays[len(delays) // 2] * 1e3,
            "p99_ms": delays[int(len(delays) * 0.99)] * 1e3,
            "server_cpu_ms": median(self._cpu_ms),
            "server_cpu_ms_least": min(self._cpu_ms),
        }


async def _once(server: _Server, request: bytes) -> bytes:
    stream, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=2**20)
    writer.write(request)
    answer = await _answer(stream)
    writer.close()
    return answer or b""


async def _answer(stream: asyncio.StreamReader) -> bytes | None:
    """Read one answer; return its body, None when the server is busy."""
    head = (await stream.readuntil(b"\r\n\r\n")).lower()
    if not head.startswith((b"http/1.1 200 ", b"http/1.1 429 ")):
        raise RuntimeError(f"the server answered {head[:200]!r}")
    _, length, rest = head.partition(b"content-length: ")
    if length:
        body = await stream.readexactly(int(rest.partition(b"\r\n")[0]))
        return body if head.startswith(b"http/1.1 200 ") else None
    body = b""
    while size := int(await stream.readline(), 16):
        body += (await stream.readexactly(size + 2))[:-2]
    await stream.readline()
    return body


def _table(result: dict[str, Any]) -> Table:
    rows: list[list[str]] = []
    for kind, goal in _GOALS.items():
        ours, bare = result[kind]["ours"], result[kind]["bare"]
        for server, found in (("served", ours), ("bare app, same bytes", bare)):
            keys = ("per_second", "p50_ms", "p99_ms", "server_cpu_ms", "server_cpu_ms_least")
            rows.append([f"{kind}: {server}", *(number(found[key], 2) for key in keys)])
        ratios = [number(ours[key] / bare[key], 1) for key in keys]
        rows.append([f"{kind}: ratio; goal {goal}", *ratios])
    heads = ["", "a second", "p50, ms", "p99, ms", "CPU each, ms", "least of a turn"]
    options = result["options"]
    title = f"{options['clients']} clients, {options['steps']:,} steps"
    return Table(f"{title}, load {result['load_average']}", heads, rows)
