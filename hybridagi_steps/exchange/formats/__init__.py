"""Which formats can be read, and which of them a file is in.

A format has two functions: `recognises(value)` for one record and `parse(records)`; most are a
`ChatFormat`. The first record that some format recognises decides; the order below puts the
particular before the general, since many formats hold `messages`.
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

MOST_TRIED = 20
"""Records tried before a file that nothing recognises is read as own JSONL."""


class Format(Protocol):
    """What every format has."""

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
    "chatgpt": chatgpt.FORMAT,
    "claude_ai": claude_ai.FORMAT,
    "claude_code": claude_code.FORMAT,
    "codex": codex.FORMAT,
    "openai_agents": openai.AGENTS,
    "batch_output": batch_output.FORMAT,
    "inspect": inspect_logs.FORMAT,
    "tau_bench": tau_bench.FORMAT,
    "swe_agent": swe_agent.FORMAT,
    "openhands": openhands.FORMAT,
    "langsmith": langsmith,
    "pydantic_ai": pydantic_ai.FORMAT,
    "gemini": gemini.FORMAT,
    "letta": letta.FORMAT,
    "autogen": autogen.FORMAT,
    "sharegpt": sharegpt.FORMAT,
    "dspy": dspy,
    "langchain": langchain.FORMAT,
    "anthropic": anthropic.FORMAT,
    "openai": openai.FORMAT,
    "jsonl": jsonl,
}
"""Readers of JSON, in the order in which they are tried."""
OWN_FORMATS = ("jsonl", "parquet")
"""Formats that steps are written in as they are."""
FORMATS = ("auto", *OWN_FORMATS, *sorted(READERS.keys() - {"jsonl"}))
"""Names of an import's formats."""


def parse_as(name: str, records: Records) -> tuple[str, Iterator[Entry]]:
    """Return the format of records and their steps; `auto` lets the records tell it."""
    if name != "auto":
        return name, READERS[name].parse(records)
    remaining = iter(records)
    head, recognised = format_of_first(remaining)
    name = recognised or "jsonl"
    return name, READERS[name].parse(chain(head, remaining))


def format_of_first(
    records: Iterator[Record | Skipped],
) -> tuple[list[Record | Skipped], str | None]:
    """Return the records that were tried, and the format of the first that is recognised."""
    tried: list[Record | Skipped] = []
    for record in records:
        tried.append(record)
        name = None if isinstance(record, Skipped) else format_of(record.value)
        if name or len(tried) == MOST_TRIED:
            return tried, name
    return tried, None


def format_of(value: JsonValue) -> str | None:
    """Return the format that a record is in, None when none recognises it.

    A step of our own is told first: whatever else it holds, it has a `step_type`.
    """
    if isinstance(value, dict) and "step_type" in value:
        return "jsonl"
    return next((name for name, reader in READERS.items() if reader.recognises(value)), None)
