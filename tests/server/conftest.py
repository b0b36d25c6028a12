"""Servers without a program, for the tests of what they answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from server_cases import Served, fill, serving

from hybridagi_steps import StepMemory


@pytest.fixture
def filled(memory: StepMemory) -> StepMemory:
    """A memory with a session of four messages and a run of three steps."""
    fill(memory)
    return memory


@pytest.fixture(scope="module")
def still() -> Iterator[Served]:
    """A server without a program, for tests that change nothing."""
    with StepMemory(":memory:", embedder="hashing") as memory:
        fill(memory)
        with serving(memory) as running:
            yield running


@pytest.fixture
def served(filled: StepMemory) -> Iterator[Served]:
    """A server without a program."""
    with serving(filled) as running:
        yield running
