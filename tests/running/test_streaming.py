"""Pieces of an answer reach a reader in time, together where they come fast, and all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from runner_cases import check_stream, messages, replayed, run

from hybridagi_steps import StepEvent, StepEventType, StepMemory
from hybridagi_steps.running import streaming
from hybridagi_steps.running.runner import StepRunner
from hybridagi_steps.running.streaming import EventStream, HomeLoop, Piece, SafeText


def deltas(events: list[StepEvent]) -> list[str | None]:
    return [event.delta.content for event in events if event.delta is not None]


@pytest.fixture
def endless_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no piece but a first one wake the reader."""
    monkeypatch.setattr(streaming, "PAUSE_SECONDS", 1e6)


@pytest.mark.parametrize(
    ("every_seconds", "most"), [(0.0, 2), (0.001, 12), (0.019, 102), (0.05, 200)]
)
def test_a_reader_is_woken_fifty_times_a_second_at_most(
    monkeypatch: pytest.MonkeyPatch, every_seconds: float, most: int
) -> None:
    """The clock is ours: 200 pieces, one every so many seconds."""

    async def read() -> list[StepEvent]:
        loop, now = asyncio.get_running_loop(), [100.0]
        monkeypatch.setattr(loop, "time", lambda: now[0])
        stream, taken = (
            EventStream("r", "s", None, lambda _: None, HomeLoop.running()),
            list[StepEvent](),
        )

        async def reader() -> None:
            while not taken or taken[-1].type is not StepEventType.RUN_COMPLETED:
                taken.extend(await stream.take())

        reading = asyncio.create_task(reader())
        for number in range(200):
            stream.grow(Piece((1, 1), f"{number} ", None, None))
            if number == 0:
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                assert deltas(taken) == ["0 "]
            now[0] += every_seconds
            for _ in range(3):
                await asyncio.sleep(0)
        stream.emit(StepEventType.RUN_COMPLETED)
        await reading
        return taken

    events = asyncio.run(read())
    assert "".join(filter(None, deltas(events))) == "".join(f"{n} " for n in range(200))
    assert len(deltas(events)) <= most
    assert [event.number for event in events] == [*range(1, len(events) + 1)]


@pytest.mark.usefixtures("endless_pause")
def test_the_first_piece_is_shown_at_once_and_the_last_with_the_message(memory: StepMemory) -> None:
    async def program(_: object) -> AsyncIterator[str]:
        for piece in ("Hel", "lo ", "you"):
            yield piece
            await asyncio.sleep(0)

    events = run(StepRunner(program, memory), "chat", "Hi")
    check_stream(memory, events)
    assert deltas(events) == ["Hel", "lo you"]


@pytest.mark.usefixtures("endless_pause")
def test_pieces_that_wait_are_shown_when_the_run_is_cancelled(memory: StepMemory) -> None:
    async def program(_: object) -> AsyncIterator[str]:
        for piece in ("Hel", "lo ", "you"):
            yield piece
        said.set()
        await asyncio.Event().wait()

    async def cancelled() -> list[StepEvent]:
        events = list[StepEvent]()
        async for event in runner.run_stream("chat", "Hi"):
            events.append(event)
            if event.delta is not None:
                await said.wait()
                await runner.cancel(event.run_id)
        return events

    said, runner = asyncio.Event(), StepRunner(program, memory)
    events = asyncio.run(cancelled())
    check_stream(memory, events)
    assert messages(memory, "chat")[1].content == "Hello you"
    assert [step["content"] for step in replayed(events).values()] == ["Hello you"]


def test_pieces_of_calls_that_nobody_took_are_one_event() -> None:
    async def read() -> list[StepEvent]:
        stream = EventStream("r", "s", None, lambda _: None, HomeLoop.running())
        for text in ('{"a"', ": ", "1}"):
            call: dict[str, Any] = {"index": 0, "function": {"arguments": text}}
            stream.grow(Piece((1, 1), None, None, [call]))
        return await stream.take()

    [event] = asyncio.run(read())
    assert event.delta is not None
    calls = list[dict[str, Any]]()
    streaming.add_call_pieces(calls, event.delta.tool_calls or [])
    assert calls[0]["function"]["arguments"] == '{"a": 1}'


def test_a_text_that_grows_is_redacted_before_it_is_shown() -> None:
    text = SafeText(lambda said: said.replace("secret", "[gone]"))
    shown = "".join(text.grow("a secret, " * 10) for _ in range(10))
    assert shown
    assert "secret" not in shown
