"""Runs on a real small language model, served over HTTP on this machine."""

# Neither DSPy nor the client ships types that say enough.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportArgumentType=false

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import dspy
import openai
import pytest
from runner_cases import check_stream, collected, messages, snapshots

from hybridagi_steps import StepEventType, StepMemory, StepRunner

pytestmark = pytest.mark.slow


class Answer(dspy.Signature):
    """Answer briefly."""

    question: str = dspy.InputField()
    answer: str = dspy.OutputField()


def test_a_real_model_answers_streams_and_remembers(
    small_model: dspy.LM, file_memory: StepMemory
) -> None:
    model: Any = small_model

    async def chat(given: list[dict[str, Any]]) -> AsyncIterator[str]:
        client = openai.AsyncOpenAI(base_url=model.kwargs["api_base"], api_key="none")
        stream = await client.chat.completions.create(
            model="smollm2",
            messages=cast("Any", given),
            stream=True,
            max_tokens=40,
            temperature=0.0,
        )
        async for chunk in stream:
            yield chunk.choices[0].delta.content or ""
        await client.close()

    async def conversation() -> list[list[Any]]:
        with dspy.context(lm=model, adapter=dspy.JSONAdapter()):
            asks = StepRunner(dspy.Predict(Answer), file_memory)
            first = await collected(asks.run_stream("chat", "What is the capital of France?"))
        talks = StepRunner(chat, file_memory)
        second = await collected(talks.run_stream("chat", "Tell me about that city."))
        return [first, second]

    first, second = asyncio.run(conversation())
    for events in (first, second):
        check_stream(file_memory, events)
        assert events[-1].type is StepEventType.RUN_COMPLETED, events[-1].data
    answer = snapshots(first)[-1]
    assert "Paris" in str(answer.content)
    assert answer.metrics is not None
    assert (answer.metrics.total_tokens or 0) > 100
    assert (answer.metrics.first_token_latency_ms or 0) > 0
    pieces = [event for event in second if event.type is StepEventType.STEP_DELTA]
    assert len(pieces) > 5
    # What "that city" is stands in the first turn only.
    assert "Paris" in str(snapshots(second)[-1].content)
    assert [step.role.value for step in messages(file_memory, "chat")] == [
        "user",
        "assistant",
    ] * 2
