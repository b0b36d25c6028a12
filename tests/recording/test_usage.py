"""What model calls cost: the dialects of providers, sums, and the weight of cached tokens."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import dspy
import pytest

import hybridagi_steps as hs
from hybridagi_steps.recording.usage import TokenCounts, Usage, tokens_of
from hybridagi_steps.testing import scripted_lm

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


def test_a_detail_without_cached_tokens_leaves_what_stands_beside_the_sums() -> None:
    beside = {**DEEPSEEK, "prompt_tokens_details": {"audio_tokens": 0}}
    assert tokens_of(beside).cache_read_tokens == 64


def test_cached_tokens_weigh_what_they_cost() -> None:
    used = Usage.reported(LITELLM)
    assert used.weighted_tokens == pytest.approx(100 + 20 - 64 - 10 + 6.4 + 12.5)
    assert Usage.reported({"prompt_tokens": 5}).weighted_tokens == 5
    assert Usage.reported({"completion_tokens": 5}).weighted_tokens == 5
    assert Usage.reported({}).weighted_tokens is None


def test_sums_tell_what_nobody_reported_from_nothing() -> None:
    silent, free = Usage.reported({}), Usage.reported({"prompt_tokens": 0, "completion_tokens": 0})
    assert Usage.of([silent]).total_tokens is None
    assert Usage.of([silent, free]).total_tokens == 0
    paid = Usage.of([free, Usage.reported(OPENAI, "maker/model"), Usage.reported(ANTHROPIC)])
    assert (paid.calls, paid.input_tokens, paid.output_tokens, paid.total_tokens) == (
        3,
        200,
        40,
        240,
    )
    assert (paid.cache_read_tokens, paid.cache_write_tokens) == (128, 10)
    assert (paid.model_name, paid.cost) == ("maker/model", None)


@pytest.mark.parametrize("in_a_task", [False, True])
def test_without_a_history_no_tokens_are_lost(in_a_task: bool) -> None:
    program = dspy.ChainOfThought("question -> answer")
    counted: list[Any] = []
    told: list[Any] = []
    for disabled in (False, True):
        lm = scripted_lm([{"reasoning": "r", "answer": "a"}])
        with hs.StepMemory(":memory:", embedder="hashing") as memory:
            settings = {"lm": lm, "disable_history": disabled, "track_usage": True}
            with dspy.context(**settings), hs.record(memory) as run:
                if in_a_task:
                    given = asyncio.run(program.acall(question="?"))
                else:
                    given = program(question="?")
                assert dspy.settings.get("usage_tracker") is None
            assert run.errors == []
            counted.append([step.metrics for step in run.steps.steps])
            told.append(given.get_lm_usage())
        assert bool(lm.history) != disabled
    for before, after in zip(*counted, strict=True):
        assert after.total_tokens == before.total_tokens
        assert after.total_tokens
        assert (after.llm_calls, after.cache_hit) == (before.llm_calls, before.cache_hit)
    assert told[0] == told[1]


@pytest.mark.parametrize("recorders", [1, 2])
def test_a_streamed_answer_tells_when_it_began(recorders: int) -> None:
    memories = [hs.StepMemory(":memory:", embedder="hashing") for _ in range(recorders)]
    listener = dspy.streaming.StreamListener(signature_field_name="answer")
    program = dspy.Predict("question -> answer")
    lm = scripted_lm([{"answer": "a long answer"}] * 2)

    async def streamed() -> list[Any]:
        stream = dspy.streamify(program, stream_listeners=[listener])
        return [piece async for piece in stream(question="?")]

    with contextlib.ExitStack() as blocks:
        blocks.enter_context(dspy.context(lm=lm))
        runs = [blocks.enter_context(hs.record(memory)) for memory in memories]
        pieces = asyncio.run(streamed())
        program(question="not streamed")
        assert dspy.settings.get("send_stream") is None
    assert "".join(piece.chunk for piece in pieces[:-1]) == "a long answer"
    for run in runs:
        assert run.errors == []
        streamed_step, plain_step = (step.metrics for step in run.steps.steps)
        assert 0 < streamed_step.first_token_latency_ms <= streamed_step.duration_ms
        assert plain_step.first_token_latency_ms is None


def test_a_tool_takes_its_own_time_without_the_thought_before_it() -> None:
    def look() -> str:
        """Look."""
        return "seen"

    lines: list[dict[str, Any]] = [
        {"next_thought": "go", "next_tool_name": "look", "next_tool_args": {}},
        {"next_thought": "done", "next_tool_name": "finish", "next_tool_args": {}},
        {"reasoning": "r", "answer": "a"},
    ]
    replies = iter(lines)

    def reply(_: Any) -> Any:
        time.sleep(0.05)
        return next(replies)

    with hs.StepMemory(":memory:", embedder="hashing") as memory:
        with dspy.context(lm=scripted_lm(reply)), hs.record(memory) as run:
            dspy.ReAct("question -> answer", tools=[look])(question="?")
        [tool] = [step.metrics for step in run.steps.steps if step.tool == "look"]
    assert tool.duration_ms >= 50, "the thought counts in what the step took"
    assert tool.tool_exec_time_ms <= tool.duration_ms - 50, "and not as the tool's time"
