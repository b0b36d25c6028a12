"""Shapes in a plan's text: as the documentation writes them, quoted or not, and never dropped."""

from __future__ import annotations

from typing import Any

import pytest

from hybridagi_steps.errors import PlanParseError
from hybridagi_steps.planning.orchestrator import Orchestrator
from hybridagi_steps.planning.plan import Plan, PlanStep
from hybridagi_steps.planning.worker import Finished, Work
from hybridagi_steps.workspace.workspace import Workspace


def plan_with(shape: str) -> Plan:
    return Plan.parse(f"PLAN: p\nSTEP: a\nGOAL: g\nARTIFACTS:\n- v: {shape}")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("[integer]", ["integer"]),
        ("[int]", ["integer"]),
        ("[Text]", ["text"]),
        ("[[integer]]", [["integer"]]),
        ("[list of text]", [["text"]]),
        ('["integer"]', ["integer"]),
        ('{"n": integer}', {"n": "integer"}),
        ("{n: integer}", {"n": "integer"}),
        ("{'n': 'integer'}", {"n": "integer"}),
        ('{"n": "integer",}', {"n": "integer"}),
        ('{"Host": text, "port": integer}', {"Host": "text", "port": "integer"}),
        ('{"a": [integer]}', {"a": ["integer"]}),
        ('{"a": list[int]}', {"a": ["integer"]}),
        ('{"a": list[list[int]]}', {"a": [["integer"]]}),
        ('{"a": dict[str, int]}', {"a": "object"}),
        ('{"a": {"b": integer}}', {"a": {"b": "integer"}}),
        ('[{"a": integer}]', [{"a": "integer"}]),
        ("[/a+/]", ["/a+/"]),
        (r'{"a": /\d{2,3}/, "b": text}', {"a": r"/\d{2,3}/", "b": "text"}),
        (r'["/\d+/"]', [r"/\d+/"]),
        ("{}", {}),
    ],
)
def test_a_shape_is_read_with_and_without_quotes(written: str, meant: Any) -> None:
    for text in (written, f"{written} - what it is"):
        step = plan_with(text).steps[0]
        assert (step.artifacts, step.shapes) == (["v"], {"v": meant})
        assert step.notes.get("v", "what it is") == "what it is"
    again = Plan.parse(plan_with(written).to_text())
    assert again.steps[0].shapes == {"v": meant}


@pytest.mark.parametrize("lists", ["v: [integer], w: text", "- v: [integer]\n- w: text"])
def test_shapes_stand_in_lists_of_any_form(lists: str) -> None:
    plan = Plan.parse(f"PLAN: p\nSTEP: a\nGOAL: g\nARTIFACTS: {lists}")
    assert plan.steps[0].shapes == {"v": ["integer"], "w": "text"}


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("[integr]", "'integr'"),
        ('{"a": integr}', "'integr'"),
        ("[a short report]", "'a short report'"),
        ("{a, b}", "not a shape"),
        ("[integer", "not a shape"),
        ("[]", "not a shape"),
        ("[integer, text]", "not a shape"),
        ("[" * 30 + "integer" + "]" * 30, "levels deep"),
    ],
)
def test_what_looks_like_a_shape_and_is_none_is_named(written: str, told: str) -> None:
    with pytest.raises(PlanParseError) as caught:
        plan_with(written)
    assert (caught.value.line, caught.value.field) == (4, "ARTIFACTS")
    assert "artifact v: " in str(caught.value)
    assert told in str(caught.value)


def test_a_word_that_is_no_kind_stays_a_note() -> None:
    step = plan_with("the ids [integer]").steps[0]
    assert (step.shapes, step.notes) == ({}, {"v": "the ids [integer]"})


@pytest.mark.parametrize("written", ['"[integer]"', '["int"]', '["integer"]', '"list[int]"'])
def test_json_plans_hold_shapes_in_the_same_forms(written: str) -> None:
    text = '{"steps": [{"id": "a", "goal": "g", "artifacts": {"v": %s}}]}' % written  # noqa: UP031 - it is full of braces
    assert Plan.parse(text).steps[0].shapes == {"v": ["integer"]}


def test_a_step_made_in_python_may_write_them_so_too() -> None:
    step = PlanStep(id="a", goal="g", artifacts=["v"], shapes={"v": '{"n": [int]}'})
    assert step.shapes == {"v": {"n": ["integer"]}}


@pytest.mark.parametrize("shape", ["[integer]", '{"n": integer}', '["integer"]'])
def test_what_steps_hand_on_is_held_against_it(shape: str) -> None:
    async def execute(work: Work, workspace: Workspace | None) -> Finished:
        return Finished(artifacts={"v": "not at all"})

    result = Orchestrator(executor=execute, max_attempts=1, max_replans=0).run(
        plan=plan_with(shape)
    )
    assert "wrong shape" in str(result.step("a").error)
