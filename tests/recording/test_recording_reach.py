"""How far a recording reaches: streams, evaluations, other callbacks, and a memory that waits."""

# DSPy ships no types, and annotates some arguments more narrowly than it takes them.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportUnknownLambdaType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import dspy
import pytest
from dspy.utils.callback import BaseCallback
from recorder_programs import Pair, all_steps

import hybridagi_steps as hs
from hybridagi_steps.recording.scopes import overriding
from hybridagi_steps.testing import scripted_lm

EXAMPLES = [
    dspy.Example(question=f"q{n}", answer="some answer").with_inputs("question") for n in range(2)
]


@pytest.fixture(autouse=True)
def _model() -> Iterator[None]:
    """A model that answers anything."""
    with overriding(lm=scripted_lm()):
        yield


def read(stream: Any) -> None:
    """Read a stream to its end."""

    async def consume() -> None:
        async for _ in stream(question="?"):
            pass

    asyncio.run(consume())


def test_a_stream_made_in_the_block_is_followed(memory: hs.StepMemory) -> None:
    with hs.record(memory) as run:
        read(dspy.streamify(Pair()))
    assert len(run.steps.steps) == 5
    assert run.errors == []


def test_a_stream_made_before_the_block_is_followed_in_it(memory: hs.StepMemory) -> None:
    stream = dspy.streamify(Pair())
    with hs.record(memory) as run:
        read(stream)
    assert len(run.steps.steps) == 5
    assert run.errors == []


def test_a_stream_read_after_the_block_is_no_part_of_it(memory: hs.StepMemory) -> None:
    with hs.record(memory) as run:
        stream = dspy.streamify(Pair())
    read(stream)
    assert run.steps.steps == []
    assert run.errors == []


def test_a_stream_of_a_recorded_program_is_followed_wherever_it_was_made(
    memory: hs.StepMemory,
) -> None:
    stream = dspy.streamify(hs.Recorded(Pair(), memory))
    with hs.record(memory):
        pass
    read(stream)
    assert len(all_steps(memory)) == 5


def test_evaluations_and_teleprompters_are_followed(memory: hs.StepMemory) -> None:
    program = dspy.Predict("question -> answer")
    with hs.record(memory) as run:
        dspy.Evaluate(devset=EXAMPLES, metric=lambda *_: True, num_threads=1)(program)
        evaluated = len(all_steps(memory))
        dspy.BootstrapFewShot(metric=lambda *_: True).compile(program, trainset=EXAMPLES)
    assert evaluated == len(EXAMPLES)
    assert len(all_steps(memory)) > evaluated
    assert run.errors == []


def test_other_callbacks_are_put_beside_the_recorder(memory: hs.StepMemory) -> None:
    with hs.record(memory) as run:
        with dspy.context(callbacks=[BaseCallback()]):
            dspy.Predict("question -> answer")(question="in their place")
        with dspy.context(callbacks=[*dspy.settings.callbacks, BaseCallback()]):
            dspy.Predict("question -> answer")(question="beside")
    assert [step.arguments["question"] for step in run.steps] == ["in their place", "beside"]


def test_a_program_in_a_thread_leaves_the_event_loop_free_while_its_steps_wait() -> None:
    class Busy:
        redact = None

        def __init__(self) -> None:
            self.steps: list[hs.AgentStep] = []
            self.writing, self.ticked = threading.Event(), threading.Event()

        def add(self, step: hs.AgentStep) -> None:
            self.writing.set()
            assert self.ticked.wait(30), "the event loop stands still"
            self.steps.append(step)

        def run(self, run_id: str) -> list[hs.AgentStep]:
            return self.steps

    async def main() -> None:
        program = dspy.asyncify(dspy.Predict("question -> answer"))
        working = asyncio.create_task(program(question="?"))
        while not memory.writing.is_set():
            await asyncio.sleep(0.01)
        memory.ticked.set()
        await working

    memory = Busy()
    with hs.record(memory):
        asyncio.run(main())
    assert len(memory.steps) == 1
