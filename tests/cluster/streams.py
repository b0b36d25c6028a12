"""Streams that go on at another server when theirs is killed: how soon, and with what missing.

Readers are bare sockets of one event loop, since they share the machine with what is measured.
"""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple
from urllib.parse import urlsplit

import orjson
import psutil

from tests.cluster.cluster import Cluster, Service, Shape, started
from tests.cluster.postgres import PATIENCE_SECONDS

_BEFORE = 3
"""Messages that each reader has before the kill."""
_ANSWER = re.compile(rb"HTTP/1.1 (\d+) .*?(?:retry-after: (\d+)\r\n.*?)?\r\n\r\n", re.DOTALL)
_EVENT = re.compile(rb"id: ([^\n]*):(\d+)\nevent: (\w+)\ndata: ([^\n]*)\n\n")


class Killed(NamedTuple):
    """What readers saw of a kill."""

    streams: int
    seconds: float
    """From the kill until the last reader had the end of its run."""
    median_seconds: float
    gaps: int
    """Messages that are stored and that a reader was not told."""
    repeats: int
    """Messages that a reader was told more than once, and ids that do not grow."""
    refused: int
    """Answers that sent a reader away for a while."""
    cpu_seconds: float
    """What the other server took meanwhile."""

    def __str__(self) -> str:
        return (
            f"{self.streams} streams: {self.gaps} gaps, {self.repeats} repeats, all at their end "
            f"{self.seconds:.2f} s after (half of them {self.median_seconds:.2f} s), "
            f"{self.refused} refusals, {self.cpu_seconds:.2f} s of the other server's CPU"
        )


class _Reader:
    """One client: begins a run, reads it, goes on elsewhere."""

    def __init__(self, session_id: str, token: str) -> None:
        self.session_id, self._token = session_id, token
        self.run_id, self.numbers = "", list[int]()
        self.messages: list[str] = []
        self.end: str | None = None
        self.ended_at = 0.0
        self.refused = 0
        self.ready = asyncio.Event()

    async def chat(self, server: Service) -> None:
        """Say something, and read until the server is gone."""
        body = {"session_id": self.session_id, "message": self.session_id}
        with suppress(OSError):
            await self._read(server, "POST", "/chat/stream/v2", orjson.dumps(body))

    async def go_on(self, server: Service) -> None:
        """Read on elsewhere, to the end."""
        while self.end is None:
            wait = await self._read(server, "GET", f"/runs/{self.run_id}/events")
            if wait is None:
                continue
            self.refused += 1
            await asyncio.sleep(wait)
        self.ended_at = time.monotonic()

    async def _read(
        self, server: Service, method: str, path: str, body: bytes = b""
    ) -> float | None:
        """Read one answer; return after how many seconds to ask again, where it is no stream."""
        async with _connected(server) as (stream, writer):
            head = f"{method} {path} HTTP/1.0\r\nHost: 127.0.0.1\r\nAuthorization: Bearer "
            head += f"{self._token}\r\nContent-Length: {len(body)}\r\n"
            head += "Content-Type: application/json\r\n" if body else ""
            head += f"Last-Event-ID: {self.run_id}:{self.numbers[-1]}\r\n" if self.numbers else ""
            writer.write(f"{head}\r\n".encode() + body)
            answer = _ANSWER.match(await stream.readuntil(b"\r\n\r\n"))
            assert answer is not None
            if answer[1] != b"200":
                assert answer[1] == b"429", answer[0]
                return float(answer[2] or 1)
            rest = b""
            while chunk := await stream.read(2**16):
                events, blank, rest = (rest + chunk).rpartition(b"\n\n")
                self._take(events + blank)
        return None

    def _take(self, events: bytes) -> None:
        for run_id, number, kind, data in _EVENT.findall(events):
            self.run_id = run_id.decode()
            self.numbers.append(int(number))
            if kind == b"step_completed":
                self.messages.append(orjson.loads(data)["step_id"])
            elif kind.startswith(b"run_") and kind != b"run_started":
                self.end = kind.decode()
        if len(self.messages) >= _BEFORE:
            self.ready.set()


def check_killed(count: int) -> Killed:
    """Kill one of two servers under streams; return what their readers saw at the other."""
    shape = Shape(
        databases=1,
        standby=False,
        workers=0,
        program="tests.cluster.program:errands",
        options=("--max-runs", str(count)),
    )
    with started(shape) as cluster:
        return asyncio.run(_killed(cluster, count))


async def _killed(cluster: Cluster, count: int) -> Killed:
    first, second = cluster.servers
    readers = [_Reader(f"errand-{number}", cluster.token) for number in range(count)]
    chats = [asyncio.create_task(reader.chat(first)) for reader in readers]
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.gather(*(reader.ready.wait() for reader in readers))
    other = psutil.Process(second.process.pid)
    before = other.cpu_times()
    first.process.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    await asyncio.gather(*chats)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.gather(*(reader.go_on(second) for reader in readers))
    used = other.cpu_times()
    took = sorted(reader.ended_at - killed for reader in readers)
    gaps, repeats = 0, 0
    with cluster.clients() as [_, client]:
        for reader in readers:
            answer = client.get(f"/sessions/{reader.session_id}/steps").raise_for_status()
            stored = [step["id"] for step in answer.json()["steps"]]
            gaps += len(set(stored) - set(reader.messages))
            repeats += len(reader.messages) - len(set(reader.messages))
            repeats += len(reader.numbers) - len(set(reader.numbers))
            assert reader.numbers == sorted(reader.numbers)
    refused = sum(reader.refused for reader in readers)
    cpu = used.user + used.system - before.user - before.system
    return Killed(count, took[-1], took[count // 2], gaps, repeats, refused, cpu)


@asynccontextmanager
async def _connected(
    server: Service,
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    place = urlsplit(server.address)
    stream, writer = await asyncio.open_connection(place.hostname, place.port, limit=2**18)
    try:
        yield stream, writer
    finally:
        writer.close()
