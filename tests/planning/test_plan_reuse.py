"""What an earlier run found out is taken over only as it was found, and only while it will do."""

from __future__ import annotations

import re
from typing import Any

import pytest

import hybridagi_steps as hs
from hybridagi_steps.planning.orchestrator import Orchestrator
from hybridagi_steps.planning.worker import Finished, Work
from hybridagi_steps.workspace.workspace import Workspace

PLAN = "PLAN: p\nSTEP: a\nGOAL: find\nARTIFACTS: v\nSTEP: b\nGOAL: use\nDEPENDENCIES: a"


class Finder:
    """An executor whose step a finds a value, and whose step b notes what it was given."""

    def __init__(self, value: Any, summary: str = "found") -> None:
        self.value, self.summary, self.given = value, summary, list[Any]()

    async def __call__(self, work: Work, workspace: Workspace | None) -> Finished:
        if work.step.id == "a":
            return Finished(summary=self.summary, artifacts={"v": self.value})
        self.given.append(work.artifacts["a.v"])
        return Finished()


def run(memory: hs.StepMemory, finder: Finder, plan: str = PLAN, **options: Any) -> Any:
    options = {"reuse": True, "max_attempts": 1, "max_replans": 0, **options}
    return Orchestrator(executor=finder, memory=memory, **options).run(plan=plan)


@pytest.mark.parametrize("value", ["plain", 1.5, [1, {"x": None, "a": "ä\n"}], {"b": 1, "a": 2}])
def test_what_was_found_is_taken_over(value: Any) -> None:
    finder = Finder(value)
    with hs.StepMemory(":memory:") as memory:
        results = [run(memory, finder) for _ in range(2)]
    assert [result.step("a").reused for result in results] == [False, True]
    assert results[1].step("a").summary == "found"
    assert results[1].artifacts == {"v": value}


@pytest.mark.parametrize(
    ("value", "summary"), [("token sk-123 in a file", "found"), ("plain", "it is sk-123")]
)
def test_what_memory_redacted_is_found_out_anew(value: str, summary: str) -> None:
    finder = Finder(value, summary)
    with hs.StepMemory(":memory:", redact=lambda text: re.sub(r"sk-\w+", "[key]", text)) as memory:
        results = [run(memory, finder) for _ in range(2)]
    assert not results[1].step("a").reused
    assert results[1].artifacts == {"v": value}
    assert finder.given == [value]  # what step b was given is in the work key, so b is taken over


def test_what_memory_cut_is_found_out_anew() -> None:
    finder = Finder("x" * 9_000_000)
    with hs.StepMemory(":memory:") as memory:
        results = [run(memory, finder) for _ in range(2)]
    assert not results[1].step("a").reused
    assert len(results[1].artifacts["v"]) == 9_000_000


def test_what_would_be_refused_today_is_found_out_anew() -> None:
    finder = Finder("many")
    with hs.StepMemory(":memory:") as memory:
        assert run(memory, finder).success
        assert run(memory, finder).step("a").reused
        second = run(memory, finder, artifact_types={"v": int})
        assert not second.step("a").reused
        assert "wrong shape" in str(second.step("a").error)
        finder.value = 3
        third = run(memory, finder, artifact_types={"v": int})
    assert third.success
    assert third.artifacts == {"v": 3}


def test_work_of_another_user_is_not_taken_over() -> None:
    finder = Finder("ana's")
    with hs.StepMemory(":memory:") as memory:
        reused: list[bool] = []
        for user in ("ana", "bob", "ana"):
            with hs.record(memory, user_id=user):
                reused.append(run(memory, finder).step("a").reused)
    assert reused == [False, False, True]
