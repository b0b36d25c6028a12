"""Overload: ten times the searches that a server can answer, clients that leave, then SIGTERM.

What the server can do is measured by a few clients that wait for their answers.
In between, requests arrive at ten times that rate whether or not others were answered, as those of
many users do. The load goes on while the server is asked to end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from hybridagi_steps import AgentStep, AgentStepType, StepMemory

OVERLOAD = 10
ROUNDS = 3
PATIENCE_SECONDS = 2.0
"""How long a client waits for an answer; one that comes later is late."""
CLOSED_LOOP_CLIENTS = 4
LEAVING_SHARE = 0.05
"""Clients that leave before they can have an answer."""
MOST_CONNECTIONS = 1_000
"""More than are open when every answer comes in time, fewer than the server takes."""
LONGEST_IDLE_SECONDS = 2.0
"""Less than the server keeps a connection that nobody uses."""
_ENDING_SECONDS = 30.0
_BATCH = 1_000
_TOKEN = "overload-attack-token"  # noqa: S105 - of a server on loopback that lives for a minute


def attack(seconds: float, seed: int, *, steps: int = 20_000) -> dict[str, Any]:
    """Overload a server and end it meanwhile.

    Args:
        seconds: How long the load lasts, the server's start and end left out.
        seed: Of the stored texts, the questions, and when they arrive.
        steps: How many the memory holds.

    Returns:
        Counts of requests by outcome, rates per second, and how the process ended. `failed` is
        what was neither an answer nor a refusal as the documentation has it.
    """
    with tempfile.TemporaryDirectory(prefix="overload-") as folder:
        path = Path(folder, "steps.db")
        words = _fill(path, steps, random.Random(seed))
        with _served(path) as (process, address):
            questions = _questions(address, words, random.Random(seed))
            load = _Load(address, questions, seed)
            found = asyncio.run(_overload(process, load, seconds))
        found["wal_left"] = path.with_name(path.name + "-wal").exists()
        with StepMemory(path) as memory:
            found["damage"] = len(memory.verify())
        return {"steps": steps, **found}


_OUTCOMES = ("offered", "answered", "refused", "late", "left", "unsent", "failed")


@dataclass
class _Counts:
    """What became of requests."""

    offered: int = 0
    answered: int = 0
    refused: int = 0
    late: int = 0
    left: int = 0
    unsent: int = 0
    """Came when this process had no connection left, as on a machine that does other things."""
    failed: int = 0
    seconds: list[float] = field(default_factory=list[float])
    """How long each answer and refusal took."""
    failures: dict[str, int] = field(default_factory=dict[str, int])


class _Connection(asyncio.Protocol):
    """A keep-alive connection that reads one answer at a time."""

    def __init__(self) -> None:
        self._got = b""
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError("closed without an answer"))

    def ask(self, request: bytes) -> asyncio.Future[tuple[int, bytes]]:
        """Send a request; return what gets its status and head."""
        assert self.transport is not None
        self._got, self._answer = b"", asyncio.get_running_loop().create_future()
        if self.transport.is_closing():
            self._answer.set_exception(ConnectionResetError("closed while idle"))
        self.transport.write(request)
        return self._answer

    def data_received(self, data: bytes) -> None:
        self._got += data
        head, separator, body = self._got.partition(b"\r\n\r\n")
        if not separator or self._answer is None or self._answer.done():
            return
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(body) >= length:
            self._answer.set_result((int(head[9:12]), head.lower()))


class _Load:
    """Requests to one server, over as many connections as wait for answers."""

    def __init__(self, address: str, questions: Generator[bytes], seed: int) -> None:
        self._address, self._questions = urlsplit(address), questions
        self._random = random.Random(seed)
        self._idle: list[tuple[float, _Connection]] = []
        """Connections and since when nobody uses them."""
        self._open = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def closed_loop(self, seconds: float) -> _Counts:
        """Let a few clients ask again and again, each after its answer."""
        counts, end = _Counts(), time.monotonic() + seconds

        async def client() -> None:
            while time.monotonic() < end:
                await self._one(counts, leaves=False)

        await asyncio.gather(*(client() for _ in range(CLOSED_LOOP_CLIENTS)))
        return counts

    async def open_loop(self, counts: _Counts, rate: float, seconds: float) -> None:
        """Let requests arrive at a rate, answered or not."""
        due = time.monotonic()
        end = due + seconds
        while due < end:
            due += self._random.expovariate(rate)
            if (early := due - time.monotonic()) > 0:
                await asyncio.sleep(early)
            if self._open >= MOST_CONNECTIONS:
                counts.offered += 1
                counts.unsent += 1
                continue
            leaves = self._random.random() < LEAVING_SHARE
            task = asyncio.create_task(self._one(counts, leaves=leaves))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def settled(self) -> None:
        """Wait for what is under way."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=2 * PATIENCE_SECONDS)

    def close(self) -> None:
        """Close the connections that are left."""
        for _, connection in self._idle:
            if connection.transport is not None:
                connection.transport.abort()

    async def _one(self, counts: _Counts, *, leaves: bool) -> None:
        counts.offered += 1
        patience = self._random.uniform(0, 0.1) if leaves else PATIENCE_SECONDS
        began = time.monotonic()
        try:
            async with asyncio.timeout(patience), self._connected() as connection:
                status, head = await connection.ask(next(self._questions))
        except TimeoutError:
            counts.left += leaves
            counts.late += not leaves
            return
        except OSError as error:
            self._failed(counts, type(error).__name__)
            return
        counts.seconds.append(time.monotonic() - began)
        if status == 200:
            counts.answered += 1
        elif status in (429, 503) and b"retry-after:" in head and b"problem+json" in head:
            counts.refused += 1
        else:
            self._failed(counts, str(status))

    @staticmethod
    def _failed(counts: _Counts, why: str) -> None:
        counts.failed += 1
        counts.failures[why] = counts.failures.get(why, 0) + 1

    @asynccontextmanager
    async def _connected(self) -> AsyncGenerator[_Connection]:
        """Give a connection for one request; it is used again when the answer was read."""
        connection = self._taken()
        self._open += 1
        try:
            if connection is None:
                loop = asyncio.get_running_loop()
                host, port = self._address.hostname or "", self._address.port or 0
                _, connection = await loop.create_connection(_Connection, host, port)
            yield connection
        except BaseException:
            if connection is not None and connection.transport is not None:
                connection.transport.abort()
            raise
        finally:
            self._open -= 1
        self._idle.append((time.monotonic(), connection))

    def _taken(self) -> _Connection | None:
        while self._idle:
            since, connection = self._idle.pop()
            if connection.transport is None or connection.transport.is_closing():
                continue
            if time.monotonic() - since < LONGEST_IDLE_SECONDS:
                return connection
            connection.transport.abort()
        return None


async def _overload(process: subprocess.Popen[str], load: _Load, seconds: float) -> dict[str, Any]:
    """Measure and overload by turns, so that what else the machine does falls on both; end it."""
    part = seconds / (2 * ROUNDS)
    # Warms up, until the index is there: what it does is not counted.
    while not (await load.closed_loop(part)).answered:
        continue
    await load.closed_loop(part)
    usual, watch = _rss(process.pid), _Peak(process.pid)
    counts, can, does = _Counts(), list[_Rate](), list[_Rate]()
    for _ in range(ROUNDS):
        began = _cpu(process.pid)
        answered = (await load.closed_loop(part)).answered
        can.append(_Rate(answered / part, answered / (_cpu(process.pid) - began)))
        began, before = _cpu(process.pid), counts.answered
        await load.open_loop(counts, OVERLOAD * max(can).per_second, part)
        answered = counts.answered - before
        does.append(_Rate(answered / part, answered / (_cpu(process.pid) - began)))
        await load.settled()
    peak = watch.stop()
    limit, goodput = _Rate.medians(can), _Rate.medians(does)
    ending = asyncio.create_task(
        load.open_loop(_Counts(), OVERLOAD * max(can).per_second, _ENDING_SECONDS)
    )
    await asyncio.sleep(min(1.0, part))
    process.send_signal(signal.SIGTERM)
    asked_at = time.monotonic()
    with contextlib.suppress(subprocess.TimeoutExpired):
        await asyncio.to_thread(process.wait, _ENDING_SECONDS)
    ended_after = time.monotonic() - asked_at
    ending.cancel()
    await load.settled()
    load.close()
    return {
        **{name: getattr(counts, name) for name in _OUTCOMES},
        "failures": counts.failures,
        "capacity_per_second": round(limit.per_second, 1),
        "goodput_ratio": round(goodput.per_second / limit.per_second, 3),
        "goodput_per_cpu_ratio": round(goodput.per_cpu_second / limit.per_cpu_second, 3),
        "slowest_seconds": round(max(counts.seconds, default=0.0), 3),
        "rss_growth": round(peak / usual - 1, 3),
        "exit_code": process.returncode,
        "exit_seconds": round(ended_after, 2),
    }


class _Rate(NamedTuple):
    """Answers per second, and per second of the server's CPU time: what others do shows less."""

    per_second: float
    per_cpu_second: float

    @classmethod
    def medians(cls, rates: list[_Rate]) -> _Rate:
        """Return the median of each."""
        return cls(*map(median, zip(*rates, strict=True)))


class _Peak:
    """The most memory that a process has while somebody looks."""

    def __init__(self, pid: int) -> None:
        self._pid, self._most = pid, _rss(pid)
        self._task = asyncio.create_task(self._look())

    def stop(self) -> int:
        """Return the most bytes seen."""
        self._task.cancel()
        return self._most

    async def _look(self) -> None:
        while True:
            self._most = max(self._most, _rss(self._pid))
            await asyncio.sleep(0.05)


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _fill(path: Path, steps: int, rng: random.Random) -> list[str]:
    """Store steps of recorded words; return the words."""
    shipped = files("hybridagi_steps.data").joinpath("steps.jsonl").read_text("utf-8")
    words = sorted({word for line in shipped.splitlines() for word in _words(line)})
    with StepMemory(path, embedder="hashing") as memory:
        for first in range(0, steps, _BATCH):
            numbers = range(first, min(first + _BATCH, steps))
            memory.add([_step(number, words, rng) for number in numbers])
        memory.search("to index what was added")
    return words


def _words(line: str) -> list[str]:
    return str(json.loads(line).get("inputs")).split()


def _step(number: int, words: list[str], rng: random.Random) -> AgentStep:
    return AgentStep(
        step_type=AgentStepType.Action,
        run_id=f"run-{number // 20}",
        hop=number % 20,
        inputs={"purpose": " ".join(rng.choices(words, k=14)), "tool": "search"},
        outputs={"result": " ".join(rng.choices(words, k=30))},
    )


def _questions(address: str, words: list[str], rng: random.Random) -> Generator[bytes]:
    """Yield searches as the server's page makes them, without end."""
    host = urlsplit(address).netloc
    while True:
        asked = quote(" ".join(rng.choices(words, k=6)), safe="")
        yield (
            f"GET /search?q={asked}&mode=hybrid&k=20 HTTP/1.1\r\nHost: {host}\r\n"
            f"Authorization: Bearer {_TOKEN}\r\n\r\n"
        ).encode()


@contextmanager
def _served(path: Path) -> Generator[tuple[subprocess.Popen[str], str]]:
    """Serve a memory in a process of its own, which is killed if it is left."""
    command = [sys.executable, "-m", "hybridagi_steps", "serve", "--db", str(path), "--port", "0"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "HYBRIDAGI_STEPS_TOKEN": _TOKEN},
    )
    try:
        assert process.stdout is not None
        page = process.stdout.readline()
        yield process, page.removeprefix("page:").strip().strip("/")
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def main() -> None:
    """Attack once and print what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--steps", type=int, default=20_000)
    asked = parser.parse_args()
    print(f"seed {asked.seed}")
    print(json.dumps(attack(asked.seconds, asked.seed, steps=asked.steps), indent=2))


if __name__ == "__main__":
    main()
