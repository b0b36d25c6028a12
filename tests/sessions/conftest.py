"""Memories of every store, for what sessions promise on all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import hybridagi_steps as hs


@pytest.fixture(params=[":memory:", "steps.db", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_address"))
    return request.param if request.param == ":memory:" else str(tmp_path / request.param)


@pytest.fixture
def memory(address: str) -> Iterator[hs.StepMemory]:
    with hs.StepMemory(address, embedder="hashing", durability="normal") as memory:
        yield memory
