"""Samples for the contracts: steps, messages, words and vectors, made in one line each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np

from hybridagi_steps.protocols import SessionStore, StepStore
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.filters import StepFilter
from hybridagi_steps.records.message import Step
from hybridagi_steps.records.store_values import Position, TextRow, VectorRow


class SessionStepStore(StepStore, SessionStore, Protocol):
    """A step store with sessions: all that a back-end is asked."""


START = Position(0, 0, 0, 0, 0)
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


def step(**values: object) -> AgentStep:
    """Make an Action, or what `values` say."""
    return AgentStep.model_validate({"step_type": "Action", **values})


def message(content: object = "hello", role: str = "user", **values: object) -> Step:
    """Make a message that belongs nowhere yet."""
    return Step.model_validate({"session_id": "-", "role": role, "content": content, **values})


def said(count: int, first: int = 1) -> list[Step]:
    """Make messages that say their own numbers, by turns of user and assistant."""
    numbers = range(first, first + count)
    return [message(str(n), "user" if n % 2 else "assistant") for n in numbers]


def contents(store: SessionStore, session_id: str, **asked: Any) -> list[Any]:
    """Return what a session says, read both ways, which must agree."""
    steps = store.messages(session_id, **asked)
    dicts = store.message_dicts(session_id, **asked)
    assert dicts == [found.to_message_dict() for found in steps]
    assert all(found.session_id == session_id for found in steps)
    return [found.content for found in steps]


def ids(steps: Sequence[AgentStep]) -> list[str]:
    """Return the ids of steps, as texts."""
    return [str(found.id) for found in steps]


def text(row: int, parent: int | None = None, tokens: str = "refund order") -> TextRow:
    """Make the words of a row."""
    return TextRow(row, parent, tokens, 7, 0, scoped=False)


def vector(row: int, *values: float) -> VectorRow:
    """Make the embedding of a row; without values a failed one."""
    return VectorRow(row, 7, np.array(values, np.float32) if values else None, scoped=False)


def at_once(write: Callable[[int], None]) -> None:
    """Let eight threads write, each with its number; raise what one of them raises."""
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(write, range(8)))


def save_pending(store: StepStore) -> list[tuple[int, int | None]]:
    """Save words for everything pending, as the layer above does; return (row, parent row)."""
    saved: list[tuple[int, int | None]] = []
    while pending := store.pending_texts(3):
        store.save_derived([text(found.row, found.parent_row) for found in pending], [])
        saved.extend((found.row, found.parent_row) for found in pending)
        assert len(saved) < 500, "pending words never end"
    return saved
