"""The threads of runs: those a stopped one waits for, those used again, those left alone."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hybridagi_steps import Step, StepMemory, _concurrency
from hybridagi_steps.running.runner import StepRunner
from hybridagi_steps.running.stopping import Threads
from hybridagi_steps.running.turn import Turn


def is_waited_for(threads: Threads) -> bool:
    """Whether a run would have to wait for its threads now."""

    async def waits() -> bool:
        waiting = asyncio.ensure_future(threads.ended(3_600))
        await asyncio.sleep(0)
        waiting.cancel()
        return not waiting.done()

    return asyncio.run(waits())


def test_threads_are_waited_for_while_they_run_and_are_in_no_tool() -> None:
    threads = Threads("run")
    seen: list[bool] = []

    def program() -> None:
        seen.append(is_waited_for(threads))
        with threads.in_tool():
            seen.append(is_waited_for(threads))
        seen.append(is_waited_for(threads))

    assert not is_waited_for(threads)
    threads.counted(program)()
    assert not is_waited_for(threads)
    assert seen == [True, False, True]


def heard(messages: list[Any]) -> str:
    """Say in which thread."""
    return f"{len(messages)} in {threading.get_ident()}"


async def heard_awaited(messages: list[Any]) -> str:
    """Say so on the event loop."""
    return heard(messages)


@pytest.mark.parametrize(("program", "most"), [(heard, 3), (heard_awaited, 2)])
def test_a_message_crosses_to_threads_once_before_and_once_after_its_program(
    memory: StepMemory, monkeypatch: pytest.MonkeyPatch, program: Any, most: int
) -> None:
    handed_over, submit = Counter[str](), ThreadPoolExecutor.submit

    def counted(pool: ThreadPoolExecutor, *call: Any) -> Any:
        handed_over["calls"] += 1
        return submit(pool, *call)

    runner = StepRunner(program, memory)
    with asyncio.Runner() as loop:
        loop.run(runner.run("chat", "Hello"))
        monkeypatch.setattr(ThreadPoolExecutor, "submit", counted)
        loop.run(runner.run("chat", "Hello"))
    assert handed_over["calls"] == most


def test_messages_of_one_event_loop_find_the_same_threads(memory: StepMemory) -> None:
    """Though each is a task that the loop is run for."""
    runner = StepRunner(heard, memory)
    with asyncio.Runner() as loop:
        said = [loop.run(runner.run("chat", "Hello")).text for _ in range(6)]
    assert len({text.partition(" in ")[2] for text in said}) <= 2


def test_a_program_that_never_ends_keeps_no_other_from_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_concurrency, "PROGRAMS", 1)
    stuck, begun = threading.Event(), threading.Event()

    def never_ends() -> None:
        begun.set()
        stuck.wait()

    async def asked() -> str:
        waiting = asyncio.ensure_future(_concurrency.in_program_thread(never_ends))
        behind = asyncio.ensure_future(_concurrency.in_program_thread(lambda: "behind"))
        await _concurrency.in_thread(begun.wait)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        said = await _concurrency.in_program_thread(lambda: "next")
        assert not behind.done()
        stuck.set()
        return f"{said}, {await behind}"

    assert asyncio.run(asked()) == "next, behind"


def test_who_leaves_while_a_run_begins_leaves_one_that_ends(
    memory: StepMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, storing, go_on = StepRunner(heard, memory), threading.Event(), threading.Event()
    store, begun = Turn.store_user_message, list[Step]()

    def held(turn: Turn, *args: Any) -> Step:
        storing.set()
        go_on.wait()
        begun.append(store(turn, *args))
        return begun[0]

    async def left() -> None:
        asking = asyncio.ensure_future(runner.run("chat", "Hello"))
        await asyncio.to_thread(storing.wait)
        asking.cancel()
        go_on.set()
        await asyncio.wait([asking])
        assert asking.cancelled()
        assert runner.active_runs() == {}

    monkeypatch.setattr(Turn, "store_user_message", held)
    asyncio.run(left())
    assert [step.content for step in memory.repository().store.messages("chat")] == ["Hello"]
    monkeypatch.undo()
    assert asyncio.run(runner.run("chat", "Still there?")).text.startswith("2 in ")
