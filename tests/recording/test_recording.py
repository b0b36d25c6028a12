"""record, Recorded, StepRecorder and record_step: what belongs to which run, and what travels."""

# DSPy ships no types, and annotates some arguments more narrowly than it takes them.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportUnknownLambdaType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import asyncio
import contextvars
import copy
import multiprocessing
import os
import pickle
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Literal

import cloudpickle
import dspy
import pytest
from recorder_programs import AGENT_REPLIES, Agent, Pair, all_steps, outline

import hybridagi_steps as hs
from hybridagi_steps.recording.scopes import overriding
from hybridagi_steps.testing import scripted_lm

KINDS = ["ProgramCall", "Action", "Action", "Action", "ProgramEnd"]


@pytest.fixture
def memory() -> Iterator[hs.StepMemory]:
    """An empty memory."""
    with hs.StepMemory(":memory:", embedder="hashing") as opened:
        yield opened


@pytest.fixture(autouse=True)
def _model() -> Iterator[None]:
    """A model that answers anything."""
    with overriding(lm=scripted_lm()):
        yield


def kinds(steps: Any) -> list[str]:
    """The types of steps."""
    return [step.step_type.value for step in steps]


def test_a_block_is_one_run_whatever_happens_in_it(memory: hs.StepMemory) -> None:
    with hs.record(memory, session_id="s", user_id="u", tags={"topic": "refunds"}) as run:
        assert run.steps.steps == []
        Pair()(question="one")
        assert len(run.steps.steps) == 5, "steps show while the block runs"
        Pair()(question="two")
    steps = run.steps.steps
    assert isinstance(run.steps, hs.AgentStepList)
    assert [step.hop for step in steps] == list(range(10))
    assert {(s.run_id, s.session_id, s.user_id, s.scope) for s in steps} == {
        (run.id, "s", "u", None)
    }
    assert all(step.metadata == {"topic": "refunds"} for step in steps)
    assert steps[5].parent_id == steps[4].id, "the second program follows the first"
    assert steps[5].program_id is None
    assert run.errors == []


def test_a_program_answers_the_same_with_and_without_recording(memory: hs.StepMemory) -> None:
    with dspy.context(lm=scripted_lm(AGENT_REPLIES)):
        plain = Agent()(question="?")
    with dspy.context(lm=scripted_lm(AGENT_REPLIES)), hs.record(memory):
        seen = Agent()(question="?")
    with dspy.context(lm=scripted_lm(AGENT_REPLIES)):
        carried = hs.Recorded(Agent(), memory)(question="?")
    assert plain.toDict() == seen.toDict() == carried.toDict()


def test_settings_changed_inside_a_block_count_there(memory: hs.StepMemory) -> None:
    before: Any = dspy.settings.get("max_errors")
    try:
        with hs.record(memory):
            dspy.configure(max_errors=before + 1)
            assert dspy.settings.max_errors == before + 1
    finally:
        dspy.configure(max_errors=before)


def test_a_block_left_in_another_context_does_no_harm(memory: hs.StepMemory) -> None:
    block = hs.record(memory)
    contextvars.copy_context().run(block.__enter__)
    block.__exit__(None, None, None)
    with hs.record(memory) as run:
        dspy.Predict("q -> a")(q="1")
    assert len(run.steps.steps) == 1


def test_nothing_is_recorded_outside_the_block(memory: hs.StepMemory) -> None:
    with hs.record(memory):
        pass
    Pair()(question="?")
    assert all_steps(memory) == []


def test_a_block_inside_a_block_joins_it_and_may_say_more(memory: hs.StepMemory) -> None:
    with hs.record(memory, session_id="outer", tags={"a": 1, "b": 1}) as outer:
        dspy.Predict("q -> a")(q="1")
        with hs.record(memory, session_id="inner", tags={"b": 2}) as inner:
            dspy.Predict("q -> a")(q="2")
        dspy.Predict("q -> a")(q="3")
    assert inner.id == outer.id
    steps = outer.steps.steps
    assert [step.session_id for step in steps] == ["outer", "inner", "outer"]
    assert [step.metadata and step.metadata["b"] for step in steps] == [1, 2, 1]
    assert all(step.metadata and step.metadata["a"] == 1 for step in steps)
    assert [parent for _, _, parent, _ in outline(steps)] == [None, 0, 1]


def test_blocks_on_two_memories_record_to_both(memory: hs.StepMemory) -> None:
    with (
        hs.StepMemory(":memory:", embedder="hashing") as other,
        hs.record(memory) as one,
        hs.record(other) as two,
    ):
        Pair()(question="?")
        assert kinds(one.steps.steps) == kinds(two.steps.steps) == KINDS
        assert one.id != two.id


def test_a_block_inside_a_recorded_program_joins_its_run(memory: hs.StepMemory) -> None:
    class Outer(dspy.Module):
        def forward(self) -> Any:
            with hs.record(memory):
                return Pair()(question="?")

    with dspy.context(callbacks=[hs.StepRecorder(memory, tags={"t": 1})]):
        Outer()()
    steps = all_steps(memory)
    assert len({step.run_id for step in steps}) == 1
    assert kinds(steps) == ["ProgramCall", *KINDS, "ProgramEnd"]
    assert steps[1].parent_id == steps[0].id
    assert steps[1].program_id == str(steps[0].id)
    assert all(step.metadata == {"t": 1} for step in steps)


def test_recorded_inside_a_run_joins_it_and_records_nothing_twice(memory: hs.StepMemory) -> None:
    program = hs.Recorded(hs.Recorded(Pair(), memory), memory, session_id="mine")
    with hs.record(memory, session_id="outer") as run:
        program(question="?")
    assert kinds(run.steps.steps) == KINDS
    assert {step.session_id for step in run.steps.steps} == {"mine"}
    assert len(all_steps(memory)) == 5


def test_recorded_below_a_global_recorder_is_recorded_once(memory: hs.StepMemory) -> None:
    with dspy.context(callbacks=[hs.StepRecorder(memory)]):
        hs.Recorded(Pair(), memory)(question="?")
    assert kinds(all_steps(memory)) == KINDS


def test_each_outermost_call_of_a_recorded_program_is_a_run(memory: hs.StepMemory) -> None:
    program = hs.Recorded(Pair(), memory, user_id="u")
    program(question="1")
    asyncio.run(program.acall(question="2"))
    runs = {step.run_id for step in all_steps(memory)}
    assert len(runs) == 2
    assert {step.user_id for step in all_steps(memory)} == {"u"}


def test_a_global_recorder_gives_each_outermost_call_a_run(memory: hs.StepMemory) -> None:
    with dspy.context(callbacks=[hs.StepRecorder(memory, session_id="s")]):
        Pair()(question="1")
        Pair()(question="2")
    steps = all_steps(memory)
    assert len({step.run_id for step in steps}) == 2
    assert [step.hop for step in steps] == [*range(5), *range(5)]
    assert {step.session_id for step in steps} == {"s"}


def test_a_scope_given_by_hand_hides_a_run(memory: hs.StepMemory) -> None:
    with hs.record(memory, scope="trial"):
        dspy.Predict("q -> a")(q="1")
    assert memory.find().steps == []
    assert len(memory.find({"scope": "trial"}).steps) == 1


def test_a_run_can_be_scored(memory: hs.StepMemory) -> None:
    with hs.record(memory) as run:
        dspy.Predict("q -> a")(q="1")
    run.score(0.5, "fair")
    assert [step.score for step in run.steps.steps] == [0.5]


def test_a_recorded_program_shows_the_parameters_of_the_one_inside(memory: hs.StepMemory) -> None:
    program = hs.Recorded(Pair(), memory)
    names = [name for name, _ in program.named_predictors()]
    assert names == ["first", "second", "last"]
    assert [name for name, _ in program.named_parameters()] == names


def test_a_recorded_programs_state_is_saved_and_loaded(
    memory: hs.StepMemory, tmp_path: Path
) -> None:
    program = hs.Recorded(Pair(), memory)
    program.program.first.demos = [dspy.Example(question="a", one="b")]
    program.save(str(tmp_path / "state.json"))
    fresh = hs.Recorded(Pair(), memory)
    fresh.load(str(tmp_path / "state.json"))
    assert fresh.program.first.demos[0]["one"] == "b"
    fresh(question="?")
    assert kinds(all_steps(memory)) == KINDS


def test_copies_share_the_memory(memory: hs.StepMemory) -> None:
    program = hs.Recorded(Pair(), memory)
    for twin in (copy.copy(program), copy.deepcopy(program), program.deepcopy()):
        assert twin.memory is memory
        twin(question="?")
    assert len({step.run_id for step in all_steps(memory)}) == 3


@pytest.mark.parametrize("whole_block", [True, False])
def test_a_run_does_not_recall_itself(memory: hs.StepMemory, whole_block: bool) -> None:
    retrieve = hs.StepRetriever(memory)

    @hs.record_step
    def note(text: str) -> str:
        return f"noted {text}"

    @hs.record_step(kind="program")
    def noting() -> Any:
        note("refund")
        return retrieve("noted refund").steps

    with hs.record(memory) as before:
        note("refund")
    if whole_block:
        with hs.record(memory):
            note("refund")
            found = retrieve("noted refund").steps
    else:
        with dspy.context(callbacks=[hs.StepRecorder(memory)]):
            found = noting()
    assert {step.run_id for step in found} == {before.id}


def test_a_copied_recorder_is_the_recorder(memory: hs.StepMemory) -> None:
    recorder = hs.StepRecorder(memory)
    for twin in (copy.copy(recorder), copy.deepcopy(recorder)):
        assert twin is recorder


def test_a_pickle_reopens_the_memory(tmp_path: Path) -> None:
    with hs.StepMemory(str(tmp_path / "steps.db"), embedder="hashing") as memory:
        program = hs.Recorded(Pair(), memory, tags={"t": 1})
        recorder = hs.StepRecorder(memory, session_id="s")
        twin = pickle.loads(cloudpickle.dumps(program))
        other = pickle.loads(pickle.dumps(recorder))
        twin(question="?")
        with dspy.context(callbacks=[other]):
            dspy.Predict("q -> a")(q="1")
        assert twin.memory is not memory
        assert len(all_steps(memory)) == 6
        assert all_steps(memory)[-1].session_id == "s"
        twin.memory.close()
        other.memory.close()


def test_a_whole_program_is_saved_with_its_memory(tmp_path: Path) -> None:
    with hs.StepMemory(str(tmp_path / "steps.db"), embedder="hashing") as memory:
        program = hs.Recorded(dspy.Predict("q -> a"), memory)
        program.save(str(tmp_path / "program"), save_program=True)
        loaded: Any = dspy.load(str(tmp_path / "program"), allow_pickle=True)
        loaded(q="1")
        assert len(all_steps(memory)) == 1
        loaded.memory.close()


def in_child(path: str) -> None:
    """Record in a forked process."""
    with hs.StepMemory(path, embedder="hashing") as memory, hs.record(memory, session_id="child"):
        Pair()(question="?")


def test_a_forked_child_records(tmp_path: Path) -> None:
    path = str(tmp_path / "steps.db")
    with hs.StepMemory(path, embedder="hashing") as memory:
        with hs.record(memory):
            Pair()(question="?")
            child = multiprocessing.get_context("fork").Process(target=in_child, args=(path,))
            child.start()
            child.join(60)
        assert child.exitcode == 0
        assert len(memory.find({"session_id": "child"}).steps) == 5


class SlowMemory:
    """A memory whose first write takes a while."""

    redact = None

    def __init__(self) -> None:
        self.steps: list[hs.AgentStep] = []
        self.writing = threading.Event()

    def add(self, step: hs.AgentStep) -> None:
        if not self.writing.is_set():
            self.writing.set()
            time.sleep(0.5)
        self.steps.append(step)

    def run(self, run_id: str) -> list[hs.AgentStep]:
        return self.steps


def test_a_child_forked_while_another_thread_writes_can_go_on() -> None:
    memory = SlowMemory()
    predict = dspy.Predict("q -> a")
    with hs.record(memory) as run:
        writer = threading.Thread(target=hs.in_context(predict), kwargs={"q": "1"})
        writer.start()
        memory.writing.wait(5)

        def in_the_child() -> None:
            predict(q="2")
            os._exit(len(run.steps))

        child = multiprocessing.get_context("fork").Process(target=in_the_child)
        child.start()
        child.join(20)
        child.kill()
        writer.join()
    assert child.exitcode == 1


def test_programs_gathered_in_tasks_are_runs_of_their_own(memory: hs.StepMemory) -> None:
    program = hs.Recorded(Pair(), memory)

    async def many() -> None:
        await asyncio.gather(*(program.acall(question=f"q{n}") for n in range(20)))

    asyncio.run(many())
    runs: dict[Any, list[hs.AgentStep]] = {}
    for step in all_steps(memory):
        runs.setdefault(step.run_id, []).append(step)
    assert len(runs) == 20
    for steps in runs.values():
        assert kinds(steps) == KINDS
        assert [step.hop for step in steps] == list(range(5))


def test_functions_take_part_as_actions_decisions_and_programs(memory: hs.StepMemory) -> None:
    @hs.record_step(kind="decision", purpose="Is it urgent?")
    def urgent(text: str) -> Literal["yes", "no"]:
        return "yes" if "!" in text else "no"

    @hs.record_step()
    def clean(text: str, *, upper: bool = False) -> str:
        """Tidy the text.

        Thoroughly.
        """
        return text.upper() if upper else text

    @hs.record_step(kind="program", name="Triage")
    async def triage(text: str) -> dict[str, Any]:
        return {"urgent": urgent(clean(text, upper=True))}

    with hs.record(memory) as run:
        answer = asyncio.run(triage("help!"))
    assert answer == {"urgent": "yes"}
    call, action, decision, end = run.steps.steps
    assert call.inputs == {"program": "Triage", "purpose": "Triage", "arguments": {"text": "help!"}}
    assert action.inputs == {
        "purpose": "Tidy the text.",
        "tool": "clean",
        "arguments": {"text": "help!", "upper": True},
    }
    assert action.outputs == {"result": "HELP!"}
    assert decision.inputs == {
        "purpose": "Is it urgent?",
        "options": ["yes", "no"],
        "arguments": {"text": "HELP!"},
    }
    assert decision.outputs == {"choice": "yes"}
    assert end.outputs == {"urgent": "yes"}
    assert [program for _, _, _, program in outline(run.steps.steps)] == [None, 0, 0, 0]


def test_modules_inside_a_recorded_function_belong_to_it(memory: hs.StepMemory) -> None:
    @hs.record_step(kind="program")
    def ask() -> Any:
        return dspy.Predict("q -> a")(q="1")

    with hs.record(memory) as run:
        ask()
    assert outline(run.steps.steps) == [
        (0, "ProgramCall ask", None, None),
        (1, "Action", 0, 0),
        (2, "ProgramEnd ask", 1, 0),
    ]


def test_functions_are_left_alone_outside_a_run(memory: hs.StepMemory) -> None:
    @hs.record_step()
    def double(number: int) -> int:
        return number * 2

    assert double(2) == 4
    assert double.__name__ == "double"
    assert all_steps(memory) == []
    with dspy.context(callbacks=[hs.StepRecorder(memory)]):
        double(3)
    [step] = all_steps(memory)
    assert step.result == 6
    assert step.run_id


def test_methods_are_shown_without_self(memory: hs.StepMemory) -> None:
    class Desk:
        @hs.record_step()
        def ask(self, question: str) -> str:
            return question

    with hs.record(memory) as run:
        Desk().ask("why")
    assert run.steps.steps[0].arguments == {"question": "why"}


def test_a_function_that_fails_or_is_cancelled(memory: hs.StepMemory) -> None:
    @hs.record_step()
    def fail() -> None:
        raise KeyError("gone")

    @hs.record_step()
    async def wait() -> None:
        await asyncio.sleep(5)

    async def cancel() -> None:
        await asyncio.wait_for(wait(), 0.01)

    with hs.record(memory) as run:
        with pytest.raises(KeyError):
            fail()
        with pytest.raises(TimeoutError):
            asyncio.run(cancel())
    failed, cancelled = run.steps.steps
    assert (failed.status, cancelled.status) == ("error", "cancelled")
    assert failed.outputs == {"error": {"type": "KeyError", "message": "'gone'"}}


def test_generators_are_refused_with_advice() -> None:
    def numbers() -> Iterator[int]:
        yield 1

    async def later() -> AsyncIterator[int]:
        yield 1

    with pytest.raises(hs.errors.InvalidSettingError, match="numbers"):
        hs.record_step()(numbers)
    with pytest.raises(hs.errors.InvalidSettingError, match="later"):
        hs.record_step(later)


def test_functions_on_two_memories(memory: hs.StepMemory) -> None:
    @hs.record_step()
    def one() -> int:
        return 1

    with (
        hs.StepMemory(":memory:", embedder="hashing") as other,
        hs.record(memory) as a,
        hs.record(other) as b,
    ):
        one()
        assert len(a.steps.steps) == len(b.steps.steps) == 1


def test_a_run_shows_itself_in_a_notebook() -> None:
    with hs.StepMemory(":memory:", embedder="hashing") as memory:
        with hs.record(memory) as run:
            Pair()(question="<b>why</b>")
        html = run._repr_html_()
        assert f"run {run.id}, 5 steps" in html
        assert "&lt;b&gt;why" in html
        assert html.count('<div class="hs-inside">') == 1
    assert "is closed" in run._repr_html_()


def test_a_run_in_any_memory_shows_itself() -> None:
    with hs.record(SlowMemory()) as run:
        dspy.Predict("q -> a")(q="1")
    assert "1 step" in run._repr_html_()
