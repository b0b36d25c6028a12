"""A memory searched in its database answers as one that holds the index itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import uuid4

import pytest

import hybridagi_steps as hs
from hybridagi_steps.errors import InvalidSettingError
from hybridagi_steps.records.filters import StepHit

Pair = tuple[hs.StepMemory, hs.StepMemory]
"""One memory, opened without a budget and with one that it does not fit."""


@pytest.fixture(scope="module")
def pair(postgres_server: Any, real_steps: list[hs.AgentStep]) -> Iterator[Pair]:
    address, namespace = str(postgres_server.get_uri()), uuid4().hex
    with (
        hs.StepMemory(address, namespace=namespace, embedder="hashing") as held,
        hs.StepMemory(
            address, namespace=namespace, embedder="hashing", memory_budget="1KB"
        ) as there,
    ):
        held.add(real_steps)
        held.flush()
        yield held, there


def answers(hits: Sequence[StepHit]) -> list[tuple[str, float]]:
    return [(str(hit.step.id), round(hit.score, 3)) for hit in hits]


def searched_in_database(memory: hs.StepMemory) -> bool:
    return memory.searcher._database is not None  # pyright: ignore[reportPrivateUsage]


QUERIES = [
    "refund the ticket",
    "which flight was booked for the customer",
    "pytest fails with an import error",
    "search for songs by artist",
    "the",
    "zxqv unheard",
]


@pytest.mark.parametrize("mode", ["hybrid", "lexical", "dense"])
@pytest.mark.parametrize("query", QUERIES)
def test_the_same_is_found_in_each_mode(pair: Pair, mode: Any, query: str) -> None:
    held, there = pair
    wanted = held.search(query, k=10, mode=mode)
    found = there.search(query, k=10, mode=mode)
    assert searched_in_database(there)
    assert not searched_in_database(held)
    assert answers(found) == answers(wanted)
    assert [hit.why for hit in found] == [hit.why for hit in wanted]
