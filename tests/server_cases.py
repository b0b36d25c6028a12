"""What the server's tests share: a real server on a real socket, programs that wait to be told."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
import types
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import uvicorn
import uvicorn.server

from hybridagi_steps import AgentStep, StepMemory, StepRunner
from hybridagi_steps.server.app import create_app
from hybridagi_steps.server.process import StepServer, listening_socket
from hybridagi_steps.server.settings import ServerSettings
from hybridagi_steps.server.tokens import Caller, Tokens, TokenScope

TOKEN = "the-test-token-of-everything"  # noqa: S105 - a test's
SCOPED = {scope: f"the-test-token-of-{scope.value}" for scope in TokenScope}
FINAL = ("run_completed", "run_failed", "run_cancelled", "run_paused")
PATIENCE_SECONDS = 20.0
NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Else each client reads all of the system's, and speaks plain HTTP here."""
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
"""How Chromium starts without looking for anything on the network."""


MESSAGES: list[Any] = [
    {"role": "user", "content": "How do I refund a ticket?"},
    {"role": "assistant", "content": "Open the booking."},
    {"role": "user", "content": "And then?"},
    {"role": "assistant", "content": "Press refund."},
]
"""What the session `talk` of a filled memory holds."""


class ServerProcess:
    """A server as people start it, and a client of it."""

    def __init__(self, folder: Path, db: str, *arguments: str) -> None:
        self.running = subprocess.Popen(
            [sys.executable, "-m", "hybridagi_steps", "serve", "--port", "0", *arguments],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "DSPY_CACHEDIR": str(folder / "cache"),
                "HYBRIDAGI_STEPS_DB": db,
            },
        )
        assert self.running.stdout is not None
        lines = [self.running.stdout.readline() for _ in range(2)]
        assert lines[0].startswith("token: "), self.running.stderr and self.running.stderr.read()
        self.token = lines[0].removeprefix("token: ").strip()
        self.page = lines[1].removeprefix("page:").strip()
        self.client = httpx.Client(
            base_url=self.page.partition("/#")[0],
            headers={"Authorization": f"Bearer {self.token}"},
            timeout=20,
            verify=NO_CERTIFICATES,
        )

    def stop(self, how: signal.Signals) -> str:
        """End it; return what it said on standard error."""
        self.client.close()
        self.running.send_signal(how)
        _, said = self.running.communicate(timeout=20)
        return said


def read(
    process: ServerProcess, method: str, path: str, body: object, last_id: str | None = None
) -> list[Event]:
    """Read a stream to its end."""
    headers = {} if last_id is None else {"Last-Event-ID": last_id}
    with process.client.stream(method, path, json=body, headers=headers) as answer:
        assert answer.status_code == 200, answer.read()
        return list(events_of(answer.iter_bytes()))


class Event(NamedTuple):
    """One server-sent event."""

    id: str
    kind: str
    data: dict[str, Any]

    @property
    def number(self) -> int:
        """Its place in the run."""
        return int(self.id.rpartition(":")[2])


class Served(NamedTuple):
    """A server that runs, and a client with its token."""

    client: httpx.Client
    address: str
    services: Any
    server: StepServer

    def chat(self, session_id: str, message: str, **headers: str) -> list[Event]:
        """Say something and read the run to its end."""
        body = {"session_id": session_id, "message": message}
        with self.client.stream("POST", "/chat/stream/v2", json=body, headers=headers) as answer:
            assert answer.status_code == 200, answer.read()
            return list(events_of(answer.iter_bytes()))

    def resume(self, session_id: str, answers: dict[str, Any], **headers: str) -> list[Event]:
        """Answer what a paused run waits for and read the run to its end."""
        path, body = f"/sessions/{session_id}/resume", {"answers": answers}
        with self.client.stream("POST", path, json=body, headers=headers) as answer:
            assert answer.status_code == 200, answer.read()
            return list(events_of(answer.iter_bytes()))

    def events(self, run_id: str, last_id: str | None = None) -> list[Event]:
        """Read a run's events to its end."""
        headers = {} if last_id is None else {"Last-Event-ID": last_id}
        with self.client.stream("GET", f"/runs/{run_id}/events", headers=headers) as answer:
            assert answer.status_code == 200, answer.read()
            return list(events_of(answer.iter_bytes()))


def nap(seconds: float) -> Coroutine[Any, Any, None]:
    """Sleep a twentieth as long: hundreds of servers begin and end here."""
    return asyncio.sleep(seconds / 20)


# What uvicorn waits out, a tenth of a second at each look and at its end, proves nothing of ours;
# a server that is a process of its own has uvicorn as it is.
_ASYNCIO: Any = types.SimpleNamespace(**{**vars(asyncio), "sleep": nap})
setattr(uvicorn.server, "asyncio", _ASYNCIO)  # noqa: B010 - the name is not a public one


@cache
def document() -> dict[str, Any]:
    """The OpenAPI document of any app: making it takes a quarter of a second."""
    with StepMemory(":memory:", embedder="hashing") as memory:
        return create_app(memory, Tokens({TOKEN: [TokenScope.ADMIN]})).openapi()


@contextmanager
def serving(
    memory: StepMemory,
    program: Any = None,
    callers: Mapping[str, Caller] | None = None,
    **limits: Any,
) -> Generator[Served]:
    """Serve a memory, and a program if one is given, for the length of the block."""
    known = {
        TOKEN: [TokenScope.ADMIN],
        **{token: [scope, TokenScope.AS_ANY_USER] for scope, token in SCOPED.items()},
    }
    runner = program if program is None or isinstance(program, StepRunner) else None
    runner = runner or (None if program is None else StepRunner(program, memory))
    settings = ServerSettings(**limits)
    app = create_app(memory, Tokens({**known, **(callers or {})}), runner=runner, settings=settings)
    app.openapi = document
    listening = listening_socket("127.0.0.1", 0, settings.stall_seconds)
    config = uvicorn.Config(app, log_level="critical", access_log=False, ws="none", lifespan="on")
    server = StepServer(config, app.state.services)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])))
    thread.start()
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    headers = {"Authorization": f"Bearer {TOKEN}"}
    try:
        until(lambda: server.started)
        with httpx.Client(
            base_url=address, headers=headers, timeout=PATIENCE_SECONDS, verify=NO_CERTIFICATES
        ) as client:
            yield Served(client, address, app.state.services, server)
    finally:
        server.should_exit = True
        thread.join(PATIENCE_SECONDS)
        listening.close()
        assert not thread.is_alive(), "the server did not end"


def until(holds: Callable[[], Any]) -> None:
    """Wait until something holds."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < end, "it never came to hold"
        time.sleep(0.005)


def events_of(chunks: Iterator[bytes]) -> Iterator[Event]:
    """Read server-sent events, as the standard has it, comments left out."""
    rest = b""
    for chunk in chunks:
        *blocks, rest = (rest + chunk).split(b"\n\n")
        for block in blocks:
            fields = dict(
                line.split(": ", 1) for line in block.decode().split("\n") if line[:1] != ":"
            )
            if fields:
                yield Event(fields["id"], fields["event"], json.loads(fields["data"]))
    assert rest == b"", "a stream ends with a whole event"


class Told:
    """A program that says a word each time it is told to, then ends when it is told so."""

    def __init__(self) -> None:
        self._words: list[str] = []
        self._ends = False
        self.began = threading.Event()

    def say(self, *words: str) -> None:
        """Let it say more."""
        self._words.extend(words)

    def end(self) -> None:
        """Let it end."""
        self._ends = True

    async def __call__(self, messages: list[dict[str, Any]]) -> AsyncIterator[str]:
        """Speak."""
        self.began.set()
        while not self._ends or self._words:
            if self._words:
                yield self._words.pop(0)
            await asyncio.sleep(0.002)


async def echo(messages: list[dict[str, Any]]) -> AsyncIterator[str]:
    """Repeat what was said last, in two pieces."""
    said = str(messages[-1]["content"])
    yield "You said: "
    yield said


def fill(memory: StepMemory) -> None:
    """Store a session of four messages and a run of three steps."""
    asyncio.run(memory.repository().append("talk", MESSAGES))
    call = AgentStep.model_validate(
        {
            "id": "call",
            "step_type": "ProgramCall",
            "run_id": "run-1",
            "inputs": {"program": "Agent", "arguments": {"question": "Refund the ticket"}},
        }
    )
    act = AgentStep.model_validate(
        {
            "id": "act",
            "parent_id": "call",
            "hop": 1,
            "step_type": "Action",
            "run_id": "run-1",
            "inputs": {"purpose": "refund the ticket", "tool": "refund", "arguments": {}},
            "outputs": {"result": "refunded"},
            "metadata": {"topic": "refunds"},
            "metrics": {"input_tokens": 7, "duration_ms": 5.0},
        }
    )
    end = AgentStep.model_validate(
        {"id": "end", "hop": 2, "step_type": "ProgramEnd", "run_id": "run-1", "status": "error"}
    )
    memory.add([call, act, end])


def problem(answer: httpx.Response, status: int) -> dict[str, Any]:
    """The problem document of an answer with this status."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert body["status"] == status
    assert body["title"]
    assert body["detail"]
    return body
