"""The server as people start it: a process, its token, its page, its end, and a kill in between."""

from __future__ import annotations

import gc
import html
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the server needs the extra `server`")
pytest.importorskip("uvicorn", reason="the server needs the extra `server`")

import httpx
from server_cases import Event, ServerProcess, events_of, problem, read, serving

from hybridagi_steps import AgentStep, AgentStepType, StepMemory
from hybridagi_steps.cli import main
from hybridagi_steps.server.process import listening_socket, page_address

PROGRAM = '''
import asyncio
import gc
import pathlib
import time

async def slow(messages):
    """Say what it is told in a file, word for word, until that ends with a full stop."""
    said = ""
    while not said.endswith("."):
        now = pathlib.Path("words").read_text()
        if now != said:
            yield now[len(said):]
            said = now
        await asyncio.sleep(0.005)

def made(memory):
    import hybridagi_steps as hs
    return hs.StepRunner(slow, memory)

def blocking(messages):
    """A program that is not async, and waits."""
    time.sleep(120)

async def waiting(messages):
    """An async one that waits in a thread."""
    await asyncio.to_thread(time.sleep, 120)

async def deaf(messages):
    """One that does not let itself be cancelled."""
    while True:
        try:
            await asyncio.sleep(120)
        except asyncio.CancelledError:
            pass

def collected(messages):
    """Say how many old objects the next collection will look at."""
    lasting = [[] for _ in range(10_000)]
    gc.collect()
    return f"{len(gc.get_objects(generation=2))} of {gc.get_freeze_count()}"

def nap(seconds: str) -> str:
    """A tool that waits."""
    time.sleep(float(seconds))

def napping(memory):
    import hybridagi_steps as hs
    function = {"name": "nap", "arguments": '{"seconds": "120"}'}
    call = {"id": "call-1", "type": "function", "function": function}
    asks = {"role": "assistant", "content": "", "tool_calls": [call]}
    return hs.StepRunner(lambda messages: asks, memory, tools=[nap])

'''


class Process(ServerProcess):
    """A server process on a file, with the programs above."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        (folder / "talker.py").write_text(PROGRAM)
        words = folder / "words"
        if not words.exists():
            words.write_text("")
        super().__init__(folder, "steps.db", *arguments)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Start servers in one folder; those left over are killed."""
    begun: list[Process] = []

    def begin(*arguments: str) -> Process:
        begun.append(Process(tmp_path, *arguments))
        return begun[-1]

    yield begin
    for process in begun:
        process.client.close()
        if process.running.poll() is None:
            process.stop(signal.SIGKILL)


def test_the_embedder_is_there_when_it_says_that_it_is_ready(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    loaded = Path(f"/proc/{start().running.pid}/maps")
    if not loaded.exists():
        pytest.skip("only Linux tells what a process has loaded")
    assert "tokenizers" in loaded.read_text()  # which embed queries, and nobody has asked yet
    with StepMemory(tmp_path / "steps.db", embedder="wordllama") as memory:
        memory.search("refund")  # which binds the file to its embedder
    command = [sys.executable, "-m", "hybridagi_steps"]
    doors = [["serve", "--port", "0"], *([["mcp"]] if find_spec("mcp") else [])]
    for asked in doors:
        asked += ["--db", str(tmp_path / "steps.db"), "--embedder", "hashing"]
        refused = subprocess.run([*command, *asked], capture_output=True, text=True, check=False)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "wordllama" in refused.stderr


def test_open_shows_the_page_of_a_file_in_the_browser(tmp_path: Path) -> None:
    with StepMemory(tmp_path / "steps.db", embedder="hashing") as memory:
        memory.add(AgentStep(step_type=AgentStepType.Action, inputs={"purpose": "refund"}))
    shown, browser = tmp_path / "shown", tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {shown}.new\nmv {shown}.new {shown}\n')
    browser.chmod(0o700)
    opening = subprocess.Popen(
        [sys.executable, "-m", "hybridagi_steps", "open", str(tmp_path / "steps.db")],
        env={**os.environ, "BROWSER": str(browser)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with opening:
        assert opening.stdout is not None
        address = opening.stdout.readline().removeprefix("page:").strip()
        until = time.monotonic() + 20
        while not shown.exists() and time.monotonic() < until:
            time.sleep(0.02)
        given = shown.read_text().strip()
        assert given.startswith("file:///"), "an address on a command line is everybody's to read"
        page = Path(given.removeprefix("file://"))
        assert page.stat().st_mode & 0o077 == 0
        assert html.escape(address) in page.read_text()
        token = {"Authorization": f"Bearer {address.partition('#token=')[2]}"}
        found = httpx.get(f"{address.partition('/#')[0]}/search?q=refund", headers=token)
        assert [hit["step"]["inputs"]["purpose"] for hit in found.json()["hits"]] == ["refund"]
        opening.send_signal(signal.SIGINT)
        assert opening.wait(20) == 0
    assert not page.exists()


def test_it_prints_a_token_and_an_address_that_work(start: Callable[..., Process]) -> None:
    process = start()
    assert re.fullmatch(rf"http://127\.0\.0\.1:\d+/#token={re.escape(process.token)}", process.page)
    assert len(process.token) >= 32
    assert process.client.get("/sessions").json() == {"sessions": []}
    assert "Step memory" in httpx.get(process.page).text
    assert "server" not in process.client.get("/sessions").headers
    found = problem(process.client.post("/chat/stream/v2", json={"message": "hi"}), 503)
    assert "--program" in found["detail"]
    assert process.stop(signal.SIGTERM) == ""
    assert process.running.returncode == 0


def test_an_answer_survives_a_kill_as_far_as_it_was_stored(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    process = start("--program", "talker:slow")
    (tmp_path / "words").write_text("All is well.")
    whole = read(process, "POST", "/chat/stream/v2", {"session_id": "one", "message": "go"})
    (tmp_path / "words").write_text("Half")
    part: list[Event] = []
    body = {"session_id": "two", "message": "go"}
    with process.client.stream("POST", "/chat/stream/v2", json=body) as answer:
        for event in events_of(answer.iter_bytes()):
            part.append(event)
            if event.kind == "step_delta":
                break
    process.stop(signal.SIGKILL)

    again = start("--program", "talker:made")
    seen = whole[1].id
    rest = read(again, "GET", f"/runs/{whole[0].data['run_id']}/events", None, seen)
    assert [event.kind for event in rest] == ["step_completed", "step_completed", "run_completed"]
    cut = read(again, "GET", f"/runs/{part[0].data['run_id']}/events", None, part[-1].id)
    assert [event.kind for event in cut] == ["step_completed", "run_failed"]
    assert cut[-1].data["data"]["termination_reason"] == "interrupted"
    assert cut[0].number == part[-1].number + 1
    (tmp_path / "words").write_text("Taken up.")
    done = read(again, "POST", "/sessions/two/resume", None)
    assert done[-1].kind == "run_completed"
    steps = again.client.get("/sessions/two/steps").json()["steps"]
    assert [step["content"] for step in steps] == ["go", "Taken up."]
    again.stop(signal.SIGTERM)
    with StepMemory(tmp_path / "steps.db") as memory:
        assert memory.verify() == []


def test_ctrl_c_ends_it_while_somebody_listens(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    process = start("--program", "talker:slow")
    (tmp_path / "words").write_text("So far")
    body = {"session_id": "one", "message": "go"}
    kinds: list[str] = []
    with process.client.stream("POST", "/chat/stream/v2", json=body) as answer:
        for event in events_of(answer.iter_bytes()):
            kinds.append(event.kind)
            if event.kind == "step_delta":
                process.running.send_signal(signal.SIGINT)
    assert kinds[-1] == "run_cancelled"
    _, said = process.running.communicate(timeout=20)
    assert (process.running.returncode, said) == (0, "")
    with StepMemory(tmp_path / "steps.db") as memory:
        kept = memory.repository().store.messages("one")
    assert [step.content for step in kept] == ["go", "So far"]


BLOCKING = [("blocking", "blocking"), ("waiting", "run"), ("napping", "nap"), ("deaf", None)]
"""Programs that block, and the place where a thread of each is left."""


@pytest.mark.parametrize(("name", "place"), BLOCKING)
def test_a_program_that_blocks_does_not_hold_up_the_end(
    start: Callable[..., Process], tmp_path: Path, name: str, place: str | None
) -> None:
    process = start("--program", f"talker:{name}")
    body = {"session_id": "one", "message": "go"}
    run_id = ""
    stored = 2 if name == "napping" else 1
    with process.client.stream("POST", "/chat/stream/v2", json=body) as answer:
        for event in events_of(answer.iter_bytes()):
            run_id = run_id or event.data["run_id"]
            stored -= event.kind == "step_completed"
            if event.kind == "step_completed" and stored == 0:
                time.sleep(0.3)  # for the program to begin to wait
                process.running.send_signal(signal.SIGTERM)
    _, said = process.running.communicate(timeout=20)
    assert process.running.returncode == 0, f"given up after the longest end: {said}"
    (line,) = said.splitlines()
    assert run_id in line
    assert (f"in {place};" if place else "did not let itself be cancelled") in line
    with StepMemory(tmp_path / "steps.db") as memory:
        assert memory.verify() == []
        assert memory.repository().store.messages("one")[0].run_id == run_id


def test_what_stays_is_looked_at_by_one_collection_only(start: Callable[..., Process]) -> None:
    body = {"session_id": "one", "message": "go"}
    with start("--program", "talker:collected").client.stream(
        "POST", "/chat/stream/v2", json=body
    ) as answer:
        events = list(events_of(answer.iter_bytes()))
    (told,) = [e.data["delta"]["content"] for e in events if e.kind == "step_delta"]
    looked_at, kept = map(int, told.split(" of "))
    assert looked_at < kept // 100


def test_a_server_that_begins_looks_through_no_old_objects(memory: StepMemory) -> None:
    collected: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        collected.append(info["generation"])

    gc.disable()
    gc.callbacks.append(note)
    try:
        with serving(memory) as served:
            assert served.client.get("/healthz").status_code == 200
    finally:
        gc.callbacks.remove(note)
        gc.enable()
    assert collected == []


def test_nobody_who_reads_its_address_is_no_fault(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "hybridagi_steps", "serve", "--db", "steps.db", "--port", "0"],
        cwd=tmp_path,
        stdout=writing,
        stderr=subprocess.PIPE,
        timeout=30,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once(
    start: Callable[..., Process], how: signal.Signals
) -> None:
    process = start("--program", "talker:blocking")
    body = {"session_id": "one", "message": "go"}
    with process.client.stream("POST", "/chat/stream/v2", json=body) as answer:
        next(events_of(answer.iter_bytes()))
        process.running.send_signal(how)
        time.sleep(0.3)
        process.running.send_signal(how)
        process.running.communicate(timeout=20)
    assert process.running.returncode == -how, "the signal itself ended it, not the patience"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--program", "talker"], "--program is package.module:name"),
        (["--program", "no_such_module:x"], "cannot be loaded"),
        (["--program", "os:no_such_name"], "cannot be loaded"),
        (["--program", "os:sep"], "StepRunner needs a program"),
        (["--port", "70000"], "--port"),
        (["--host", "no.such.host.invalid"], "no address"),
        (["--tokens", "no_such_file"], "--tokens no_such_file"),
        (["--db", ":memory:"], "--db"),
    ],
)
def test_what_cannot_be_served_is_one_plain_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["serve", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("hybridagi-steps: ")
    assert said in error
    assert error.count("\n") == 1


def test_a_port_that_is_taken_is_one_plain_line(
    start: Callable[..., Process], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = start()
    port = process.page.partition("/#")[0].rpartition(":")[2]
    assert main(["serve", "--db", str(tmp_path / "other.db"), "--port", port]) == 2
    assert "cannot be listened on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "http://127.0.0.1:80/#token=t%2Fx"),
        ("0.0.0.0", "http://127.0.0.1:80/#token=t%2Fx"),  # noqa: S104 - not bound here
        ("::1", "http://[::1]:80/#token=t%2Fx"),
        ("box.local", "http://box.local:80/#token=t%2Fx"),
    ],
)
def test_the_address_can_be_clicked(host: str, address: str) -> None:
    assert page_address(host, 80, "t/x") == address


def test_the_measurement_of_streams_measures() -> None:
    from tests.benchmarks.streams import measure

    found = measure(streams=5, events=3, pause_ms=1.0, lazy=0)
    assert found["many"]["whole"] == found["many"]["streams"] == 7
    assert found["many"]["events_each"] >= 5
    assert found["large"]["whole"] == found["large"]["streams"]
    assert 0 < found["many"]["delay_p50_ms"] <= found["many"]["delay_p99_ms"]


def test_answers_in_two_pieces_wait_for_nobody() -> None:
    with listening_socket("127.0.0.1", 0, 1.0) as listening:
        client = socket.create_connection(listening.getsockname())
        served, _ = listening.accept()
        with client, served:
            assert served.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
