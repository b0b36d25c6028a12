"""Learning gives the same on every back-end: memory, file and PostgreSQL."""

# DSPy ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUntypedBaseClass=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dspy
import pytest

import hybridagi_steps as hs
from hybridagi_steps.testing import scripted_lm

ASKED = {"money back": "refund", "a window": "seat", "my suitcase": "luggage"}


class Desk(dspy.Module):
    """Routes a question."""

    def __init__(self) -> None:
        super().__init__()
        self.route = dspy.Predict("question -> route")

    def forward(self, question: str) -> Any:
        """Look the customer up, then route."""
        dspy.Tool(lambda question: "known", name="look_up")(question=question)
        dspy.Tool(lambda question: "noted", name="note")(question=question)
        return self.route(question=question)


@pytest.fixture(params=["memory", "file", "postgres"])
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[hs.StepMemory]:
    """Runs of ann and bob: hers ended well, his did not."""
    addresses: dict[str, Any] = {"memory": ":memory:", "file": tmp_path / "steps.db"}
    if request.param == "postgres":
        addresses["postgres"] = request.getfixturevalue("postgres_address")
    with hs.StepMemory(addresses[request.param], embedder="hashing") as opened:
        for user, score in (("ann", 1.0), ("bob", 0.0)):
            for question, route in ASKED.items():
                lm = scripted_lm([{"route": route}])
                with dspy.context(lm=lm), hs.record(opened, user_id=user) as run:
                    Desk()(question=f"I am {user} and want {question}")
                run.score(score)
        yield opened


def test_steps_become_examples_demonstrations_and_lines(
    memory: hs.StepMemory, tmp_path: Path
) -> None:
    good: Any = hs.steps_to_examples(memory, Desk(), ["route"], min_score=0.5)
    assert sorted(each.route for each in good) == sorted(ASKED.values())
    assert all("ann" in each.question for each in good)
    assert len(hs.steps_to_demos(memory, Desk(), where={"user_id": "bob"})["route"]) == 3
    assert hs.to_finetune(memory, tmp_path / "desk.jsonl", Desk()) == 6


def test_recall_keeps_to_the_user_and_out_of_the_test(memory: hs.StepMemory) -> None:
    desk = hs.WithExperience(Desk(), memory, k=9, group="inputs", on_error="raise")
    asked = "I am ann and want my suitcase"
    with dspy.context(lm=scripted_lm([{"route": "luggage"}] * 3)):
        with hs.record(memory, user_id="ann"):
            desk(question="Where is my suitcase?")
        best = memory.get_steps([desk.last_recall()[-1].step_id])[0]
        assert (len(desk.last_recall()), best.user_id) == (3, "ann")
        assert (best.outputs or {})["route"] == "luggage"
        with hs.record(memory, scope="mine"):
            desk(question=asked)
        assert len(desk.last_recall()) == 5
        assert best.id not in [memory.get_steps([each])[0].id for each in desk.last_recall().ids]
        gold = dspy.Example(question=asked, route="luggage").with_inputs("question")
        dspy.Evaluate(devset=[gold], metric=lambda *_: 1.0, display_progress=False)(
            hs.Recorded(Desk(), memory)
        )
    [trial] = memory.trials()
    assert (len(trial.runs), hs.compare_trials(memory, trial, trial).better) == (1, [])


def test_what_worked(memory: hs.StepMemory) -> None:
    plan = hs.AgentStep(
        step_type=hs.AgentStepType.Action,
        inputs={"purpose": "", "tool": "note", "arguments": {"question": "a window"}},
    )
    for user, chance in (("ann", 1.0), ("bob", 0.0)):
        found = hs.outlook(memory, plan, where={"user_id": user})
        assert (found.chance, found.steps[0].scored) == (chance, 3)
        assert len(hs.find_runs(memory, "look_up -> note", where={"user_id": user})) == 3
    assert hs.reliability(memory).tasks == 6
    [best] = hs.common_sequences(memory)
    assert (best.calls, best.share) == (("look_up", "note"), 0.5)
    run_id = memory.runs(user_id="bob")[0].run_id
    assert set(hs.credit(memory, run_id, 0.25).values()) == {0.25}
    assert "score 0" in hs.trajectory_feedback(run_id, memory=memory)


def test_what_is_kept_forgotten_and_made_a_procedure(memory: hs.StepMemory) -> None:
    [procedure] = memory.consolidate(dry_run=False)
    assert procedure.step.user_id == "ann"
    assert memory.find({"program": "Desk", "metadata": {"pinned": True}}).steps == []
    pinned = memory.find({"tools": "note", "user_id": "bob"}).steps[0]
    memory.pin(pinned.id)
    assert memory.forget({"user_id": "ann", "tools": "look_up"}) >= 4, "the procedure, too"
    assert memory.get_steps([procedure.step.id]) == []
    memory.forget({"user_id": "bob"})
    assert [step.id for step in memory.find({"user_id": "bob"}).steps] == [pinned.id]
    assert memory.verify() == []
