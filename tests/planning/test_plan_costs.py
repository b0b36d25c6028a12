"""What plans cost beside one conversation: by price table, measured and estimated beforehand."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.planning.comparison import CACHE_MINIMUM, compare
from hybridagi_steps.planning.example_tasks import replaying_lm, tasks
from hybridagi_steps.planning.orchestrator import Orchestrator
from hybridagi_steps.planning.results import PlanResult
from hybridagi_steps.planning.usage import PLANNING, LMCall
from hybridagi_steps.testing import ScriptedLM, ToolCall
from hybridagi_steps.token_counters import CallableCounter
from hybridagi_steps.workspace.workspace import Workspace

WORDS = CallableCounter(lambda text: len(text.split()), "words")
EACH = 3
"""What a provider adds to a message."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PlanResult]:
    """The six tasks, run."""
    found: dict[str, PlanResult] = {}
    for task in tasks():
        folder = tmp_path_factory.mktemp(task.name)
        task.copy_workspace(folder / "work")
        workspace = Workspace(folder / "work", commands=task.commands, state=folder / "state")
        orchestrator = Orchestrator(workspace=workspace, lm=replaying_lm(task))
        found[task.name] = orchestrator.run(requirements=task.requirement)
        assert found[task.name].success
    return found


def test_most_of_the_raw_tokens_that_can_be_saved_are(results: dict[str, PlanResult]) -> None:
    compared = [result.comparison for result in results.values()]
    full = sum(each.full_history for each in compared)
    assert sum(each.ours for each in compared) <= 0.615 * full
    assert all(each.priced["none"].ours == each.ours for each in compared)
    assert all(each.priced["none"].full_history == each.full_history for each in compared)


def test_all_steps_begin_alike_to_the_letter(results: dict[str, PlanResult]) -> None:
    for result in results.values():
        working = [call for call in result.token_usage.calls if call.part != PLANNING]
        beginnings = {str((call.tools, call.messages[0])) for call in working}
        assert len(beginnings) == 1
        count = result.counter.count
        shared = count(str(working[0].tools)) + count(working[0].messages[0]["content"])
        assert shared >= 0.95 * CACHE_MINIMUM  # tools are counted as JSON there


def test_a_shared_file_is_shown_again_once_it_has_changed(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "f.txt").write_text("beforehand " * 300)

    def write(request: Any) -> Any:
        if "# Step one" in str(request.messages) and request.messages[-1].role != "tool":
            return [ToolCall("write_file", {"path": "f.txt", "content": "after"})]
        return [ToolCall("finish_step", {"summary": "done"})]

    lm = ScriptedLM(write)
    workspace = Workspace(tmp_path / "work", state=tmp_path / "state")
    plan = (
        "PLAN: p\nSTEP: one\nTYPE: modify\nGOAL: g\nFILES: f.txt\n"
        "STEP: two\nTYPE: modify\nGOAL: g\nFILES: f.txt\nDEPENDENCIES: one"
    )
    assert Orchestrator(workspace=workspace, lm=lm).run(plan=plan).success
    first, second, third = lm.requests
    assert first.system == second.system == third.system
    assert first.system.count("beforehand") == 300
    assert "beforehand" not in str(first.messages)
    assert "(as above)" in str(first.messages)
    assert "## f.txt\nafter" in third.messages[0].text


def test_a_file_is_not_shared_where_no_cache_would_keep_it(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "f.txt").write_text("brevity")
    lm = ScriptedLM([[ToolCall("finish_step", {"summary": "done"})]] * 2)
    workspace = Workspace(tmp_path / "work", state=tmp_path / "state")
    plan = "PLAN: p\nSTEP: one\nGOAL: g\nFILES: f.txt\nSTEP: two\nGOAL: g"
    assert Orchestrator(workspace=workspace, lm=lm).run(plan=plan).success
    assert all("brevity" not in request.system for request in lm.requests)


# The price tables, by hand


def call(part: str, *words: int, answer: int = 0) -> LMCall:
    """A call whose messages have so many words, each word the same in all calls."""
    roles = ("system", "user", "assistant", "user")
    messages = [{"role": role, "content": "w " * n} for role, n in zip(roles, words, strict=False)]
    told = {"role": "assistant", "content": "w " * answer}
    return LMCall(part=part, messages=messages, answer=told, fresh="w " * words[-1])


def test_what_was_read_before_costs_less() -> None:
    calls = [call("a", 100, 10), call("a", 100, 10, 5, 5)]
    compared = compare(calls, ["a"], WORDS)
    prompts = [100 + 10 + 2 * EACH, 100 + 10 + 5 + 5 + 4 * EACH]
    answers = 2 * EACH
    assert compared.ours == sum(prompts) + answers
    by = {name: each.ours for name, each in compared.priced.items()}
    again = prompts[0]
    assert by["none"] == compared.ours
    assert by["0.5x"] == pytest.approx(compared.ours - 0.5 * again)
    assert by["0.1x"] == pytest.approx(compared.ours - 0.9 * again)
    assert by["0.1x, writes 1.25x, from 1,024"] == compared.ours, "too short to be kept"


def test_what_is_written_for_nobody_is_not_written() -> None:
    """With marks one chooses what is kept: the beginning that all share, not the rest."""
    long = 2_000
    calls = [call(name, long, 500 + number) for number, name in enumerate("abc")]
    found = compare(calls, list("abc"), WORDS).priced["0.1x, writes 1.25x, from 1,024"]
    beginning = long + EACH
    rest = sum(500 + number + EACH for number in range(3)) + 3 * EACH
    assert found.ours == pytest.approx(1.25 * beginning + 0.2 * beginning + rest)


def test_money_is_said_where_the_model_has_prices() -> None:
    calls = [call("a", 100, 10), call("a", 100, 10, 5, 5)]
    assert compare(calls, ["a"], WORDS).money is None
    for each in calls:
        each.model_name, each.cost = "openai/gpt-4o", 0.1
    compared = compare(calls, ["a"], WORDS)
    assert compared.money is not None
    prompts, answers = compared.ours - 2 * EACH, 2 * EACH
    assert compared.money.ours == pytest.approx(2.5e-6 * prompts + 1e-5 * answers)
    calls[0].cost = None
    assert compare(calls, ["a"], WORDS).money is None, "some of it was not priced"


# Before it starts


CHAIN = "PLAN: p\n" + "\n".join(
    f"STEP: s{n}\nTYPE: analyze\nGOAL: g" + (f"\nDEPENDENCIES: s{n - 1}" if n else "")
    for n in range(8)
)


def test_a_plan_is_estimated_without_asking_anybody(results: dict[str, PlanResult]) -> None:
    lm = ScriptedLM([])
    orchestrator = Orchestrator(lm=lm)
    long = orchestrator.estimate("r", plan=CHAIN)
    short = orchestrator.estimate("r", plan="STEP: s\nGOAL: g")
    assert not lm.requests
    assert long.kind == "estimate"
    assert (long.saving or 0) > (short.saving or 0)
    for name, result in results.items():
        guess, measured = result.estimate, result.comparison
        assert guess is not None
        assert guess.ours == pytest.approx(measured.ours, rel=0.35), name
        assert guess.saving == pytest.approx(measured.saving, abs=0.2), name


def test_a_plan_that_saves_nothing_says_so_before_it_starts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    said: list[str] = []

    def answer(_: Any) -> Any:
        said.extend(record.getMessage() for record in caplog.records)
        return [ToolCall("finish_step", {"summary": "done"})]

    with caplog.at_level(logging.WARNING):
        result = Orchestrator(lm=ScriptedLM(answer)).run("r", plan=CHAIN)
    assert result.estimate is not None
    assert result.estimate.dearer == ["0.1x, writes 1.25x, from 1,024"]
    assert "one conversation would cost less" in said[0]
    assert "0.1x, writes 1.25x, from 1,024" in said[0]


def test_other_executors_have_no_estimate() -> None:
    from hybridagi_steps.planning.worker import Finished

    async def execute(*_: Any) -> Finished:
        return Finished()

    orchestrator = Orchestrator(executor=execute)
    assert orchestrator.run(plan=CHAIN).estimate is None
    with pytest.raises(InvalidSettingError, match="StepExecutor"):
        orchestrator.estimate(plan=CHAIN)
