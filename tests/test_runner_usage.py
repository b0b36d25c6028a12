"""Usage as providers report it, each in its own dialect, read as the same figures."""

from __future__ import annotations

from typing import Any

import pytest

from hybridagi_steps.programs.usage import TokenCounts, tokens_of

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
