"""What a turn cost, where the model says it, and what limits do where it does not."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from runner_cases import run

from hybridagi_steps import StepMemory
from hybridagi_steps.running.limits import StepRunnerConfig
from hybridagi_steps.running.runner import StepRunner

REPORTED = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}


@pytest.mark.parametrize("limit", [0.5, None])
def test_a_limit_on_money_that_no_model_reports_is_said_once(
    memory: StepMemory, caplog: pytest.LogCaptureFixture, limit: float | None
) -> None:
    def program(given: list[dict[str, Any]]) -> Any:
        call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        asks = {"role": "assistant", "content": None, "tool_calls": [call]}
        said = {"role": "assistant", "content": "done"} if given[-1]["role"] == "tool" else asks
        return {**said, "usage": REPORTED, "model": "own/model"}

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
