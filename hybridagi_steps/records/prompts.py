"""LMCall: one request to a language model and what came back, as a recorder kept it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from hybridagi_steps.lazy import describe_fields

SETTINGS = frozenset(
    """temperature top_p top_k min_p max_tokens max_completion_tokens max_output_tokens n stop seed
    logprobs top_logprobs frequency_penalty presence_penalty logit_bias response_format tool_choice
    parallel_tool_calls reasoning reasoning_effort thinking verbosity modalities prediction
    rollout_id""".split()  # noqa: SIM905 - a paragraph reads better than its quotes
)
"""The settings of a model that a recorder keeps: what shapes an answer, no key or address."""


class LMCall(BaseModel):
    """What a language model was sent and gave; JSON data, without keys and addresses of providers.

    Pictures, sounds and files stand as a few words.
    """

    model_config = ConfigDict(json_schema_extra=describe_fields, frozen=True)

    lm: str | None = None
    """The model's name, as DSPy names it."""
    messages: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])
    """What was sent, oldest first; a prompt that was a text is one message of the user."""
    tools: list[Any] = Field(default_factory=list[Any])
    """Schemas of the tools that it might call."""
    settings: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Temperature, most tokens, answer format and the like, where they were set."""
    completion: Any = None
    """What came back, before any adapter read it: a list of texts, or of objects that hold `text`,
    `tool_calls`, `reasoning_content`; None when the call failed."""
    error: str | None = None
    """What it failed with."""
