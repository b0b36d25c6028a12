"""What providers name otherwise comes in as the same messages, by import and by from_messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import hybridagi_steps as hs
from hybridagi_steps.exchange import import_file
from hybridagi_steps.messages import from_messages

ASKED: dict[str, Any] = {"role": "user", "content": "Weather in Oslo?"}
ANSWER: dict[str, Any] = {"role": "assistant", "content": "Sunny there."}
OSLO = {"city": "Oslo"}


def bedrock() -> list[Any]:
    use = {"toolUse": {"toolUseId": "t1", "name": "weather", "input": OSLO}}
    found = {"toolUseId": "t1", "content": [{"text": "sun"}], "status": "success"}
    return [
        {"role": "user", "content": [{"text": "Weather in Oslo?"}]},
        {"role": "assistant", "content": [{"text": "I look."}, use]},
        {"role": "user", "content": [{"toolResult": found}]},
        {"role": "assistant", "content": [{"text": "Sunny there."}]},
    ]


def gemini() -> list[Any]:
    found = {"name": "weather", "response": {"result": "sun"}}
    return [
        {"role": "user", "parts": [{"text": "Weather in Oslo?"}]},
        {"role": "model", "parts": [{"functionCall": {"name": "weather", "args": OSLO}}]},
        {"role": "user", "parts": [{"functionResponse": found}]},
        {"role": "model", "parts": [{"text": "Sunny there."}]},
    ]


def ollama() -> list[Any]:
    call = {"function": {"name": "weather", "arguments": OSLO}}
    return [
        ASKED,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_name": "weather", "content": "sun"},
        ANSWER,
    ]


def llama() -> list[Any]:
    call = {"name": "weather", "arguments": OSLO}
    return [
        {"role": "human", "content": "Weather in Oslo?"},
        {"role": "ai", "content": None, "tool_calls": [call]},
        {"role": "ipython", "content": "sun"},
        {"role": "ai", "content": "Sunny there."},
    ]


def vercel() -> list[Any]:
    call = {"type": "tool-call", "toolCallId": "t1", "toolName": "weather", "input": OSLO}
    output = {"type": "text", "value": "sun"}
    back = {"type": "tool-result", "toolCallId": "t1", "toolName": "weather", "output": output}
    return [
        ASKED,
        {"role": "assistant", "content": [call]},
        {"role": "tool", "content": [back]},
        ANSWER,
    ]


def items() -> list[Any]:
    call = {"type": "mcp_call", "id": "m1", "name": "weather", "arguments": json.dumps(OSLO)}
    return [ASKED, {**call, "output": "sun"}, {"type": "message", **ANSWER}]


def imported(memory: hs.StepMemory, tmp_path: Path, talk: Any) -> Any:
    (tmp_path / "talk.json").write_text(json.dumps(talk))
    return import_file(memory, tmp_path / "talk.json")


@pytest.mark.parametrize("shape", [bedrock, gemini, ollama, llama, vercel, items])
class TestShapes:
    def test_import(self, memory: hs.StepMemory, tmp_path: Path, shape: Any) -> None:
        report = imported(memory, tmp_path, {"messages": shape()})
        assert (report.skipped, report.notes) == ([], ())
        asked, looked, answer, _ = memory.iter_steps()
        assert asked.purpose == "Weather in Oslo?"
        assert (looked.tool, looked.arguments, looked.result) == ("weather", OSLO, "sun")
        assert (looked.status, answer.result) == ("ok", "Sunny there.")

    def test_from_messages(self, shape: Any) -> None:
        asked, calls, result, answer = from_messages(shape())
        assert [m.role.value for m in (asked, result, answer)] == ["user", "tool", "assistant"]
        [call] = calls.tool_calls or []
        assert call["function"]["name"] == "weather"
        assert json.loads(call["function"]["arguments"]) == OSLO
        assert (result.content, result.tool_call_id) == ("sun", call["id"])
        assert answer.content == "Sunny there."


@pytest.mark.parametrize(
    ("item", "answer", "tool", "says"),
    [
        (
            {"type": "local_shell_call", "call_id": "k", "action": {"command": ["ls"]}},
            {"type": "local_shell_call_output", "call_id": "k", "output": "a.py"},
            "local_shell",
            "a.py",
        ),
        (
            {"type": "shell_call", "call_id": "k", "action": {"commands": ["ls"]}},
            {"type": "shell_call_output", "call_id": "k", "output": [{"stdout": "a.py"}]},
            "shell",
            "a.py",
        ),
        (
            {"type": "apply_patch_call", "call_id": "k", "operation": {"path": "a.py"}},
            {"type": "apply_patch_call_output", "call_id": "k", "status": "completed"},
            "apply_patch",
            "completed",
        ),
        (
            {"type": "mcp_approval_request", "id": "k", "name": "roll", "arguments": "{}"},
            {"type": "mcp_approval_response", "approval_request_id": "k", "approve": True},
            "mcp_approval",
            "approved",
        ),
        (
            {"type": "image_generation_call", "id": "k", "result": "QUJD" * 5000},
            None,
            "image_generation",
            "[image: image/png, 15,000 bytes]",
        ),
        (
            {
                "type": "file_search_call",
                "id": "k",
                "queries": ["q"],
                "results": [{"filename": "a.md", "text": "found it"}],
            },
            None,
            "file_search",
            "a.md\nfound it",
        ),
    ],
)
def test_hosted_tools_are_calls_with_what_came_back(
    memory: hs.StepMemory, tmp_path: Path, item: Any, answer: Any, tool: str, says: str
) -> None:
    talk = [ASKED, item, *([answer] if answer else []), ANSWER]
    assert imported(memory, tmp_path, talk).notes == ()
    used = list(memory.iter_steps())[1]
    assert (used.tool, used.result, used.status) == (tool, says, "ok")


@pytest.mark.parametrize(
    "said",
    [
        {"reasoning": "hm"},
        {"thinking": "hm"},
        {"reasoning_content": "hm"},
        {"reasoning_details": [{"type": "reasoning.text", "text": "hm"}]},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]},
        {"content": [{"reasoningContent": {"reasoningText": {"text": "hm"}}}]},
    ],
)
def test_reasoning_is_read_under_every_name(said: Any) -> None:
    [message] = from_messages([{**ANSWER, **said}])
    assert message.reasoning_content == "hm"


def test_what_has_no_reader_is_kept_and_noted(memory: hs.StepMemory, tmp_path: Path) -> None:
    odd = {"role": "user", "content": [{"type": "acme", "body": "hidden"}]}
    last = {"role": "exit", "content": "done"}
    notes = imported(memory, tmp_path, [odd, ANSWER, last]).notes
    assert notes == (
        "1 content part of type 'acme' was not understood",
        "1 message of role 'exit' was not understood",
    )
    *_, exit_message = from_messages([ASKED, last])
    assert (exit_message.role.value, exit_message.content) == ("tool", "done")
    assert (exit_message.metadata or {})["role"] == "exit"
