"""Two servers on one PostgreSQL memory: any answers for any session, and one outlives the other."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server needs the extra `server`")
pytest.importorskip("uvicorn", reason="the server needs the extra `server`")

import httpx
import psycopg
from server_cases import FINAL, Event, ServerProcess, echo, events_of, problem, read, serving

from hybridagi_steps import StepMemory
from hybridagi_steps.records.event import StepEvent, StepEventType
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.server.peers import Peers
from hybridagi_steps.server.sse import LiveRun
from hybridagi_steps.server.tokens import Caller, TokenScope
from hybridagi_steps.stores.postgres.live_runs import LiveRuns
from hybridagi_steps.stores.postgres.work_tables import WORK_SCHEMA

pytestmark = pytest.mark.slow

PATIENCE = 30.0
PROGRAM = '''
import json
import pathlib
import time

FOLDER = pathlib.Path(__file__).parent

def note(place: str) -> str:
    """Note a place, and stay there while told to."""
    with (FOLDER / "log").open("a") as log:
        log.write(place + "\\n")
    while (FOLDER / f"hold {place}").exists():
        time.sleep(0.01)
    return "noted " + place

def program(messages):
    """Note three places of the question, then say so."""
    [asked] = [n for n, m in enumerate(messages) if m["role"] == "user"][-1:]
    done = sum(message["role"] == "tool" for message in messages[asked:])
    if done == 3:
        return "All is well."
    place = f"{messages[asked]['content']} {done + 1}"
    function = {"name": "note", "arguments": json.dumps({"place": place})}
    call = {"id": f"call-{done}", "type": "function", "function": function}
    return {"role": "assistant", "content": f"On to {place}.", "tool_calls": [call]}

def made(memory):
    import hybridagi_steps as hs
    return hs.StepRunner(program, memory, tools=[note])

def asking(messages):
    if messages[-1]["role"] == "tool":
        return "Then go " + messages[-1]["content"]
    function = {"name": "ask_user", "arguments": json.dumps({"question": "How?"})}
    call = {"id": "call-0", "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}

def made_asking(memory):
    import hybridagi_steps as hs
    return hs.StepRunner(asking, memory, tools=[hs.UserQuestions(memory).ask_user])
'''


class Servers:
    """Servers on one memory, and places where their programs wait."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder, self.address = folder, address
        self.begun: list[ServerProcess] = []
        (folder / "noting.py").write_text(PROGRAM)

    def start(self, *arguments: str, program: str = "made") -> ServerProcess:
        """Start one."""
        words = ("--program", f"noting:{program}", *arguments)
        self.begun.append(ServerProcess(self.folder, self.address, *words))
        return self.begun[-1]

    def hold(self, place: str) -> None:
        """Let programs wait at a place from now on."""
        (self.folder / f"hold {place}").touch()

    def let_go(self, place: str) -> None:
        """Let them go on."""
        (self.folder / f"hold {place}").unlink()

    def noted(self, place: str) -> int:
        """How often a place was reached."""
        log = self.folder / "log"
        return log.read_text().splitlines().count(place) if log.exists() else 0

    def wait_for(self, place: str) -> None:
        """Wait until a place is reached."""
        wait_for(lambda: self.noted(place) > 0, place)


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Wait until something holds."""
    give_up = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < give_up, f"waited in vain for {what}"
        time.sleep(0.02)


@pytest.fixture
def servers(tmp_path: Path, postgres_address: str) -> Iterator[Servers]:
    """Servers that end with the test."""
    made = Servers(tmp_path, postgres_address)
    yield made
    for process in made.begun:
        process.client.close()
        process.running.kill()
        process.running.communicate()


@contextmanager
def away(address: str) -> Generator[None]:
    """Take a database away and bring it back."""
    name = address.partition("?")[0].rpartition("/")[2]
    with psycopg.connect(address.replace(f"/{name}", "/postgres"), autocommit=True) as raw:
        raw.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false".encode())
        try:
            raw.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,)
            )
            yield
        finally:
            raw.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true".encode())


class Reader:
    """A client that reads a chat in a thread of its own."""

    def __init__(self, server: ServerProcess, session_id: str, **headers: str) -> None:
        self.events: list[Event] = []
        self.error: httpx.TransportError | None = None
        self._thread = threading.Thread(target=self._read, args=(server, session_id, headers))
        self._thread.start()

    def _read(self, server: ServerProcess, session_id: str, headers: dict[str, str]) -> None:
        body = {"session_id": session_id, "message": session_id}
        asked: Any = {"json": body, "headers": headers}
        try:
            with server.client.stream("POST", "/chat/stream/v2", **asked) as answer:
                self.events.extend(events_of(answer.iter_bytes()))
        except httpx.TransportError as error:  # of a server that was killed
            self.error = error

    def run_id(self) -> str:
        """The run, once it has begun."""
        wait_for(lambda: bool(self.events), "the first event")
        return self.events[0].data["run_id"]

    def end(self) -> list[Event]:
        """Wait for the end; return all events."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        return self.events


def told(events: list[Event]) -> list[str]:
    """The messages that events say are complete."""
    return [event.data["step_id"] for event in events if event.kind == "step_completed"]


def stored(server: ServerProcess, session_id: str) -> list[dict[str, Any]]:
    """The messages of a session."""
    steps: list[dict[str, Any]] = server.client.get(f"/sessions/{session_id}/steps").json()["steps"]
    return steps


def check_whole(server: ServerProcess, session_id: str, events: list[Event], end: str) -> None:
    """Events tell each message once, in order, under growing ids, and end once."""
    assert told(events) == [step["id"] for step in stored(server, session_id)]
    assert [event.kind for event in events if event.kind in FINAL] == [end]
    assert events[-1].kind == end
    numbers = [event.number for event in events]
    assert numbers == sorted(set(numbers))


def test_a_stream_goes_on_at_another_server_when_the_first_is_killed(servers: Servers) -> None:
    servers.hold("one 2")
    first, second = servers.start(), servers.start()
    reader = Reader(first, "one")
    run_id = reader.run_id()
    servers.wait_for("one 2")
    wait_for(lambda: len(told(reader.events)) == 4, "what came before the place")
    second_reader = ThreadPoolExecutor().submit(
        read, second, "GET", f"/runs/{run_id}/events", None, None
    )
    first.stop(signal.SIGKILL)
    before = reader.end()
    assert reader.error is not None
    assert before[-1].kind not in FINAL
    after = read(second, "GET", f"/runs/{run_id}/events", None, before[-1].id)
    check_whole(second, "one", [*before, *after], "run_failed")
    assert after[-1].data["data"]["termination_reason"] == "interrupted"
    again = read(second, "GET", f"/runs/{run_id}/events", None, after[-1].id)
    assert again == []
    check_whole(second, "one", second_reader.result(PATIENCE), "run_failed")
    servers.let_go("one 2")
    done = read(second, "POST", "/sessions/one/resume", None)
    assert done[-1].kind == "run_completed"
    assert stored(second, "one")[-1]["content"] == "All is well."


def test_a_run_is_followed_stopped_and_kept_alone_from_any_server(servers: Servers) -> None:
    first, second = servers.start(), servers.start()
    servers.hold("two 2")
    reader = Reader(first, "two")
    run_id = reader.run_id()
    servers.wait_for("two 2")
    with ThreadPoolExecutor() as pool:
        whole = pool.submit(read, second, "GET", f"/runs/{run_id}/events", None)
        half = pool.submit(read, second, "GET", f"/runs/{run_id}/events", None, f"{run_id}:3")
        # Nobody else begins or takes up anything in this session meanwhile.
        said = {"session_id": "two", "message": "me too"}
        assert (
            "in flight" in problem(second.client.post("/chat/stream/v2", json=said), 409)["detail"]
        )
        assert problem(second.client.post("/sessions/two/resume"), 409)
        servers.let_go("two 2")
        check_whole(second, "two", whole.result(PATIENCE), "run_completed")
        check_whole(first, "two", reader.end(), "run_completed")
        durable = [each for each in reader.events if each.kind in ("step_completed", *FINAL)]
        rest = [(e.id, e.kind, e.data.get("step_id")) for e in durable if e.number > 3]
        later = half.result(PATIENCE)
        assert [(e.id, e.kind, e.data.get("step_id")) for e in later] == rest
    late = read(second, "GET", f"/runs/{run_id}/events", None, f"{run_id}:3")
    assert [e.id for e in late] == [e.id for e in durable if e.number > 3], "and when it is over"

    servers.hold("three 1")
    reader = Reader(first, "three")
    run_id = reader.run_id()
    servers.wait_for("three 1")
    assert second.client.post(f"/runs/{run_id}/cancel").json()["cancelled"] is True
    servers.let_go("three 1")
    assert reader.end()[-1].kind == "run_cancelled"
    assert second.client.post(f"/runs/{run_id}/cancel").json()["cancelled"] is False

    servers.hold("four 1")
    reader = Reader(first, "four")
    run_id = reader.run_id()
    servers.wait_for("four 1")
    erased = ThreadPoolExecutor().submit(second.client.delete, "/sessions/four")
    assert erased.result(PATIENCE).status_code in (200, 409)
    servers.let_go("four 1")
    reader.end()


def test_one_key_begins_one_run_though_two_servers_are_asked_at_once(servers: Servers) -> None:
    first, second = servers.start(), servers.start()
    keyed = {"Idempotency-Key": "k"}
    for number in range(3):
        session = f"keyed{number}"
        readers = [Reader(each, session, **keyed) for each in (first, second, first, second)]
        for reader in readers:
            check_whole(first, session, reader.end(), "run_completed")
        assert len({reader.run_id() for reader in readers}) == 1
        assert servers.noted(f"{session} 1") == 1


def test_a_consent_is_given_at_another_server_and_after_a_kill(servers: Servers) -> None:
    first, second = servers.start("--ask"), servers.start("--ask")
    events = Reader(first, "five").end()
    for number in (1, 2, 3):
        assert events[-1].kind == "run_paused"
        [waits] = events[-1].data["data"]["waiting"]
        assert servers.noted(f"five {number}") == 0
        if number == 3:
            first.stop(signal.SIGKILL)
            later = read(second, "GET", f"/runs/{events[0].data['run_id']}/events", None)
            assert later[-1].data["data"]["waiting"] == [waits]
        body = {"answers": {waits["call_id"]: True}}
        events = read(second, "POST", "/sessions/five/resume", body)
    assert events[-1].kind == "run_completed"
    assert [servers.noted(f"five {n}") for n in (1, 2, 3)] == [1, 1, 1]


def test_a_question_to_the_user_is_answered_at_another_server_after_a_kill(
    servers: Servers,
) -> None:
    first, second = (servers.start(program="made_asking") for _ in range(2))

    def questions() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = second.client.get("/questions").json()["questions"]
        return found

    assert Reader(first, "six").end()[-1].kind == "run_paused"
    [asked] = questions()
    first.stop(signal.SIGKILL)
    given = second.client.post(f"/steps/{asked['id']}/answer", json={"text": "by train"})
    assert given.json() == {"answered": True}
    taken_up = read(second, "POST", "/sessions/six/resume", None)
    assert taken_up[-1].kind == "run_completed"
    assert stored(second, "six")[-1]["content"] == "Then go by train"
    assert questions() == []


def test_a_purge_reaches_runs_of_other_servers_and_what_is_known_of_them(
    servers: Servers, postgres_address: str
) -> None:
    def known() -> set[str]:
        with psycopg.connect(postgres_address) as raw:
            found = raw.execute(f"SELECT session_id FROM {WORK_SCHEMA}.live_run".encode())
            return {session_id for (session_id,) in found}

    first, second = servers.start(), servers.start()
    Reader(first, "six").end()
    servers.hold("seven 1")
    reader = Reader(first, "seven")
    reader.run_id()
    servers.wait_for("seven 1")
    assert known() == {"six", "seven"}
    letting_go = threading.Timer(1.0, servers.let_go, ["seven 1"])
    letting_go.start()
    purged = second.client.post("/purge", json={"where": {"session_id": "seven"}})
    assert purged.status_code in (200, 409), purged.text
    reader.end()
    if purged.status_code == 409:
        purged = second.client.post("/purge", json={"where": {"session_id": "seven"}})
    assert purged.json()["unreached"] == []
    assert reader.events[-1].kind == "run_cancelled", reader.events[-1]
    assert known() == set()
    problem(second.client.get("/sessions/seven/steps"), 404)
    letting_go.join()


def test_a_server_that_drains_or_has_lost_its_database_is_not_ready(
    servers: Servers, postgres_address: str
) -> None:
    def ready() -> int:
        return server.client.get("/readyz").status_code

    server = servers.start("--drain", "60")
    assert server.client.get("/readyz").json()["status"] == "ready"
    assert 'hybridagi_steps_memory_info{namespace="default"} 1.0' in (
        server.client.get("/metrics").text
    )
    with away(postgres_address):
        assert ready() == 503
    wait_for(lambda: ready() == 200, "the database again")

    servers.hold("eight 2")
    reader = Reader(server, "eight")
    servers.wait_for("eight 2")
    server.running.send_signal(signal.SIGTERM)
    wait_for(lambda: ready() == 503, "the end to begin")
    said = {"session_id": "nine", "message": "nine"}
    problem(server.client.post("/chat/stream/v2", json=said), 503)
    servers.let_go("eight 2")
    assert reader.end()[-1].kind == "run_completed"
    assert server.running.wait(30) == 0


def test_what_others_were_not_told_in_an_outage_they_are_told_after_it(
    postgres_address: str,
) -> None:
    started = StepEvent(type=StepEventType.RUN_STARTED, run_id="ten", number=1)
    failed = StepEvent(type=StepEventType.RUN_FAILED, run_id="ten", number=2)

    async def outage(memory: StepMemory, runs: LiveRuns, others: LiveRuns) -> None:
        def seen() -> list[str]:
            return others.elsewhere(StepFilter(session_id="ten"))

        peers, run = Peers(memory, runs, 1_000), LiveRun("ten", "ten", 1_000)
        await peers.note(run, started)
        with away(postgres_address):
            await peers.note(run, failed)
        assert seen() == ["ten"]
        peers.begin(None)
        async with asyncio.timeout(PATIENCE):
            while seen():
                await asyncio.sleep(0.02)
        found = others.find("ten")
        assert found is not None
        assert found.numbers == {None: 2}
        await peers.close()

    with StepMemory(postgres_address) as memory:
        runs, others = (LiveRuns(postgres_address, memory.namespace) for _ in range(2))
        asyncio.run(outage(memory, runs, others))
        others.close()


def test_an_id_that_postgresql_cannot_hold_is_answered_as_by_a_file(
    postgres_address: str, tmp_path: Path
) -> None:
    chat = {"session_id": "a\0", "message": "x"}
    completion = {"session_id": "b\0", "messages": [{"role": "user", "content": "x"}]}
    asked: list[tuple[str, str, Any]] = [
        ("POST", "/sessions/a%00/resume", None),
        ("POST", "/sessions/a%00/retry", {"sequence": 1}),
        ("GET", "/runs/a%00/events", None),
        ("POST", "/runs/a%00/cancel", None),
        ("POST", "/sessions/a/resume", {"answers": {"x\0": True}}),
        ("POST", "/chat/stream/v2", chat),
        ("POST", "/v1/chat/completions", {"model": "echo", **completion}),
        ("POST", "/purge", {"where": {"session_id": "a\0"}}),
        ("POST", "/purge", {"where": {"user_id": "a\0"}}),
        ("POST", "/purge", {"where": {"user_id": ["a\0", "b"]}}),
        ("POST", "/purge", {"where": {"run_id": ["a", "b"]}}),
    ]

    def statuses(address: str) -> list[int]:
        with StepMemory(address) as memory, serving(memory, echo) as served:
            answers = [served.client.request(how, path, json=body) for how, path, body in asked]
        return [answer.status_code for answer in answers]

    elsewhere = LiveRuns(postgres_address, "default")
    elsewhere.begin("other", "other", None)  # so that others are asked
    assert statuses(postgres_address) == statuses(str(tmp_path / "steps.db"))
    others = LiveRuns(postgres_address, "default")
    assert others.elsewhere(StepFilter(run_id=["none", "other"])) == ["other"]
    assert others.elsewhere(StepFilter(run_id=["none", "nor"])) == []
    assert others.elsewhere(StepFilter(user_id=["ann", "bob"])) == []
    others.close()
    elsewhere.close()


def test_a_database_that_is_away_is_said_without_its_address(postgres_address: str) -> None:
    anns = "a-token-of-anns-own"
    users = {"Authorization": f"Bearer {anns}"}
    ann = Caller(frozenset({TokenScope.READ, TokenScope.APPEND}), "ann")
    with (
        StepMemory(postgres_address) as memory,
        serving(memory, echo, {anns: ann}) as served,
        away(postgres_address),
    ):
        for path in ("/sessions", "/search?q=x", "/chat/stream/v2"):
            asked: Any = {"json": {"message": "x"}} if "chat" in path else {}
            for headers, shows in ((users, False), ({}, True)):
                method = "POST" if asked else "GET"
                answer = served.client.request(method, path, headers=headers, **asked)
                assert answer.headers["Retry-After"] == "1", (path, answer.text)
                assert ("postgres" in problem(answer, 503)["detail"]) is shows, path
