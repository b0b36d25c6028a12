"""What running code says of itself: `annotate` and `active_run_ids`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import dspy
import pytest

import hybridagi_steps as hs
from hybridagi_steps.testing import scripted_lm

FINISH: dict[str, Any] = {"next_tool_name": "finish", "next_tool_args": {}}


@hs.record_step
def look_up(order: str) -> str:
    """Look an order up."""
    assert hs.annotate(cached=True, tries=1)
    assert hs.annotate(tries=2)
    return order


class Shop(dspy.Module):
    """Says of itself how busy it is, around a step of another."""

    def forward(self, order: str) -> dspy.Prediction:
        hs.annotate(busy="a little")
        found = look_up(order)
        hs.annotate(seen={"orders": [found]})
        return dspy.Prediction(order=found)

    async def aforward(self, order: str) -> dspy.Prediction:
        await asyncio.sleep(0)
        return self.forward(order)


def kept(memory: hs.StepMemory) -> list[tuple[str, dict[str, Any] | None]]:
    return [(step.step_type.value, step.metadata) for step in memory.iter_steps()]


EXPECTED = [
    ("ProgramCall", None),
    ("Action", {"cached": True, "tries": 2}),
    ("ProgramEnd", {"busy": "a little", "seen": {"orders": ["A-7"]}}),
]


def test_it_adds_to_the_step_under_way(memory: hs.StepMemory) -> None:
    with hs.record(memory):
        Shop()(order="A-7")
        assert not hs.annotate(late=True)  # no step is under way
    assert kept(memory) == EXPECTED


def test_asynchronous_programs_beside_each_other_keep_theirs_apart(memory: hs.StepMemory) -> None:
    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            for name in ("A-1", "A-2"):
                group.create_task(Shop().acall(order=name))

    with hs.record(memory):
        asyncio.run(both())
    ends = [step.metadata for step in memory.find({"step_types": "ProgramEnd"}).steps]
    seen = [(metadata or {})["seen"]["orders"] for metadata in ends]
    assert sorted(seen) == [["A-1"], ["A-2"]]


def test_tags_give_way_and_every_recorder_is_told(memory: hs.StepMemory) -> None:
    with hs.StepMemory(":memory:", embedder="hashing") as other:
        with hs.record(memory, tags={"tries": 0, "shop": "north"}), hs.record(other):
            look_up("A-7")
        assert kept(other) == EXPECTED[1:2]
    assert kept(memory) == [("Action", {"shop": "north", "cached": True, "tries": 2})]


def test_without_a_recording_nothing_happens() -> None:
    assert not hs.annotate(anything=object())


def test_what_is_added_is_redacted_and_repaired() -> None:
    def redact(text: str) -> str:
        return text.replace("secret", "[…]")

    def told(question: str) -> str:
        """Tell it."""
        hs.annotate(note="a secret", odd={1: float("nan")})
        return question

    agent = dspy.ReAct("question -> answer", tools=[told])
    answers: Iterator[dict[str, Any]] = iter(
        [{"next_tool_name": "told", "next_tool_args": {"question": "what?"}}]
    )

    def say(_: Any) -> dict[str, Any]:
        turn = next(answers, FINISH)
        return {"next_thought": "so", "answer": "that", "reasoning": "so", **turn}

    with (
        hs.StepMemory(":memory:", embedder="hashing", redact=redact) as memory,
        dspy.context(lm=scripted_lm(say)),
        hs.record(memory) as run,
    ):
        agent(question="?")
        [step] = memory.find({"tools": "told"}).steps
        assert run.errors == []
    assert step.metadata is not None
    assert step.metadata["note"] == "a […]"
    assert "secret" not in step.model_dump_json()


def test_the_runs_under_way_are_known(memory: hs.StepMemory) -> None:
    assert hs.active_run_ids(memory) == []
    with hs.record(memory) as run, hs.StepMemory(":memory:", embedder="hashing") as other:
        assert hs.active_run_ids(memory) == [run.id]
        assert hs.active_run_ids(other) == []
    assert hs.active_run_ids(memory) == []


def test_keys_are_names() -> None:
    with pytest.raises(TypeError):
        hs.annotate({"a": 1})  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
