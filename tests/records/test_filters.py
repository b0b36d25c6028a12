"""StepFilter: a closed set of conditions. StepHit: what a search answers."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest
from pydantic import ValidationError

from hybridagi_steps.errors import InvalidFilterError
from hybridagi_steps.records.agent_step import AgentStep, AgentStepType
from hybridagi_steps.records.filter_fields import FILTER_FIELDS
from hybridagi_steps.records.filters import StepFilter, StepHit
from hybridagi_steps.records.message import Step


def test_no_condition_at_all() -> None:
    assert StepFilter.of(None) == StepFilter.of({}) == StepFilter()


def test_a_filter_passes_through() -> None:
    where = StepFilter(run_id="r")
    assert StepFilter.of(where) is where


def test_one_value_stands_for_a_list_of_one() -> None:
    where = StepFilter.of(
        {"step_types": "Action", "tools": "search", "status": "error", "exclude_run_id": "r"}
    )
    assert where.step_types == [AgentStepType.Action]
    assert (where.tools, where.status, where.exclude_run_id) == (["search"], ["error"], ["r"])
    assert StepFilter.of({"tools": ("a", "b")}).tools == ["a", "b"]
    assert sorted(StepFilter.of({"tools": {"a", "b"}}).tools or []) == ["a", "b"]


def test_several_users_and_runs_are_any_of_them() -> None:
    id_ = uuid4()
    where = StepFilter.of({"user_id": ["ann", "bob", "ann"], "run_id": (id_, "r")})
    assert (where.user_id, where.users) == (["ann", "bob"], ["ann", "bob"])
    assert where.run_id == where.runs == [str(id_), "r"]
    assert StepFilter.of({"user_id": ["ann"], "run_id": {"r"}}) == StepFilter.of(
        {"user_id": "ann", "run_id": "r"}
    )
    assert StepFilter().users == StepFilter().runs == []


def test_every_field_is_declared_and_described() -> None:
    declared = [field.name for field in FILTER_FIELDS]
    assert declared == list(StepFilter.model_fields)
    described = StepFilter.model_json_schema()["$defs"]["StepFilter"]["properties"]
    told = {name: each["description"] for name, each in described.items()}
    assert told == {field.name: field.help for field in FILTER_FIELDS}
    options = [field.option for field in FILTER_FIELDS]
    assert len({*options}) == len(options)


def test_a_filter_without_its_wishes_is_its_fences() -> None:
    fences = {"user_id": "ann", "session_id": "s", "since": "2025-01-01", "exclude_run_id": "r"}
    fences |= {"exclude": {"tools": "refund"}, "trust": "own", "scope": "*", "sources": "mcp"}
    wishes = {"tools": "refund", "predictors": "p", "signatures": "s", "step_types": "Action"}
    wishes |= {"kinds": "step", "status": "ok", "min_score": 0.5, "metadata": {"k": 1}}
    assert StepFilter.of(fences | wishes).fences == StepFilter.of(fences)
    assert StepFilter.of(wishes).fences == StepFilter()


def test_ids_may_be_uuids() -> None:
    id_ = uuid4()
    where = StepFilter.of({"run_id": id_, "session_id": id_, "program_id": id_})
    assert where.run_id == where.session_id == where.program_id == str(id_)


def test_a_time_without_a_zone_is_utc() -> None:
    where = StepFilter.of({"since": datetime(2025, 1, 1), "until": "2025-01-02T02:00:00+02:00"})  # noqa: DTZ001
    assert where.since == datetime(2025, 1, 1, tzinfo=UTC)
    assert where.until == datetime(2025, 1, 2, tzinfo=UTC)


def test_an_unknown_key_names_itself_and_the_known_ones() -> None:
    with pytest.raises(
        InvalidFilterError, match=r"unknown filter key 'tool'.*known keys:.*tools"
    ) as e:
        StepFilter.of({"tool": "search"})
    assert e.value.key == "tool"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("step_types", "Thought"),
        ("status", "fine"),
        ("min_score", "high"),
        ("min_score", float("nan")),
        ("since", "yesterday"),
        ("metadata", {"nested": {"a": 1}}),
        ("run_id", []),
        ("user_id", []),
        ("user_id", ["ann", None]),
        ("session_id", ["a", "b"]),
    ],
)
def test_a_value_of_the_wrong_kind_names_its_key(key: str, value: Any) -> None:
    with pytest.raises(InvalidFilterError, match=key) as e:
        StepFilter.of({key: value})
    assert e.value.key == key
    assert isinstance(e.value, ValueError)


@pytest.mark.parametrize("where", ["run_id", 5, [1, 2]])
def test_something_that_is_no_filter(where: Any) -> None:
    with pytest.raises(InvalidFilterError, match="StepFilter or a dict"):
        StepFilter.of(where)


def test_a_filter_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        StepFilter().run_id = "r"  # pyright: ignore[reportAttributeAccessIssue]


def both(one: dict[str, Any], two: dict[str, Any]) -> dict[str, Any] | None:
    joined = StepFilter.of(one).and_(StepFilter.of(two))
    swapped = StepFilter.of(two).and_(StepFilter.of(one))
    assert (joined is None) == (swapped is None)
    return None if joined is None else joined.model_dump(exclude_unset=True)


@pytest.mark.parametrize(
    ("one", "two", "joined"),
    [
        ({"user_id": "ana"}, {"run_id": "r"}, {"user_id": "ana", "run_id": "r"}),
        ({"user_id": "ana"}, {"user_id": "ana"}, {"user_id": "ana"}),
        ({"user_id": "ana"}, {"user_id": None}, {"user_id": "ana"}),
        ({"user_id": None}, {}, {"user_id": None}),
        ({"tools": ["a", "b"]}, {"tools": ["b", "c"]}, {"tools": ["b"]}),
        ({"user_id": ["ana", "bob"]}, {"user_id": ["bob", "cy"]}, {"user_id": "bob"}),
        ({"run_id": ["a", "b"]}, {"run_id": "b"}, {"run_id": "b"}),
        (
            {"any_of": [{"user_id": "a"}]},
            {"tools": ["b"]},
            {"any_of": [{"user_id": "a"}], "tools": ["b"]},
        ),
        (
            {"any_of": [{"user_id": "a"}, {"run_id": "r"}]},
            {"any_of": [{"user_id": "b"}, {"run_id": "r"}]},
            {
                "any_of": [
                    {"user_id": "a", "run_id": "r"},
                    {"user_id": "b", "run_id": "r"},
                    {"run_id": "r"},
                ]
            },
        ),
        ({"exclude_run_id": "a"}, {"exclude_run_id": "b"}, {"exclude_run_id": ["a", "b"]}),
        ({"min_score": 0.9}, {"min_score": 0.1}, {"min_score": 0.9}),
        ({"scope": "*"}, {"scope": "trial"}, {"scope": "trial"}),
        ({"metadata": {"a": 1}}, {"metadata": {"b": 2}}, {"metadata": {"a": 1, "b": 2}}),
        ({"metadata": {"a": 1}}, {"metadata": {"a": 1.0}}, {"metadata": {"a": 1.0}}),
    ],
)
def test_two_filters_that_both_hold(
    one: dict[str, Any], two: dict[str, Any], joined: dict[str, Any]
) -> None:
    assert both(one, two) == joined
    assert both({}, one) == both(one, {}) == StepFilter.of(one).model_dump(exclude_unset=True)


@pytest.mark.parametrize(
    ("key", "one", "two"),
    [
        ("user_id", "ana", "bob"),
        ("user_id", ["ana", "bob"], "cy"),
        ("session_id", "a", "b"),
        ("scope", "a", "b"),
        ("tools", ["a"], ["b"]),
        ("tools", [], ["b"]),
        ("status", "ok", "error"),
        ("metadata", {"a": 1}, {"a": 2}),
        ("metadata", {"a": 1}, {"a": True}),
        ("metadata", {"a": None}, {"a": 0}),
    ],
)
def test_two_filters_that_no_step_can_pass(key: str, one: Any, two: Any) -> None:
    assert both({key: one}, {key: two}) is None


def test_of_two_spans_of_time_the_common_one_is_left() -> None:
    early, late = datetime(2025, 1, 1, tzinfo=UTC), datetime(2025, 2, 1, tzinfo=UTC)
    span = {"since": early, "until": late}
    assert both(span, {"since": late, "until": early}) == {"since": late, "until": early}
    assert both({"since": early}, {"until": late}) == span


def test_a_hit_starts_unmeasured() -> None:
    hit = StepHit(step=AgentStep(step_type=AgentStepType.Action), score=0.5)
    assert (hit.dense_score, hit.lexical_score, hit.why, hit.context) == (None, None, "", [])


@pytest.mark.parametrize("text", ["20270101", "2027-01-01", " 2027-01-01t00:00:00z ", "2026-W53-5"])
def test_a_date_is_read_in_every_form_of_iso_8601(text: str) -> None:
    assert StepFilter(since=text).since == datetime(2027, 1, 1, tzinfo=UTC)


NUMBERS = ["2026", "202611", "1700000000", "-5", "2026.5", "1e3", "inf", "\u0662" * 8]


@pytest.mark.parametrize("given", [*NUMBERS, "", 20270101, 1.7e9, True, b"20270101", Decimal(5)])
def test_a_number_is_no_time(given: object) -> None:
    # As seconds it would be a day of 1970, and everything be newer than that.
    for refused in (
        lambda: StepFilter.of({"since": given}),
        lambda: StepFilter.of({"exclude": {"until": given}}),
    ):
        with pytest.raises(InvalidFilterError, match="2026-01-31"):
            refused()
    for record, fields in (
        (AgentStep, {"step_type": "Action"}),
        (Step, {"session_id": "s", "role": "user"}),
    ):
        with pytest.raises(ValidationError, match="2026-01-31"):
            record.model_validate({**fields, "created_at": given})


def test_steps_and_messages_read_a_date_as_a_filter_does() -> None:
    at = datetime(2026, 11, 1, tzinfo=UTC)
    step = AgentStep.model_validate({"step_type": "Action", "created_at": "20261101"})
    message = Step.model_validate({"session_id": "s", "role": "user", "created_at": "20261101"})
    assert step.created_at == message.created_at == at


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ([[1]], "'a' is a text, a number, true, false or null.*list"),
        (
            datetime(2026, 1, 1, tzinfo=UTC),
            "'a' is a text, a number, true, false or null.*datetime",
        ),
        ({"b": 1}, "unknown operator 'b' for 'a'; known: gt, gte, lt, lte, contains, prefix"),
        ({"gt": 1, "$lt": 1}, r"unknown operator '\$lt' for 'a'"),
        ({"gt": True}, "'gt' of 'a' takes a number or a text, not True"),
        ({"lt": None}, "'lt' of 'a' takes"),
        ({"gte": float("nan")}, "'gte' of 'a' takes"),
        ({"prefix": 5}, "'prefix' of 'a' takes a text, not 5"),
        ({"contains": ["b"]}, "'contains' of 'a' takes"),
        ([], "'a' is compared with nothing"),
        ({}, "'a' is compared with nothing"),
    ],
)
def test_what_metadata_may_be_compared_with_is_named(value: object, named: str) -> None:
    for where in ({"metadata": {"a": value}}, {"any_of": [{"metadata": {"a": value}}]}):
        with pytest.raises(InvalidFilterError, match=named):
            StepFilter.of(where)


def test_one_of_several_filters_is_declared_as_what_is_left_out_is() -> None:
    where = StepFilter.of({"any_of": {"user_id": ["ann"]}})
    assert where.any_of == [StepFilter(user_id="ann")]
    assert where.conditions == {"any_of"}
    for none_or_too_many in ([], [StepFilter()] * 501):
        with pytest.raises(InvalidFilterError, match="any_of"):
            StepFilter.of({"any_of": none_or_too_many})
    either = StepFilter.of({"any_of": [{"user_id": "ann", "tools": "a"}, {"user_id": "bob"}]})
    assert either.says_whose
    assert either.only_users == {"ann", "bob"}
    assert either.fences == StepFilter.of({"any_of": [{"user_id": "ann"}, {"user_id": "bob"}]})
    assert StepFilter.of({"any_of": [{"tools": "a"}, {"user_id": "bob"}]}).fences == StepFilter()
    assert StepFilter.of({"any_of": [{"run_id": "r"}, {"user_id": "bob"}]}).only_users is None
    narrowed = StepFilter.of({"any_of": [{"trust": "own"}, {"user_id": "cy"}], "user_id": "ann"})
    assert narrowed.only_users == {"ann"}


@pytest.mark.parametrize("one", [{}, {"exclude": {"user_id": "ann"}}, {"scope": "*"}])
def test_what_lets_everything_pass_among_others_does(one: dict[str, Any]) -> None:
    where = StepFilter.of({"any_of": [{"user_id": "ann"}, one]})
    assert where.picks_nothing
    assert where.passes_everything == ("exclude" not in one)
    assert not StepFilter.of({"any_of": [{"user_id": "ann"}], "exclude": one}).picks_nothing
