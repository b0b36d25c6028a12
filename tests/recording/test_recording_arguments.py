"""What the recorder and the retriever refuse at once, because it would lose every step later."""

# DSPy ships no types; the wrong arguments are the point.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportUnknownLambdaType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import dspy
import pytest

import hybridagi_steps as hs
from hybridagi_steps.errors import InvalidMemoryError, InvalidSettingError, InvalidStepError

RECORDING: list[Callable[..., Any]] = [
    hs.record,
    hs.StepRecorder,
    lambda memory, **labels: hs.Recorded(dspy.Predict("q -> a"), memory, **labels),
]
NO_MEMORIES: list[Any] = ["rec.db", None, 7, {}, hs.StepMemory, []]


@pytest.mark.parametrize("given", NO_MEMORIES)
@pytest.mark.parametrize("make", RECORDING)
def test_recording_into_something_else_than_a_memory(make: Callable[..., Any], given: Any) -> None:
    with pytest.raises(InvalidMemoryError, match=r"hs\.StepMemory") as caught:
        make(given)
    assert isinstance(caught.value, TypeError)
    assert type(given).__name__ in str(caught.value)


@pytest.mark.parametrize("given", NO_MEMORIES)
def test_searching_something_else_than_a_memory(given: Any) -> None:
    with pytest.raises(InvalidMemoryError, match=r"hs\.StepMemory"):
        hs.StepRetriever(given)


@pytest.mark.parametrize("name", ["session_id", "user_id", "scope"])
@pytest.mark.parametrize("value", ["", "x" * 129, 7, b"s", "a\x00", "\ud800"])
@pytest.mark.parametrize("make", RECORDING)
def test_a_label_that_no_step_can_carry(
    memory: hs.StepMemory, make: Callable[..., Any], name: str, value: Any
) -> None:
    with pytest.raises(InvalidStepError, match=name):
        make(memory, **{name: value})


@pytest.mark.parametrize("tags", ["topic", ["a"], 7, [("a", 1)]])
@pytest.mark.parametrize("make", RECORDING)
def test_tags_are_a_mapping(memory: hs.StepMemory, make: Callable[..., Any], tags: Any) -> None:
    with pytest.raises(InvalidStepError, match="mapping"):
        make(memory, tags=tags)


def test_labels_at_the_limit_are_stored(memory: hs.StepMemory) -> None:
    @hs.record_step()
    def act() -> int:
        return 1

    with hs.record(memory, session_id="s" * 128, user_id="Zoë\n2", scope="compile:x") as run:
        act()
    [step] = run.steps.steps
    assert (step.session_id, step.user_id, step.scope) == ("s" * 128, "Zoë\n2", "compile:x")


def test_a_bare_decorator_is_an_action(memory: hs.StepMemory) -> None:
    @hs.record_step
    def double(number: int) -> int:
        """Double a number."""
        return 2 * number

    with hs.record(memory) as run:
        assert double(4) == 8
    [step] = run.steps.steps
    assert (step.tool, step.purpose, step.result) == ("double", "Double a number.", 8)
    assert step.arguments == {"number": 4}
    assert double.__name__ == "double"


def test_a_call_that_does_not_fit_its_function_is_told_as_it_was_made(
    memory: hs.StepMemory,
) -> None:
    @hs.record_step
    def double(number: int) -> int:
        return 2 * number

    calls: list[tuple[list[Any], dict[str, Any]]] = [([1, 2], {"times": 3}), ([], {})]
    with hs.record(memory) as run:
        for args, kwargs in calls:
            with pytest.raises(TypeError, match="double"):
                double(*args, **kwargs)
    told = [(step.status, step.arguments) for step in run.steps.steps]
    assert told == [("error", {"args": args, **kwargs}) for args, kwargs in calls]


def test_a_callable_without_a_name_is_recorded_too(memory: hs.StepMemory) -> None:
    power = hs.record_step(purpose="square")(functools.partial(pow, exp=2))
    with hs.record(memory) as run:
        assert power(3) == 9
    assert run.steps.steps[0].tool == "partial"


def test_a_kind_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidSettingError, match="action, decision, program"):
        hs.record_step(kind="nonsense")
    with pytest.raises(ValueError, match="nonsense"):
        hs.record_step(kind="nonsense")


@pytest.mark.parametrize("given", ["look it up", 7])
def test_only_functions_are_decorated(given: Any) -> None:
    with pytest.raises(InvalidSettingError, match="purpose="):
        hs.record_step(given)
    with pytest.raises(InvalidSettingError, match="in_context ties a function"):
        hs.in_context(given)
