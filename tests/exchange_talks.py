"""What tests of imported sessions share: files, and what stands in a memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hybridagi_steps as hs


def written(tmp_path: Path, *records: Any, name: str = "chat.jsonl") -> Path:
    path = tmp_path / name
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def said(memory: hs.StepMemory, session_id: str) -> list[hs.Step]:
    return memory.repository().store.messages(session_id)


def sessions(memory: hs.StepMemory) -> dict[str, Any]:
    return {found.session_id: found for found in memory.repository().store.sessions(limit=100)}


def contents(memory: hs.StepMemory) -> dict[str, list[Any]]:
    return {name: [step.content for step in said(memory, name)] for name in sessions(memory)}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def model(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}
