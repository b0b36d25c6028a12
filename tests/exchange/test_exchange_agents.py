"""What agents wrote of their work: a call meets its result, and a second import adds nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hybridagi_steps import StepMemory
from hybridagi_steps.exchange import import_file

FILES: dict[str, Any] = {
    "codex.jsonl": [
        {
            "timestamp": "2026-01-01T10:00:00Z",
            "type": "session_meta",
            "payload": {"id": "cx", "timestamp": "2026-01-01T10:00:00Z"},
        },
        {
            "timestamp": "2026-01-01T10:00:00Z",
            "type": "response_item",
            "payload": {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "fix"}],
            },
        },
        {
            "timestamp": "2026-01-01T10:00:01Z",
            "type": "response_item",
            "payload": {
                "type": "function_call",
                "name": "weather",
                "arguments": "{}",
                "call_id": "c1",
            },
        },
        {
            "timestamp": "2026-01-01T10:00:02Z",
            "type": "response_item",
            "payload": {"type": "function_call_output", "call_id": "c1", "output": "sun"},
        },
    ],
    "gemini.json": [
        {"role": "user", "parts": [{"text": "q"}]},
        {"role": "model", "parts": [{"functionCall": {"name": "weather", "args": {}}}]},
        {
            "role": "user",
            "parts": [{"functionResponse": {"name": "weather", "response": {"r": "sun"}}}],
        },
    ],
    "letta.json": [
        {"id": "1", "date": "2026-01-01T10:00:00Z", "message_type": "user_message", "content": "q"},
        {
            "id": "2",
            "date": "2026-01-01T10:00:01Z",
            "message_type": "reasoning_message",
            "reasoning": "hm",
        },
        {
            "id": "3",
            "date": "2026-01-01T10:00:02Z",
            "message_type": "tool_call_message",
            "tool_call": {"name": "weather", "arguments": "{}", "tool_call_id": "c1"},
        },
        {
            "id": "4",
            "date": "2026-01-01T10:00:03Z",
            "message_type": "tool_return_message",
            "tool_return": "sun",
            "tool_call_id": "c1",
            "status": "success",
        },
    ],
    "autogen.json": [
        {"source": "user", "type": "TextMessage", "content": "q"},
        {
            "source": "a",
            "type": "ToolCallRequestEvent",
            "content": [{"id": "c1", "name": "weather", "arguments": "{}"}],
        },
        {
            "source": "a",
            "type": "ToolCallExecutionEvent",
            "content": [{"call_id": "c1", "name": "weather", "content": "sun", "is_error": False}],
        },
    ],
    "oh.json": [
        {"id": 0, "source": "user", "action": "message", "args": {"content": "q"}},
        {"id": 1, "source": "agent", "action": "weather", "args": {"a": 1}},
        {
            "id": 2,
            "source": "environment",
            "observation": "run",
            "content": "sun",
            "cause": 1,
            "extras": {},
        },
    ],
    "tau.json": [
        {
            "task_id": 1,
            "reward": 1.0,
            "trial": 0,
            "traj": [
                {"role": "user", "content": "q"},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "c1",
                            "type": "function",
                            "function": {"name": "weather", "arguments": "{}"},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "sun"},
            ],
        }
    ],
    "swe.traj": {
        "trajectory": [{"action": "weather", "observation": "sun", "response": "go"}],
        "history": [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "go", "action": "weather"},
            {"role": "user", "content": "sun"},
        ],
        "info": {},
    },
    "ls.jsonl": [
        {
            "id": "r1",
            "trace_id": "r1",
            "run_type": "chain",
            "name": "agent",
            "inputs": {"input": "q"},
            "outputs": {"output": "done"},
            "start_time": "2026-01-01T10:00:00",
            "end_time": "2026-01-01T10:00:05",
        },
        {
            "id": "r2",
            "trace_id": "r1",
            "parent_run_id": "r1",
            "run_type": "tool",
            "name": "weather",
            "inputs": {"input": "{'c':1}"},
            "outputs": {"output": "sun"},
            "start_time": "2026-01-01T10:00:01",
            "end_time": "2026-01-01T10:00:02",
        },
    ],
}


@pytest.mark.parametrize("name", FILES)
def test_a_call_of_an_agent_meets_its_result_once(name: str, tmp_path: Path) -> None:
    value, file = FILES[name], tmp_path / name
    lines = [json.dumps(line) + "\n" for line in value]
    file.write_text("".join(lines) if file.suffix == ".jsonl" else json.dumps(value))
    memory = StepMemory(":memory:", embedder="hashing:2")
    report = import_file(memory, file)
    steps = list(memory.iter_steps({"scope": "*"}))
    answered = [s for s in steps if s.tool in ("weather", "bash") and "sun" in str(s.outputs)]
    assert (len(answered), report.skipped) == (1, [])
    assert import_file(memory, file).added == 0
