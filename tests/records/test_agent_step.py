"""AgentStep: templates, ids, defaults, repairs and the JSON round trip."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridagi_steps.records.agent_step import AgentStep, AgentStepType, as_id, id_text

ACTION = """--- Step 3 ---
Action Purpose: find the refund rule
Action: {
  "result": "within 30 days",
  "pages": [
    1,
    2
  ]
}"""
DECISION = """--- Step 4 ---
Decision Purpose: is it refundable?
Decision: YES"""
CALL = """--- Step 0 ---
Call Program: main
Program Purpose: answer the customer"""
END = """--- Step 9 ---
End Program: main"""

json_leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
)
json_values = st.recursive(
    json_leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(
                st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=8
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
json_objects = st.none() | st.dictionaries(st.text("abcdefgh", max_size=6), json_values, max_size=4)
anything = st.recursive(
    json_leaves
    | st.floats()
    | st.binary(max_size=8)
    | st.text(max_size=8)
    | st.integers()
    | st.datetimes()
    | st.uuids()
    | st.complex_numbers(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.integers() | st.text(max_size=4) | st.none(), inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (
            AgentStep(
                hop=3,
                step_type=AgentStepType.Action,
                inputs={"purpose": "find the refund rule"},
                outputs={"result": "within 30 days", "pages": [1, 2]},
            ),
            ACTION,
        ),
        (
            AgentStep(
                hop=4,
                step_type=AgentStepType.Decision,
                inputs={"purpose": "is it refundable?"},
                outputs={"choice": "YES"},
            ),
            DECISION,
        ),
        (
            AgentStep(
                step_type=AgentStepType.ProgramCall,
                inputs={"program": "main", "purpose": "answer the customer"},
            ),
            CALL,
        ),
        (
            AgentStep(hop=9, step_type=AgentStepType.ProgramEnd, inputs={"program": "main"}),
            END,
        ),
    ],
)
def test_each_type_has_its_template(step: AgentStep, text: str) -> None:
    assert str(step) == text
    assert step.to_dict() == {"step": text}


@pytest.mark.parametrize("kind", list(AgentStepType))
def test_text_of_a_step_without_inputs_and_outputs(kind: AgentStepType) -> None:
    step = AgentStep(step_type=kind)
    before = step.model_dump()
    text = str(step)
    assert text.startswith("--- Step 0 ---\n")
    assert step.model_dump() == before
    assert step.inputs is None


def test_the_text_of_an_action_without_outputs_is_that_of_the_seed() -> None:
    assert str(AgentStep(step_type=AgentStepType.Action)) == (
        "--- Step 0 ---\nAction Purpose: \nAction: null"
    )


@given(inputs=st.none() | st.dictionaries(st.text(max_size=5), anything, max_size=3))
def test_text_never_raises_and_never_changes_the_step(inputs: dict[str, Any] | None) -> None:
    for kind in AgentStepType:
        # Made past validation: str() must bear what validation would have repaired.
        step = AgentStep.model_construct(
            id=uuid4(), hop=1, step_type=kind, inputs=inputs, outputs=inputs
        )
        before = repr((step.inputs, step.outputs))
        assert str(step).startswith("--- Step 1 ---\n")
        assert repr((step.inputs, step.outputs)) == before


def test_text_of_an_output_that_contains_itself() -> None:
    loop: dict[str, Any] = {}
    loop["again"] = loop
    step = AgentStep.model_construct(hop=0, step_type="Action", inputs=None, outputs=loop)
    assert str(step) == "--- Step 0 ---\nAction Purpose: \nAction: {'again': {...}}"


def test_braces_in_values_are_not_format_fields() -> None:
    step = AgentStep(
        step_type=AgentStepType.Decision,
        inputs={"purpose": "{hop} {0}"},
        outputs={"choice": "{choice}"},
    )
    assert str(step) == "--- Step 0 ---\nDecision Purpose: {hop} {0}\nDecision: {choice}"


def test_an_unknown_kind_from_elsewhere_still_has_a_text() -> None:
    step = AgentStep.model_construct(hop=2, step_type="Reflection", outputs={"a": 1}, inputs=None)
    assert str(step).startswith("--- Step 2 ---\nReflection: ")


def test_defaults() -> None:
    step = AgentStep(step_type=AgentStepType.Action)
    assert isinstance(step.id, UUID)
    assert step.hop == 0
    assert step.status == "ok"
    assert step.created_at.tzinfo is UTC
    for name in ("parent_id", "inputs", "outputs", "vector", "metadata", "session_id", "user_id"):
        assert getattr(step, name) is None
    for name in ("run_id", "program_id", "scope", "score", "metrics"):
        assert getattr(step, name) is None


def test_the_text_of_a_uuid_becomes_the_uuid() -> None:
    id_, parent = uuid4(), uuid4()
    step = AgentStep(id=str(id_), parent_id=str(parent), step_type=AgentStepType.Action)
    assert (step.id, step.parent_id) == (id_, parent)


@pytest.mark.parametrize(
    "text", ["call-1", "0" * 32, "g" * 36, "", "d63c14215ddc4687842d9998e832c934"]
)
def test_other_ids_stay_text(text: str) -> None:
    assert AgentStep(id=text, step_type=AgentStepType.Action).id == text


def test_one_id_has_one_text() -> None:
    id_ = uuid4()
    assert id_text(id_) == id_text(str(id_)) == id_text(str(id_).upper()) == str(id_)
    assert as_id(str(id_)) == id_
    assert id_text("step 1") == "step 1"


def test_program_id_is_text_whatever_was_given() -> None:
    id_ = uuid4()
    by_uuid = AgentStep.model_validate({"step_type": "Action", "program_id": id_})
    by_text = AgentStep(step_type=AgentStepType.Action, program_id=str(id_))
    assert by_uuid.program_id == by_text.program_id == str(id_)


def test_times_are_utc() -> None:
    naive = AgentStep(step_type=AgentStepType.Action, created_at=datetime(2025, 1, 1, 12))  # noqa: DTZ001
    assert naive.created_at == datetime(2025, 1, 1, 12, tzinfo=UTC)
    east = timezone(timedelta(hours=2))
    shifted = AgentStep(
        step_type=AgentStepType.Action, created_at=datetime(2025, 1, 1, 14, tzinfo=east)
    )
    assert shifted.created_at == naive.created_at
    assert shifted.created_at.tzinfo == UTC


@given(
    inputs=json_objects,
    outputs=json_objects,
    metadata=json_objects,
    id_=st.uuids() | st.text("abc-", min_size=1, max_size=12),
    created_at=st.datetimes(timezones=st.just(UTC)),
    vector=st.none() | st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=4),
)
def test_a_step_survives_json(
    inputs: dict[str, Any] | None,
    outputs: dict[str, Any] | None,
    metadata: dict[str, Any] | None,
    id_: UUID | str,
    created_at: datetime,
    vector: list[float] | None,
) -> None:
    step = AgentStep(
        id=id_,
        parent_id=id_,
        step_type=AgentStepType.Action,
        inputs=inputs,
        outputs=outputs,
        metadata=metadata,
        created_at=created_at,
        vector=vector,
    )
    assert step.inputs == inputs
    assert step.metadata == metadata
    assert AgentStep.model_validate_json(step.model_dump_json()) == step
    assert AgentStep.model_validate(json.loads(json.dumps(step.model_dump(mode="json")))) == step


@given(st.dictionaries(st.text(max_size=4), anything, max_size=3))
def test_whatever_was_repaired_survives_json(outputs: dict[str, Any]) -> None:
    step = AgentStep(step_type=AgentStepType.Action, outputs=outputs)
    again = AgentStep.model_validate_json(step.model_dump_json())
    assert again == step
    json.dumps(step.outputs, allow_nan=False)


def test_repairs_are_named_beside_metadata_of_ones_own() -> None:
    step = AgentStep(
        step_type=AgentStepType.Action,
        outputs={"ratio": float("nan")},
        metadata={"topic": "refunds", "repairs": ["earlier"]},
    )
    assert step.outputs == {"ratio": None}
    assert step.metadata is not None
    assert step.metadata["topic"] == "refunds"
    assert step.metadata["repairs"][0] == "earlier"
    assert "outputs.ratio" in step.metadata["repairs"][1]


def test_what_was_given_is_not_changed_by_a_repair() -> None:
    outputs = {"ratio": float("inf")}
    AgentStep(step_type=AgentStepType.Action, outputs=outputs)
    assert outputs == {"ratio": float("inf")}


def test_a_clean_step_has_no_note() -> None:
    step = AgentStep(step_type=AgentStepType.Action, outputs={"a": [1, {"b": "ü"}]})
    assert step.metadata is None


def test_unknown_fields_are_kept_as_data() -> None:
    step = AgentStep.model_validate({"step_type": "Action", "reviewed_by": {"name": "ann"}})
    again = AgentStep.model_validate_json(step.model_dump_json())
    assert again.model_dump()["reviewed_by"] == {"name": "ann"}


def test_arguments_and_result_read_the_older_keys_too() -> None:
    old = AgentStep(
        step_type=AgentStepType.Action,
        inputs={"purpose": "look", "tool": "search", "args": {"query": "x"}},
        outputs={"observation": "found"},
    )
    assert (old.purpose, old.tool) == ("look", "search")
    assert old.arguments == {"query": "x"}
    assert old.result == "found"
    assert AgentStep(step_type=AgentStepType.Action, inputs={"arguments": "x"}).arguments == {
        "value": "x"
    }


def test_a_falsy_result_is_a_result() -> None:
    step = AgentStep(step_type=AgentStepType.Action, outputs={"result": 0, "observation": "no"})
    assert step.result == 0


def test_a_vector_is_not_shown() -> None:
    assert "0.25" not in repr(AgentStep(step_type=AgentStepType.Action, vector=[0.25]))


@pytest.mark.parametrize("form", ["{}", "{{{}}}", "urn:uuid:{}"])
def test_other_spellings_of_a_uuid_stay_text_through_json(form: str) -> None:
    text = form.format(uuid4().hex)
    made = AgentStep(id=text, parent_id=text, step_type=AgentStepType.Action)
    back = AgentStep.model_validate_json(made.model_dump_json())
    assert (made.id, back.id, back.parent_id) == (text, text, text)
    own = AgentStep(step_type=AgentStepType.Action)
    assert AgentStep.model_validate_json(own.model_dump_json()).id == own.id


@pytest.mark.parametrize(
    ("fields", "said"),
    [({}, ""), ({"step_type": "action"}, ", not 'action'"), ({"step_type": [1]}, "")],
)
def test_a_step_of_no_type_is_told_the_types(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match="one of Action, Decision, ProgramCall") as refused:
        AgentStep(**fields)
    assert f"ProgramEnd{said}" in str(refused.value)
    assert "https://" not in str(refused.value)
