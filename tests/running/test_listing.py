"""What a memory lists: runs that are in flight, how they ended, and sessions of both kinds."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dspy
import pytest

import hybridagi_steps as hs
from hybridagi_steps.errors import InvalidFilterError
from hybridagi_steps.records.store_values import RunSummary
from hybridagi_steps.testing import scripted_lm


class Looking(dspy.Module):
    """Looks at something while it runs."""

    def __init__(self, look: Callable[[], object]) -> None:
        super().__init__()
        self.answer, self.look = dspy.Predict("question -> answer"), look

    def forward(self, question: str) -> Any:
        self.look()
        return self.answer(question=question)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[hs.StepMemory]:
    with (
        hs.StepMemory(tmp_path / "steps.db", embedder="hashing") as memory,
        dspy.context(lm=scripted_lm([{"answer": "Gate 4"}] * 9)),
    ):
        yield memory


def listed(memory: hs.StepMemory, **asked: Any) -> list[tuple[str, str]]:
    return [(run.run_id, run.status) for run in memory.runs(**asked)]


def test_a_recorded_run_is_listed_from_its_begin(memory: hs.StepMemory) -> None:
    seen: list[Any] = []
    with hs.record(memory, session_id="notebook", user_id="ann") as run:
        assert listed(memory) == [(run.id, "running")]
        assert memory.runs()[0].started_at <= memory.runs()[0].ended_at
        assert listed(memory, user_id="bob") == listed(memory, where={"session_id": "x"}) == []
        assert listed(memory, where={"session_id": "notebook"}) == [(run.id, "running")]
        assert listed(memory, where={"tools": ["search"]}) == []
        Looking(lambda: seen.append(listed(memory)))(question="Which gate?")
    assert seen == [[(run.id, "running")]]
    assert listed(memory) == [(run.id, "completed")]


@pytest.mark.parametrize(
    ("where", "shown"),
    [
        ({"exclude": {"tools": ["search"]}}, True),
        ({"exclude": {"session_id": "other"}}, True),
        ({"exclude": {"session_id": "notebook"}}, False),
        ({"exclude": [{"session_id": "notebook", "user_id": "bob"}]}, True),
        ({"exclude": [{"user_id": "bob"}, {"user_id": "ann"}]}, False),
        ({"exclude": {"until": "2100-01-01"}}, False),
        ({"exclude": {"scope": "*"}}, False),
        ({"exclude": {"scope": "trial"}}, True),
        ({"exclude_run_id": ["other"]}, True),
        ({"user_id": "ann", "session_id": "notebook", "scope": "*"}, True),
        ({"scope": "trial"}, False),
        ({"since": "2020-01-01", "until": "2100-01-01"}, True),
        ({"since": "2100-01-01"}, False),
        ({"until": "2020-01-01"}, False),
        ({"kinds": ["step"]}, True),
        ({"trust": "own"}, False),
        ({"trust": "own", "user_id": "ann"}, True),
        ({"sources": ["import"]}, False),
        ({"metadata": {"topic": "gates"}}, True),
        ({"metadata": {"topic": "tickets"}}, False),
        ({"exclude": {"metadata": {"topic": "gates"}}}, False),
    ],
)
def test_a_run_in_flight_is_listed_as_its_first_step_would_be(
    memory: hs.StepMemory, where: dict[str, Any], shown: bool
) -> None:
    labels: dict[str, Any] = {"session_id": "notebook", "user_id": "ann"}
    with hs.record(memory, **labels, tags={"topic": "gates"}) as run:
        assert bool(listed(memory, where=where)) is shown
        assert listed(memory, where={"exclude_run_id": [run.id]}) == []
        dspy.Predict("question -> answer")(question="Which gate?")
        assert bool(listed(memory, where=where)) is shown


def test_each_outermost_call_of_a_recorder_is_listed_while_it_runs(memory: hs.StepMemory) -> None:
    seen: list[Any] = []
    program = Looking(lambda: seen.append(listed(memory)))
    with dspy.context(callbacks=[hs.StepRecorder(memory)]):
        for _ in range(2):
            program(question="Which gate?")
    (first,), (second, before) = seen
    assert (first[1], second[1], before) == ("running", "running", (first[0], "completed"))


def test_a_run_of_a_runner_is_listed_with_the_id_that_cancels_it(memory: hs.StepMemory) -> None:
    seen: list[RunSummary] = []
    runner: hs.StepRunner

    class Waiting(dspy.Module):
        async def aforward(self, question: str) -> None:
            seen.extend(memory.runs())
            assert await runner.cancel(seen[0].run_id)
            await asyncio.Event().wait()

    runner = hs.StepRunner(Waiting(), memory, input_field="question")

    async def say() -> list[hs.StepEvent]:
        return [event async for event in runner.run_stream("chat", "Which gate?")]

    last = asyncio.run(say())[-1]
    (run,) = seen
    assert (run.status, run.title, run.session_id) == ("running", "Which gate?", "chat")
    assert last.type == "run_cancelled"
    assert listed(memory) == [(run.run_id, "cancelled")]


def test_a_run_that_failed_says_so(memory: hs.StepMemory) -> None:
    def fail() -> None:
        raise ValueError("no gate")

    with pytest.raises(ValueError, match="no gate"), hs.record(memory) as run:
        Looking(fail)(question="Which gate?")
    assert listed(memory) == [(run.id, "failed")]
    assert "failed" in str(memory.runs())
    assert "failed" in memory.runs()._repr_html_()


def test_runs_are_listed_page_by_page_whether_stored_or_not(memory: hs.StepMemory) -> None:
    ids: list[str] = []
    for _ in range(3):
        with hs.record(memory) as run:
            Looking(lambda: None)(question="Which gate?")
        ids.insert(0, run.id)
    with hs.record(memory) as run:
        every = [run.id, *ids]
        pages = [listed(memory, limit=2, offset=offset) for offset in (0, 2, 4)]
    assert [run_id for page in pages for run_id, _ in page] == every
    with pytest.raises(InvalidFilterError):
        memory.runs(where={"tool": "misspelt"})


def test_sessions_are_those_with_messages_and_those_only_recorded(memory: hs.StepMemory) -> None:
    repo = memory.repository()
    for name in ("one", "two"):
        asyncio.run(repo.append(name, {"role": "user", "content": f"Hello {name}"}))
        with hs.record(memory, session_id=f"notebook {name}", user_id="ann"):
            Looking(lambda: None)(question="Which gate?")
    found = memory.sessions()
    names = ["notebook two", "two", "notebook one", "one"]
    assert [each.session_id for each in found] == names
    assert [(each.messages, each.runs) for each in found] == [(0, 1), (1, None)] * 2
    assert "Which gate?" in found[0].first_message
    pages = [memory.sessions(limit=2, offset=offset) for offset in (0, 2, 4)]
    assert [each.session_id for page in pages for each in page] == names
    assert asyncio.run(repo.sessions()) == found
    assert [each.session_id for each in memory.sessions(user_id="ann")] == names[::2]
    shown = str(found)
    assert all(words in shown for words in ("1 run", "1 message", "notebook two", "Hello one"))
    assert "Hello one" in found._repr_html_()
    assert str(memory.sessions(offset=9)) == "no sessions"


def test_steps_and_a_memory_draw_themselves(memory: hs.StepMemory) -> None:
    with hs.record(memory) as run:
        Looking(lambda: None)(question="Which <b>gate</b>?")
    assert str(run.steps) == repr(run.steps)
    assert "ProgramCall Looking" in str(run.steps)
    assert "Gate 4" in str(run.steps)
    html = memory._repr_html_()
    assert "steps" in html
    assert "Which &lt;b&gt;gate&lt;/b&gt;?" in html
    memory.close()
    assert "is closed" in memory._repr_html_()
