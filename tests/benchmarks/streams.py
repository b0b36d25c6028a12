"""What many readers of one run cost: memory per stream, delay of events, nothing lost.

The server is a process of its own, started as people start it; readers are bare sockets, so that
what is measured is the server. A second pass adds readers that never read: it shows whether they
slow the others, and that they are dropped.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from tests.benchmarks.conditions import conditions
from tests.benchmarks.tables import Table, number, print_json, print_tables

_PROGRAM = """
import asyncio, pathlib
async def paced(messages):
    while not pathlib.Path("go").exists():
        await asyncio.sleep(0.01)
    for n in range({events}):
        yield "x" * {size}
        await asyncio.sleep({pause})
"""
_TOKEN = "a-token-of-this-measurement"  # noqa: S105 - the server lives for seconds, on loopback
_ID = re.compile(rb"^id: ([^\n]*):(\d+)$", re.MULTILINE)
_MADE = re.compile(rb'"created_at":"([^"]+)"}$', re.MULTILINE)
_AT_ONCE = 64
"""Connections that are opened side by side."""
_SPARE_FILES = 200
_MANY, _LARGE = 300, 20_000
"""Pieces of the large run: more bytes than lie between a server and a reader that sleeps."""
_STALL_SECONDS = 25
"""Longer than the server waits for a reader."""


def report(json_output: bool = False, **options: Any) -> None:
    """Print what streams cost; options are those of `measure`."""
    result = measure(**options)
    if json_output:
        print_json(result)
    else:
        print_tables([_table(result)], result)


def measure(
    streams: int = 1_000, events: int = 50, pause_ms: float = 100.0, lazy: int = 20
) -> dict[str, Any]:
    """Return memory per stream, delays, and how many events reached how many readers.

    Args:
        streams: Readers of one run.
        events: Pieces that the run says.
        pause_ms: Pause between two of them.
        lazy: Readers of the second pass that never read.
    """
    _raise_file_limit(streams + lazy + _SPARE_FILES)
    few = max(1, streams // 10)
    return {
        **conditions(streams=streams, events=events, pause_ms=pause_ms, lazy=lazy),
        "many": asyncio.run(_pass(_Load(streams, events, 8, pause_ms, 0))),
        "large": asyncio.run(_pass(_Load(few, _MANY, _LARGE, pause_ms, 0))),
        "large_beside_lazy": asyncio.run(_pass(_Load(few, _MANY, _LARGE, pause_ms, lazy))),
    }


class _Load(NamedTuple):
    streams: int
    events: int
    size: int
    """Characters of each piece."""
    pause_ms: float
    lazy: int


class _Server(NamedTuple):
    folder: Path
    process: subprocess.Popen[str]
    port: int

    def resident_kib(self) -> int:
        """Memory of the process."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0])


@contextmanager
def _server(load: _Load) -> Generator[_Server]:
    program = _PROGRAM.format(events=load.events, size=load.size, pause=load.pause_ms / 1e3)
    most = str(load.streams + load.lazy + 2)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "paced_program.py").write_text(program)
        options = ["--program", "paced_program:paced", "--port", "0", "--max-streams", most]
        process = subprocess.Popen(
            [sys.executable, "-m", "hybridagi_steps", "serve", *options],
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "HYBRIDAGI_STEPS_TOKEN": _TOKEN, "DSPY_CACHEDIR": name},
        )
        try:
            assert process.stdout is not None
            said = (
                process.stdout.readline()
            )  # of a token that stands in the environment nothing is printed
            port = int(said.strip().strip("/").rpartition(":")[2])
            yield _Server(folder, process, port)
        finally:
            process.terminate()
            process.communicate(timeout=30)


class _Reader:
    """One connection that reads events, and what it has seen."""

    def __init__(self, stream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.stream, self._writer = stream, writer
        self.delays: list[float] = []
        self.run_id = ""
        self._numbers: list[int] = []
        self._rest = b""
        self._ended = False

    @property
    def events(self) -> int:
        """How many events it has."""
        return len(self._numbers)

    @property
    def whole(self) -> bool:
        """Whether it has every event, once each, in order, the last one too."""
        return self._ended and self._numbers == list(range(1, len(self._numbers) + 1))

    async def read_all(self, began: float) -> None:
        """Read to the end; delays count for events made after `began`."""
        while await self.read_some(began):
            pass
        self._writer.close()

    async def read_some(self, began: float) -> bool:
        """Read one chunk; return whether more will come."""
        size = int((await self.stream.readline()) or b"0", 16)
        data = self._rest + (await self.stream.readexactly(size + 2))[:-2]
        whole, separator, self._rest = data.rpartition(b"\n\n")
        self._take(whole + separator, began)
        return size > 0

    def _take(self, events: bytes, began: float) -> None:
        now = time.time()
        for run_id, place in _ID.findall(events):
            self.run_id = run_id.decode()
            self._numbers.append(int(place))
        for made in _MADE.findall(events):
            if (at := datetime.fromisoformat(made.decode()).timestamp()) > began:
                self.delays.append(now - at)
        self._ended = self._ended or b"event: run_completed" in events


async def _pass(load: _Load) -> dict[str, Any]:
    """Let many readers read one run, and measure the server meanwhile."""
    with _server(load) as server:
        first = await _connected(server, _saying("go"))
        while not first.run_id:
            await first.read_some(time.time())
        ask = _head("GET", f"/runs/{first.run_id}/events")
        warm = await _opened(server, ask, 1)
        before = server.resident_kib()
        readers = [first, *warm, *await _opened(server, ask, load.streams)]
        lazy = await _opened(server, ask, load.lazy)
        await asyncio.sleep(0.5)
        opened = server.resident_kib()
        (server.folder / "go").touch()
        began = time.time()
        await asyncio.gather(*(reader.read_all(began) for reader in readers))
        delays = sorted(delay for reader in readers for delay in reader.delays)
        return {
            "streams": len(readers),
            "whole": sum(reader.whole for reader in readers),
            "events_each": first.events,
            "kib_per_open_stream": (opened - before) / (load.streams + load.lazy),
            "delay_p50_ms": delays[len(delays) // 2] * 1e3,
            "delay_p99_ms": delays[int(len(delays) * 0.99)] * 1e3,
            "lazy": load.lazy,
            "lazy_dropped": await _count_dropped(lazy),
        }


async def _opened(server: _Server, request: bytes, count: int) -> list[_Reader]:
    """Open readers, some at a time; each is answered before it counts."""
    made: list[_Reader] = []
    while len(made) < count:
        some = min(_AT_ONCE, count - len(made))
        made += await asyncio.gather(*(_connected(server, request) for _ in range(some)))
    return made


async def _connected(server: _Server, request: bytes) -> _Reader:
    stream, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=2**18)
    writer.write(request)
    head = await stream.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(f"the server answered {head[:60]!r}")
    return _Reader(stream, writer)


def _saying(message: str) -> bytes:
    body = orjson.dumps({"session_id": "measured", "message": message})
    more = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return _head("POST", "/chat/stream/v2", more) + body


def _head(method: str, path: str, more: str = "") -> bytes:
    return (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: Bearer {_TOKEN}\r\n{more}\r\n"
    ).encode()


async def _count_dropped(lazy: list[_Reader]) -> int:
    """Return how many connections the server has given up; they are read only now."""
    await asyncio.sleep(_STALL_SECONDS if lazy else 0)
    dropped = 0
    for reader in lazy:
        try:
            while await reader.stream.read(2**18):
                pass
        except OSError:
            dropped += 1
    return dropped


def _raise_file_limit(wanted: int) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))


def _table(result: dict[str, Any]) -> Table:
    names = {
        "whole": "readers with every event once",
        "events_each": "events each",
        "kib_per_open_stream": "server memory per open stream, KiB",
        "delay_p50_ms": "delay of an event, p50, ms",
        "delay_p99_ms": "delay of an event, p99, ms",
        "lazy": "readers that never read",
        "lazy_dropped": "of them dropped",
    }
    passes = {name: result[name] for name in ("many", "large", "large_beside_lazy")}
    rows = [
        [name, *(number(one[key], 0) for one in passes.values())] for key, name in names.items()
    ]
    heads = [f"{name.replace('_', ' ')}: {one['streams']:,}" for name, one in passes.items()]
    return Table("readers of one run", ["", *heads], rows)
