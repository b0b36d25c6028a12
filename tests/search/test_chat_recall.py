"""A chat is recalled as well however it came: as steps, imported, or as messages of a session."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest

import hybridagi_steps as hs
from hybridagi_steps.exchange import import_file

CITIES = [
    "Lisbon",
    "Oslo",
    "Prague",
    "Quito",
    "Riga",
    "Sofia",
    "Tunis",
    "Vienna",
    "Warsaw",
    "Zagreb",
]
THINGS = ["hotel", "museum", "airport", "market", "harbour"]
FACTS = [
    (thing, city, 17 + 3 * n)
    for n, (thing, city) in enumerate((t, c) for t in THINGS for c in CITIES)
]
LEAST = 0.9
"""Share of the facts that stand among the best three."""
LEAST_RATIO = 0.95
"""What the worst way finds of what the best one does."""


def chat() -> list[dict[str, str]]:
    facts = random.Random(3).sample(FACTS, len(FACTS))
    return [
        said
        for thing, city, price in facts
        for said in (
            {"role": "user", "content": f"What did we pay at the {thing} of {city}?"},
            {"role": "assistant", "content": f"It came to {price} euros, tip included."},
        )
    ]


def as_messages(memory: hs.StepMemory, folder: Path) -> None:
    asyncio.run(memory.repository().append("trip", chat()))


def imported(memory: hs.StepMemory, folder: Path) -> None:
    (folder / "trip.json").write_text(json.dumps({"messages": chat()}))
    import_file(memory, folder / "trip.json")


def as_steps(memory: hs.StepMemory, folder: Path) -> None:
    said = chat()
    memory.add(
        [
            hs.AgentStep(
                step_type=hs.AgentStepType.Action,
                inputs={"purpose": question["content"], "arguments": {}},
                outputs={"result": answer["content"]},
                run_id="trip",
                hop=hop,
            )
            for hop, (question, answer) in enumerate(zip(said[::2], said[1::2], strict=True))
        ]
    )


def recall(memory: hs.StepMemory) -> float:
    """Return the share of the facts whose price stands among the best three hits."""
    found = 0
    for thing, city, price in FACTS:
        hits = memory.search(f"how expensive was the {city} {thing}", 3)
        found += any(f" {price} euros" in str(hit.step.result) for hit in hits)
    return found / len(FACTS)


def test_each_way_recalls_what_the_others_do(tmp_path: Path) -> None:
    shares: dict[str, float] = {}
    for came in (as_messages, imported, as_steps):
        with hs.StepMemory(":memory:", embedder="hashing") as memory:
            came(memory, tmp_path)
            shares[came.__name__] = recall(memory)
    assert min(shares.values()) >= LEAST, shares
    assert min(shares.values()) / max(shares.values()) >= LEAST_RATIO, shares


@pytest.mark.parametrize("came", [as_messages, imported])
def test_each_fact_takes_one_place(tmp_path: Path, came: object) -> None:
    assert callable(came)
    with hs.StepMemory(":memory:", embedder="hashing") as memory:
        came(memory, tmp_path)
        hits = memory.search("how expensive was the Lisbon hotel", 10)
        assert len({str(hit.step.result) for hit in hits}) == len(hits) == 10
