"""Requirements become plans that can be run, or an error that says why not."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import dspy
import pytest

import hybridagi_steps as hs
from hybridagi_steps import errors
from hybridagi_steps.planning import plan as plan_module
from hybridagi_steps.planning.generator import PlanGenerator, new_steps, similar_plan
from hybridagi_steps.planning.orchestrator import Orchestrator
from hybridagi_steps.planning.plan import Plan, PlanStep
from hybridagi_steps.planning.plan_parser import read_plan
from hybridagi_steps.planning.worker import Finished, Work
from hybridagi_steps.testing import request_text, scripted_lm
from hybridagi_steps.workspace.workspace import Workspace

GOOD = "PLAN: Shelves\nSTEP: look\nGOAL: g\nSTEP: sort\nGOAL: g\nDEPENDENCIES: look\nEND_PLAN"
CYCLE = "PLAN: p\nSTEP: a\nGOAL: g\nDEPENDENCIES: b\nSTEP: b\nGOAL: g\nDEPENDENCIES: a"


def test_a_requirement_becomes_a_plan() -> None:
    lm = scripted_lm([{"plan": GOOD}])
    with dspy.context(lm=lm):
        plan = PlanGenerator()(requirements="Sort the books.", files=["a.txt"], tools=["read_file"])
    assert isinstance(plan, Plan)
    assert plan == Plan.parse(GOOD)
    asked = request_text(lm.requests[0])
    assert "Sort the books." in asked
    assert "a.txt" in asked
    assert "read_file" in asked


def test_it_works_asynchronously() -> None:
    with dspy.context(lm=scripted_lm([{"plan": GOOD}])):
        plan = asyncio.run(PlanGenerator().acall(requirements="Sort."))
    assert [step.id for step in plan.steps] == ["look", "sort"]


def test_a_plan_without_dspys_marks_is_understood() -> None:
    text = f"Sure! Here it is:\n```\n{GOOD}\n```\nHave fun."
    with dspy.context(lm=scripted_lm([text, text])):
        assert PlanGenerator()(requirements="Sort.") == Plan.parse(GOOD)


def test_an_unsound_plan_is_repaired_with_what_is_wrong() -> None:
    lm = scripted_lm([{"plan": CYCLE}, {"plan": "no plan"}, {"plan": GOOD}])
    with dspy.context(lm=lm):
        plan = PlanGenerator()(requirements="Sort.")
    assert plan.name == "Shelves"
    assert "circle: a → b → a" in request_text(lm.requests[1])
    assert "STEP: a" in request_text(lm.requests[1])


def test_repairs_are_bounded() -> None:
    lm = scripted_lm(lambda _: {"plan": CYCLE})
    with dspy.context(lm=lm), pytest.raises(errors.InvalidPlanError, match="circle"):
        PlanGenerator()(requirements="Sort.")
    assert len(lm.requests) == 3
    none = scripted_lm(lambda _: {"plan": "no plan"})
    with dspy.context(lm=none), pytest.raises(errors.PlanError):
        PlanGenerator(max_repairs=0)(requirements="Sort.")
    assert len(none.requests) == 1


def run_plan(memory: hs.StepMemory, requirement: str, plan: Plan, *, fails: bool = False) -> None:
    async def execute(work: Work, workspace: Workspace | None) -> Finished:
        if fails:
            raise ValueError("no")
        return Finished()

    orchestrator = Orchestrator(executor=execute, memory=memory, max_replans=0, max_attempts=1)
    assert orchestrator.run(requirements=requirement, plan=plan).success is not fails


def test_it_begins_with_the_most_similar_plan_that_succeeded(memory: hs.StepMemory) -> None:
    books = Plan(name="Books", steps=[PlanStep(id="sort_books", goal="g")])
    cars = Plan(name="Cars", steps=[PlanStep(id="wash_cars", goal="g")])
    run_plan(memory, "Sort all books of the library by author", books)
    run_plan(memory, "Wash the red cars in the yard", cars)
    run_plan(memory, "Sort all books of the library by title", cars, fails=True)
    assert similar_plan(memory, "Sort the library's books by title") == books.to_text()
    assert similar_plan(memory, "  ") is None
    lm = scripted_lm([{"plan": GOOD}] * 2)
    with dspy.context(lm=lm):
        PlanGenerator(memory)(requirements="Sort the books of the library by title")
        PlanGenerator(memory, min_similarity=1.0)(requirements="Something else entirely")
    assert "sort_books" in request_text(lm.requests[0])
    assert "sort_books" not in request_text(lm.requests[1])


def test_a_plan_that_was_made_by_a_model_is_found_too(memory: hs.StepMemory) -> None:
    async def execute(work: Work, workspace: Workspace | None) -> Finished:
        return Finished()

    lm = scripted_lm([{"plan": GOOD}])
    result = Orchestrator(executor=execute, memory=memory, lm=lm).run(requirements="Sort books.")
    assert result.success
    assert similar_plan(memory, "Sort books.") == Plan.parse(GOOD).to_text()


def test_both_prompts_can_be_improved_and_saved(tmp_path: Path) -> None:
    generator = PlanGenerator()
    assert [name for name, _ in generator.named_predictors()] == ["make", "change"]
    make: Any = generator.make
    make.signature = make.signature.with_instructions("Plan in verse.")
    generator.save(tmp_path / "generator.json")
    again = PlanGenerator()
    again.load(tmp_path / "generator.json")
    lm = scripted_lm([{"plan": GOOD}])
    with dspy.context(lm=lm):
        again(requirements="Sort.")
    assert "Plan in verse." in str(lm.requests[0].system)


def test_a_changed_plan_keeps_what_is_done_and_takes_new_ids() -> None:
    steps = [
        PlanStep(id="done", goal="g"),
        PlanStep(id="lost", goal="g", dependencies=["done"]),
        PlanStep(id="more", goal="g", dependencies=["lost"]),
    ]
    found = new_steps(Plan(steps=steps), {"done"}, {"done", "lost", "lost_2"})
    assert [(step.id, step.dependencies) for step in found] == [
        ("lost_3", ["done"]),
        ("more", ["lost_3"]),
    ]


def test_the_plan_of_another_user_is_no_example(memory: hs.StepMemory) -> None:
    books = Plan(name="Books", steps=[PlanStep(id="sort_books", goal="g")])
    with hs.record(memory, user_id="ana"):
        run_plan(memory, "Sort all books of the library", books)
        assert similar_plan(memory, "Sort the books") == books.to_text()
    with hs.record(memory, user_id="bob"):
        assert similar_plan(memory, "Sort the books") is None
    assert similar_plan(memory, "Sort the books") == books.to_text()


def test_what_a_model_wrote_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counted(text: str) -> Any:
        read.append(text)
        return read_plan(text)

    async def execute(work: Work, workspace: Workspace | None) -> Finished:
        if work.step.id == "look":
            raise errors.ArtifactError("nothing to see")
        return Finished()

    monkeypatch.setattr(plan_module, "read_plan", counted)
    other = "PLAN: p\nSTEP: guess\nGOAL: g\nEND_PLAN"
    lm = scripted_lm([{"plan": GOOD}, {"plan": other}])
    result = Orchestrator(executor=execute, lm=lm, max_attempts=1).run("Sort the books.")
    assert result.success
    assert read == [GOOD, other]
