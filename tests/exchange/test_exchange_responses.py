"""Items of OpenAI's Responses API, and what Anthropic's models say after searches of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from exchange_talks import said, written

import hybridagi_steps as hs
from hybridagi_steps.exchange import import_file

ASKED: list[dict[str, Any]] = [{"role": "user", "content": "Weather in Oslo and Rome?"}]
GIVEN: list[dict[str, Any]] = [
    {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "Two calls."}]},
    {"type": "function_call", "call_id": "a", "name": "look", "arguments": '{"city": "Oslo"}'},
    {"type": "function_call", "call_id": "b", "name": "look", "arguments": '{"city": "Rome"}'},
    {"type": "function_call_output", "call_id": "b", "output": "sun"},
    {"type": "function_call_output", "call_id": "a", "output": "rain"},
    {"type": "web_search_call", "id": "ws", "status": "completed"},
    {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Rain and sun.", "annotations": []}],
    },
]


@pytest.mark.parametrize(
    "record",
    [
        [*ASKED, *GIVEN],
        {"id": "resp", "model": "m", "input": ASKED, "output": GIVEN},
        {"object": "response", "input": ASKED[0]["content"], "output": GIVEN},
    ],
)
def test_items_become_steps_and_messages(
    memory: hs.StepMemory, tmp_path: Path, record: Any
) -> None:
    report = import_file(memory, written(tmp_path, record))
    assert (report.added, report.skipped) == (5, [])
    call, oslo, rome, answer, end = memory.iter_steps()
    assert call.purpose == ASKED[0]["content"]
    assert (oslo.arguments, oslo.result, oslo.status) == ({"city": "Oslo"}, "rain", "ok")
    assert (rome.arguments, rome.result) == ({"city": "Rome"}, "sun")
    assert (answer.result, end.outputs) == ("Rain and sun.", {"result": "Rain and sun."})
    kept = [m for step in (call, oslo, rome, answer) for m in (step.model_extra or {})["messages"]]
    assert sorted(map(str, kept)) == sorted(map(str, [*ASKED, *GIVEN]))
    [session] = memory.repository().store.sessions(limit=2)
    asked, calls, first, second, closing = said(memory, session.session_id)
    assert asked.content == ASKED[0]["content"]
    assert [each["id"] for each in calls.tool_calls or []] == ["a", "b"]
    assert calls.reasoning_content == "Two calls."
    assert [first.content, second.content, closing.content] == ["sun", "rain", "Rain and sun."]
    assert import_file(memory, tmp_path / "chat.jsonl").added == 0


@pytest.mark.parametrize("first", [0, 1])
def test_an_output_by_itself_is_one_conversation(
    memory: hs.StepMemory, tmp_path: Path, first: int
) -> None:
    (tmp_path / "output.json").write_text(json.dumps(GIVEN[first:]))
    report = import_file(memory, tmp_path / "output.json")
    assert (report.added, report.skipped) == (4, [])
    assert [step.result for step in memory.iter_steps()][:3] == ["rain", "sun", "Rain and sun."]


def test_an_item_that_is_none_is_named(memory: hs.StepMemory, tmp_path: Path) -> None:
    report = import_file(memory, written(tmp_path, [*ASKED, GIVEN[1], {"role": "wizard"}]))
    assert report.skipped == [(1, "item 3 has the role 'wizard'")]


def test_images_and_texts_take_the_names_of_chats(memory: hs.StepMemory, tmp_path: Path) -> None:
    shown = [
        {"type": "input_text", "text": "What is it?"},
        {"type": "input_image", "image_url": "https://x.example/i.png"},
    ]
    import_file(memory, written(tmp_path, [{"role": "user", "content": shown}, GIVEN[0]]))
    [session] = memory.repository().store.sessions(limit=2)
    assert said(memory, session.session_id)[0].content == [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": "https://x.example/i.png"}},
    ]


def test_what_anthropic_says_after_its_own_search_stands_after_it(
    memory: hs.StepMemory, tmp_path: Path
) -> None:
    found = [{"type": "web_search_result", "url": "https://x.example", "title": "Rome guide"}]
    blocks = [
        {"type": "text", "text": "Looking."},
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "Rome"}},
        {"type": "web_search_tool_result", "tool_use_id": "s1", "content": found},
        {"type": "text", "text": "Rome is sunny."},
    ]
    talk = [{"role": "user", "content": "Rome?"}, {"role": "assistant", "content": blocks}]
    (tmp_path / "a.json").write_text(json.dumps({"id": "a", "messages": talk}))
    assert import_file(memory, tmp_path / "a.json").skipped == []
    _, search, answer, end = memory.iter_steps()
    assert (search.tool, search.purpose, search.arguments) == (
        "web_search",
        "Looking.",
        {"query": "Rome"},
    )
    assert answer.result == "Rome is sunny."
    assert end.outputs == {"result": "Rome is sunny."}
    said = [(str(m.role), m.content) for m in memory.repository().store.messages("a")]
    assert [role for role, _ in said] == ["user", "assistant", "tool", "assistant"]
    assert (said[1][1], said[3][1]) == ("Looking.", "Rome is sunny.")
    kept = [m for step in memory.iter_steps() for m in (step.model_extra or {})["messages"]]
    assert kept == talk
