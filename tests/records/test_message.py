"""Step: a message as a provider takes it, with its metadata kept apart."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from hybridagi_steps.records.message import MessageRole, Step, StepMetrics, utc_now

CALLS: list[dict[str, Any]] = [
    {"id": "c1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
]


def step(role: MessageRole, **fields: Any) -> Step:
    return Step(session_id="s", role=role, **fields)


def test_a_message_carries_only_what_a_provider_knows() -> None:
    message = step(
        MessageRole.USER,
        content="Hello",
        run_id="r",
        sequence=1,
        metadata={"topic": "x"},
        reasoning_content="hidden",
        content_for_user="shown",
        metrics=StepMetrics(input_tokens=3),
    ).to_message_dict()
    assert message == {"role": "user", "content": "Hello"}


def test_an_assistants_calls_and_a_tools_answer() -> None:
    asked = step(MessageRole.ASSISTANT, tool_calls=CALLS)
    assert asked.to_message_dict() == {"role": "assistant", "content": None, "tool_calls": CALLS}
    answered = step(MessageRole.TOOL, content="found", tool_call_id="c1", name="search")
    assert answered.to_message_dict() == {
        "role": "tool",
        "content": "found",
        "tool_call_id": "c1",
        "name": "search",
    }


def test_an_empty_list_of_calls_is_no_call() -> None:
    spoken = step(MessageRole.ASSISTANT, content="done", tool_calls=[])
    assert not spoken.has_tool_calls()
    assert "tool_calls" not in spoken.to_message_dict()


@pytest.mark.parametrize("role", list(MessageRole))
def test_each_role_is_told_apart(role: MessageRole) -> None:
    said = step(role, content="x")
    told = (said.is_user_step(), said.is_assistant_step(), said.is_tool_step())
    roles = (MessageRole.USER, MessageRole.ASSISTANT, MessageRole.TOOL)
    assert told == tuple(role is each for each in roles)


def test_only_an_assistant_has_tool_calls() -> None:
    assert step(MessageRole.ASSISTANT, tool_calls=CALLS).has_tool_calls()
    assert not step(MessageRole.USER, tool_calls=CALLS).has_tool_calls()


def test_ids_are_new_and_the_sequence_is_the_stores_to_give() -> None:
    first, second = step(MessageRole.USER), step(MessageRole.USER)
    assert first.id != second.id
    assert first.sequence == 0
    assert first.created_at.utcoffset() is not None
    assert utc_now().utcoffset() is not None


def test_a_step_survives_json() -> None:
    said = step(
        MessageRole.ASSISTANT,
        content=[{"type": "text", "text": "hi"}],
        tool_calls=CALLS,
        metrics=StepMetrics(duration_ms=150.5, model_name="gpt-4", cost=0.1, cache_hit=False),
    )
    assert Step.model_validate_json(said.model_dump_json()) == said


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(ValidationError):
        Step.model_validate({"session_id": "s", "role": "narrator"})


def test_metrics_start_unmeasured() -> None:
    assert set(StepMetrics().model_dump().values()) == {None}
