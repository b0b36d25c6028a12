"""What the contracts are tested with: steps, words and vectors made in one line."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from hybridagi_steps.protocols import Position, StepStore, TextRow, VectorRow
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.stores.sqlite import SqliteStepStore

START = Position(0, 0, 0, 0)
EVERYTHING = StepFilter(scope="*")
NASTY = [
    "plain",
    'quo"te',
    "apo'strophe",
    "dot.ted.key",
    "[0]",
    "$",
    "back\\slash",
    "emoji 🙂",
    "'; DROP TABLE agent_step; --",
    '"] OR 1=1 --',
    "",
    "line\nbreak",
    "ключ",
]


def step(**values: Any) -> AgentStep:
    """Make an Action, or what `values` say."""
    return AgentStep.model_validate({"step_type": "Action", **values})


def ids(steps: Sequence[AgentStep]) -> list[str]:
    return [str(found.id) for found in steps]


def text(row: int, parent: int | None = None, tokens: str = "refund order") -> TextRow:
    return TextRow(row, parent, tokens, 7, 0, scoped=False)


def vector(row: int, *values: float) -> VectorRow:
    return VectorRow(row, 7, np.array(values, np.float32) if values else None, scoped=False)


def save_pending(store: StepStore) -> list[tuple[int, int | None]]:
    """Save words for everything pending, as the layer above does; return (row, parent row)."""
    saved: list[tuple[int, int | None]] = []
    while pending := store.pending_texts(3):
        store.save_texts([text(found.row, found.parent_row) for found in pending])
        saved.extend((found.row, found.parent_row) for found in pending)
        assert len(saved) < 500, "pending words never end"
    return saved


def filled(path: Path, count: int = 50) -> None:
    """Write a file of `count` steps of one run, with their words."""
    with closing(SqliteStepStore(path, durability="normal")) as store:
        store.append([step(id=str(n), run_id="r", outputs={"x": "y" * 300}) for n in range(count)])
        save_pending(store)
