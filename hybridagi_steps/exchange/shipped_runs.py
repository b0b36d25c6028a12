"""Loader of the real runs that travel in the package; `data/PROVENANCE.md` says whose they are."""

from __future__ import annotations

from importlib.resources import files

import orjson

from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.json_reading import JsonObject


def shipped_steps() -> list[AgentStep]:
    """Return every step of the shipped runs; their raw messages are left out."""
    return [
        AgentStep.model_validate({key: row[key] for key in row if key != "messages"})
        for row in _lines("steps.jsonl")
    ]


def shipped_runs() -> list[JsonObject]:
    """Return what is known of each shipped run: `run_id`, `task`, and how it ended."""
    return _lines("runs.jsonl")


def _lines(name: str) -> list[JsonObject]:
    text = files("hybridagi_steps.data").joinpath(name).read_text(encoding="utf-8")
    return [orjson.loads(line) for line in text.splitlines() if line]
