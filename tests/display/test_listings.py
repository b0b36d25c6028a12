"""What a search through several runs, loops, attempts and comparisons are shown as."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import dspy
import pytest

import hybridagi_steps as hs
from hybridagi_steps import AgentStep, StepMemory
from hybridagi_steps.cli import main
from hybridagi_steps.records.agent_step import AgentStepType
from hybridagi_steps.records.message import MessageRole, Step
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


def test_a_name_stays_on_one_line_and_seems_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names are printed to be typed again, and a listing has its columns in the same lines."""
    odd, file = "a\nb\x1b[31m\t\r\u2028c", str(tmp_path / "steps.db")
    shown = r"a\nb\x1b[31m\t\r\u2028c"
    monkeypatch.setenv("COLUMNS", "200")
    with StepMemory(file, embedder="hashing") as memory:
        memory.add(AgentStep(step_type=AgentStepType.Action, run_id=odd, session_id=f"only {odd}"))
        said = Step(session_id=odd, role=MessageRole.USER, content="hello")
        asyncio.run(memory.repository().append(odd, [said]))
        memory.repository().store.fork(odd, 1, f"fork {odd}")
        memory.revoke({"run_id": odd}, reason="why")
    for command in (["runs"], ["sessions"], ["show", odd], ["revoke", "--list"]):
        assert main([*command, "--db", file]) == 0
        said_out = capsys.readouterr().out
        assert shown in said_out, command
        assert not set(said_out) & set("\x1b\t\r\u2028\ufffd"), command
    assert main(["fork", odd, "1", "--as", f"copy {odd}", "--db", file]) == 0
    assert capsys.readouterr().out == f"copy {shown}\n"
