"""What plans cost beside one conversation: tokens, raw and cached."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hybridagi_steps.planning.comparison import compare
from hybridagi_steps.planning.example_tasks import replaying_lm, tasks
from hybridagi_steps.planning.orchestrator import Orchestrator
from hybridagi_steps.planning.results import PlanResult
from hybridagi_steps.planning.step_prompts import CACHE_MINIMUM
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
    assert all(0 < each.ours_cached < each.ours for each in compared)
    assert all(each.ours_cached < each.full_history_cached for each in compared)


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


# The comparison, by hand


def call(part: str, *words: int, answer: int = 0) -> LMCall:
    """A call whose messages have so many words, each word the same in all calls."""
    roles = ("system", "user", "assistant", "user")
    messages = [{"role": role, "content": "w " * n} for role, n in zip(roles, words, strict=False)]
    told = {"role": "assistant", "content": "w " * answer}
    return LMCall(part=part, messages=messages, answer=told, fresh="w " * words[-1])


def test_tokens_at_the_beginning_of_an_earlier_prompt_are_cached() -> None:
    calls = [call("a", 100, 10), call("a", 100, 10, 5, 5), call("b", 100, 7)]
    compared = compare(calls, ["a", "b"], WORDS)
    prompts = [100 + 10 + 2 * EACH, 100 + 10 + 5 + 5 + 4 * EACH, 100 + 7 + 2 * EACH]
    assert compared.ours == sum(prompts) + 3 * EACH
    assert compared.ours_cached == prompts[0] + 100 + EACH
    assert compared.full_history_cached == prompts[0] + prompts[1]
    assert compare(calls[:1], ["a"], WORDS).ours_cached == 0
