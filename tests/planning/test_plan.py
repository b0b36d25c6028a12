"""Plans: all that is wrong is named at once, and what may run when follows from dependencies."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from hybridagi_steps.errors import InvalidPlanError
from hybridagi_steps.planning.artifact_types import check_shape, shape_problem
from hybridagi_steps.planning.plan import Plan, PlanStep, PlanStepType, file_problem
from hybridagi_steps.planning.scheduler import Schedule
from tests.plan_waves import waves


def step(step_id: str, /, *dependencies: str, **fields: object) -> PlanStep:
    values = {"id": step_id, "goal": f"do {step_id}", "dependencies": list(dependencies), **fields}
    return PlanStep.model_validate(values)


def test_waves_follow_dependencies_and_keep_the_order_of_the_plan() -> None:
    plan = Plan(
        steps=[step("z"), step("y", "z"), step("b", "z"), step("a"), step("end", "y", "b", "a")]
    )
    ids = [[each.id for each in wave] for wave in waves(plan)]
    assert ids == [["z", "a"], ["y", "b"], ["end"]]
    assert plan.upstream("end") == {"z", "y", "b", "a"}
    assert plan.step("a").goal == "do a"
    with pytest.raises(InvalidPlanError, match="'nothing'; known are z, y"):
        plan.step("nothing")


def test_every_problem_is_named_at_once() -> None:
    plan = Plan(
        steps=[
            step("a", "c", "ghost"),
            step("b", "b"),
            step("c", "a"),
            step("d", files=["/etc/passwd", "../x", "ok.py"], needs=["dust", "gold"]),
            step("e", artifacts=["gold", "gold"], shapes={"silver": "text"}),
            step("e"),
        ]
    )
    with pytest.raises(InvalidPlanError) as refused:
        plan.check()
    assert refused.value.problems == [
        "2 steps have the id 'e'",
        "step 'a': depends on the unknown step 'ghost'; known are a, b, c, d, e",
        "step 'b': depends on itself",
        "step 'd': needs the artifact 'dust', which no step makes",
        "step 'd': needs the artifact 'gold' of step 'e' without depending on it",
        "step 'd': the file '/etc/passwd' is outside the workspace; "
        "name it relative to the workspace",
        "step 'd': the file '../x' leaves the workspace with '..'",
        "step 'e': names the artifact 'gold' twice",
        "step 'e': describes the artifact 'silver', which it does not make",
        "the dependencies go in a circle: a → c → a",
    ]


def test_circles_are_written_as_the_plan_goes_and_each_is_named() -> None:
    plan = Plan(
        steps=[
            step("a", "b"),
            step("b", "c"),
            step("c", "a"),
            step("x", "y"),
            step("y", "x"),
            step("end", "a", "x"),
        ]
    )
    assert sorted(plan.problems()) == [
        "the dependencies go in a circle: a → b → c → a",
        "the dependencies go in a circle: x → y → x",
    ]
    with pytest.raises(InvalidPlanError, match="circle"):
        Schedule(plan)


def test_an_artifact_may_come_from_any_step_before() -> None:
    plan = Plan(
        steps=[step("a", artifacts=["gold"]), step("b", "a"), step("c", "b", needs=["gold"])]
    )
    assert plan.problems() == []


def test_an_empty_plan_cannot_be_run() -> None:
    assert Plan().problems() == ["the plan has no steps"]
    with pytest.raises(InvalidPlanError):
        Schedule(Plan())


@pytest.mark.parametrize(
    "path",
    ["/x", "~/x", "..", "a/../b", "C:\\x", "c:/x", "\\\\host\\x", "a\\..\\b", "", "  ", "a\0b"],
)
def test_files_outside_any_workspace_are_named(path: str) -> None:
    assert file_problem(path) is not None


@pytest.mark.parametrize("path", ["a", "a/b.py", ".env", "a..b", "..a", "src/*.py", "Ü b.md"])
def test_files_inside_are_accepted(path: str) -> None:
    assert file_problem(path) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"id": "", "goal": "g"},
        {"id": "two words", "goal": "g"},
        {"id": "a,b", "goal": "g"},
        {"id": "x" * 101, "goal": "g"},
        {"id": "a", "goal": "  "},
        {"id": "a", "goal": "g", "type": "destroy"},
        {"id": "a", "goal": "g", "depends_on": ["b"]},
        {"id": "a", "goal": "g", "artifacts": ["x"], "shapes": {"x": "colour"}},
    ],
)
def test_a_step_that_is_none_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        PlanStep.model_validate(fields)


def test_a_step_has_a_title_and_a_type() -> None:
    assert step("a").title == "a"
    assert step("a", name="**The** `first`").title == "**The** `first`"
    assert step("a", name="**The first**").title == "The first"
    assert step("a").type is PlanStepType.GENERATE
    assert step("a", type="analyze").type == "analyze"


@st.composite
def graphs(draw: st.DrawFn) -> Plan:
    """A sound plan of any form: steps depend on earlier ones, and are then shuffled."""
    count = draw(st.integers(1, 30))
    steps = [step("s0")]
    for n in range(1, count):
        before = draw(st.sets(st.integers(0, n - 1), max_size=4))
        steps.append(step(f"s{n}", *(f"s{number}" for number in before)))
    return Plan(steps=draw(st.permutations(steps)))


@settings(deadline=None)
@given(graphs())
def test_every_step_stands_in_the_first_wave_after_what_it_needs(plan: Plan) -> None:
    place = {each.id: n for n, wave in enumerate(waves(plan)) for each in wave}
    assert sorted(place) == sorted(each.id for each in plan.steps)
    for each in plan.steps:
        assert place[each.id] == max((place[name] + 1 for name in each.dependencies), default=0)
        before = (plan.upstream(name) | {name} for name in each.dependencies)
        assert plan.upstream(each.id) == set().union(*before)


def test_large_plans_are_checked_quickly() -> None:
    chain = [step("s0"), *(step(f"s{n}", f"s{n - 1}", needs=["first"]) for n in range(1, 2000))]
    chain[0] = step("s0", artifacts=["first"])
    started = time.process_time()
    assert len(list(waves(Plan(steps=chain)))) == 2000
    assert time.process_time() - started < 20


# Shapes of artifacts


@pytest.mark.parametrize(
    ("shape", "good", "bad"),
    [
        ("text", "x", ""),
        ("text", "x", 3),
        ("integer", 3, 3.5),
        ("integer", 3, True),
        ("number", 3.5, "3.5"),
        ("number", 3, True),
        ("boolean", True, "true"),
        ("list", [], {}),
        ("object", {}, []),
        ("String", "x", 3),
        ("INT", 3, "3"),
        ("float", 3.5, "3.5"),
        ("bool", True, 1),
        ("json", {}, []),
        ("array", [], {}),
        ("list[int]", [1], "1"),
        ("string", "x", ""),
        ("dict[str, int]", {}, []),
        ("/v\\d+/", "v12", "v12 or so"),
        ("/a\\/b/", "a/b", "a\\/b"),
        (["text"], ["a"], ["a", 3]),
        ({"host": "text", "port": "integer"}, {"host": "h", "port": 1, "more": 2}, {"host": "h"}),
        ({"a": {"b": ["integer"]}}, {"a": {"b": [1]}}, {"a": {"b": ["1"]}}),
        ({"model_config": "text", "1 x": "any"}, {"model_config": "m", "1 x": None}, {"1 x": 1}),
    ],
)
def test_values_are_checked_against_shapes(shape: object, good: object, bad: object) -> None:
    assert shape_problem(shape, good) is None
    assert shape_problem(shape, bad)


@pytest.mark.parametrize(
    ("written", "shape"),
    [
        ("str", "string"),
        ("Int - how many", "integer"),
        ("num (of all)", "number"),
        ("list[str]", "array"),
        ("list of integers", "array"),
        ("list of all the names", None),
        ("Dict[str, int]", "object"),
        ("what was found", None),
    ],
)
def test_words_of_other_languages_are_shapes_in_a_plan(written: str, shape: object) -> None:
    plan = Plan.parse(f"PLAN: p\nSTEP: a\nGOAL: g\nARTIFACTS: n: {written}\nEND_PLAN")
    assert plan.steps[0].artifacts == ["n"]
    assert plan.steps[0].shapes.get("n") == shape
    assert Plan.parse(plan.to_text()).steps == plan.steps
    if isinstance(shape, str):
        assert check_shape({"a": [shape.upper()]}) == {"a": [shape]}


def test_a_problem_of_shape_names_the_place() -> None:
    problem = shape_problem({"a": [{"b": "integer"}]}, {"a": [{"b": 1}, {"b": "x"}]})
    assert problem is not None
    assert problem.startswith("a.1.b: ")


def test_no_shape_demands_nothing() -> None:
    assert shape_problem(None, object()) is None


@pytest.mark.parametrize("shape", ["colour", "//", "/(/", [], ["text", "text"], 3, {"a": "b"}])
def test_what_is_no_shape_is_refused(shape: object) -> None:
    with pytest.raises(ValueError, match="not a"):
        check_shape(shape)


def test_a_shape_of_any_depth_is_no_danger() -> None:
    deep: object = "text"
    for _ in range(200):
        deep = [deep]
    with pytest.raises(ValueError, match="levels deep"):
        check_shape(deep)


def test_no_pattern_takes_long() -> None:
    started = time.process_time()
    assert shape_problem("/(a+)+b/", "a" * 50_000)
    assert time.process_time() - started < 10


# Shown in a notebook


def test_a_plan_is_shown_with_its_graph_and_without_markup_of_its_own() -> None:
    plan = Plan(
        name="<script>alert(1)</script>",
        description="a & b",
        steps=[step("first", name="<b>bold</b>"), step("second", "first", files=["<x>.py"])],
    )
    html = plan._repr_html_()
    assert "<svg" in html
    assert "<script" not in html
    assert "<b>" not in html
    assert "&lt;x&gt;.py" in html
    assert "second" in html


def test_a_plan_that_cannot_be_run_is_shown_with_what_is_wrong() -> None:
    html = Plan(steps=[step("a", "b"), step("b", "a"), step("c", "ghost")])._repr_html_()
    assert "circle" in html
    assert "ghost" in html


def test_plans_of_any_size_are_shown() -> None:
    assert "no steps" in Plan()._repr_html_()
    html = Plan(steps=[step(f"s{n}") for n in range(500)])._repr_html_()
    assert "300 more steps" in html
    assert len(html) < 300_000


def test_a_step_that_waits_for_its_namesake_does_not_depend_on_itself() -> None:
    plan = Plan.parse("STEP: a\nGOAL: g\nSTEP: a\nGOAL: h\nDEPENDENCIES: a", check=False)
    assert plan.problems() == ["2 steps have the id 'a'"]
