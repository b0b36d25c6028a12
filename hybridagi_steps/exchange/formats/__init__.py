"""Which formats can be read, and which of them a file is in.

A format is a module with two functions: `recognises(value)` for one record and `parse(records)`.
The first record that some format recognises decides; the order below puts the particular before
the general, since many formats hold `messages`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import NamedTuple

from pydantic import JsonValue

from hybridagi_steps.exchange.formats import anthropic as anthropic_messages
from hybridagi_steps.exchange.formats import dspy as dspy_history
from hybridagi_steps.exchange.formats import jsonl, otlp, toolbench
from hybridagi_steps.exchange.formats import langchain as langchain_messages
from hybridagi_steps.exchange.formats import langgraph as langgraph_checkpoints
from hybridagi_steps.exchange.formats import mlflow as mlflow_traces
from hybridagi_steps.exchange.formats import openai as openai_messages
from hybridagi_steps.exchange.records import Entry, Record, Records, Skipped

LOOKED_AT = 20
"""Records looked at before a file that nothing recognises is read as own JSONL."""


class Format(NamedTuple):
    """How to tell a format, and how to read it."""

    recognises: Callable[[JsonValue], bool]
    parse: Callable[[Records], Iterator[Entry]]


READERS: dict[str, Format] = {
    "otlp": Format(otlp.recognises, otlp.parse),
    "mlflow": Format(mlflow_traces.recognises, mlflow_traces.parse),
    "toolbench": Format(toolbench.recognises, toolbench.parse),
    "langgraph": Format(langgraph_checkpoints.recognises, langgraph_checkpoints.parse),
    "dspy": Format(dspy_history.recognises, dspy_history.parse),
    "langchain": Format(langchain_messages.recognises, langchain_messages.parse),
    "anthropic": Format(anthropic_messages.recognises, anthropic_messages.parse),
    "openai": Format(openai_messages.recognises, openai_messages.parse),
    "jsonl": Format(jsonl.recognises, jsonl.parse),
}
"""Readers of JSON, in the order in which they are asked."""

FORMATS = ("auto", "jsonl", "parquet", *sorted(READERS.keys() - {"jsonl"}))
"""Names to ask an import for."""


def parse_as(name: str, records: Records) -> tuple[str, Iterator[Entry]]:
    """Return the format of records and their steps; `auto` lets the records tell it."""
    if name != "auto":
        return name, READERS[name].parse(records)
    rest = iter(records)
    seen: list[Record | Skipped] = []
    for record in rest:
        seen.append(record)
        found = None if isinstance(record, Skipped) else format_of(record.value)
        if found or len(seen) == LOOKED_AT:
            break
    else:
        found = None
    found = found or "jsonl"
    return found, READERS[found].parse(chain(seen, rest))


def format_of(value: JsonValue) -> str | None:
    """Return the format that a record is in, None when none recognises it.

    A step of our own is told first: whatever else it holds, it has a `step_type`.
    """
    if isinstance(value, dict) and "step_type" in value:
        return "jsonl"
    return next((name for name, reader in READERS.items() if reader.recognises(value)), None)
