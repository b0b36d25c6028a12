"""Runs over HTTP: events as they happen, readers that leave, return, or never read."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportArgumentType=false

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server needs the extra `server`")
pytest.importorskip("uvicorn", reason="the server needs the extra `server`")

import dspy
import httpx
from server_cases import FINAL, TOKEN, Event, Served, Told, echo, events_of, problem, serving, until

from hybridagi_steps import RunHook, Step, StepEvent, StepEventType, StepMemory, StepRunner
from hybridagi_steps.running.limits import StepRunnerConfig
from hybridagi_steps.running.stopping import RunVetoed
from hybridagi_steps.running.stored_events import stored_events
from hybridagi_steps.server.routes.chat import message_id_of
from hybridagi_steps.server.sse import LiveRun
from hybridagi_steps.testing import ScriptedLM


def kinds(events: list[Event]) -> list[str]:
    """What happened, pieces and metrics left out."""
    return [e.kind for e in events if e.kind not in ("step_delta", "metrics_snapshot")]


def text(events: list[Event]) -> str:
    """What the pieces say together."""
    return "".join((event.data.get("delta") or {}).get("content", "") for event in events)


def has_said(reading: Reading, word: str) -> bool:
    """Whether a word has come."""
    return word in text(reading.events)


def answer(events: list[Event]) -> str:
    """What the assistant's message says."""
    said = [event.data["snapshot"] for event in events if event.kind == "step_completed"]
    return str([step["content"] for step in said if step["role"] == "assistant"][-1])


class Reading:
    """A stream that is read in a thread until somebody closes it."""

    def __init__(self, served: Served, method: str, path: str, **more: Any) -> None:
        self.events: list[Event] = []
        self.status = 0
        self._closed = False
        self._thread = threading.Thread(target=self._read, args=(served, method, path, more))
        self._thread.start()

    def _read(self, served: Served, method: str, path: str, more: Any) -> None:
        headers = {"Authorization": f"Bearer {TOKEN}", **more.pop("headers", {})}
        url = served.address + path
        with httpx.stream(method, url, headers=headers, timeout=20, **more) as answer:
            self.status = answer.status_code
            for event in events_of(answer.iter_bytes()):
                self.events.append(event)
                if self._closed:
                    return

    def leave(self) -> None:
        """Close the connection with the next event."""
        self._closed = True

    def ended(self) -> list[Event]:
        """Wait for the end; return all events."""
        self._thread.join(20)
        assert not self._thread.is_alive()
        return self.events

    @property
    def run_id(self) -> str:
        """The run, once it has begun."""
        until(lambda: self.events)
        return str(self.events[0].data["run_id"])


def chat(served: Served, session_id: str, message: str, **headers: str) -> Reading:
    """Say something and read in the background."""
    body = {"session_id": session_id, "message": message}
    return Reading(served, "POST", "/chat/stream/v2", json=body, headers=headers)


@pytest.fixture
def told() -> Told:
    """A program that does what it is told."""
    return Told()


@pytest.fixture
def served(memory: StepMemory, told: Told) -> Iterator[Served]:
    """A server of that program, which ends with the test."""
    with serving(memory, told, heartbeat_seconds=0.05) as running:
        yield running
        told.end()


class TestChat:
    def test_an_answer_streams_and_is_stored(self, memory: StepMemory) -> None:
        with serving(memory, echo) as served:
            events = served.chat("talk", "Hello")
            stored = served.client.get("/sessions/talk/steps").json()["steps"]
            run = served.client.get(f"/runs/{events[0].data['run_id']}").json()
        assert kinds(events) == ["run_started", "step_completed", "step_completed", "run_completed"]
        assert [event.number for event in events] == list(range(1, len(events) + 1))
        assert text(events) == answer(events) == "You said: Hello"
        assert [event.data["snapshot"] for event in events if "snapshot" in event.data] == stored
        assert all(event.data["type"] == event.kind for event in events)
        assert all(None not in event.data.values() for event in events)
        assert run["run"]["session_id"] == "talk"
        assert run["steps"][0]["step_type"] == "ProgramCall"

    def test_pieces_come_when_they_are_said(self, served: Served, told: Told) -> None:
        reading = chat(served, "talk", "go")
        told.say("one ")
        until(lambda: text(reading.events) == "one ")
        told.say("two")
        until(lambda: text(reading.events) == "one two")
        told.end()
        assert reading.ended()[-1].kind == "run_completed"

    def test_without_a_session_a_new_one_is_made(self, memory: StepMemory) -> None:
        with serving(memory, echo) as served:
            body = {"message": [{"type": "text", "text": "Hi"}]}
            with served.client.stream("POST", "/chat/stream/v2", json=body) as streamed:
                events = list(events_of(streamed.iter_bytes()))
            (session,) = served.client.get("/sessions").json()["sessions"]
        assert events[-1].kind == "run_completed"
        assert session["session_id"] == events[0].data["session_id"]

    def test_a_program_that_fails_ends_its_stream_truthfully(self, memory: StepMemory) -> None:
        async def broken(messages: list[dict[str, Any]]) -> str:
            raise RuntimeError("no luck")

        with serving(memory, broken) as served:
            events = served.chat("talk", "Hello")
        assert events[-1].kind == "run_failed"
        assert events[-1].data["data"]["error"]["message"] == "no luck"

    def test_a_session_has_one_run_at_a_time(self, served: Served, told: Told) -> None:
        reading = chat(served, "talk", "go")
        until(lambda: reading.events)
        body = {"session_id": "talk", "message": "me too"}
        problem(served.client.post("/chat/stream/v2", json=body), 409)
        problem(served.client.delete("/sessions/talk/steps", params={"start_seq": 1}), 409)
        told.say("done")
        told.end()
        assert reading.ended()[-1].kind == "run_completed"
        steps = served.client.get("/sessions/talk/steps").json()["steps"]
        assert [step["content"] for step in steps] == ["go", "done"]

    def test_many_programs_speak_at_the_same_time(self, memory: StepMemory) -> None:
        with serving(memory, echo) as served, ThreadPoolExecutor(8) as pool:
            words = [f"message {n}" for n in range(16)]
            runs = list(pool.map(served.chat, words, words))
        assert [answer(events) for events in runs] == [f"You said: {word}" for word in words]


class TestCancel:
    def test_it_stops_the_run_and_keeps_what_was_said(self, served: Served, told: Told) -> None:
        reading = chat(served, "talk", "go")
        told.say("half an ans")
        until(lambda: text(reading.events) == "half an ans")
        stopped = served.client.post(f"/runs/{reading.run_id}/cancel")
        assert stopped.json()["cancelled"] is True
        events = reading.ended()
        assert events[-1].kind == "run_cancelled"
        kept = served.client.get("/sessions/talk/steps").json()["steps"][-1]
        assert kept["content"] == "half an ans"
        assert kept["metadata"]["partial"] is True

    def test_a_browser_that_closes_does_not(self, served: Served, told: Told) -> None:
        reading = chat(served, "talk", "go")
        run_id = reading.run_id
        reading.leave()
        told.say("a", "b")
        reading.ended()
        until(lambda: served.services.slots.used == 0)
        told.say("c")
        told.end()
        until(lambda: served.client.get(f"/runs/{run_id}").json()["live"] is False)
        steps = served.client.get("/sessions/talk/steps").json()["steps"]
        assert [step["content"] for step in steps] == ["go", "abc"]


class TestResuming:
    def test_a_reader_goes_on_without_gap_or_repeat(self, served: Served, told: Told) -> None:
        reading = chat(served, "talk", "go")
        for word in ("0 ", "1 ", "2 ", "3 ", "4 "):
            told.say(word)
            until(partial(has_said, reading, word))
        run_id = reading.run_id
        reading.leave()
        told.say("5 ")
        seen = reading.ended()
        more = Reading(
            served, "GET", f"/runs/{run_id}/events", headers={"Last-Event-ID": seen[-1].id}
        )
        told.say("6 ", "7")
        told.end()
        events = seen + more.ended()
        assert [event.number for event in events] == list(range(1, len(events) + 1))
        assert text(events) == answer(events) == "0 1 2 3 4 5 6 7"
        assert events[-1].kind == "run_completed"

    def test_from_every_event_the_rest_is_the_same(self, memory: StepMemory) -> None:
        with serving(memory, echo) as served:
            whole = served.chat("talk", "Hello")
            run_id = str(whole[0].data["run_id"])
            for place, event in enumerate(whole):
                assert served.events(run_id, event.id) == whole[place + 1 :]
            assert served.events(run_id) == whole

    def test_after_a_restart_messages_and_end_come_from_the_store(self, memory: StepMemory) -> None:
        with serving(memory, echo) as served:
            whole = served.chat("talk", "Hello")
        run_id = str(whole[0].data["run_id"])
        with serving(memory) as again:
            rest = again.events(run_id, whole[2].id)
            fresh = again.events(run_id)
        assert kinds(rest) == ["step_completed", "step_completed", "run_completed"]
        assert kinds(fresh) == ["run_started", *kinds(rest)]
        assert rest[0].number == whole[2].number + 1
        wanted = [e.data["snapshot"] for e in whole if "snapshot" in e.data]
        assert [e.data["snapshot"] for e in rest if "snapshot" in e.data] == wanted

    @pytest.mark.parametrize(
        "last_id", ["other:1", "7", "{run}:x", "{run}:-1", "{run}:" + "9" * 40]
    )
    def test_an_id_of_something_else_is_422(self, memory: StepMemory, last_id: str) -> None:
        with serving(memory, echo) as served:
            run_id = str(served.chat("talk", "Hello")[0].data["run_id"])
            headers = {"Last-Event-ID": last_id.format(run=run_id)}
            found = problem(served.client.get(f"/runs/{run_id}/events", headers=headers), 422)
        assert found["errors"][0]["field"] == "header.last-event-id"

    def test_a_silent_stream_shows_that_it_lives(self, served: Served, told: Told) -> None:
        reading = chat(served, "talk", "go")
        url = f"{served.address}/runs/{reading.run_id}/events"
        headers = {"Authorization": f"Bearer {TOKEN}"}
        with httpx.stream("GET", url, headers=headers, timeout=20) as answer:
            beats = (chunk for chunk in answer.iter_bytes() if chunk.startswith(b":"))
            assert next(beats).endswith(b"\n\n")
            assert next(beats)
        told.end()
        reading.ended()


class TestRetry:
    def test_an_answer_is_given_once_more_and_the_old_one_kept(self, memory: StepMemory) -> None:
        with serving(memory, echo) as served:
            served.chat("talk", "Hello")
            retried = stream(served, "/sessions/talk/retry", {"sequence": 1})
            edited = stream(served, "/sessions/talk/retry", {"sequence": 1, "message": "Bye"})
            steps = served.client.get("/sessions/talk/steps").json()["steps"]
            attempts = served.client.get("/sessions/talk/attempts").json()["attempts"]
            whose = {"branch_a": attempts[0]["branch_id"], "branch_b": attempts[-1]["branch_id"]}
            both = served.client.get("/sessions/talk/compare", params=whose).json()
        assert retried[-1].kind == edited[-1].kind == "run_completed"
        assert [step["content"] for step in steps] == ["Bye", "You said: Bye"]
        assert [attempt["current"] for attempt in attempts] == [False, False, True]
        assert both["a"]["messages"][-1]["content"] == "You said: Hello"
        assert both["b"]["messages"][-1]["content"] == "You said: Bye"

    def test_what_cannot_be_retried_is_refused_before_the_stream(self, memory: StepMemory) -> None:
        with serving(memory, echo) as served:
            served.chat("talk", "Hello")
            problem(served.client.post("/sessions/none/retry", json={"sequence": 1}), 404)
            problem(served.client.post("/sessions/talk/retry", json={"sequence": 9}), 404)
            problem(served.client.post("/sessions/talk/retry", json={"sequence": 0}), 422)
            problem(served.client.post("/sessions/none/resume"), 404)
            assert served.client.post("/sessions/talk/resume").status_code == 204
            assert len(served.client.get("/sessions/talk/attempts").json()["attempts"]) == 1

    def test_a_turn_that_was_cut_off_is_taken_up(self, memory: StepMemory) -> None:
        question = [{"role": "user", "content": "Anyone?"}]
        asyncio.run(memory.repository().append("talk", question))
        with serving(memory, echo) as served:
            events = stream(served, "/sessions/talk/resume", None)
        assert answer(events) == "You said: Anyone?"


def stream(served: Served, path: str, body: Any) -> list[Event]:
    """Post something and read the run to its end."""
    with served.client.stream("POST", path, json=body) as streamed:
        assert streamed.status_code == 200, streamed.read()
        return list(events_of(streamed.iter_bytes()))


def chat_with(served: Served, body: object, key: str) -> list[Event]:
    """Chat with an idempotency key and read the run to its end."""
    asked: Any = {"json": body, "headers": {"Idempotency-Key": key}}
    with served.client.stream("POST", "/chat/stream/v2", **asked) as streamed:
        assert streamed.status_code == 200, streamed.read()
        return list(events_of(streamed.iter_bytes()))


class TestIdempotency:
    def test_the_same_key_gives_the_same_run(self, memory: StepMemory) -> None:
        with serving(memory, echo) as served:
            first = served.chat("talk", "Hello", **{"Idempotency-Key": "k1"})
            again = served.chat("talk", "Hello", **{"Idempotency-Key": "k1"})
            other = served.chat("talk", "Hello", **{"Idempotency-Key": "k2"})
            steps = served.client.get("/sessions/talk/steps").json()["steps"]
        assert again == first
        assert other[0].data["run_id"] != first[0].data["run_id"]
        assert len(steps) == 4

    def test_two_at_the_same_time_read_one_run(self, served: Served, told: Told) -> None:
        readings = [chat(served, "talk", "go", **{"Idempotency-Key": "k"}) for _ in range(4)]
        until(lambda: all(reading.events for reading in readings))
        told.say("once")
        told.end()
        ends = [reading.ended() for reading in readings]
        assert all(events == ends[0] for events in ends)
        steps = served.client.get("/sessions/talk/steps").json()["steps"]
        assert [step["content"] for step in steps] == ["go", "once"]

    def test_it_holds_after_a_restart(self, memory: StepMemory) -> None:
        key = {"Idempotency-Key": "k1"}
        with serving(memory, echo) as served:
            first = served.chat("talk", "Hello", **key)
        with serving(memory, echo) as again:
            second = again.chat("talk", "Hello", **key)
            steps = again.client.get("/sessions/talk/steps").json()["steps"]
        assert second[0].data["run_id"] == first[0].data["run_id"]
        assert len(steps) == 2

    def test_the_run_is_like_one_without_a_key(self, memory: StepMemory) -> None:
        with serving(memory, echo) as served:
            plain = served.chat("a", "Hello")
            keyed = served.chat("b", "Hello", **{"Idempotency-Key": "k1"})
            steps = served.client.get("/sessions/b/steps").json()["steps"]
            created = 'hybridagi_steps_created_total{kind="message"} 4.0'
            assert created in served.client.get("/metrics").text
        assert [event.kind for event in keyed] == [event.kind for event in plain]
        run_id = keyed[0].data["run_id"]
        assert [step["run_id"] for step in steps] == [run_id, run_id]
        assert keyed[0].data["data"] == plain[0].data["data"]

    def test_a_run_that_failed_comes_back(self, memory: StepMemory) -> None:
        asked: list[Any] = []

        async def failing(messages: list[Any]) -> str:
            asked.append(messages)
            raise RuntimeError("boom")

        key = {"Idempotency-Key": "k1"}
        with serving(memory, failing) as served:
            first = served.chat("talk", "Hello", **key)
            assert served.chat("talk", "Hello", **key) == first
        with serving(memory, failing) as again:
            later = again.chat("talk", "Hello", **key)
            other = again.chat("talk", "Hello", **{"Idempotency-Key": "k2"})
            last = again.chat("talk", "Hello", **key)
        assert first[-1].kind == later[-1].kind == "run_failed"
        assert later[-1].data["data"]["error"] == first[-1].data["data"]["error"]
        runs = [events[0].data["run_id"] for events in (first, later, last)]
        assert len({*runs}) == 1
        assert other[0].data["run_id"] not in runs
        assert len(asked) == 2

    def test_a_run_that_stored_nothing_comes_back_too(self, memory: StepMemory) -> None:
        class Veto(RunHook):
            async def on_run_start(self, run: Any) -> None:
                raise RunVetoed("not today")

        with serving(memory, StepRunner(echo, memory, [Veto()])) as served:
            first = served.chat("talk", "Hello", **{"Idempotency-Key": "k1"})
            assert served.chat("talk", "Hello", **{"Idempotency-Key": "k1"}) == first

    def test_a_run_that_a_kill_cut_off_comes_back(self, memory: StepMemory) -> None:
        fields = {"id": message_id_of("talk", "k1"), "run_id": "cut", "session_id": "talk"}
        asked = Step.model_validate({**fields, "role": "user", "content": "Hello"})
        asyncio.run(memory.repository().append("talk", asked))
        with serving(memory, echo) as served:
            events = served.chat("talk", "Hello", **{"Idempotency-Key": "k1"})
            assert [event.id for event in events] == [event.id for event in served.events("cut")]
            assert len(served.client.get("/sessions/talk/steps").json()["steps"]) == 1
        assert events[-1].data["data"]["termination_reason"] == "interrupted"

    def test_a_key_whose_message_was_deleted_is_409(self, memory: StepMemory) -> None:
        key = {"Idempotency-Key": "k1"}
        with serving(memory, echo) as served:
            served.chat("talk", "One")
            served.chat("talk", "Two", **key)
            served.client.delete("/sessions/talk/steps?start_seq=3")
            body = {"session_id": "talk", "message": "Two"}
            problem(served.client.post("/chat/stream/v2", json=body, headers=key), 409)
        with serving(memory, echo) as again:
            found = problem(again.client.post("/chat/stream/v2", json=body, headers=key), 409)
            assert "deleted or edited" in found["detail"]
            assert len(again.client.get("/sessions/talk/steps").json()["steps"]) == 2

    @pytest.mark.parametrize(
        "message", ["a\x00b", [{"type": "text", "text": "Hello"}, {"type": "text", "text": "!"}]]
    )
    def test_a_strange_message_is_known_again(self, memory: StepMemory, message: Any) -> None:
        body = {"session_id": "talk", "message": message}
        runs: list[str] = []
        for _ in range(2):
            with serving(memory, echo) as served:
                reading = served.client.post(
                    "/chat/stream/v2", json=body, headers={"Idempotency-Key": "k1"}
                )
                assert reading.status_code == 200
                runs += [event.data["run_id"] for event in events_of(iter([reading.content]))][:1]
        assert runs[0] == runs[1]

    @pytest.mark.parametrize("session", [{"session_id": "talk"}, {}])
    def test_a_key_with_another_message_is_409(
        self, memory: StepMemory, session: dict[str, str]
    ) -> None:
        with serving(memory, echo) as served:
            body, runs = {**session, "message": "Hello"}, []
            for key in ("k1", "k1", "k2"):
                [first, *_] = chat_with(served, body, key)
                runs.append(first.data["run_id"])
            assert runs[0] == runs[1] != runs[2]
            body["message"] = "Other"
            headers = {"Idempotency-Key": "k1"}
            problem(served.client.post("/chat/stream/v2", json=body, headers=headers), 409)


class TestConsent:
    def test_a_reader_says_whether_a_tool_may_run(self, memory: StepMemory) -> None:
        called: list[str] = []

        def search(query: str) -> str:
            """Search."""
            called.append(query)
            return "found"

        thoughts: list[Any] = [
            {"next_thought": "look", "next_tool_name": "search", "next_tool_args": {"query": "x"}},
            {"next_thought": "done", "next_tool_name": "finish", "next_tool_args": {}},
            {"reasoning": "so", "answer": "Paris"},
        ]
        agent = dspy.ReAct("question -> answer", tools=[search])
        agent.set_lm(ScriptedLM(thoughts))
        config = StepRunnerConfig(consent=lambda _: None)
        with serving(memory, StepRunner(agent, memory, config=config)) as served:
            paused = served.chat("talk", "where?")
            assert (paused[-1].kind, called) == ("run_paused", [])
            [waits] = paused[-1].data["data"]["waiting"]
            run_id = paused[0].data["run_id"]
            events = served.resume("talk", {waits["call_id"]: True})
        assert called == ["x"]
        assert events[-1].kind == "run_completed"
        final = stored_events(memory, run_id)[-1]  # what who comes later is told
        assert (final.type.value, (final.data or {})["waiting"]) == ("run_paused", [waits])


class TestLimits:
    def test_too_many_streams_are_429_and_store_nothing(
        self, memory: StepMemory, told: Told
    ) -> None:
        with serving(memory, told, max_streams=1) as served:
            reading = chat(served, "one", "go")
            until(lambda: reading.events)
            body = {"session_id": "two", "message": "me too"}
            refused = served.client.post("/chat/stream/v2", json=body)
            problem(refused, 429)
            assert refused.headers["retry-after"]
            problem(served.client.get(f"/runs/{reading.run_id}/events"), 429)
            problem(served.client.get("/sessions/two/steps"), 404)
            told.say("done")
            told.end()
            reading.ended()
            until(lambda: served.services.slots.used == 0)
            assert served.events(reading.run_id)[-1].kind == "run_completed"

    def test_too_many_runs_are_429(self, memory: StepMemory, told: Told) -> None:
        with serving(memory, told, max_runs=1) as served:
            reading = chat(served, "one", "go")
            until(lambda: reading.events)
            body = {"session_id": "two", "message": "me too"}
            problem(served.client.post("/chat/stream/v2", json=body), 429)
            told.end()
            reading.ended()

    def test_a_reader_that_never_reads_is_dropped_and_slows_nobody(
        self, memory: StepMemory
    ) -> None:
        word, both_are_there = "x" * 20_000, threading.Event()

        async def talkative(messages: list[dict[str, Any]]) -> AsyncIterator[str]:
            while not both_are_there.is_set():
                await asyncio.sleep(0.005)
            for _ in range(350):
                yield word
                await asyncio.sleep(0.001)

        with serving(memory, talkative, stall_seconds=3.0, run_buffer_bytes=2**26) as served:
            reading = chat(served, "talk", "go")
            lazy = never_reading(served, f"/runs/{reading.run_id}/events")
            until(lambda: served.services.slots.used == 2)
            both_are_there.set()
            events = reading.ended()
            assert len(answer(events)) == 350 * len(word)
            until(lambda: served.services.slots.used == 0)
            seen = last_id_in(lazy)
            rest = served.events(reading.run_id, seen)
        assert rest[0].id != seen
        assert [e.number for e in rest] == list(range(rest[0].number, rest[-1].number + 1))
        assert int(seen.rpartition(":")[2]) + 1 == rest[0].number
        assert rest[-1].kind == "run_completed"

    def test_ending_the_server_ends_runs_and_readers(self, memory: StepMemory, told: Told) -> None:
        with serving(memory, told) as served:
            reading = chat(served, "talk", "go")
            told.say("so far")
            until(lambda: text(reading.events) == "so far")
        assert reading.ended()[-1].kind == "run_cancelled"
        kept = asyncio.run(memory.repository().get_steps("talk"))[-1]
        assert kept.content == "so far"
        assert (kept.metadata or {})["partial"] is True


def never_reading(served: Served, path: str) -> socket.socket:
    """Ask for a stream and read nothing of it."""
    port = served.client.base_url.port
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 131_072)
    connection.connect(("127.0.0.1", port or 0))
    head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    connection.sendall(head.encode())
    return connection


def last_id_in(connection: socket.socket) -> str:
    """The id of the last whole event that has reached a socket."""
    data = b""
    with connection:
        connection.settimeout(5)
        try:
            while chunk := connection.recv(65_536):
                data += chunk
        except OSError:
            pass  # it was reset: what came before counts
    whole = data.rpartition(b"\n\n")[0]
    return [line[4:].decode() for line in whole.split(b"\n") if line.startswith(b"id: ")][-1]


class TestBuffer:
    def test_pieces_of_complete_messages_go_first(self) -> None:
        run = asyncio.run(filled_run(most_bytes=6_000))
        left = [json.loads(line) for line in data_lines(run.after(0).data)]
        assert len(left) < 30
        assert [event["type"] for event in left if event["type"] != "step_delta"] == [
            "run_started",
            "step_completed",
            "step_completed",
        ]
        assert {event["step_id"] for event in left if event["type"] == "step_delta"} <= {"c"}
        numbers = [event["number"] for event in left]
        assert numbers == sorted(set(numbers))

    def test_what_fits_is_kept_whole(self) -> None:
        run = asyncio.run(filled_run(most_bytes=2**20))
        numbers: list[int] = []
        place = 0
        while (batch := run.after(place)).data:
            numbers += [json.loads(line)["number"] for line in data_lines(batch.data)]
            place = batch.number
        assert numbers == list(range(1, run.last_number + 1))


def data_lines(data: bytes) -> list[bytes]:
    """The JSON of each event."""
    return [line[6:] for line in data.split(b"\n") if line.startswith(b"data: ")]


async def filled_run(most_bytes: int) -> LiveRun:
    """A run of two complete messages and a third that is being said."""
    run = LiveRun("r", "s", most_bytes)
    parts: list[tuple[StepEventType, str | None]] = [(StepEventType.RUN_STARTED, None)]
    for step_id in "abc":
        parts += [(StepEventType.STEP_DELTA, step_id)] * 20
        if step_id != "c":
            parts.append((StepEventType.STEP_COMPLETED, step_id))
    for number, (kind, step_id) in enumerate(parts, 1):
        run.publish(StepEvent(type=kind, run_id="r", number=number, step_id=step_id))
    return run


def test_final_events_are_those_of_the_page() -> None:
    named = {kind.value for kind in StepEventType if kind.value in FINAL}
    assert named == set(FINAL)


def test_a_scripted_model_streams_through_the_server(memory: StepMemory) -> None:
    program = dspy.Predict("question -> answer")
    program.set_lm(ScriptedLM([{"answer": "Paris is the capital."}]))
    with serving(memory, program) as served:
        events = served.chat("talk", "Capital of France?")
    assert text(events) == answer(events) == "Paris is the capital."
    assert len([event for event in events if event.kind == "step_delta"]) > 1
    assert events[-1].data["data"]["metrics"]["llm_calls"] == 1


def test_retries_are_for_the_user_of_the_turn(memory: StepMemory) -> None:
    with serving(memory, echo) as served:
        for user in ("ann", "bob"):
            body = {"session_id": "shared", "message": "Hello?", "user_id": user}
            stream(served, "/chat/stream/v2", body)
        for more in ({}, {"message": "Changed?"}):
            events = stream(served, "/sessions/shared/retry", {"sequence": 1, **more})
            made = memory.iter_steps({"run_id": events[0].data["run_id"]})
            assert {step.user_id for step in made} == {"ann"}
