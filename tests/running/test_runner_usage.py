"""Usage as providers report it, each in its own dialect, read as the same figures."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from runner_cases import run

from hybridagi_steps import StepMemory
from hybridagi_steps.recording.usage import TokenCounts, tokens_of
from hybridagi_steps.running.limits import StepRunnerConfig
from hybridagi_steps.running.runner import StepRunner

OPENAI = {
    "prompt_tokens": 100,
    "completion_tokens": 20,
    "total_tokens": 120,
    "prompt_tokens_details": {"cached_tokens": 64},
}
RESPONSES = {
    "input_tokens": 100,
    "output_tokens": 20,
    "total_tokens": 120,
    "input_tokens_details": {"cached_tokens": 64},
}
ANTHROPIC = {
    "input_tokens": 26,
    "output_tokens": 20,
    "cache_read_input_tokens": 64,
    "cache_creation_input_tokens": 10,
}
DEEPSEEK = {"prompt_tokens": 100, "completion_tokens": 20, "prompt_cache_hit_tokens": 64}
GEMINI = {
    "promptTokenCount": 100,
    "candidatesTokenCount": 20,
    "totalTokenCount": 120,
    "cachedContentTokenCount": 64,
}
LITELLM = {**OPENAI, "cache_read_input_tokens": 64, "cache_creation_input_tokens": 10}


@pytest.mark.parametrize(
    ("usage", "written"),
    [
        (OPENAI, None),
        (RESPONSES, None),
        (ANTHROPIC, 10),
        (DEEPSEEK, None),
        (GEMINI, None),
        (LITELLM, 10),
    ],
)
def test_every_dialect_says_the_same(usage: dict[str, Any], written: int | None) -> None:
    assert tokens_of(usage) == TokenCounts(100, 20, 120, 64, written)


def test_what_nobody_reported_stays_unknown() -> None:
    assert tokens_of({}) == TokenCounts(None, None, None, None, None)
    assert tokens_of({"prompt_tokens": None, "completion_tokens": 3}).input_tokens is None


@pytest.mark.parametrize("limit", [0.5, None])
def test_a_limit_on_money_that_no_model_reports_is_said_once(
    memory: StepMemory, caplog: pytest.LogCaptureFixture, limit: float | None
) -> None:
    def program(given: list[dict[str, Any]]) -> Any:
        call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        asks = {"role": "assistant", "content": None, "tool_calls": [call]}
        said = {"role": "assistant", "content": "done"} if given[-1]["role"] == "tool" else asks
        return {**said, "usage": OPENAI, "model": "own/model"}

    def look() -> str:
        """Look."""
        return "seen"

    config = StepRunnerConfig(max_cost=limit)
    with caplog.at_level(logging.WARNING, "hybridagi_steps"):
        events = run(StepRunner(program, memory, config=config, tools=[look]), "chat", "?")
    assert events[-1].type.value == "run_completed"
    told = [record.message for record in caplog.records if "max_cost" in record.message]
    expected = "own/model reports no cost, so max_cost=0.5 does not limit this run; max_tokens can."
    assert told == ([] if limit is None else [expected])
