"""Anthropic's marks of the prompt cache: kept on their way in and out, unseen by OpenAI."""

from __future__ import annotations

from typing import Any

from provider_double import check_anthropic, check_openai

from hybridagi_steps.messages import from_messages, to_provider

MARK = {"type": "ephemeral", "ttl": "1h"}
MARKED: dict[str, Any] = {"cache_control": MARK}
PICTURE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}, **MARKED}
CHAT: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "text", "text": "Look.", **MARKED}, PICTURE]},
    {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "t1", "name": "look", "input": {}, **MARKED}],
    },
    {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "seen", **MARKED}],
    },
]


def test_marks_stay_where_they_stood() -> None:
    steps = from_messages(CHAT)
    before = [step.model_dump() for step in steps]
    system, messages = to_provider(steps, "anthropic")
    check_anthropic(system, messages)
    asked, called, answered = (message["content"] for message in messages)
    assert [part["cache_control"] for part in asked] == [MARK, MARK]
    assert (called[0]["type"], called[0]["cache_control"]) == ("tool_use", MARK)
    assert (answered[0]["type"], answered[0]["cache_control"]) == ("tool_result", MARK)
    assert [step.model_dump() for step in steps] == before


def test_openai_never_sees_them() -> None:
    sent = to_provider(from_messages(CHAT))
    check_openai(sent)
    assert "cache_control" not in str(sent)


def test_a_mark_of_a_whole_message_ends_it() -> None:
    said = [{"role": "user", "content": "Hello.", **MARKED}]
    _, messages = to_provider(from_messages(said), "anthropic")
    assert messages == [
        {"role": "user", "content": [{"type": "text", "text": "Hello.", "cache_control": MARK}]}
    ]
