"""Steps and runs are scored, and what was said of a run comes with what a search finds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import hybridagi_steps as hs
from hybridagi_steps.errors import InvalidStepError, UnknownStepError
from hybridagi_steps.search import step_index


@pytest.fixture
def memory() -> Iterator[hs.StepMemory]:
    """Two runs of one step."""
    with hs.StepMemory(":memory:", embedder="hashing") as opened:
        for name in ("good", "bad"):
            inputs = {"purpose": f"refund the {name} ticket"}
            opened.add(hs.AgentStep(id=name, run_id=name, step_type="Action", inputs=inputs))  # pyright: ignore[reportArgumentType]
        yield opened


def test_a_hit_brings_what_was_said_of_its_run(memory: hs.StepMemory) -> None:
    assert {hit.feedback for hit in memory.search("refund")} == {None}
    memory.score("bad", 0.0, "paid twice")
    memory.score("good", 1.0)
    assert {str(hit.step.id): hit.feedback for hit in memory.search("refund the ticket")} == {
        "good": None,
        "bad": "paid twice",
    }


def test_steps_are_scored_one_by_one_and_found_by_it(memory: hs.StepMemory) -> None:
    memory.search("refund")
    before = memory.stats()
    memory.score_steps({"good": 1, "bad": 0.25})
    after = memory.stats()
    assert [before[key] for key in ("steps", "embedded")] == [
        after[key] for key in ("steps", "embedded")
    ]
    assert after["pending_texts"] == after["pending_vectors"] == 0
    assert [str(step.id) for step in memory.find({"min_score": 0.5}).steps] == ["good"]
    found = memory.search("refund", where={"min_score": 0.5})
    assert [(str(hit.step.id), hit.step.score) for hit in found] == [("good", 1.0)]
    memory.score_steps({"good": 0.0})
    assert memory.search("refund", where={"min_score": 0.5}) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True, "1", None, 10**400])
def test_what_is_no_score_is_refused_whole(memory: hs.StepMemory, value: float) -> None:
    with pytest.raises(InvalidStepError):
        memory.score_steps({"good": 1.0, "bad": value})
    with pytest.raises(UnknownStepError):
        memory.score_steps({"good": 1.0, "nobody": 1.0})
    assert [step.score for step in memory.find().steps] == [None, None]


def test_who_searches_the_same_file_learns_of_new_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_index, "_WORTH_CACHING", 1)
    path = tmp_path / "steps.db"
    step = hs.AgentStep(id="a", step_type=hs.AgentStepType.Action, inputs={"purpose": "refund"})
    with hs.StepMemory(path, embedder="hashing") as writer:
        other = {"id": "b", "score": 0.5, "inputs": {"purpose": "refund the other"}}
        writer.add([step, step.model_copy(update=other)])

        def good() -> set[str]:
            return {str(hit.step.id) for hit in reader.search("refund", where={"min_score": 0.4})}

        with hs.StepMemory(path, embedder="hashing") as reader:
            assert good() == {"b"}
            writer.score_steps({"a": 1.0})
            assert good() == {"a", "b"}
            reader.flush()
        writer.score_steps({"b": 0.0})
        with hs.StepMemory(path, embedder="hashing") as reader:
            assert good() == {"a"}
            reader.flush()
        assert list(tmp_path.glob("*.keys.index")), "the columns were saved"
        with hs.StepMemory(path, embedder="hashing") as reader:
            assert good() == {"a"}
