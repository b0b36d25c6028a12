"""Which formats can be read, and which of them a file is in.

A format is a module with two functions: `recognises(value)` for one record and `parse(records)`.
The first record that some format recognises decides; the order below puts the particular before
the general, since many formats hold `messages`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Protocol

from pydantic import JsonValue

from hybridagi_steps.exchange.formats import (
    anthropic,
    chatgpt,
    dspy,
    jsonl,
    langchain,
    langfuse,
    langgraph,
    mlflow,
    openai,
    otlp,
    toolbench,
)
from hybridagi_steps.exchange.formats.agents import (
    agents_session,
    claude_code,
    codex,
    inspect_logs,
    langsmith,
    openhands,
    swe_agent,
    tau_bench,
)
from hybridagi_steps.exchange.formats.chats import (
    autogen,
    batch_output,
    claude_ai,
    gemini,
    letta,
    pydantic_ai,
    sharegpt,
)
from hybridagi_steps.exchange.records import Entry, Record, Records, Skipped

LOOKED_AT = 20
"""Records looked at before a file that nothing recognises is read as own JSONL."""


class Format(Protocol):
    """What a module of a format has."""

    def recognises(self, value: JsonValue) -> bool:
        """Whether a record is in this format."""
        ...

    def parse(self, records: Records) -> Iterator[Entry]:
        """Yield what records hold."""
        ...


READERS: dict[str, Format] = {
    "langfuse": langfuse,
    "otlp": otlp,
    "mlflow": mlflow,
    "toolbench": toolbench,
    "langgraph": langgraph,
    "chatgpt": chatgpt,
    "claude_ai": claude_ai,
    "claude_code": claude_code,
    "codex": codex,
    "openai_agents": agents_session,
    "batch_output": batch_output,
    "inspect": inspect_logs,
    "tau_bench": tau_bench,
    "swe_agent": swe_agent,
    "openhands": openhands,
    "langsmith": langsmith,
    "pydantic_ai": pydantic_ai,
    "gemini": gemini,
    "letta": letta,
    "autogen": autogen,
    "sharegpt": sharegpt,
    "dspy": dspy,
    "langchain": langchain,
    "anthropic": anthropic,
    "openai": openai,
    "jsonl": jsonl,
}
"""Readers of JSON, in the order in which they are asked."""

FORMATS = ("auto", "jsonl", "parquet", *sorted(READERS.keys() - {"jsonl"}))
"""Names to ask an import for."""


def parse_as(name: str, records: Records) -> tuple[str, Iterator[Entry]]:
    """Return the format of records and their steps; `auto` lets the records tell it."""
    if name != "auto":
        return name, READERS[name].parse(records)
    rest = iter(records)
    seen, found = format_of_first(rest)
    found = found or "jsonl"
    return found, READERS[found].parse(chain(seen, rest))


def format_of_first(
    records: Iterator[Record | Skipped],
) -> tuple[list[Record | Skipped], str | None]:
    """Return the records looked at, and the format of the first that some format recognises."""
    seen: list[Record | Skipped] = []
    for record in records:
        seen.append(record)
        found = None if isinstance(record, Skipped) else format_of(record.value)
        if found or len(seen) == LOOKED_AT:
            return seen, found
    return seen, None


def format_of(value: JsonValue) -> str | None:
    """Return the format that a record is in, None when none recognises it.

    A step of our own is told first: whatever else it holds, it has a `step_type`.
    """
    if isinstance(value, dict) and "step_type" in value:
        return "jsonl"
    return next((name for name, reader in READERS.items() if reader.recognises(value)), None)
