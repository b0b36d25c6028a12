"""The measurement of contexts: success is about values that were really needed, and adds up."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hybridagi_steps.records.agent_step import AgentStep, AgentStepType
from tests.benchmarks import context


def test_what_is_needed_was_named_before_and_is_used() -> None:
    inputs = {"tool": "cancel", "arguments": {"id": "RES-77", "fee": "12.50"}}
    step = AgentStep(step_type=AgentStepType.Action, inputs=inputs, outputs={"result": "X-99"})
    assert context.needed_values(step, {"RES-77", "X-99", "other-1"}) == {"RES-77"}
    said = AgentStep(step_type=AgentStepType.Action, outputs={"result": "It is X-99."})
    assert context.needed_values(said, {"RES-77", "X-99"}) == {"X-99"}


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    return context.measure(messages=60, rounds=1, counter="estimate")


def test_a_saving_is_shown_beside_its_success(
    measured: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "measure", lambda: measured)
    context.report(json_output=True)
    result = json.loads(capsys.readouterr().out)
    assert result["estimated"] is True
    assert set(result["contexts"]) == {"tau-bench", "SWE-agent", "Who&When"}
    for ways in result["contexts"].values():
        full = ways[context.FULL]
        assert (full["success"], full["refused"]) == (1.0, 0)
        assert full["steps"] > 0
        for way in ways.values():
            assert way["steps"] == full["steps"]
            assert 0 <= way["success"] <= 1
        assert ways["last 1"]["tokens"] < full["tokens"]
        assert ways["last 1"]["success"] < ways["last 4"]["success"]
    best = result["contexts"]["tau-bench"]["budget 2,000, recent 1, k 5"]
    assert best["success"] > result["contexts"]["tau-bench"]["last 3"]["success"]
    assert all(took["cpu_ms"] > 0 for took in result["build"].values())


def test_the_table_names_the_cheapest_rival_that_does_as_well(
    measured: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(context, "measure", lambda: measured)
    context.report()
    shown = capsys.readouterr().out
    assert "all needed values there" in shown
    assert "last 8:" in shown
