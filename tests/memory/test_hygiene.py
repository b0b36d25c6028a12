"""What a memory keeps, forgets and makes procedures of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hybridagi_steps as hs
from hybridagi_steps.errors import InvalidFilterError, InvalidSettingError, UnknownStepError
from hybridagi_steps.programs import GraphProgram

HEARD = "the code word is albatross"


def step(
    run: str, hop: int, tool: str, recalled: list[str] | None = None, **more: Any
) -> hs.AgentStep:
    inputs = {"purpose": more.pop("purpose", tool), "tool": tool}
    inputs["arguments"] = more.pop("arguments", {})
    return hs.AgentStep(
        id=f"{run}-{hop}",
        step_type=hs.AgentStepType.Action,
        run_id=run,
        hop=hop,
        inputs=inputs,
        outputs={"result": more.pop("result", "done")},
        metadata={"recalled": recalled} if recalled else None,
        **more,
    )


@pytest.fixture
def memory() -> hs.StepMemory:
    return hs.StepMemory(":memory:", embedder="hashing")


def ids(memory: hs.StepMemory) -> set[str]:
    return {str(each.id) for each in memory.iter_steps()}


def test_what_descends_is_forgotten_with_its_source(memory: hs.StepMemory) -> None:
    memory.add([step("a", 1, "read", result=HEARD), step("b", 1, "say", ["a-1"], result=HEARD)])
    memory.add([step("c", 1, "say", ["b-1"], result=HEARD), step("d", 1, "say")])
    assert memory.forget({"run_id": "a"}, dry_run=True) == 3
    assert len(ids(memory)) == 4
    assert memory.forget({"run_id": "a"}) == 3
    assert ids(memory) == {"d-1"}
    assert not memory.search("albatross code word", 5, mode="lexical")
    assert memory.forget({"run_id": "a"}) == 0


def test_pinned_steps_stay(memory: hs.StepMemory) -> None:
    memory.add([step("a", 1, "read"), step("a", 2, "say", ["a-1"])])
    memory.pin("a-2")
    assert [str(s.id) for s in memory.find({"metadata": {"pinned": True}}).steps] == ["a-2"]
    assert memory.forget({"tools": ["read"]}) == 1
    assert ids(memory) == {"a-2"}
    memory.pin(["a-2"], pinned=False)
    assert memory.get_steps("a-2")[0].metadata == {"recalled": ["a-1"]}
    assert memory.forget({"run_id": "a"}) == 1


def test_pinning_changes_nothing_else(memory: hs.StepMemory) -> None:
    memory.add([step("a", 1, "read", purpose="look into the ledger"), step("a", 2, "say")])
    memory.score("a", 0.5)
    memory.flush()
    [before] = memory.get_steps("a-1", vectors=True)
    memory.pin("a-1")
    [after] = memory.get_steps("a-1", vectors=True)
    assert after.metadata == {"pinned": True}
    assert after.model_copy(update={"metadata": None}) == before
    memory.score("a", 0.75)
    assert memory.get_steps("a-1")[0].score == 0.75
    assert memory.search("ledger")[0].step.id == "a-1"
    assert memory.verify() == []


def test_no_step_is_pinned_when_one_is_unknown(memory: hs.StepMemory) -> None:
    memory.add(step("a", 1, "read"))
    with pytest.raises(UnknownStepError):
        memory.pin(["a-1", "nowhere"])
    assert memory.get_steps("a-1")[0].metadata is None


def test_everything_is_forgotten_by_no_slip(memory: hs.StepMemory) -> None:
    memory.add(step("a", 1, "read"))
    with pytest.raises(InvalidFilterError, match="clear"):
        memory.forget({})
    assert ids(memory) == {"a-1"}


def refunds(count: int, **fields: Any) -> list[hs.AgentStep]:
    """Runs that looked a booking up and paid it back in one currency."""
    return [
        made
        for number in range(count)
        for made in (
            step(f"r{number}", 1, "look_up", arguments={"id": number, "deep": True}, **fields),
            step(f"r{number}", 2, "refund", arguments={"currency": "EUR"}, **fields),
        )
    ]


def scored(memory: hs.StepMemory, count: int, value: float = 1.0) -> hs.StepMemory:
    for number in range(count):
        memory.score(f"r{number}", value)
    return memory


def test_good_runs_that_are_alike_become_a_procedure(memory: hs.StepMemory) -> None:
    memory.add(refunds(3))
    [found] = scored(memory, 3).consolidate()
    assert found.calls == (
        ("look_up", {"id": "{id}", "deep": True}),
        ("refund", {"currency": "EUR"}),
    )
    assert set(found.run_ids) == {"r0", "r1", "r2"}
    assert str(found) == ("procedure: look_up(id={id}, deep=True) -> refund(currency=EUR) (3 runs)")
    assert len(ids(memory)) == 6, "a dry run stores nothing"
    assert not memory.consolidate(least=4)


def test_a_stored_procedure_is_found_and_replaced(memory: hs.StepMemory) -> None:
    memory.add(refunds(3))
    [found] = scored(memory, 3).consolidate(dry_run=False)
    [stored] = memory.find({"step_types": ["ProgramCall"]}).steps
    assert stored == found.step
    assert (stored.metadata or {})["recalled"] == [f"r{n}-{m}" for n in range(3) for m in (1, 2)]
    memory.add(step("r3", 1, "look_up", arguments={"id": 3, "deep": True}))
    memory.add(step("r3", 2, "refund", arguments={"currency": "EUR"}))
    memory.score("r3", 1.0)
    [again] = memory.consolidate(dry_run=False)
    assert again.step.id == found.step.id
    assert len(memory.find({"step_types": ["ProgramCall"]}).steps) == 1


def test_a_procedure_goes_with_one_of_its_sources(memory: hs.StepMemory) -> None:
    memory.add(refunds(3))
    scored(memory, 3).consolidate(dry_run=False)
    memory.revoke({"run_id": "r1"})
    assert not memory.find({"step_types": ["ProgramCall"]}).steps
    assert memory.forget({"run_id": "r1"}) == 3


def test_bad_failed_and_foreign_runs_make_none(memory: hs.StepMemory) -> None:
    memory.add(refunds(3))
    assert not memory.consolidate(), "nobody said that they ended well"
    assert not scored(memory, 3, 0.25).consolidate()
    scored(memory, 3)
    memory.update(memory.get_steps("r2-2")[0].model_copy(update={"status": "error"}))
    assert not memory.consolidate()


def test_procedures_of_users_stay_apart(memory: hs.StepMemory) -> None:
    memory.add([*refunds(2, user_id="ann"), step("r2", 1, "look_up", user_id="bob")])
    memory.add(step("r2", 2, "refund", user_id="bob"))
    assert not scored(memory, 3).consolidate()
    [found] = memory.consolidate(least=2)
    assert found.step.user_id == "ann"


def test_what_came_from_outside_is_not_made_ones_own(memory: hs.StepMemory) -> None:
    steps = refunds(3)
    steps[2].metadata = {"source": {"kind": "import", "name": "theirs.jsonl"}}
    memory.add(steps)
    scored(memory, 3).consolidate(dry_run=False)
    assert not memory.find({"step_types": ["ProgramCall"], "trust": "team"}).steps
    assert memory.find({"step_types": ["ProgramCall"]}).steps


def test_a_procedure_is_a_graph_program(memory: hs.StepMemory) -> None:
    memory.add(refunds(3))
    [found] = scored(memory, 3).consolidate()
    program = GraphProgram.from_cypher(found.to_cypher(), name="refund")
    assert [node for node in program.nodes if node.startswith("step")] == ["step_1", "step_2"]
    assert program.build()


def test_one_run_is_no_procedure(memory: hs.StepMemory) -> None:
    with pytest.raises(InvalidSettingError):
        memory.consolidate(least=1)


def test_recalled_text_is_never_stored_as_experience(tmp_path: Path) -> None:
    """The canary of hygiene: recalled again and again, a text stands in one step only."""
    with hs.StepMemory(tmp_path / "steps.db", embedder="hashing") as memory:
        memory.add(step("first", 1, "read", purpose="find the code word", result=HEARD))

        @hs.record_step(kind="action", purpose="look the code word up")
        def look_up(memory: hs.StepMemory) -> int:
            return len(memory.search("code word albatross", 3))

        for _ in range(5):
            with hs.record(memory):
                look_up(memory)
        holding = [each for each in memory.iter_steps() if "albatross" in str(vars(each))]
        assert [str(each.id) for each in holding] == ["first-1"]
        memory.score("first", 1.0)
        assert not memory.consolidate(dry_run=False)
        assert memory.forget({"run_id": "first"}) > 1
        assert "albatross" not in "".join(str(vars(each)) for each in memory.iter_steps())
