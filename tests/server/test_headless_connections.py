"""Connections that send no whole request: they take nobody's place, and are dropped."""

from __future__ import annotations

import socket
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the server needs the extra `server`")
pytest.importorskip("uvicorn", reason="the server needs the extra `server`")

from server_cases import PATIENCE_SECONDS, ServerProcess, Told, events_of, serving

from hybridagi_steps import StepMemory

HEAD = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
STARTS = {
    "nothing": b"",
    "half a line": b"GET /hea",
    "half a head": HEAD,
    "half a second head": HEAD + b"\r\n" + HEAD,
    "no token, and half a body": b"POST /purge HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    b"Content-Length: 100\r\n\r\n{",
}


@contextmanager
def connections(address: str, count: int, start: bytes = b"") -> Generator[list[socket.socket]]:
    """Open connections that send a start and then wait."""
    host, _, port = address.removeprefix("http://").partition(":")
    with ExitStack() as stack:
        opened: list[socket.socket] = []
        for _ in range(count):
            one = socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS)
            stack.enter_context(one)
            one.sendall(start)
            opened.append(one)
        yield opened


def read_to_end(one: socket.socket) -> bytes:
    """Return what a connection says until the server closes it; a TimeoutError if it does not."""
    pieces: list[bytes] = []
    while piece := one.recv(65536):
        pieces.append(piece)
    return b"".join(pieces)


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS.keys())
def test_a_connection_without_a_whole_head_is_dropped(memory: StepMemory, start: bytes) -> None:
    with (
        serving(memory, head_seconds=0.3) as served,
        connections(served.address, 20, start) as opened,
    ):
        assert served.client.get("/healthz").status_code == 200
        for one in opened:
            read_to_end(one)
        assert served.client.get("/healthz").status_code == 200


def test_a_request_that_goes_on_is_no_connection_without_a_head(memory: StepMemory) -> None:
    told = Told()
    with serving(memory, told, head_seconds=0.3) as served:
        body = {"message": "go"}
        with served.client.stream("POST", "/chat/stream/v2", json=body) as answer:
            events = events_of(answer.iter_bytes())
            next(events)
            with connections(served.address, 1) as [idle]:
                read_to_end(idle)
            told.say("still there")
            told.end()
            assert [*events][-1].kind == "run_completed"


def test_a_connection_that_asks_again_and_again_stays(memory: StepMemory) -> None:
    with serving(memory, head_seconds=1.0) as served:
        host, _, port = served.address.removeprefix("http://").partition(":")
        busy = HTTPConnection(host, int(port), timeout=PATIENCE_SECONDS)
        busy.connect()
        first = busy.sock
        with connections(served.address, 1) as [idle]:
            idle.setblocking(False)  # it is opened later, and dropped meanwhile
            ended = False
            while not ended:
                busy.request("GET", "/healthz")
                assert busy.getresponse().read()
                with suppress(BlockingIOError):
                    ended = idle.recv(1) == b""
        busy.request("GET", "/healthz")
        assert busy.getresponse().read()
        assert busy.sock is first
        busy.close()


def test_idle_connections_take_no_place(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, str(tmp_path / "steps.db"), "--max-streams", "1")
    try:
        with connections(str(server.client.base_url), 400, HEAD):
            assert server.client.get("/healthz").status_code == 200
            assert server.client.get("/sessions").status_code == 200
    finally:
        server.client.close()
        server.running.terminate()
        server.running.communicate(timeout=PATIENCE_SECONDS)
