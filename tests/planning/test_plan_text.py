"""Plans as text and JSON: what models write is understood, what is written reads back the same."""

from __future__ import annotations

import contextlib
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridagi_steps.errors import InvalidPlanError, PlanParseError
from hybridagi_steps.planning.artifact_types import clean_name
from hybridagi_steps.planning.plan import Plan, PlanStep, PlanStepType, clean_text
from hybridagi_steps.planning.plan_parser import MOST_CHARACTERS

SEED = """
PLAN: User Management System
DESCRIPTION: Complete user authentication and management system

STEP: analyze_requirements
TYPE: analyze
GOAL: Understand project structure and requirements

STEP: create_user_model
TYPE: generate
DEPENDENCIES: analyze_requirements
GOAL: Create user data model
FILES: models/user.py, models/base.py
ARTIFACTS: user_model, schema
END_PLAN
"""


def read(fields: str, *, check: bool = False) -> PlanStep:
    """Read one step, written as the fields behind its STEP line."""
    return Plan.parse(f"PLAN: p\nSTEP: one\n{fields}\nEND_PLAN", check=check).steps[0]


def test_the_plan_of_the_documentation_reads_as_it_is_meant() -> None:
    plan = Plan.parse(SEED)
    assert plan.name == "User Management System"
    assert plan.description == "Complete user authentication and management system"
    first, second = plan.steps
    assert (first.id, first.type, first.dependencies) == ("analyze_requirements", "analyze", [])
    assert second.goal == "Create user data model"
    assert second.files == ["models/user.py", "models/base.py"]
    assert second.dependencies == ["analyze_requirements"]
    assert second.artifacts == ["user_model", "schema"]


def decorations() -> dict[str, str]:
    """The documentation's plan, decorated in the ways that models have."""
    fields = ("PLAN", "DESCRIPTION", "STEP", "TYPE", "DEPENDENCIES", "GOAL", "FILES", "ARTIFACTS")

    def each(form: str) -> str:
        lines = list[str](SEED.split("\n"))
        for n, line in enumerate(lines):
            key, colon, value = line.partition(":")
            if colon and key in fields:
                lines[n] = form.format(key=key, value=value.strip())
        return "\n".join(lines)

    return {
        "bold keys": each("**{key}:** {value}"),
        "bold keys, colon outside": each("**{key}**: {value}"),
        "bold lines": each("**{key}: {value}**"),
        "headings": each("### {key}: {value}"),
        "bullets": each("- {key}: {value}"),
        "bold bullets": each("* **{key}**: {value}"),
        "numbers": each("1. {key}: {value}"),
        "quoted": each("> {key}: {value}"),
        "indented": each("    {key}: {value}"),
        "code": each("`{key}`: {value}"),
        "small letters": each("{key}: {value}").replace("PLAN:", "plan:").replace("STEP:", "step:"),
        "wide colons": each("{key}：{value}"),
        "values below": each("{key}:\n  {value}"),
        "carriage returns": SEED.replace("\n", "\r\n"),
        "no end": SEED.replace("END_PLAN", ""),
        "prose": f"Sure! Plan of action:\n\n{SEED}\nTell me if STEP: two needs changes.",
        "fenced": f"Here you go:\n```\n{SEED.strip()}\n```\nHope it helps!",
        "fenced, no end": f"Hi\n```plan\n{SEED.strip().removesuffix('END_PLAN')}```\nBye!",
        "ellipses": SEED.replace("\n\nSTEP", "\n...\n\nSTEP").replace("END_PLAN", "…\nEND_PLAN"),
        "rules": SEED.replace("\nSTEP", "\n---\n\nSTEP"),
        "ends in words": SEED.replace("END_PLAN", "**End of plan**"),
    }


@pytest.mark.parametrize("name", decorations())
def test_decoration_changes_nothing(name: str) -> None:
    assert Plan.parse(decorations()[name]) == Plan.parse(SEED)


def test_all_keys_may_be_in_small_letters() -> None:
    lines = [line.partition(":") for line in SEED.split("\n")]
    assert Plan.parse("\n".join(k.lower() + c + v for k, c, v in lines)) == Plan.parse(SEED)


@pytest.mark.parametrize(
    "nothing",
    [
        "none",
        "None",
        "N/A",
        "n/a",
        "-",
        "—",
        "[]",
        "",
        "null",
        "None.",
        "none (first step)",
        "[none]",
    ],
)
def test_nothing_is_an_empty_list(nothing: str) -> None:
    step = read(f"GOAL: g\nDEPENDENCIES: {nothing}\nFILES: {nothing}\nARTIFACTS: {nothing}")
    assert (step.dependencies, step.files, step.artifacts) == ([], [], [])


@pytest.mark.parametrize(
    "written",
    [
        "[a.py, b.py]",
        "a.py, b.py",
        "`a.py`, `b.py`",
        "['a.py', 'b.py']",
        '["a.py", "b.py"]',
        "a.py; b.py",
        "\n- a.py\n- b.py",
        "\n  * `a.py` (the main module, untouched)\n  * ./b.py - helper",
        "\n1. a.py\n2. b.py",
        "[\n  a.py,\n  b.py,\n]",
        "a.py,\n  b.py",
        "(a.py, b.py)",
    ],
)
def test_a_list_may_be_written_in_many_ways(written: str) -> None:
    assert read(f"GOAL: g\nFILES: {written}").files == ["a.py", "b.py"]


def test_dependencies_may_name_steps_by_number_title_or_with_and() -> None:
    plan = Plan.parse(
        "PLAN: p\n"
        "### STEP 1: Read the code\nGOAL: a\n"
        "### STEP 2: other\nNAME: The other one\nGOAL: b\n"
        "### STEP 3: third\nGOAL: c\nDEPENDENCIES: Step 1, The other one\n"
        "### STEP 4: fourth\nGOAL: d\nDEPENDENCIES: read_the_code and other\n"
    )
    assert [step.id for step in plan.steps] == ["read_the_code", "other", "third", "fourth"]
    assert plan.steps[0].name == "Read the code"
    assert plan.steps[2].dependencies == ["read_the_code", "other"]
    assert plan.steps[3].dependencies == ["read_the_code", "other"]


@pytest.mark.parametrize(
    "name", ["Dependencies", "dependencies", "Depends on", "DEPS", "Deps", "DEPENDENCES"]
)
def test_a_field_is_read_whatever_the_case_of_its_name(name: str) -> None:
    before = "STEP: a\nTYPE: analyze\nGOAL: g\nSTEP: b\nTYPE: generate\n"
    for text in (f"GOAL: h\n{name}: a", f"{name}: a\nGOAL: h"):
        step = Plan.parse(before + text).steps[1]
        assert (step.goal, step.dependencies) == ("h", ["a"])


def test_every_field_is_read_in_mixed_case_beside_capitals() -> None:
    plan = Plan.parse(
        "Plan: p\nSTEP: a\nGOAL: g\nFiles: x.py\nArtifacts: code\nStep: b\nGoal: h\nAfter: a"
    )
    assert (plan.name, plan.steps[0].goal, plan.steps[0].files) == ("p", "g", ["x.py"])
    assert (plan.steps[0].artifacts, plan.steps[1].id) == (["code"], "b")
    assert plan.steps[1].goal == "h\nAfter: a"


@pytest.mark.parametrize("name", ["deps", "dependsOn", "Dependencies", "after", "depends on"])
def test_json_reads_the_names_that_models_give_to_dependencies(name: str) -> None:
    steps = [{"id": "a", "goal": "g"}, {"id": "b", "goal": "h", name: ["a"]}]
    assert Plan.parse(json.dumps({"steps": steps})).steps[1].dependencies == ["a"]


def test_the_description_of_a_step_never_becomes_that_of_the_plan() -> None:
    plan = Plan.parse(
        "PLAN: p\nDESCRIPTION: of the plan\nSTEP: a\nGOAL: g\nDESCRIPTION: of the step\nEND_PLAN"
    )
    assert (plan.description, plan.steps[0].description) == ("of the plan", "of the step")
    assert Plan.parse("PLAN: p\nSTEP: a\nGOAL: g\nDESCRIPTION: of the step").description == ""


def test_values_may_take_several_lines_with_code_in_them() -> None:
    step = read(
        "GOAL: first line\n  second line\nDESCRIPTION:\n  Write this:\n\n  ```yaml\n"
        "  name: app\n  TYPE: service\n  ```\n  - Type: of the field\nTYPE: modify"
    )
    assert step.goal == "first line\n  second line"
    assert step.type is PlanStepType.MODIFY
    assert step.description == (
        "Write this:\n\n```yaml\nname: app\nTYPE: service\n```\n- Type: of the field"
    )


def test_artifacts_carry_shapes_and_notes() -> None:
    step = read(
        "GOAL: g\nARTIFACTS:\n"
        "- findings: the places to change, with reasons\n"
        '- config: {"host": "text", "port": "integer"}\n'
        "- version: /\\d+\\.\\d+/ - of the package\n"
        "- rows (number)\n"
        "- `report.md`"
    )
    assert step.artifacts == ["findings", "config", "version", "rows", "report.md"]
    assert step.shapes == {
        "config": {"host": "string", "port": "integer"},
        "version": r"/\d+\.\d+/",
        "rows": "number",
    }
    assert step.notes == {
        "findings": "the places to change, with reasons",
        "version": "of the package",
    }


def test_what_stands_behind_a_last_list_is_no_part_of_it() -> None:
    plan = Plan.parse("PLAN: p\nSTEP: a\nGOAL: g\nARTIFACTS: code\n\nLet me know, dear user!")
    assert plan.steps[0].artifacts == ["code"]


@pytest.mark.parametrize(
    ("text", "line", "field"),
    [
        ("", None, "STEP"),
        ("I cannot do that.", 1, "STEP"),
        ("PLAN: p\nDESCRIPTION: d", 1, "STEP"),
        ("PLAN: p\nSTEP: a\nGOAL: g\nTYPE: destroy", 4, "TYPE"),
        ("PLAN: p\nSTEP: a\nTYPE: modify\nFILES: x", 2, "GOAL"),
        ("PLAN: p\nSTEP: a\nGOAL: g\nGOAL: h", 4, "GOAL"),
        ("PLAN: p\nSTEP:\nGOAL: g", 2, "STEP"),
        ("PLAN: p\nSTEP: a\nGOAL: g\nDEPENDENCIES: b, c d!", 4, "DEPENDENCIES"),
        ('PLAN: p\nSTEP: a\nGOAL: g\nARTIFACTS: x: {"y": "colour"}', 4, "ARTIFACTS"),
        ("PLAN: p\nSTEP: a\nGOAL: g\nARTIFACTS:\n- x: /(/", 4, "ARTIFACTS"),
        ("PLAN: p\nSTEP: a\nGOAL: g\nPLAN: q\nSTEP: b\nGOAL: h", 4, "PLAN"),
        ('{"steps": [{"id": "a", "goal": "g"},\n]}', 2, "steps"),
        ('{"plan": "p"}', 1, "steps"),
        ('{"steps": 3}', None, "steps"),
        ('{"steps": [7]}', None, "steps[0]"),
        ('{"steps": [{"id": "a", "goal": "g", "type": "destroy"}]}', None, "steps[0].type"),
        ('{"steps": [{"id": "a", "goal": "g", "files": 3}]}', None, "steps[0].files"),
        ('{"steps": [{"id": "a", "goal": "g", "files": [{}]}]}', None, "steps[0].files.0"),
        ('{"steps": [{"goal": "g"}]}', None, "steps[0].id"),
        ("STEP: a\nTYPE: modify\nPriority: high\nGOAL: g", 3, "Priority"),
        ("STEP: a\nDEPENDENZIES: b\nGOAL: g", 2, "DEPENDENZIES"),
        ("STEP: a\nGOAL: g\n**TYPE:** modify\n**Owner:** me", 4, "Owner"),
        ('{"steps": [{"id": "a", "goal": "g", "priority": 1}]}', None, "steps[0].priority"),
        ("[" * 100_000, 1, "steps"),
        ('{"steps": [%s]}' % ("9" * 5_000), 1, "steps"),
        (
            '{"steps": [{"id": "a", "goal": "g", "artifacts": ["x"], "shapes": 3}]}',
            None,
            "steps[0].shapes",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(
    text: str, line: int | None, field: str
) -> None:
    with pytest.raises(PlanParseError) as refused:
        Plan.parse(text)
    assert (refused.value.line, refused.value.field) == (line, field)


def test_a_plan_that_cannot_be_run_is_refused_unless_it_is_only_to_be_read() -> None:
    text = "PLAN: p\nSTEP: a\nGOAL: g\nDEPENDENCIES: a"
    with pytest.raises(InvalidPlanError, match="depends on itself"):
        Plan.parse(text)
    assert Plan.parse(text, check=False).steps[0].dependencies == ["a"]


def test_json_is_read_bare_fenced_and_with_other_names() -> None:
    step = {
        "step_id": 1,
        "type": "Analyze",
        "title": "T",
        "goal": "g",
        "depends_on": [],
        "files": "a.py, b.py",
        "expected_artifacts": [
            "code",
            {"name": "conf", "shape": {"host": "text"}, "description": "how to reach it"},
        ],
        "priority": None,
    }
    bare = json.dumps({"plan": "P", "description": "D", "steps": [step]}, indent=1)
    plan = Plan.parse(bare)
    assert (plan.name, plan.description, plan.steps[0].id) == ("P", "D", "1")
    assert plan.steps[0].type is PlanStepType.ANALYZE
    assert plan.steps[0].files == ["a.py", "b.py"]
    assert plan.steps[0].artifacts == ["code", "conf"]
    assert plan.steps[0].shapes == {"conf": {"host": "string"}}
    for text in (
        f"Sure:\n```json\n{bare}\n```\nDone.",
        f"The plan [draft]:\n{bare}\nDone.",
        json.dumps([step]),
        json.dumps({"plan": {"steps": {"1": {**step, "step_id": None}}}}),
    ):
        assert Plan.parse(text).steps == plan.steps


def test_json_names_steps_and_types_as_text_does() -> None:
    steps = [
        {"id": "Read the code", "type": "research", "goal": "g"},
        {"name": "Then write", "objective": "h", "dependencies": ["read the code"]},
        {"id": 3, "goal": "", "description": "d", "depends_on": "Then write", "artifacts": "a, b"},
    ]
    plan = Plan.parse(json.dumps({"name": None, "title": "P", "steps": steps}))
    assert [step.id for step in plan.steps] == ["read_the_code", "then_write", "3"]
    assert [step.dependencies for step in plan.steps] == [[], ["read_the_code"], ["then_write"]]
    assert (plan.name, plan.steps[0].name, plan.steps[0].type) == ("P", "Read the code", "analyze")
    assert (plan.steps[2].goal, plan.steps[2].artifacts) == ("d", ["a", "b"])


# What is written reads back the same, whatever it holds.

TROUBLE = [
    "STEP: x",
    "- **goal:** y",
    "\\NAME: z",
    "\\\\\\END_PLAN",
    "END_PLAN",
    "```python",
    "```",
    "\\```",
    "---",
    "...",
    "***",
    "  PLAN: no",
    "",
    "| a | b |",
    "none",
    "[a, b]",
    "{",
    "1. FILES: q",
    "description: ``` x",
    "end of plan",
]
lines = st.one_of(st.sampled_from(TROUBLE), st.text(max_size=20))
texts = st.lists(lines, max_size=8).map("\n".join).map(clean_text)
names = st.one_of(
    st.sampled_from(
        [
            "none",
            "a, b",
            '"',
            "./x",
            "a (b)",
            "x: y",
            "-",
            "a - b",
            "'a' or 'b'",
            "[x]",
            "OUTPUTS",
            "ENDPLAN",
        ]
    ),
    st.text(max_size=12),
).map(clean_name)
paths = st.text(max_size=12).filter(lambda path: path.strip() != "")
ids = st.from_regex(r"\w[\w.\-]{0,8}", fullmatch=True)
kinds = st.sampled_from(["string", "integer", "array", "any", r"/\d+, (a|b)\/c/", "/ - /"])
shapes = st.recursive(
    kinds,
    lambda inner: st.one_of(
        inner.map(lambda shape: [shape]), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=4,
)


@st.composite
def steps(draw: st.DrawFn) -> PlanStep:
    artifacts = draw(st.lists(names.filter(bool), max_size=4, unique=True))
    return PlanStep(
        id=draw(ids),
        type=draw(st.sampled_from(PlanStepType)),
        name=draw(names),
        goal=draw(texts.filter(bool)),
        description=draw(texts),
        files=draw(st.lists(paths, max_size=3)),
        needs=draw(st.lists(names.filter(bool), max_size=2)),
        artifacts=artifacts,
        shapes={name: draw(shapes) for name in artifacts[:2]},
        notes={name: draw(names.filter(bool)) for name in artifacts[1:3]},
    )


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    made = draw(st.lists(steps(), min_size=1, max_size=4))
    known = st.sampled_from([*(step.id for step in made), "no_such_step"])
    for step in made:
        step.dependencies = draw(st.lists(known, max_size=3, unique=True))
    return Plan(name=draw(names), description=draw(texts), steps=made)


@settings(deadline=None)
@given(plans())
def test_a_plan_reads_back_from_its_text(plan: Plan) -> None:
    assert Plan.parse(plan.to_text(), check=False) == plan


@settings(deadline=None)
@given(plans())
def test_a_plan_reads_back_from_json_and_from_text_inside_prose(plan: Plan) -> None:
    assert Plan.parse(plan.model_dump_json(), check=False) == plan
    fenced = f"My plan:\n\n```json\n{plan.model_dump_json(indent=2)}\n```\n"
    assert Plan.parse(fenced, check=False) == plan
    assert Plan.parse(f"Well.\n{plan.to_text()}\nSTEP: more?", check=False) == plan


@pytest.mark.parametrize(
    "text", ["STEP: a\nGOAL: \ud800\n", '{"steps": [{"id": "a", "goal": "\\ud800"}]}']
)
def test_half_a_character_is_refused(text: str) -> None:
    with pytest.raises(PlanParseError, match="lone surrogate"):
        Plan.parse(text)


@settings(deadline=None)
@given(st.one_of(st.text(), st.lists(lines, max_size=30).map("\n".join)))
def test_any_text_is_read_or_refused_with_our_errors(text: str) -> None:
    try:
        plan = Plan.parse(text, check=False)
    except PlanParseError:
        return
    assert Plan.parse(plan.to_text(), check=False) == plan


@pytest.mark.parametrize(
    "text",
    [
        "*" * 200_000,
        "> " * 100_000 + "STEP: a",
        "STEP: a\nGOAL: g\nFILES: " + "[" * 200_000,
        "STEP: a\nGOAL: g\nFILES: " + "[]" * 100_000,
        "STEP: a\nGOAL: g\nFILES: " + '"\\' * 100_000,
        "STEP: a\nGOAL: g\nFILES: " + "a (" * 60_000,
        "STEP: a\nGOAL: g\nFILES: " + "a - " * 60_000,
        "STEP: a\nGOAL: g\nARTIFACTS: " + "a: /" * 60_000,
        "STEP: a\nGOAL: g\nARTIFACTS: " + "- x: y\n" * 30_000,
        "STEP: a\nGOAL: g\nFILES:" + "\n\na" * 60_000,
        "STEP: a\nGOAL: g\nDESCRIPTION: " + "```a\n" * 60_000,
        "STEP: a\nGOAL: g\nDESCRIPTION: " + "```a\n```\n" * 60_000,
        "STEP: a\nNAME: " + "`" * 200_000 + "\nGOAL: g",
        "STEP: a\nNAME: " + '"*' * 50_000 + "x" + '*"' * 50_000 + "\nGOAL: g",
        "STEP: a\nGOAL: g\nFILES: x" + " " * 200_000 + "y",
        "{" * 200_000,
        "```json\n[\n" * 20_000,
        "STEP: a\nGOAL: g\n" * 5_000,
    ],
    ids=lambda text: text[:30].strip() + "…" + text[-8:].strip(),
)
def test_no_text_takes_long(text: str) -> None:
    started = time.process_time()
    with contextlib.suppress(PlanParseError):
        Plan.parse(text, check=False)
    assert time.process_time() - started < 10


def test_a_text_of_megabytes_is_refused() -> None:
    with pytest.raises(PlanParseError, match="characters"):
        Plan.parse("x" * (MOST_CHARACTERS + 1))


THOUGHT = "I could begin with\nSTEP: wrong\nGOAL: no\n"
ANSWER = "PLAN: p\nSTEP: a\nTYPE: analyze\nGOAL: g\n"


@pytest.mark.parametrize(
    "text",
    [
        f"<think>{THOUGHT}</think>\n{ANSWER}",
        f"<THINKING>\n{THOUGHT}</Thinking>{ANSWER}",
        f"{THOUGHT}</think>\n\n{ANSWER}",
        f"<think>one</think><think>{THOUGHT}</think>{ANSWER}",
        f'<think>{THOUGHT}</think>{{"steps": [{{"id": "a", "goal": "g"}}]}}',
        f"| step | goal |\n|---|---|\n| a | g |\n\n{ANSWER}",
        f"| **STEP**: x | **GOAL**: y |\n|---|---|\n| 1 | 2 |\n\n{ANSWER}",
    ],
)
def test_what_was_thought_or_drawn_before_a_plan_is_no_part_of_it(text: str) -> None:
    plan = Plan.parse(text)
    assert [(step.id, step.goal) for step in plan.steps] == [("a", "g")]


def test_lines_are_counted_with_what_was_thought() -> None:
    with pytest.raises(PlanParseError, match="line 7"):
        Plan.parse(f"<think>{THOUGHT}</think>\nPLAN: p\nSTEP: a\nTYPE: dance\nGOAL: g")
    assert Plan.parse(f"{ANSWER}</think>").steps[0].id == "a"
