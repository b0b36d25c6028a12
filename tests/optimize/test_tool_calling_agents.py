"""Learning from agents that answer with tool calls: demonstrations, recall, fine-tuning, fences."""

# DSPy ships no types, and annotates some arguments more narrowly than it takes them.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportArgumentType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dspy
import orjson
import pytest

import hybridagi_steps as hs
from hybridagi_steps.testing import scripted_lm


def search(query: str) -> str:
    """Look something up."""
    if query == "broken":
        raise ValueError("no such thing")
    return f"found {query}"


def agent() -> Any:
    return dspy.ReActV2("question -> answer", tools=[search])


def turn(thought: str, *calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    made = [{"name": name, "args": args} for name, args in calls]
    return {"next_thought": thought, "tool_calls": {"tool_calls": made}}


def run(memory: hs.StepMemory, question: str, *queries: str) -> Any:
    """Record a run that searches in one turn, and submits in the next."""
    looked_up = [("search", {"query": query}) for query in queries or (f"{question} found",)]
    replies = [turn("look", *looked_up), turn("enough", ("submit", {"answer": question.upper()}))]
    with dspy.context(lm=scripted_lm(replies)), hs.record(memory) as recorded:
        agent()(question=question)
    return recorded


@pytest.fixture
def memory() -> Iterator[hs.StepMemory]:
    """Three good runs."""
    with hs.StepMemory(":memory:", embedder="hashing") as opened:
        for question in ("one", "two", "three"):
            run(opened, question)
        yield opened


def asked_again(program: Any, memory: hs.StepMemory, question: str, **labels: Any) -> list[str]:
    """Return what the model was shown in both turns of a new run."""
    replies = [turn("look", ("search", {"query": "x"})), turn("end", ("submit", {"answer": "y"}))]
    lm = scripted_lm(replies)
    with dspy.context(lm=lm), hs.record(memory, **labels):
        program(question=question)
    return [" ".join(str(m.text) for m in request.messages) for request in lm.requests]


def test_both_turns_of_each_run_are_demonstrations(memory: hs.StepMemory) -> None:
    found = hs.steps_to_demos(memory, agent())
    demos = found["react"]
    assert (len(demos), +found.left_out) == (6, {})
    last, first = demos[:2]
    assert (first.question, first.history.messages) == ("three", [])
    [event] = last.history.messages
    [result] = event["tool_calls"].tool_call_results.tool_call_results
    assert (event["question"], result.value) == ("three", "found three found")
    assert result.call_id == event["tool_calls"].tool_calls[0].id
    [call] = last.tool_calls.tool_calls
    assert (call.name, call.args) == ("submit", {"answer": "THREE"})
    assert "question" not in last, "as in the run, it stands in the history"


def test_the_calls_of_one_turn_are_one_demonstration() -> None:
    with hs.StepMemory(":memory:", embedder="hashing") as memory:
        run(memory, "both", "left", "right")
        run(memory, "half", "fine", "broken")
        found = hs.steps_to_demos(memory, agent())
    assert found.left_out == {"a further call of its turn": 1, "status error": 2}
    calls = [[call.args for call in demo.tool_calls.tool_calls] for demo in found["react"]]
    assert calls == [
        [{"answer": "HALF"}],
        [{"answer": "BOTH"}],
        [{"query": "left"}, {"query": "right"}],
    ]
    [results] = [
        event["tool_calls"].tool_call_results.tool_call_results
        for event in found["react"][0].history.messages
    ]
    assert [result.is_error for result in results] == [False, True]


def test_recall_shows_turns_in_a_like_state(memory: hs.StepMemory) -> None:
    program = hs.WithExperience(agent(), memory, k=3, on_error="raise")
    first, second = asked_again(program, memory, "two")
    assert '{"query": "two found"}' in first
    assert '{"answer": "' in second, "after a search it sees how runs went on"
    assert len(program.last_recall()) == 6


def test_it_is_compiled_from_memory_and_saved(memory: hs.StepMemory, tmp_path: Path) -> None:
    compiled = hs.BootstrapFromMemory(memory, 8).compile(agent())
    assert len(compiled.provenance()["react"]) == 6
    compiled.save(tmp_path / "agent.json")
    loaded = agent()
    loaded.load(tmp_path / "agent.json")
    for program in (compiled, loaded):
        assert '{"answer": "THREE"}' in asked_again(program, memory, "new")[0]


def test_lines_for_fine_tuning_show_tools_and_results(
    memory: hs.StepMemory, tmp_path: Path
) -> None:
    assert hs.to_finetune(memory, tmp_path / "lines.jsonl", agent()) == 6
    lines = [orjson.loads(line) for line in (tmp_path / "lines.jsonl").read_bytes().splitlines()]
    said = [" ".join(message["content"] for message in line["messages"]) for line in lines]
    assert "found three found" in said[0]
    assert '{"answer": "THREE"}' in said[0]
    assert all("Look something up." in text for text in said)


def test_an_own_groups_answer_is_shown_in_no_prompt(memory: hs.StepMemory) -> None:
    """A canary in the results and the answer of the very task that is judged."""
    run(memory, "task seven", "canary")
    program = hs.WithExperience(
        agent(), memory, k=5, group=lambda inputs: inputs["question"], on_error="raise"
    )
    shown = asked_again(program, memory, "task seven", scope="trial")
    assert not any("canary" in text or "TASK SEVEN" in text for text in shown)
    assert any('"THREE"' in text for text in shown), "others' answers are"
    valset = [dspy.Example(question="task seven", answer="unknown").with_inputs("question")]
    compiled = hs.BootstrapFromMemory(memory, 9, group="inputs").compile(agent(), valset=valset)
    assert len(compiled.provenance()["react"]) == 6
    assert "canary" not in str(compiled.program.react.demos)
