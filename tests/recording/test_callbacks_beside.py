"""The user's callbacks and settings inside a recorded block are as they are outside of one."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportUnknownLambdaType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy.dsp.utils.settings import main_thread_config
from dspy.utils.callback import BaseCallback
from recorder_programs import all_steps

import hybridagi_steps as hs
from hybridagi_steps.testing import scripted_lm


class Heard(BaseCallback):
    """A user's callback."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answered = 0
        self.models = 0
        self.evaluations = 0

    def on_module_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        if isinstance(instance, dspy.Predict):
            self.asked.append(inputs["kwargs"]["q"])

    def on_module_end(self, call_id: str, outputs: Any, exception: Any = None) -> None:
        self.answered += 1

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        self.models += 1

    def on_evaluate_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        self.evaluations += 1


@pytest.fixture(autouse=True)
def _settings() -> Iterator[None]:
    """Settings of the process, put back afterwards."""
    before = dict(main_thread_config)
    dspy.configure(lm=scripted_lm(), callbacks=[])
    yield
    main_thread_config.clear()
    main_thread_config.update(before)


def ask(question: str) -> Any:
    return dspy.Predict("q -> a")(q=question)


def recorded(memory: hs.StepMemory) -> list[str]:
    return [step.arguments["q"] for step in all_steps(memory)]


def test_a_callback_configured_in_a_block_is_called_at_once(memory: hs.StepMemory) -> None:
    heard = Heard()
    with hs.record(memory) as run:
        ask("before")
        dspy.configure(callbacks=[heard])
        ask("inside")
        assert (heard.asked, heard.answered, heard.models) == (["inside"], 1, 1)
    ask("after")
    assert heard.asked == ["inside", "after"]
    assert recorded(memory) == ["before", "inside"]
    assert run.errors == []


def test_a_callback_that_is_configured_away_is_called_no_more(memory: hs.StepMemory) -> None:
    heard = Heard()
    dspy.configure(callbacks=[heard])
    with hs.record(memory):
        ask("heard")
        dspy.configure(callbacks=[])
        ask("unheard")
    assert heard.asked == ["heard"]
    assert recorded(memory) == ["heard", "unheard"]


def test_a_context_with_callbacks_in_a_block_loses_no_step(memory: hs.StepMemory) -> None:
    heard = Heard()
    with hs.record(memory) as run:
        with dspy.context(callbacks=[heard]):
            ask("inside")
            with hs.record(memory) as joined:
                ask("joined")
            with dspy.context(callbacks=[]):
                ask("unheard")
        ask("after")
    assert heard.asked == ["inside", "joined"]
    assert recorded(memory) == ["inside", "joined", "unheard", "after"]
    assert run.id == joined.id
    assert len(run.steps) == 4


def test_settings_in_a_block_are_the_users(memory: hs.StepMemory, tmp_path: Path) -> None:
    heard = Heard()
    dspy.configure(callbacks=[heard])
    outside = (dspy.settings.config, dict(dspy.settings.copy()))
    with hs.record(memory), hs.record(hs.StepMemory(":memory:", embedder="hashing")):
        assert dspy.settings.callbacks is main_thread_config["callbacks"]
        assert dspy.settings["callbacks"] == dspy.settings.get("callbacks") == [heard]
        assert (dspy.settings.config, dict(dspy.settings.copy())) == outside
        dspy.settings.callbacks.append(extra := Heard())
        ask("heard by both")
    assert dspy.settings.callbacks == [heard, extra]
    assert extra.asked == heard.asked == ["heard by both"]


def test_settings_saved_in_a_block_are_the_users(memory: hs.StepMemory, tmp_path: Path) -> None:
    dspy.configure(lm=None, callbacks=[], trace=[], max_errors=3)
    dspy.settings.save(str(tmp_path / "outside"))
    with hs.record(memory):
        dspy.settings.save(str(tmp_path / "inside"))
        with dspy.context(max_errors=4):
            dspy.settings.save(str(tmp_path / "context"))
    outside, inside, context = (
        dspy.load_settings(str(tmp_path / name), allow_pickle=True)
        for name in ("outside", "inside", "context")
    )
    assert inside == outside
    assert context == {**outside, "max_errors": 4}
    with hs.record(memory):
        dspy.configure(**{**inside, "lm": scripted_lm()})
        ask("loaded")
    assert recorded(memory) == ["loaded"]


def test_a_recorder_configured_in_a_block_records_nothing_twice(memory: hs.StepMemory) -> None:
    with hs.record(memory) as run:
        dspy.configure(callbacks=[hs.StepRecorder(memory, session_id="all")])
        ask("inside")
    ask("after")
    assert recorded(memory) == ["inside", "after"]
    assert [step.session_id for step in all_steps(memory)] == [None, "all"]
    assert len(run.steps) == 1


def test_threads_of_a_block_call_both(memory: hs.StepMemory) -> None:
    heard = Heard()
    with hs.record(memory) as run, dspy.context(callbacks=[heard]):
        dspy.Parallel(num_threads=2, disable_progress_bar=True)(
            [(dspy.Predict("q -> a"), {"q": name}) for name in ("one", "two", "three")]
        )
        thread = threading.Thread(target=hs.in_context(ask), args=("four",))
        thread.start()
        thread.join()
        asyncio.run(dspy.asyncify(ask)("five"))
    assert (
        sorted(heard.asked) == sorted(recorded(memory)) == ["five", "four", "one", "three", "two"]
    )
    assert len(run.steps) == 5


def test_tasks_of_a_block_call_both(memory: hs.StepMemory) -> None:
    async def talk(name: str, heard: Heard) -> None:
        with dspy.context(callbacks=[heard]):
            for number in range(3):
                await dspy.Predict("q -> a").acall(q=f"{name} {number}")

    async def both() -> int:
        async with hs.record(memory) as run:
            await asyncio.gather(talk("ana", ana), talk("bob", bob))
        return len(run.steps)

    ana, bob = Heard(), Heard()
    assert asyncio.run(both()) == 6
    assert ana.asked == ["ana 0", "ana 1", "ana 2"]
    assert bob.asked == ["bob 0", "bob 1", "bob 2"]
    assert sorted(recorded(memory)) == sorted([*ana.asked, *bob.asked])


@pytest.mark.parametrize("where", ["before", "inside"])
def test_a_stream_calls_both_wherever_it_was_made(memory: hs.StepMemory, where: str) -> None:
    async def read(stream: Callable[..., Any], question: str) -> list[Any]:
        return [piece async for piece in stream(q=question)]

    heard = Heard()
    dspy.configure(callbacks=[heard])
    stream = dspy.streamify(dspy.Predict("q -> a"))
    with hs.record(memory) as run:
        if where == "inside":
            stream = dspy.streamify(dspy.Predict("q -> a"))
        assert isinstance(asyncio.run(read(stream, "streamed"))[-1], dspy.Prediction)
    assert heard.asked == recorded(memory) == ["streamed"]
    assert run.errors == []
    asyncio.run(read(stream, "after the block"))
    assert recorded(memory) == ["streamed"]
    assert heard.asked == ["streamed", "after the block"]


def test_evaluations_and_optimisers_of_a_block_call_both(memory: hs.StepMemory) -> None:
    heard = Heard()
    examples = [dspy.Example(q=name, a="x").with_inputs("q") for name in ("one", "two")]
    with hs.record(memory) as run:
        dspy.configure(callbacks=[heard])
        evaluate = dspy.Evaluate(devset=examples, metric=lambda *_: 1.0, num_threads=2)
        assert evaluate(dspy.Predict("q -> a")).score == 100.0
        before = len(heard.asked)
        dspy.BootstrapFewShot(metric=lambda *_: True).compile(
            dspy.Predict("q -> a"), trainset=examples
        )
    assert heard.evaluations == 1
    assert before == 2
    trials = list(memory.iter_steps({"scope": "*"}))
    assert sorted(step.arguments["q"] for step in trials) == sorted(heard.asked)
    assert run.errors == []


def test_instances_keep_their_own_callbacks(memory: hs.StepMemory) -> None:
    own, configured = Heard(), Heard()
    with hs.record(memory):
        dspy.configure(callbacks=[configured])
        dspy.Predict("q -> a", callbacks=[own])(q="inside")
    assert own.asked == configured.asked == recorded(memory) == ["inside"]
