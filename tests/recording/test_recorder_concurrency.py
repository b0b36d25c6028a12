"""Programs that run at once: threads, tasks, pools, streams. Who follows whom, nothing mixed."""

# DSPy ships no types, and annotates some arguments more narrowly than it takes them.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportUnknownLambdaType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import gc
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import dspy
import pytest
from recorder_programs import Pair, all_steps, outline, question_of

import hybridagi_steps as hs
from hybridagi_steps.testing import scripted_lm


@pytest.fixture
def memory() -> Iterator[hs.StepMemory]:
    """An empty memory."""
    with hs.StepMemory(":memory:", embedder="hashing") as opened:
        yield opened


def joins_of(step: hs.AgentStep) -> list[str]:
    """The other branches a step joins."""
    return (step.metadata or {}).get("joins", [])


def test_gathered_calls_share_a_parent_and_the_next_one_joins_them(memory: hs.StepMemory) -> None:
    async def run() -> list[hs.AgentStep]:
        async with hs.record(memory) as recorded:
            await Pair().acall(question="?")
        return recorded.steps.steps

    with dspy.context(lm=scripted_lm(delay_seconds=0.02)):
        call, one, two, last, end = asyncio.run(run())
    assert one.parent_id == two.parent_id == call.id
    assert last.parent_id == two.id, "the branch with the highest hop"
    assert joins_of(last) == [str(one.id)]
    assert end.parent_id == last.id


def test_parallel_items_share_a_parent_however_few_threads_there_are(
    memory: hs.StepMemory,
) -> None:
    predict = dspy.Predict("question -> answer")
    pairs = [(predict, {"question": f"q{n}"}) for n in range(6)]
    with dspy.context(lm=scripted_lm()), hs.record(memory) as run:
        predict(question="before")
        dspy.Parallel(num_threads=2, disable_progress_bar=True)(pairs)
        predict(question="after")
    before, *items, after = run.steps.steps
    assert {step.parent_id for step in items} == {before.id}
    assert after.parent_id == items[-1].id
    assert joins_of(after) == [str(step.id) for step in items[:-1]]
    assert [step.hop for step in run.steps.steps] == list(range(8))


def test_batch_records_every_item_as_a_program(memory: hs.StepMemory) -> None:
    examples = [dspy.Example(question=f"q{n}").with_inputs("question") for n in range(3)]
    with dspy.context(lm=scripted_lm()), hs.record(memory) as run:
        Pair().batch(examples, num_threads=2, disable_progress_bar=True)
    calls = [s for s in run.steps.steps if s.step_type == "ProgramCall"]
    assert {question_of(step) for step in calls} == {"q0", "q1", "q2"}
    for call in calls:
        inside = [s for s in run.steps.steps if s.program_id == str(call.id)]
        assert [s.step_type.value for s in inside] == ["Action"] * 3 + ["ProgramEnd"]
        assert inside[0].parent_id == call.id


def test_calls_awaited_one_after_the_other_in_threads_follow_each_other(
    memory: hs.StepMemory,
) -> None:
    predict = dspy.Predict("question -> answer")

    async def run() -> list[hs.AgentStep]:
        with hs.record(memory) as recorded:
            ask = dspy.asyncify(predict)
            await ask(question="one")
            await ask(question="two")
            await predict.acall(question="three")
        return recorded.steps.steps

    with dspy.context(lm=scripted_lm()):
        steps = asyncio.run(run())
    assert [parent for _, _, parent, _ in outline(steps)] == [None, 0, 1]


def test_raw_threads_and_executors_keep_lineage_in_context(memory: hs.StepMemory) -> None:
    predict = dspy.Predict("question -> answer")

    class Fan(dspy.Module):
        def forward(self) -> Any:
            ask = hs.in_context(lambda n: predict(question=f"q{n}"))
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(ask, range(4)))
            thread = threading.Thread(target=hs.in_context(predict), kwargs={"question": "raw"})
            thread.start()
            thread.join()

    with dspy.context(lm=scripted_lm()), hs.record(memory) as run:
        Fan()()
    call, *actions, _end = run.steps.steps
    assert len(actions) == 5
    assert {step.program_id for step in actions} == {str(call.id)}
    assert {step.parent_id for step in actions} == {call.id}


def test_many_threads_on_one_recorded_program_never_mix(memory: hs.StepMemory) -> None:
    program = hs.Recorded(Pair(), memory)
    with dspy.context(lm=scripted_lm()):

        def ask(number: int) -> None:
            program(question=f"q{number}")

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(hs.in_context(ask), range(400)))
    runs: dict[str, list[hs.AgentStep]] = defaultdict(list)
    for step in all_steps(memory):
        assert step.run_id is not None
        runs[step.run_id].append(step)
    assert len(runs) == 400
    asked: set[str] = set()
    for steps in runs.values():
        assert outline(steps) == [
            (0, "ProgramCall Pair", None, None),
            (1, "Action", 0, 0),
            (2, "Action", 1, 0),
            (3, "Action", 2, 0),
            (4, "ProgramEnd Pair", 3, 0),
        ]
        [question] = {question_of(step) for step in steps[:4]}
        asked.add(question)
    assert asked == {f"q{n}" for n in range(400)}


def test_nothing_of_a_call_is_kept_when_it_has_ended(memory: hs.StepMemory) -> None:
    recorder = hs.StepRecorder(memory)
    program = Pair()
    with dspy.context(lm=scripted_lm(), callbacks=[recorder]):
        for n in range(20):
            program(question=f"q{n}")
        with pytest.raises(TypeError):
            program(wrong=1)
    assert recorder.calls_in_flight == 0
    gone = weakref.ref(program)
    del program
    gc.collect()
    assert gone() is None


def test_a_straggler_that_ends_after_the_block_still_ends_its_program(
    memory: hs.StepMemory,
) -> None:
    reached, release = threading.Event(), threading.Event()

    def wait() -> str:
        """Wait."""
        reached.set()
        release.wait(60)
        return "late"

    class Slow(dspy.Module):
        def forward(self) -> Any:
            return dspy.Prediction(answer=dspy.Tool(wait)())

    with hs.record(memory) as run:
        thread = threading.Thread(target=hs.in_context(Slow()))
        thread.start()
        assert reached.wait(60)
    assert [step.step_type for step in run.steps.steps] == ["ProgramCall"]
    release.set()
    thread.join()
    assert outline(run.steps.steps) == [
        (0, "ProgramCall Slow", None, None),
        (1, "Action wait", 0, 0),
        (2, "ProgramEnd Slow", 1, 0),
    ]


def asked_elsewhere(question: str) -> None:
    """Ask in another thread, in a copy of this context, and wait for the answer."""
    context, predict = contextvars.copy_context(), dspy.Predict("question -> answer")
    asking = functools.partial(context.run, predict, question=question)
    thread = threading.Thread(target=asking)
    thread.start()
    thread.join()


class Elsewhere(dspy.Module):
    """Asks here, then in two threads one after the other, then here."""

    def forward(self) -> Any:
        here = dspy.Predict("question -> answer")
        here(question="1")
        asked_elsewhere("2")
        asked_elsewhere("3")
        here(question="4")
        return dspy.Prediction()


@pytest.mark.parametrize("way", ["block", "callback"])
def test_a_thread_that_is_waited_for_in_a_copied_context_is_no_branch(
    memory: hs.StepMemory, way: str
) -> None:
    """Tools that are async in a sync program are run so: what they do follows what came before."""

    def run() -> None:
        recorder = hs.StepRecorder(memory)
        around = hs.record(memory) if way == "block" else dspy.context(callbacks=[recorder])
        with dspy.context(lm=scripted_lm()), around:
            Elsewhere()()

    contextvars.Context().run(run)  # the one of this thread remembers other tests
    assert outline(all_steps(memory)) == [
        (0, "ProgramCall Elsewhere", None, None),
        *((n, "Action", n - 1, 0) for n in (1, 2, 3, 4)),
        (5, "ProgramEnd Elsewhere", 4, 0),
    ]


def test_threads_that_a_block_waits_for_are_no_branches_either(memory: hs.StepMemory) -> None:
    def run() -> None:
        with dspy.context(lm=scripted_lm()), hs.record(memory):
            for number in "123":
                asked_elsewhere(number)

    contextvars.Context().run(run)
    assert outline(all_steps(memory)) == [
        (0, "Action", None, None),
        (1, "Action", 0, None),
        (2, "Action", 1, None),
    ]


@pytest.mark.parametrize("kind", ["action", "decision", "program"])
@pytest.mark.parametrize("way", ["sync", "async", "fails"])
def test_a_plain_function_that_ends_after_the_block_is_told_whole(
    memory: hs.StepMemory, kind: Any, way: str
) -> None:
    reached, release = threading.Event(), threading.Event()

    @hs.record_step(kind=kind)
    def wait(word: str) -> bool:
        """Wait."""
        reached.set()
        assert release.wait(60)
        if way == "fails":
            raise LookupError(word)
        return True

    @hs.record_step(kind=kind, name="wait")
    async def await_it(word: str) -> bool:
        """Wait."""
        reached.set()
        while not release.is_set():
            await asyncio.sleep(0.001)
        return True

    def called() -> None:
        with contextlib.suppress(LookupError):
            asyncio.run(await_it("late")) if way == "async" else wait("late")

    with hs.record(memory, session_id="s") as run:
        thread = threading.Thread(target=hs.in_context(called))
        thread.start()
        assert reached.wait(60)
    before = [str(step.step_type) for step in run.steps.steps]
    assert before == (["ProgramCall"] if kind == "program" else [])
    release.set()
    thread.join()
    last = run.steps.steps[-1]
    ends = {"action": "Action", "decision": "Decision", "program": "ProgramEnd"}
    assert [str(step.step_type) for step in run.steps.steps] == [*before, ends[kind]]
    assert (last.session_id, last.run_id, run.errors) == ("s", run.id, [])
    assert last.status == ("error" if way == "fails" else "ok")
    assert ("late" in str(last.outputs)) == (way == "fails")
    assert last.metrics is not None


def test_a_plain_function_that_begins_after_the_block_runs_and_leaves_no_step(
    memory: hs.StepMemory,
) -> None:
    @hs.record_step
    def double(number: int) -> int:
        return number * 2

    with hs.record(memory) as run:
        later = hs.in_context(double)
        assert later(1) == 2
    assert [later(2), later(3)] == [4, 6]
    [step] = all_steps(memory)
    assert (step.arguments, step.run_id) == ({"number": 1}, run.id)


def test_an_item_that_parallel_submits_twice_is_recorded_twice_and_whole(
    memory: hs.StepMemory,
) -> None:
    calls, again = count(1), threading.Event()

    def slow(_: Any) -> Any:
        if (number := next(calls)) == 1:
            again.wait(60)
        elif number == 3:
            again.set()
        return {"answer": "a"}

    predict = dspy.Predict("question -> answer")
    parallel = dspy.Parallel(num_threads=2, timeout=1, disable_progress_bar=True)
    with dspy.context(lm=scripted_lm(slow)), hs.record(memory) as run:
        parallel([(predict, {"question": "q"}), (predict, {"question": "r"})])
        while len(run.steps.steps) < 3:  # the test's timeout ends it
            time.sleep(0.01)
    assert {step.status for step in run.steps.steps} == {"ok"}
    assert sorted(question_of(step) for step in run.steps.steps) in (
        ["q", "q", "r"],
        ["q", "r", "r"],
    )
    assert run.errors == []


def streamed(program: Any, **inputs: Any) -> list[Any]:
    """Everything a streamed program yields."""
    listener = dspy.streaming.StreamListener("answer", predict=program.program, predict_name="self")

    async def consume() -> list[Any]:
        stream = dspy.streamify(program, stream_listeners=[listener])
        return [item async for item in stream(**inputs)]

    return asyncio.run(consume())


def test_a_streamed_program_is_recorded_like_any_other(memory: hs.StepMemory) -> None:
    program = hs.Recorded(dspy.Predict("question -> answer"), memory)
    with dspy.context(lm=scripted_lm(lambda _: {"answer": "a long answer, in pieces"})):
        items = streamed(program, question="?")
    assert len(items) > 2, "it streams"
    [step] = all_steps(memory)
    assert step.outputs == {"answer": "a long answer, in pieces"}
    assert step.metrics is not None
    assert step.metrics.llm_calls == 1


def test_an_abandoned_stream_leaves_no_program_open(memory: hs.StepMemory) -> None:
    class Ask(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.predict = dspy.Predict("question -> answer")

        async def aforward(self, question: str) -> Any:
            return await self.predict.acall(question=question)

    program = hs.Recorded(Ask(), memory)
    listener = dspy.streaming.StreamListener(
        "answer", predict=program.program.predict, predict_name="predict"
    )

    async def abandon() -> None:
        stream = dspy.streamify(program, stream_listeners=[listener], is_async_program=True)
        streaming = asyncio.Event()

        async def consume() -> None:
            async for _ in stream(question="?"):
                streaming.set()

        reader = asyncio.create_task(consume())
        await streaming.wait()
        reader.cancel()
        await asyncio.wait([reader])

    lm = scripted_lm(lambda _: {"answer": "a long answer, in many pieces " * 20}, delay_seconds=0.5)
    with dspy.context(lm=lm):
        asyncio.run(abandon())
    steps = all_steps(memory)
    assert [(s.step_type.value, s.status) for s in steps] == [
        ("ProgramCall", "ok"),
        ("Action", "cancelled"),
        ("ProgramEnd", "cancelled"),
    ]
