"""Shapes in a plan's text: as the documentation writes them, and never dropped."""

from __future__ import annotations

from typing import Any

import pytest

from hybridagi_steps.errors import PlanParseError
from hybridagi_steps.planning.orchestrator import Orchestrator
from hybridagi_steps.planning.plan import Plan
from hybridagi_steps.planning.worker import Finished, Work
from hybridagi_steps.workspace.workspace import Workspace


def plan_with(shape: str) -> Plan:
    return Plan.parse(f"PLAN: p\nSTEP: a\nGOAL: g\nARTIFACTS:\n- v: {shape}")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ('["integer"]', ["integer"]),
        ('["int"]', ["integer"]),
        ('["Text"]', ["string"]),
        ('[["integer"]]', [["integer"]]),
        ('{"Host": "text", "port": "integer"}', {"Host": "string", "port": "integer"}),
        ('{"a": ["list[int]"]}', {"a": ["array"]}),
        ('[{"a": "dict[str, int]"}]', [{"a": "object"}]),
        (r'["/\\d+/"]', [r"/\d+/"]),
        (r"/\d{2,3}/", r"/\d{2,3}/"),
        ("{}", {}),
    ],
)
def test_a_shape_is_json_of_types_and_patterns(written: str, meant: Any) -> None:
    for text in (written, f"{written} - what it is"):
        step = plan_with(text).steps[0]
        assert (step.artifacts, step.shapes) == (["v"], {"v": meant})
        assert step.notes.get("v", "what it is") == "what it is"
    again = Plan.parse(plan_with(written).to_text())
    assert again.steps[0].shapes == {"v": meant}


def test_each_shape_of_a_list_has_a_line() -> None:
    plan = Plan.parse('PLAN: p\nSTEP: a\nGOAL: g\nARTIFACTS:\n- v: ["integer"]\n- w: text')
    assert plan.steps[0].shapes == {"v": ["integer"], "w": "string"}


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("[integer]", "in JSON"),
        ("{n: integer}", "in JSON"),
        ('["integr"]', "'integr'"),
        ('{"a": "integr"}', "'integr'"),
        ("[a short report]", "a short report"),
        ("[integer", "not a shape"),
        ("[]", "not a shape"),
        ('["integer", "text"]', "not a shape"),
        ("[" * 30 + '"integer"' + "]" * 30, "levels deep"),
        ("[" * 90_000, "not a shape"),
    ],
)
def test_what_looks_like_a_shape_and_is_none_is_named(written: str, text: str) -> None:
    with pytest.raises(PlanParseError) as caught:
        plan_with(written)
    assert (caught.value.line, caught.value.field) == (4, "ARTIFACTS")
    assert "artifact v: " in str(caught.value)
    assert text in str(caught.value)


def test_a_word_that_is_no_type_stays_a_note() -> None:
    step = plan_with("the ids [integer]").steps[0]
    assert (step.shapes, step.notes) == ({}, {"v": "the ids [integer]"})


@pytest.mark.parametrize("written", ['["int"]', '["integer"]'])
def test_json_plans_hold_shapes_in_the_same_forms(written: str) -> None:
    text = '{"steps": [{"id": "a", "goal": "g", "artifacts": {"v": %s}}]}' % written  # noqa: UP031 - it is full of braces
    assert Plan.parse(text).steps[0].shapes == {"v": ["integer"]}


@pytest.mark.parametrize("shape", ['{"n": "integer"}', '["integer"]'])
def test_what_steps_hand_on_is_held_against_it(shape: str) -> None:
    async def execute(work: Work, workspace: Workspace | None) -> Finished:
        return Finished(artifacts={"v": "not at all"})

    result = Orchestrator(executor=execute, max_attempts=1, max_replans=0).run(
        plan=plan_with(shape)
    )
    assert "wrong shape" in str(result.step("a").error)
