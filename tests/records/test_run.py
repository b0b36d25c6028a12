"""RunMetrics: sums that never take "not measured" for zero."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridagi_steps.records.message import StepMetrics
from hybridagi_steps.records.run import RunMetrics

counts = st.none() | st.integers(0, 10_000)
metrics = st.builds(
    StepMetrics,
    duration_ms=counts,
    tool_exec_time_ms=counts,
    first_token_latency_ms=counts,
    input_tokens=counts,
    output_tokens=counts,
    total_tokens=counts,
    llm_calls=counts,
    cache_hit=st.none() | st.booleans(),
    model_name=st.none() | st.sampled_from(["a", "b"]),
)


def test_one_after_the_other_adds_up() -> None:
    first = StepMetrics(duration_ms=100, input_tokens=10, cost=0.5, model_name="a", cache_hit=True)
    second = StepMetrics(duration_ms=40, input_tokens=5, cost=0.25, model_name="b", cache_hit=False)
    total = RunMetrics.of(first, second)
    assert total.steps == 2
    assert total.duration_ms == 140
    assert (total.input_tokens, total.cost, total.cache_hits) == (15, 0.75, 1)
    assert total.model_names == ["a", "b"]


def test_side_by_side_takes_as_long_as_the_slowest_and_costs_the_sum() -> None:
    slow = StepMetrics(duration_ms=100, first_token_latency_ms=30, total_tokens=10)
    fast = StepMetrics(duration_ms=40, first_token_latency_ms=5, total_tokens=10)
    total = RunMetrics.of(slow, fast, how="parallel")
    assert (total.duration_ms, total.first_token_latency_ms, total.total_tokens) == (100, 5, 20)


def test_what_nobody_measured_stays_unknown() -> None:
    total = RunMetrics.of(StepMetrics(input_tokens=0), None, StepMetrics())
    assert total.steps == 3
    assert total.input_tokens == 0
    assert total.output_tokens is None
    assert total.duration_ms is None


def test_the_first_part_gives_the_latency_of_a_sequence() -> None:
    total = RunMetrics.of(
        None, StepMetrics(first_token_latency_ms=30), StepMetrics(first_token_latency_ms=5)
    )
    assert total.first_token_latency_ms == 30


def test_merging_changes_neither_part() -> None:
    mine, theirs = RunMetrics(steps=1, model_names=["a"]), RunMetrics(steps=1, model_names=["b"])
    assert mine.merge(theirs).model_names == ["a", "b"]
    assert (mine.model_names, theirs.model_names) == (["a"], ["b"])


def test_an_unknown_way_to_merge_is_refused() -> None:
    how: Any = "diagonal"
    with pytest.raises(ValueError, match="diagonal"):
        RunMetrics().merge(RunMetrics(), how)


@given(metrics, metrics, metrics, st.sampled_from(["sequential", "parallel"]))
def test_it_does_not_matter_what_is_merged_first(
    one: StepMetrics, two: StepMetrics, three: StepMetrics, how: Any
) -> None:
    a, b, c = (RunMetrics.of(part) for part in (one, two, three))
    assert a.merge(b, how).merge(c, how) == a.merge(b.merge(c, how), how)


@given(metrics, st.sampled_from(["sequential", "parallel"]))
def test_an_empty_run_adds_nothing(one: StepMetrics, how: Any) -> None:
    alone = RunMetrics.of(one)
    assert alone.merge(RunMetrics(), how) == alone == RunMetrics().merge(alone, how)
