"""What a memory's methods take for ids, and that nothing else is taken for one in silence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import hybridagi_steps as hs
from hybridagi_steps.errors import InvalidFilterError, InvalidQueryError


@pytest.fixture
def memory() -> hs.StepMemory:
    opened = hs.StepMemory(":memory:", embedder="hashing")
    opened.add(
        [
            hs.AgentStep(
                step_type=hs.AgentStepType.Action,
                inputs={"purpose": f"thing of {user}"},
                user_id=user,
                metadata={"topic": "refunds"},
                run_id="r",
            )
            for user in ("ann", "bob", "cid")
        ]
    )
    return opened


FILTERS: list[Any] = [{"user_id": "bob"}, {}, hs.StepFilter(user_id="bob")]
TAKES_IDS: dict[str, Callable[[hs.StepMemory, Any], Any]] = {
    "delete": lambda memory, ids: memory.delete(ids),
    "get": lambda memory, ids: memory.get(ids),
    "get_steps": lambda memory, ids: memory.get_steps(ids),
    "get_with_vectors": lambda memory, ids: memory.get(ids, vectors=True),
    "pin": lambda memory, ids: memory.pin(ids),
}
TAKES_ONE: dict[str, Callable[[hs.StepMemory, Any], Any]] = {
    "exist": lambda memory, one: memory.exist(one),
    "parents": lambda memory, one: memory.parents(one),
    "children": lambda memory, one: memory.children(one),
    "run": lambda memory, one: memory.run(one),
    "score": lambda memory, one: memory.score(one, 1.0),
    "reinstate": lambda memory, one: memory.reinstate(one),
    "prompt_of": lambda memory, one: memory.prompt_of(one),
}


@pytest.mark.parametrize("where", FILTERS, ids=["dict", "empty", "filter"])
@pytest.mark.parametrize("method", TAKES_IDS)
def test_a_filter_is_not_taken_for_ids(memory: hs.StepMemory, method: str, where: Any) -> None:
    with pytest.raises(InvalidQueryError, match="find and purge"):
        TAKES_IDS[method](memory, where)
    assert len(memory.find().steps) == 3


@pytest.mark.parametrize("where", FILTERS, ids=["dict", "empty", "filter"])
@pytest.mark.parametrize("method", TAKES_ONE)
def test_a_filter_is_not_taken_for_an_id(memory: hs.StepMemory, method: str, where: Any) -> None:
    with pytest.raises(InvalidQueryError):
        TAKES_ONE[method](memory, where)


SELECTIONS: dict[str, Callable[[hs.StepMemory], Any]] = {
    "found": lambda memory: memory.find({"user_id": "bob"}),
    "list": lambda memory: memory.find({"user_id": "bob"}).steps,
    "step": lambda memory: memory.find({"user_id": "bob"}).steps[0],
    "hits": lambda memory: memory.search("bob", where={"user_id": "bob"}),
    "hit": lambda memory: memory.search("bob", where={"user_id": "bob"})[0],
    "iterator": lambda memory: iter(memory.find({"user_id": "bob"}).steps),
}


@pytest.mark.parametrize("select", SELECTIONS.values(), ids=SELECTIONS)
def test_steps_stand_for_their_ids(
    memory: hs.StepMemory, select: Callable[[hs.StepMemory], Any]
) -> None:
    assert [step.user_id for step in memory.get(select(memory)).steps] == ["bob"]
    memory.pin(select(memory))
    assert memory.delete(select(memory)) == 1
    assert [step.user_id for step in memory.find().steps] == ["ann", "cid"]


def test_a_step_is_not_taken_for_a_run(memory: hs.StepMemory) -> None:
    step = memory.find().steps[0]
    with pytest.raises(InvalidQueryError):
        memory.run(step)  # pyright: ignore[reportArgumentType] - refused
    with pytest.raises(InvalidQueryError):
        memory.run_scores([step])  # pyright: ignore[reportArgumentType] - refused
    with pytest.raises(InvalidQueryError):
        hs.exclude.runs([step])  # pyright: ignore[reportArgumentType] - refused


TAKES_FILTERS: dict[str, Callable[[hs.StepMemory, Any], Any]] = {
    "find": lambda memory, where: memory.find(where),
    "iter_steps": lambda memory, where: list(memory.iter_steps(where)),
    "search": lambda memory, where: memory.search("thing", where=where),
    "runs": lambda memory, where: memory.runs(where),
    "purge": lambda memory, where: memory.purge(where),
    "forget": lambda memory, where: memory.forget(where),
    "revoke": lambda memory, where: memory.revoke(where),
    "consolidate": lambda memory, where: memory.consolidate(where),
    "excluding": lambda memory, where: memory.find({"exclude": [where]}),
    "filter": lambda _memory, where: hs.StepFilter(**where),
}


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"topic": []}, "topic"),
        ({"topic": ["refunds", ["fares"]]}, "topic"),
        ({"topic": {"$in": ["refunds"]}}, "topic"),
        ({"topic": {}}, "topic"),
        ({"ticket.topic": "refunds"}, r"ticket\.topic"),
        ({"topic": "refunds", 1: "one"}, "1"),
    ],
)
@pytest.mark.parametrize("method", TAKES_FILTERS)
def test_a_condition_that_no_metadata_can_meet_is_refused_by_name(
    memory: hs.StepMemory, method: str, metadata: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidFilterError, match=f"'metadata'.*{named}"):
        TAKES_FILTERS[method](memory, {"metadata": metadata})
    assert len(memory.find({"metadata": {"topic": "refunds"}}).steps) == 3


def test_what_a_memory_lists_is_the_list_of_its_steps() -> None:
    memory = hs.StepMemory(":memory:", embedder="hashing")

    @hs.record_step
    def look(word: str) -> str:
        return word

    with hs.record(memory) as run:
        assert not run.steps
        for word in ("one", "two", "three"):
            look(word)
    for found in (memory.find(), memory.run(run.id), run.steps, memory.get(memory.find())):
        assert len(found) == 3
        assert [step.arguments["word"] for step in found] == ["one", "two", "three"]
        assert found[1] in found
        assert found.index(found[-1]) == 2
    assert not memory.find({"user_id": "nobody"})
