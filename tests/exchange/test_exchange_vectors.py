"""Vectors in files: those of another embedder never enter, since they cannot be compared."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import hybridagi_steps as hs
from hybridagi_steps.errors import MissingExtraError
from hybridagi_steps.exchange import export_file, import_file
from hybridagi_steps.exchange.formats import parquet

PURPOSES = ["refund a cancelled flight", "book a hotel room", "weather in Rome"]


@pytest.fixture(params=["jsonl", "parquet"])
def exported(request: pytest.FixtureRequest, memory: hs.StepMemory, tmp_path: Path) -> Path:
    if request.param == "parquet":
        try:
            parquet.required()
        except MissingExtraError:
            pytest.skip("pyarrow is not installed")
    memory.add(
        hs.AgentStep(id=f"s{n}", step_type=hs.AgentStepType.Action, inputs={"purpose": purpose})
        for n, purpose in enumerate(PURPOSES)
    )
    path = tmp_path / f"v.{request.param}"
    export_file(memory, path, vectors=True)
    return path


def opened(embedder: str) -> Iterator[hs.StepMemory]:
    with hs.StepMemory(":memory:", embedder=embedder) as memory:
        yield memory


@pytest.mark.parametrize("embedder", ["wordllama", "hashing:64"])
def test_vectors_of_another_embedder_are_left_out_and_made_anew(
    exported: Path, embedder: str
) -> None:
    for other in opened(embedder):
        report = import_file(other, exported)
        assert (report.added, report.skipped) == (3, [])
        [note] = report.notes
        assert "vectors by hashing/256@1 left out" in note
        found = [other.search(purpose, k=1, mode="dense")[0].step.purpose for purpose in PURPOSES]
        assert found == PURPOSES
        assert import_file(other, exported).notes == ()


def test_vectors_of_the_same_embedder_come_back(exported: Path, memory: hs.StepMemory) -> None:
    ids = ["s0", "s1", "s2"]
    for other in opened("hashing"):
        assert import_file(other, exported).notes == ()
        assert other.stats()["pending_vectors"] == 0
        assert [s.model_extra for s in other.get_steps(ids)] == [{}, {}, {}]
        want, found = (m.get_steps(ids, vectors=True) for m in (memory, other))
        assert [step.vector for step in found] == [step.vector for step in want]


def test_a_vector_that_names_no_embedder_is_taken_as_it_is(tmp_path: Path) -> None:
    step = {"id": "s", "step_type": "Action", "inputs": {"purpose": "p"}, "vector": [1.0] * 256}
    (tmp_path / "old.jsonl").write_text(json.dumps(step))
    for memory in opened("hashing"):
        assert import_file(memory, tmp_path / "old.jsonl").notes == ()
        assert memory.stats()["pending_vectors"] == 0


def test_a_field_of_that_name_without_a_vector_stays_what_it_is(tmp_path: Path) -> None:
    line = {"id": "s", "step_type": "Action", "vector_embedder": "mine"}
    (tmp_path / "own.jsonl").write_text(json.dumps(line))
    for memory in opened("hashing"):
        import_file(memory, tmp_path / "own.jsonl")
        assert [step.model_extra for step in memory.iter_steps()] == [{"vector_embedder": "mine"}]
