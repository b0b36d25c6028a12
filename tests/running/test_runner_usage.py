"""What a turn cost, where the model says it, and what limits do where it does not."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from runner_cases import run

from hybridagi_steps import StepMemory
from hybridagi_steps.running.limits import Meter, StepRunnerConfig
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


def test_each_message_takes_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=10.0, perf_counter=lambda: clock.now)
    monkeypatch.setattr("hybridagi_steps.running.limits.time", clock)
    meter = Meter(StepRunnerConfig())
    clock.now += 0.25  # what comes before the model is asked is the message's, too
    meter.ask()
    for _ in range(2):
        clock.now += 0.5
        meter.first_token()
    told = [meter.message()]
    for seconds in (2.0, 1.0004567):
        clock.now += seconds
        told.append(meter.tool(seconds))
    meter.ask()
    clock.now += 0.125
    meter.first_token()
    clock.now += 0.125
    told.append(meter.message())
    assert [one.duration_ms for one in told] == [1250, 2000, 1000.457, 250]
    assert [one.tool_exec_time_ms for one in told] == [None, 2000, 1000.457, None]
    assert [one.first_token_latency_ms for one in told] == [500, None, None, 125]
    whole = meter.run_metrics()
    assert (whole.duration_ms, whole.tool_exec_time_ms) == (4500.457, 3000.457)
    assert (whole.first_token_latency_ms, whole.steps) == (750, 4)
