"""Runs that tests of learning look back at: a service desk whose cancellations end badly."""

from __future__ import annotations

from typing import Any

import hybridagi_steps as hs


def step(
    run: str, hop: int, tool: str, purpose: str, result: object = "done", **more: Any
) -> hs.AgentStep:
    """A step of a run, after the one before it."""
    inputs = {"purpose": purpose, "tool": tool, "arguments": more.pop("arguments", {})}
    return hs.AgentStep(
        id=f"{run}-{hop}",
        parent_id=more.pop("parent_id", f"{run}-{hop - 1}" if hop > 1 else None),
        step_type=hs.AgentStepType.Action,
        inputs=inputs,
        outputs=None if result is None else {"result": result},
        run_id=run,
        hop=hop,
        **more,
    )


def service_desk(runs: int = 8, **fields: Any) -> hs.StepMemory:
    """Runs that look a booking up; every other one cancels it and fails, the others refund it."""
    memory = hs.StepMemory(":memory:", embedder="hashing")
    for number in range(runs):
        run, cancels = f"run-{number}", number % 2
        memory.add(
            [
                step(run, 1, "look_up", f"the customer {number} wants money back", **fields),
                step(
                    *(run, 2, "cancel" if cancels else "refund", "the booking is paid"),
                    arguments={"booking": number},
                    **fields,
                ),
            ]
        )
        memory.score(run, 0.0 if cancels else 1.0)
    return memory
