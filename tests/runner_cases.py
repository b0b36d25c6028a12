"""What the runner's tests share: programs, readable views of streams, deltas put together."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportArgumentType=false

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import dspy

from hybridagi_steps import Step, StepEvent, StepEventType, StepMemory
from hybridagi_steps.running.runner import StepRunner
from hybridagi_steps.running.streaming import add_call_pieces
from hybridagi_steps.testing import ScriptedLM

FINAL = (
    StepEventType.RUN_COMPLETED,
    StepEventType.RUN_FAILED,
    StepEventType.RUN_CANCELLED,
    StepEventType.RUN_PAUSED,
)


def answering(*answers: str, **options: Any) -> ScriptedLM:
    """A model that gives these answers to `question -> answer`."""
    return ScriptedLM([{"answer": answer} for answer in answers], **options)


async def collected(events: AsyncIterator[StepEvent]) -> list[StepEvent]:
    """All events of a stream."""
    return [event async for event in events]


def run(runner: StepRunner, session: Any, message: str, lm: Any = None, **more: Any) -> Any:
    """All events of one run, in an event loop of its own."""

    async def events() -> list[StepEvent]:
        with dspy.context(lm=lm or dspy.settings.lm):
            return await collected(runner.run_stream(session, message, **more))

    return asyncio.run(events())


def kinds(events: Iterable[StepEvent]) -> list[str]:
    """What happened, pieces and metrics left out."""
    left_out = (StepEventType.STEP_DELTA, StepEventType.METRICS_SNAPSHOT)
    return [event.type.value for event in events if event.type not in left_out]


def snapshots(events: Iterable[StepEvent]) -> list[Step]:
    """The messages that were stored."""
    return [event.snapshot for event in events if event.snapshot is not None]


def replayed(events: Iterable[StepEvent]) -> dict[str, dict[str, Any]]:
    """What the pieces of each step give when they are put together; those called off left out."""
    steps: dict[str, dict[str, Any]] = {}
    for event in events:
        if event.type is not StepEventType.STEP_DELTA or event.step_id is None:
            continue
        if (event.data or {}).get("discarded"):
            del steps[event.step_id]
            continue
        step = steps.setdefault(event.step_id, {"content": "", "reasoning": "", "calls": []})
        assert event.delta is not None
        step["content"] += event.delta.content or ""
        step["reasoning"] += event.delta.reasoning_content or ""
        add_call_pieces(step["calls"], event.delta.tool_calls or [])
    return steps


def check_stream(memory: StepMemory, events: list[StepEvent]) -> None:
    """What holds for every stream: numbers, one end, deltas that give the stored messages."""
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    assert events[0].type is StepEventType.RUN_STARTED
    assert [event.type for event in events if event.type in FINAL] == [events[-1].type]
    stored = {step.id: step for step in messages(memory, str(events[0].session_id))}
    said = {
        step.id: {
            "content": step.content or "",
            "reasoning": step.reasoning_content or "",
            "calls": step.tool_calls or [],
        }
        for step in snapshots(events)
        if step.is_assistant_step()
    }
    assert {key: value for key, value in replayed(events).items() if key in said} == {
        key: value for key, value in said.items() if any(value.values())
    }
    for step in snapshots(events):
        if step.id in stored:
            assert step == stored[step.id]


def messages(memory: StepMemory, session_id: str) -> list[Step]:
    """A session's messages."""
    return asyncio.run(memory.repository().get_steps(session_id))


def said(memory: StepMemory, session_id: str) -> list[tuple[str, Any]]:
    """Role and content of a session's messages."""
    return [(step.role.value, step.content) for step in messages(memory, session_id)]


def search(query: str) -> str:
    """Search the corpus."""
    return f"result for {query}"


def thought(text: str, tool: str, **arguments: Any) -> dict[str, Any]:
    """What a ReAct agent's model says in one turn."""
    return {"next_thought": text, "next_tool_name": tool, "next_tool_args": arguments}


SEARCHES: list[Any] = [
    thought("I look it up", "search", query="x"),
    thought("I know it", "finish"),
    {"reasoning": "found it", "answer": "Paris"},
]
"""What a model says while a ReAct agent answers by searching once."""


class SyncAgent(dspy.Module):
    """Answers without async code."""

    def __init__(self, tools: list[Any] | None = None) -> None:
        super().__init__()
        self.react = dspy.ReAct("question -> answer", tools=tools or [search], max_iters=5)

    def forward(self, question: str) -> Any:
        """Ask the agent inside."""
        return self.react(question=question)
