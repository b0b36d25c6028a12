"""More than the server can do: it refuses, forgets who has left, and ends when it is asked to."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server needs the extra `server`")
pytest.importorskip("uvicorn", reason="the server needs the extra `server`")

import httpx
from server_cases import PATIENCE_SECONDS, TOKEN, Served, Told, fill, problem, serving, until
from server_overload import attack

import hybridagi_steps.server
from hybridagi_steps import StepMemory
from hybridagi_steps.server.settings import ServerSettings

NODE = shutil.which("node")
API = Path(hybridagi_steps.server.__file__).parent / "static" / "api.js"
PAGE_SEARCH = """
globalThis.sessionStorage = { getItem: () => process.env.TOKEN };
const send = globalThis.fetch;
globalThis.fetch = (path, options) => send(`${process.env.ADDRESS}/${path}`, options);
const api = await import(process.env.API);
api.search({ q: "refund ticket", k: 2 }).then(
  (found) => console.log(found.hits.length, "hits"),
  (problem) => console.log(problem.title, problem.message),
);
"""


class SlowSearch:
    """A memory's search that waits until it is let go, and counts."""

    def __init__(self, memory: StepMemory) -> None:
        self.begun: list[str] = []
        self.go = threading.Event()
        self._search = memory.search

    def __call__(self, query: str, *arguments: Any, **options: Any) -> Any:
        """Search, some time."""
        self.begun.append(query)
        assert self.go.wait(PATIENCE_SECONDS)
        return self._search(query, *arguments, **options)


@pytest.fixture
def slow(memory: StepMemory, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowSearch]:
    """The search of a filled memory, made slow."""
    fill(memory)
    made = SlowSearch(memory)
    monkeypatch.setattr(memory, "search", made)
    yield made
    made.go.set()


@pytest.fixture
def clients() -> Iterator[ThreadPoolExecutor]:
    """Threads for clients that wait."""
    with ThreadPoolExecutor(16) as threads:
        yield threads


def ask(served: Served, clients: ThreadPoolExecutor, query: str) -> Future[httpx.Response]:
    """Search in the background."""
    return clients.submit(served.client.get, "/search", params={"q": query})


def fill_up(
    served: Served, slow: SlowSearch, clients: ThreadPoolExecutor, *, most: int, queue: int
) -> list[Future[httpx.Response]]:
    """Ask as much as is answered at a time, then as much as may wait."""
    asked = [ask(served, clients, f"refund {number}") for number in range(most)]
    until(lambda: len(slow.begun) == most)
    asked += [ask(served, clients, f"waiting {number}") for number in range(queue)]
    until(lambda: served.services.work.waiting == queue)
    return asked


def figure(served: Served, name: str) -> float:
    """A figure of /metrics; 0 when it is not there yet."""
    for line in served.client.get("/metrics").text.splitlines():
        if line.startswith(f"hybridagi_steps_{name} "):
            return float(line.rpartition(" ")[2])
    return 0.0


class TestWhoIsOneTooMany:
    def test_is_refused_and_those_before_are_answered(
        self, memory: StepMemory, slow: SlowSearch, clients: ThreadPoolExecutor
    ) -> None:
        with serving(memory, max_concurrency=2, max_queue=3, queue_seconds=20) as served:
            asked = fill_up(served, slow, clients, most=2, queue=3)
            refused = served.client.get("/search", params={"q": "one too many"})
            assert "try again in 1 s" in problem(refused, 429)["detail"]
            assert refused.headers["retry-after"] == "1"
            assert figure(served, 'refused_total{kind="questions"}') == 1
            assert figure(served, "questions_in_flight") == 2
            assert figure(served, "questions_waiting") == 3
            slow.go.set()
            answers = [one.result(PATIENCE_SECONDS) for one in asked]
            assert [answer.status_code for answer in answers] == [200] * 5
            assert "one too many" not in slow.begun
            assert served.client.get("/search", params={"q": "again"}).status_code == 200

    @pytest.mark.parametrize(
        ("method", "path", "body"),
        [
            ("GET", "/search?q=", None),  # before anything is looked at: refusing has to be cheap
            ("GET", "/sessions", None),
            ("GET", "/sessions/talk/steps", None),
            ("GET", "/sessions/talk/steps/1", None),
            ("GET", "/sessions/talk/attempts", None),
            ("GET", "/sessions/talk/context", None),
            ("GET", "/sessions/talk/compare?branch_a=1&branch_b=1", None),
            ("POST", "/sessions/talk/fork", {"sequence": 1}),
            ("DELETE", "/sessions/talk/steps?start_seq=1", None),
            ("GET", "/runs", None),
            ("GET", "/runs/run-1", None),
            ("GET", "/runs/run-1/events", None),
            ("POST", "/runs/run-1/cancel", None),
        ],
    )
    def test_is_refused_by_every_route_that_asks_the_memory(
        self,
        memory: StepMemory,
        slow: SlowSearch,
        clients: ThreadPoolExecutor,
        method: str,
        path: str,
        body: Any,
    ) -> None:
        with serving(memory, max_concurrency=1, max_queue=0) as served:
            fill_up(served, slow, clients, most=1, queue=0)
            problem(served.client.request(method, path, json=body), 429)
            slow.go.set()
        assert len(memory.repository().store.messages("talk")) == 4

    def test_what_is_small_is_answered_all_the_same(
        self, memory: StepMemory, slow: SlowSearch, clients: ThreadPoolExecutor
    ) -> None:
        told = Told()
        with serving(memory, told, max_concurrency=1, max_queue=0) as served:
            chat = clients.submit(served.chat, "new", "hello")
            until(told.began.is_set)
            run = served.services.hub.active_in("new")
            fill_up(served, slow, clients, most=1, queue=0)
            for path in ("/healthz", "/", "/static/app.js", "/metrics", "/openapi.json"):
                assert served.client.get(path).status_code == 200, path
            stopped = served.client.post(f"/runs/{run.run_id}/cancel")
            assert stopped.json() == {"run_id": run.run_id, "cancelled": True}
            assert chat.result(PATIENCE_SECONDS)[-1].kind == "run_cancelled"
            assert served.events(run.run_id)[-1].kind == "run_cancelled"
            slow.go.set()

    def test_figures_do_not_wait_for_one_another(
        self, memory: StepMemory, clients: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill(memory)
        count, counted, go = memory.stats, list[int](), threading.Event()

        def slow() -> Any:
            counted.append(1)
            assert go.wait(PATIENCE_SECONDS)
            return count()

        with serving(memory) as served:
            assert figure(served, 'stored{kind="steps"}') == 3
            monkeypatch.setattr(memory, "stats", slow)
            first = clients.submit(figure, served, 'stored{kind="steps"}')
            until(lambda: counted)
            assert [figure(served, 'stored{kind="steps"}') for _ in range(20)] == [3] * 20
            go.set()
            assert first.result(PATIENCE_SECONDS) == 3
            assert len(counted) == 1

    def test_waits_no_longer_than_it_may(
        self, memory: StepMemory, slow: SlowSearch, clients: ThreadPoolExecutor
    ) -> None:
        with serving(memory, max_concurrency=1, max_queue=5, queue_seconds=0.05) as served:
            (first,) = fill_up(served, slow, clients, most=1, queue=0)
            problem(served.client.get("/search", params={"q": "too long"}), 429)
            assert served.services.work.waiting == 0
            slow.go.set()
            assert first.result(PATIENCE_SECONDS).status_code == 200
            assert slow.begun == ["refund 0"]


class TestWhoLeaves:
    def test_while_waiting_is_not_searched_for(
        self, memory: StepMemory, slow: SlowSearch, clients: ThreadPoolExecutor
    ) -> None:
        with serving(memory, max_concurrency=1, max_queue=5, queue_seconds=20) as served:
            asked = fill_up(served, slow, clients, most=1, queue=1)
            with connection(served) as leaving:
                leaving.sendall(request(served, "GET", "/search?q=nobody+there"))
                until(lambda: served.services.work.waiting == 2)
            until(lambda: served.services.work.waiting == 1)
            slow.go.set()
            assert [one.result(PATIENCE_SECONDS).status_code for one in asked] == [200, 200]
            assert slow.begun == ["refund 0", "waiting 0"]
            assert figure(served, 'dropped_total{kind="questions"}') == 1
            assert figure(served, 'refused_total{kind="questions"}') == 0
            assert served.services.work.used == 0

    def test_while_waiting_with_a_body_changes_nothing(
        self, memory: StepMemory, slow: SlowSearch, clients: ThreadPoolExecutor
    ) -> None:
        body = json.dumps({"sequence": 1, "new_session_id": "nobodys"}).encode()
        with serving(memory, max_concurrency=1, max_queue=5, queue_seconds=20) as served:
            (first,) = fill_up(served, slow, clients, most=1, queue=0)
            with connection(served) as leaving:
                leaving.sendall(request(served, "POST", "/sessions/talk/fork", body))
                until(lambda: served.services.work.waiting == 1)
            until(lambda: served.services.work.waiting == 0)
            slow.go.set()
            first.result(PATIENCE_SECONDS)
            problem(served.client.get("/sessions/nobodys/steps"), 404)

    def test_in_the_middle_of_a_body_has_asked_for_nothing(self, memory: StepMemory) -> None:
        fill(memory)
        body = json.dumps({"sequence": 1, "new_session_id": "half"}).encode()
        with serving(memory) as served:
            with connection(served) as leaving:
                whole = request(served, "POST", "/sessions/talk/fork", body + b" " * 50)
                leaving.sendall(whole[:-50])
            for _ in range(20):
                problem(served.client.get("/sessions/half/steps"), 404)


@pytest.mark.skipif(NODE is None, reason="runs the page's script, which needs Node.js")
class TestThePage:
    """The calls of its script, against a server that is busy."""

    def search(self, served: Served, clients: ThreadPoolExecutor) -> Future[str]:
        """Search as the page does; return what it would show."""
        command = [NODE or "", "--input-type=module", "-e", PAGE_SEARCH]
        environment = {**os.environ, "ADDRESS": served.address, "TOKEN": TOKEN, "API": str(API)}
        return clients.submit(
            lambda: (
                subprocess.run(
                    command, env=environment, capture_output=True, text=True, check=True, timeout=60
                ).stdout
            )
        )

    def test_asks_again_and_shows_what_it_gets(
        self, memory: StepMemory, slow: SlowSearch, clients: ThreadPoolExecutor
    ) -> None:
        with serving(memory, max_concurrency=1, max_queue=0) as served:
            fill_up(served, slow, clients, most=1, queue=0)
            shown = self.search(served, clients)
            until(lambda: figure(served, 'refused_total{kind="questions"}') == 1)
            slow.go.set()
            assert shown.result(PATIENCE_SECONDS).strip() == "2 hits"

    def test_says_so_when_the_server_stays_busy(
        self, memory: StepMemory, slow: SlowSearch, clients: ThreadPoolExecutor
    ) -> None:
        with serving(memory, max_concurrency=1, max_queue=0) as served:
            fill_up(served, slow, clients, most=1, queue=0)
            shown = self.search(served, clients).result(PATIENCE_SECONDS)
            assert shown.startswith("Please try again in a moment: the server is busy")
            assert figure(served, 'refused_total{kind="questions"}') == 3
            slow.go.set()


def test_the_documentation_says_how_much_is_too_much() -> None:
    page = Path(__file__).parents[2] / ".github" / "docs" / "server.md"
    said, usual = page.read_text("utf-8"), ServerSettings()
    assert f"`--max-queue` {usual.max_queue} more wait, each for a second" in said
    assert usual.queue_seconds == 1
    assert f"`--max-runs` {usual.max_runs} " in said
    assert f"`--max-streams` {usual.max_streams:,} " in said
    assert usual.max_concurrency == min(4, os.cpu_count() or 1)


class TestTheEnd:
    def test_answers_what_is_under_way_and_refuses_what_waits(
        self, memory: StepMemory, slow: SlowSearch, clients: ThreadPoolExecutor
    ) -> None:
        with serving(memory, max_concurrency=1, max_queue=5, queue_seconds=20) as served:
            first, waits = fill_up(served, slow, clients, most=1, queue=1)
            served.server.should_exit = True  # what a signal does
            refused = waits.result(PATIENCE_SECONDS)
            assert "about to end" in problem(refused, 503)["detail"]
            assert refused.headers["retry-after"]
            slow.go.set()
            assert first.result(PATIENCE_SECONDS).status_code == 200
        assert slow.begun == ["refund 0"]

    @pytest.mark.slow
    def test_under_load_is_in_order(self) -> None:
        found = attack(4.0, 7, steps=2_000)
        assert (found["exit_code"], found["damage"], found["wal_left"]) == (0, 0, False)
        assert found["failed"] == 0, found["failures"]
        assert min(found["answered"], found["refused"]) > 0


def connection(served: Served) -> socket.socket:
    """A connection of one's own to a server."""
    url = served.client.base_url
    return socket.create_connection((url.host, url.port or 0), timeout=PATIENCE_SECONDS)


def request(served: Served, method: str, path: str, body: bytes = b"") -> bytes:
    """A request as it is sent."""
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: {served.client.base_url.host}\r\n"
        f"Authorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
