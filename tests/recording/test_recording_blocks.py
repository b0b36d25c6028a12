"""Blocks that are not left in the order they were entered in, or not where they were entered."""

# DSPy ships no types, and annotates some arguments more narrowly than it takes them.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportUnknownLambdaType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy.dsp.utils.settings import thread_local_overrides
from dspy.utils.callback import BaseCallback
from hypothesis import given
from hypothesis import strategies as st
from recorder_programs import Pair, all_steps

import hybridagi_steps as hs
from hybridagi_steps.recording.manual_steps import RunSteps
from hybridagi_steps.recording.recorder import active_run_ids
from hybridagi_steps.recording.scopes import override, overriding
from hybridagi_steps.testing import scripted_lm


@pytest.fixture(autouse=True)
def _model() -> Iterator[None]:
    """A model that answers anything."""
    with overriding(lm=scripted_lm()):
        yield


def ask(question: str) -> None:
    """Ask a predictor."""
    dspy.Predict("q -> a")(q=question)


def talk(memory: hs.StepMemory, name: str, turns: int = 2) -> Generator[hs.RunHandle]:
    """Ask in a block of its own, and wait in it."""
    with hs.record(memory, session_id=name) as run:
        for number in range(turns):
            ask(f"{name} {number}")
            yield run


def told(memory: hs.StepMemory) -> list[tuple[str | None, str]]:
    """The session and the question of every step."""
    return [(step.session_id, step.arguments["q"]) for step in all_steps(memory)]


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_blocks_left_in_any_order_leave_nothing_behind(
    memory: hs.StepMemory, order: tuple[int, ...]
) -> None:
    before = thread_local_overrides.get()
    talks = [talk(memory, name) for name in ("ana", "bob", "eve")]
    for each in talks:
        next(each)
    for number in order:
        talks[number].close()
    assert dict(thread_local_overrides.get()) == dict(before)
    recorded = told(memory)
    ask("a private note")
    assert told(memory) == recorded == [("ana", "ana 0"), ("bob", "bob 0"), ("eve", "eve 0")]


def test_generators_that_take_turns_end_with_nothing_recorded(memory: hs.StepMemory) -> None:
    ana, bob = talk(memory, "ana"), talk(memory, "bob")
    assert len(list(zip(ana, bob, strict=False))) == 2
    ana.close()
    bob.close()
    recorded = told(memory)
    ask("a private note")
    assert told(memory) == recorded
    assert dspy.settings.callbacks == []


def test_while_several_blocks_are_open_the_innermost_counts(memory: hs.StepMemory) -> None:
    ana, bob = talk(memory, "ana"), talk(memory, "bob")
    next(ana)
    next(bob)
    ask("while bob's is the innermost")
    bob.close()
    ask("while only ana's is open")
    ana.close()
    assert told(memory)[2:] == [
        ("bob", "while bob's is the innermost"),
        ("ana", "while only ana's is open"),
    ]


def test_generators_in_contexts_of_their_own_are_told_apart(memory: hs.StepMemory) -> None:
    contexts = [contextvars.copy_context() for _ in range(2)]
    talks = [talk(memory, "ana"), talk(memory, "bob")]
    runs: list[hs.RunHandle] = []
    for _ in range(2):
        runs += [context.run(next, each) for context, each in zip(contexts, talks, strict=True)]
    for context, each in zip(contexts, talks, strict=True):
        context.run(each.close)
    assert runs[0].id != runs[1].id
    for run, name in zip(runs, ("ana", "bob"), strict=False):
        steps = run.steps.steps
        assert [(s.session_id, s.arguments["q"]) for s in steps] == [
            (name, f"{name} 0"),
            (name, f"{name} 1"),
        ]


def test_what_others_put_among_the_callbacks_stays(memory: hs.StepMemory) -> None:
    first, second = BaseCallback(), BaseCallback()
    with dspy.context(callbacks=[first]):
        ana, bob = talk(memory, "ana"), talk(memory, "bob")
        next(ana)
        override(callbacks=[*dspy.settings.callbacks, second], max_errors=3)
        next(bob)
        ana.close()
        bob.close()
        assert dspy.settings.callbacks == [first, second]
        assert dspy.settings.max_errors == 3


def test_what_is_added_in_place_stays(memory: hs.StepMemory) -> None:
    callback = BaseCallback()
    with dspy.context(callbacks=[]):
        with hs.record(memory):
            dspy.settings.callbacks.append(callback)
        assert dspy.settings.callbacks == [callback]


def test_what_is_configured_in_a_block_stays_without_its_recorder(memory: hs.StepMemory) -> None:
    callback = BaseCallback()
    recorder = hs.StepRecorder(memory, session_id="all")
    dspy.configure(callbacks=[recorder])
    try:
        with hs.record(memory):
            dspy.configure(callbacks=[*dspy.settings.callbacks, callback])
        assert dspy.settings.callbacks == [recorder, callback]
        ask("after")
        assert told(memory) == [("all", "after")]
    finally:
        dspy.configure(callbacks=[])


def test_a_global_recorder_has_its_place_back(memory: hs.StepMemory) -> None:
    recorder = hs.StepRecorder(memory, session_id="all")
    with dspy.context(callbacks=[recorder]):
        ana, bob = talk(memory, "ana"), talk(memory, "bob")
        next(ana)
        next(bob)
        ana.close()
        bob.close()
        assert dspy.settings.callbacks == [recorder]
        ask("after")
    assert told(memory)[-1] == ("all", "after")


def test_what_is_configured_after_the_blocks_counts(memory: hs.StepMemory) -> None:
    ana, bob = talk(memory, "ana"), talk(memory, "bob")
    next(ana)
    next(bob)
    ana.close()
    bob.close()
    callback = BaseCallback()
    dspy.configure(callbacks=[callback])
    try:
        assert dspy.settings.callbacks == [callback]
    finally:
        dspy.configure(callbacks=[])


def test_blocks_on_two_memories_may_be_left_in_any_order(memory: hs.StepMemory) -> None:
    with hs.StepMemory(":memory:", embedder="hashing") as other:
        here, there = talk(memory, "here"), talk(other, "there")
        next(here)
        next(there)
        here.close()
        ask("for the other alone")
        there.close()
        assert told(memory) == [("here", "here 0"), ("here", "there 0")]
        assert told(other) == [("there", "there 0"), ("there", "for the other alone")]
        assert dspy.settings.callbacks == []


@given(st.lists(st.integers(0, 3), max_size=24))
def test_whatever_the_order_only_open_blocks_record(turns: list[int]) -> None:
    with hs.StepMemory(":memory:", embedder="hashing") as memory:
        before = dict(thread_local_overrides.get())
        entered: dict[int, Any] = {}
        order: list[int] = []
        for turn in turns:
            if turn in entered:
                entered.pop(turn).__exit__(None, None, None)
                order.remove(turn)
            else:
                entered[turn] = block = hs.record(memory, session_id=str(turn))
                block.__enter__()
                order.append(turn)
            count = len(told(memory))
            ask("?")
            assert [session for session, _ in told(memory)[count:]] == [str(n) for n in order[-1:]]
        for block in entered.values():
            block.__exit__(None, None, None)
        assert dict(thread_local_overrides.get()) == before


def test_async_generators_that_take_turns(memory: hs.StepMemory) -> None:
    async def atalk(name: str) -> AsyncGenerator[None]:
        async with hs.record(memory, session_id=name):
            ask(name)
            yield

    async def main() -> None:
        ana, bob = atalk("ana"), atalk("bob")
        await anext(ana)
        await anext(bob)
        await ana.aclose()
        await bob.aclose()
        ask("private")

    asyncio.run(main())
    assert told(memory) == [("ana", "ana"), ("bob", "bob")]


def test_a_block_entered_elsewhere_records_nothing_once_it_is_left(memory: hs.StepMemory) -> None:
    """As fixtures do: the recorder stays among the callbacks of the context it was entered in."""
    elsewhere = contextvars.copy_context()
    block = hs.record(memory)
    run = elsewhere.run(block.__enter__)
    elsewhere.run(ask, "inside")
    block.__exit__(None, None, None)
    elsewhere.run(ask, "outside")
    assert told(memory) == [(None, "inside")]
    [problem] = run.errors
    assert "after the block had been left" in str(problem)
    assert elsewhere.run(active_run_ids, memory) == []
    with hs.record(memory) as fresh:
        elsewhere.run(ask, "still outside")
    assert elsewhere.run(_recorded_anew, memory) != run.id
    assert fresh.steps.steps == []


def _recorded_anew(memory: hs.StepMemory) -> str:
    with hs.record(memory) as run:
        ask("in a new block")
    assert len(run.steps.steps) == 1
    assert run.errors == []
    return run.id


def test_what_begins_after_the_block_is_not_recorded(memory: hs.StepMemory) -> None:
    @hs.record_step
    def double(number: int) -> int:
        return number * 2

    async def main() -> None:
        with hs.record(memory) as run:
            late = [asyncio.create_task(each) for each in (Pair().acall(question="?"), plain())]
        await asyncio.gather(*late)
        assert run.steps.steps == []
        assert len(run.errors) == 1

    async def plain() -> None:
        assert double(2) == 4

    asyncio.run(main())


def test_what_outlives_an_inner_block_is_recorded_by_the_outer_one(memory: hs.StepMemory) -> None:
    @hs.record_step
    def double(number: int) -> int:
        return number * 2

    async def late() -> None:
        ask("1")
        double(2)
        with hs.record(memory, tags={"late": True}):
            ask("3")

    async def main() -> None:
        with hs.record(memory, session_id="outer") as outer:
            with hs.record(memory, session_id="inner"):
                task = asyncio.create_task(late())
            await task
        assert [step.session_id for step in outer.steps.steps] == ["outer"] * 3
        assert outer.errors == []

    asyncio.run(main())


def test_nodes_of_programs_go_on_after_the_block(memory: hs.StepMemory) -> None:
    context = contextvars.copy_context()
    block = hs.record(memory)
    context.run(block.__enter__)
    block.__exit__(None, None, None)
    assert context.run(lambda: RunSteps(memory).run_ids()) == []


def test_what_was_in_flight_is_told_to_its_end_with_all_it_calls(memory: hs.StepMemory) -> None:
    left = threading.Event()

    class Slow(dspy.Module):
        def forward(self) -> Any:
            left.wait(10)
            hs.Recorded(dspy.Predict("q -> a"), memory)(q="in a block of its own")
            ask("and after that")
            return dspy.Prediction(a=1)

    with hs.record(memory) as run:
        thread = threading.Thread(target=hs.in_context(Slow()))
        thread.start()
        while not run.steps.steps:
            pass
    left.set()
    thread.join()
    kinds = [step.step_type.value for step in run.steps.steps]
    assert kinds == ["ProgramCall", "Action", "Action", "ProgramEnd"]
    assert run.errors == []


@pytest.mark.parametrize("leave_first", [0, 1])
def test_one_record_entered_by_two_tasks(memory: hs.StepMemory, leave_first: int) -> None:
    block = hs.record(memory, session_id="both")
    contexts = [contextvars.copy_context() for _ in range(2)]
    for context in contexts:
        context.run(block.__enter__)
    leaves: Callable[..., Any] = block.__exit__
    contexts[leave_first].run(leaves, None, None, None)
    contexts[1 - leave_first].run(ask, "still inside")
    contexts[leave_first].run(ask, "outside")
    contexts[1 - leave_first].run(leaves, None, None, None)
    assert told(memory) == [("both", "still inside")]


def test_a_block_can_be_entered_again(memory: hs.StepMemory) -> None:
    block = hs.record(memory)
    with block as first:
        ask("1")
    with block as second:
        ask("2")
        with block as third:
            ask("3")
    assert first.id != second.id == third.id
    assert [question for _, question in told(memory)] == ["1", "2", "3"]


def test_turns_without_end_keep_nothing_of_those_before(memory: hs.StepMemory) -> None:
    open_now = hs.record(memory)
    open_now.__enter__()
    for _ in range(3000):
        following = hs.record(memory)
        following.__enter__()
        open_now.__exit__(None, None, None)
        open_now = following
    ask("still recorded")
    open_now.__exit__(None, None, None)
    assert len(told(memory)) == 1
    assert dspy.settings.callbacks == []


def test_a_closed_memory_is_refused_where_the_block_is_entered(tmp_path: Path) -> None:
    memory = hs.StepMemory(tmp_path / "steps.db")
    block = hs.record(memory)
    memory.close()
    before = list(dspy.settings.callbacks)
    with pytest.raises(hs.errors.MemoryClosedError, match="closed"), block:
        pytest.fail("the block was entered")
    assert list(dspy.settings.callbacks) == before
