"""The hook that notices loops: it warns once, or stops the run, and writes no arguments down."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from runner_cases import kinds, run

import hybridagi_steps as hs
from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.running.runner import StepRunner


def look(place: str) -> str:
    """Look somewhere."""
    return "nothing there"


def stuck(turns: int) -> Any:
    """A program that looks at the same place again and again."""

    def program(messages: list[dict[str, Any]]) -> Any:
        done = sum(message["role"] == "tool" for message in messages)
        if done == turns:
            return "I give up."
        function = {"name": "look", "arguments": '{"place": "hunter2"}'}
        return {
            "role": "assistant",
            "tool_calls": [{"id": f"c{done}", "type": "function", "function": function}],
        }

    return program


def test_a_run_that_repeats_itself_is_stopped(memory: hs.StepMemory) -> None:
    guard = hs.LoopGuard("stop")
    events = run(StepRunner(stuck(9), memory, tools=[look], hooks=[guard]), "chat", "?")
    assert kinds(events)[-1] in ("run_failed", "run_cancelled")
    said: dict[str, str] = events[-1].data["error"]
    assert said["type"] == "RunVetoed"
    assert said["message"] == "the run repeats itself: look gave the same result 2 times."
    assert len([e for e in kinds(events) if e == "tool_call_completed"]) <= 2


def test_a_warning_comes_once_and_names_no_arguments(
    memory: hs.StepMemory, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "hybridagi_steps"):
        events = run(StepRunner(stuck(5), memory, tools=[look], hooks=[hs.LoopGuard()]), "c", "?")
    assert kinds(events)[-1] == "run_completed"
    said = [record.getMessage() for record in caplog.records if "repeats" in record.getMessage()]
    assert len(said) == 1
    assert "look gave the same result 2 times" in said[0]
    assert "hunter2" not in caplog.text


def test_a_tool_that_waits_is_left_alone(memory: hs.StepMemory) -> None:
    guard = hs.LoopGuard("stop", waiting={"look"})
    events = run(StepRunner(stuck(5), memory, tools=[look], hooks=[guard]), "chat", "?")
    assert kinds(events)[-1] == "run_completed"


def test_an_unknown_action_is_refused() -> None:
    with pytest.raises(InvalidSettingError, match="'warn' or 'stop'"):
        hs.LoopGuard("kill")  # pyright: ignore[reportArgumentType]
