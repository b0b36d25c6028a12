"""What a search through several runs, loops, attempts and comparisons are shown as."""

from __future__ import annotations

import asyncio
from typing import Any

import dspy

import hybridagi_steps as hs
from hybridagi_steps.testing import scripted_lm


def steps_of(run_id: str, count: int, **fields: Any) -> list[hs.AgentStep]:
    inputs = {"tool": "search", "arguments": {"q": "<b>lamp</b>"}}
    step = {"step_type": "Action", "run_id": run_id, "inputs": inputs, **fields}
    return [hs.AgentStep.model_validate({**step, "hop": hop}) for hop in range(count)]


def test_steps_of_several_runs_stand_below_their_runs() -> None:
    with hs.StepMemory(":memory:") as memory:
        began = {"created_at": "2026-01-31T10:00:00Z"}
        memory.add(steps_of("left", 1, **began) + steps_of("right", 2, **began))
        found: Any = memory.find({"tools": ["search"]})
        lines = str(found).splitlines()
        assert "left" in lines[1]
        assert "2026-01-31 10:00" in lines[1]
        assert "right" in lines[3]
        assert ["search" in line for line in lines] == [False, False, True, False, True, True]
        html = found._repr_html_()
        assert html.index("left") < html.index("right")
        assert "<b>lamp" not in html


def test_loops_and_common_sequences_are_lines() -> None:
    loops: Any = hs.find_loops(steps_of("a", 4, outputs={"result": "none"}))
    assert repr(loops) == str(loops[0]) == repr(loops[0])
    assert len(repr(loops)) < 200
    assert "&lt;b&gt;" in loops._repr_html_()
    assert repr(hs.find_loops([])) == "none"
    with hs.StepMemory(":memory:") as memory:
        memory.add(steps_of("a", 3) + steps_of("b", 3))
        assert "search -> search" in repr(hs.common_sequences(memory, good=None))


def test_results_attempts_and_comparisons_are_short() -> None:
    async def talk(memory: hs.StepMemory) -> tuple[Any, Any, Any]:
        runner = hs.StepRunner(dspy.Predict("question -> answer"), memory)
        result = await runner.run("s", "Where?")
        [_ async for _ in runner.retry("s", 1)]
        repo = memory.repository()
        attempts = await repo.attempts("s")
        both = [each.branch_id for each in attempts]
        return result, attempts, await hs.compare_branches(repo, "s", *both)

    with hs.StepMemory(":memory:") as memory, dspy.context(lm=scripted_lm({"answer": "<b>Here"})):
        result, attempts, compared = asyncio.run(talk(memory))
    assert repr(result) == f"<run {result.run_id} completed: <b>Here>"
    assert "&lt;b&gt;Here" in result._repr_html_()
    assert str(attempts).count("\n") == 1
    assert "retry after message 1" in str(attempts)
    assert repr(compared).count("<b>Here") == 2
    assert "&lt;b&gt;Here" in compared._repr_html_()
