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


TOLD: dict[str, tuple[Any, list[tuple[str, Any]]]] = {
    "sdk.json": (
        [
            {
                "kind": "SystemPromptEvent",
                "source": "agent",
                "system_prompt": {"type": "text", "text": "Be kind."},
            },
            {
                "kind": "MessageEvent",
                "source": "user",
                "llm_message": {"role": "user", "content": [{"type": "text", "text": "list"}]},
            },
            {
                "kind": "ActionEvent",
                "source": "agent",
                "thought": [{"type": "text", "text": "I look."}],
                "reasoning_content": "hm",
                "action": {"kind": "Run", "command": "ls"},
                "tool_name": "bash",
                "tool_call_id": "c1",
            },
            {"kind": "AgentErrorEvent", "source": "agent", "error": "boom", "tool_call_id": "c1"},
            {
                "kind": "MessageEvent",
                "source": "agent",
                "llm_message": {"role": "assistant", "content": "No files."},
            },
        ],
        [("bash", {"error": {"type": "ToolError", "message": "boom"}}), ("", "No files.")],
    ),
    "tau2.json": (
        {
            "tasks": [{"id": "1"}],
            "simulations": [
                {
                    "id": "sim",
                    "task_id": "1",
                    "reward_info": {"reward": 1.0},
                    "messages": [
                        {
                            "role": "user",
                            "content": "My phone",
                            "tool_calls": [{"id": "u", "name": "toggle", "arguments": {"on": 1}}],
                        },
                        {"role": "tool", "id": "u", "content": "is on", "requestor": "user"},
                        {
                            "role": "assistant",
                            "content": None,
                            "tool_calls": [{"id": "c", "name": "look", "arguments": {"a": 1}}],
                        },
                        {"role": "tool", "id": "c", "content": "late", "error": True},
                        {"role": "assistant", "content": "Done."},
                    ],
                }
            ],
        },
        [("look", {"error": {"type": "ToolError", "message": "late"}}), ("", "Done.")],
    ),
    "cli.json": (
        {
            "sessionId": "s1",
            "messages": [
                {"type": "user", "content": "hi"},
                {
                    "type": "gemini",
                    "content": "",
                    "thoughts": [{"description": "mull"}],
                    "tokens": {"input": 4, "output": 5, "total": 9},
                    "toolCalls": [
                        {"id": "t1", "name": "ls", "args": {"p": "."}, "result": "files"},
                        {"id": "t2", "name": "rm", "args": {}, "status": "error", "result": "no"},
                    ],
                },
            ],
        },
        [("ls", "files"), ("rm", {"error": {"type": "ToolError", "message": "no"}})],
    ),
    "state.json": (
        {
            "agent_states": {
                "a/1": {
                    "agent_state": {
                        "llm_context": {
                            "messages": [
                                {"type": "UserMessage", "source": "user", "content": "q"},
                                {
                                    "type": "AssistantMessage",
                                    "source": "a",
                                    "content": [{"id": "c", "name": "f", "arguments": "{}"}],
                                },
                                {
                                    "type": "FunctionExecutionResultMessage",
                                    "content": [{"call_id": "c", "name": "f", "content": "r"}],
                                },
                                {"type": "AssistantMessage", "source": "a", "content": "done"},
                            ]
                        }
                    }
                }
            },
            "type": "TeamState",
        },
        [("f", "r"), ("", "done")],
    ),
    "mini.traj.json": (
        {
            "instance_id": "i",
            "info": {"exit_status": "Submitted"},
            "messages": [
                {"role": "user", "content": "fix"},
                {"role": "assistant", "content": "I look.\n```bash\nls\n```"},
                {"role": "user", "content": "a.txt"},
                {"role": "exit", "content": "Submitted"},
            ],
        },
        [("bash", "a.txt"), ("", "Submitted")],
    ),
    "hermes.json": (
        [
            {
                "conversations": [
                    {"from": "human", "value": "q"},
                    {
                        "from": "gpt",
                        "value": '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
                        '<tool_call>{"name": "g", "arguments": {}}</tool_call>',
                    },
                    {
                        "from": "tool",
                        "value": "<tool_response>1</tool_response><tool_response>2</tool_response>",
                    },
                    {"from": "gpt", "value": "both"},
                ]
            }
        ],
        [("f", "1"), ("g", "2"), ("", "both")],
    ),
    "parts.json": (
        {
            "contents": [
                {"role": "user", "parts": [{"text": "q"}]},
                {
                    "role": "model",
                    "parts": [
                        {"text": "mull", "thought": True},
                        {"executableCode": {"code": "1+1"}},
                        {"codeExecutionResult": {"output": "2"}},
                        {"text": "two"},
                    ],
                },
            ]
        },
        [("code_execution", "2"), ("", "two")],
    ),
}
"""Files, and of each what the Actions did: the tool, and its result or its whole outputs."""


@pytest.mark.parametrize("name", TOLD)
def test_what_an_agent_did_is_told_with_its_results(name: str, tmp_path: Path) -> None:
    value, told = TOLD[name]
    (tmp_path / name).write_text(json.dumps(value))
    memory = StepMemory(":memory:", embedder="hashing:2")
    report = import_file(memory, tmp_path / name)
    assert (report.skipped, report.notes) == ([], ())
    actions = [s for s in memory.iter_steps({"step_types": ["Action"]}) if s.scope is None]
    steps = sorted(actions, key=lambda step: step.hop)
    found = [(s.tool or "", s.outputs if s.status == "error" else s.result) for s in steps]
    assert found == told


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
