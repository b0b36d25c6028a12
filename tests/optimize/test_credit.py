"""Scores of steps from the score of their run."""

from __future__ import annotations

import pytest
from past_runs import step

import hybridagi_steps as hs
from hybridagi_steps.errors import InvalidSettingError, InvalidStepError, UnknownRunError


@pytest.fixture
def tree() -> hs.StepMemory:
    """A search tree: 2 and 4 under 1; the branch 2, 3 was given up, 4, 5 ends the run."""
    memory = hs.StepMemory(":memory:", embedder="hashing")
    parents = {1: None, 2: 1, 3: 2, 4: 1, 5: 4}
    memory.add(
        [
            step("r", hop, "act", "p", parent_id=parent and f"r-{parent}")
            for hop, parent in parents.items()
        ]
    )
    return memory


def shown(memory: hs.StepMemory) -> list[float | None]:
    return [each.score for each in memory.run_steps("r")]


def test_all_steps_get_what_the_run_came_to(tree: hs.StepMemory) -> None:
    tree.score("r", 0.8)
    assert hs.credit(tree, "r") == {f"r-{n}": 0.8 for n in range(1, 6)}
    tree.score("r", 0.1)
    assert shown(tree) == [0.8] * 5


def test_the_last_three(tree: hs.StepMemory) -> None:
    assert hs.credit(tree, "r", 1.0, "last") == {"r-3": 1.0, "r-4": 1.0, "r-5": 1.0}
    assert shown(tree) == [None, None, 1.0, 1.0, 1.0]


def test_abandoned_branches_are_spared(tree: hs.StepMemory) -> None:
    assert set(hs.credit(tree, "r", 0.0, "path")) == {"r-1", "r-4", "r-5"}
    tree.score("r", 0.0)
    hs.credit(tree, "r", policy="path")
    assert shown(tree) == [0.0, 0.5, 0.5, 0.0, 0.0]


def test_a_branch_is_worth_what_it_has_over_its_siblings(tree: hs.StepMemory) -> None:
    found = hs.credit(tree, "r", 1.0, "advantage")
    assert found == {"r-2": 0.0, "r-3": 0.0, "r-4": 1.0, "r-5": 1.0}
    assert shown(tree) == [None, 0.0, 0.0, 1.0, 1.0]


def test_a_branch_with_scored_steps_has_their_mean(tree: hs.StepMemory) -> None:
    tree.score_steps({"r-2": 0.2, "r-3": 0.6})
    found = hs.credit(tree, "r", 1.0, "advantage")
    assert found["r-2"] == pytest.approx(0.5 + (0.4 - 1.0) / 2)
    assert found["r-5"] == pytest.approx(0.5 + (1.0 - 0.4) / 2)


def test_retries_in_runs_of_their_own_are_siblings(tree: hs.StepMemory) -> None:
    tree.add([step("again", 1, "act", "p", parent_id="r-4")])
    tree.score("again", 0.25)
    found = hs.credit(tree, "r", 1.0, "advantage")
    assert found["r-5"] == 0.5 + 0.75 / 2
    assert found["r-4"] == 1.0
    assert hs.credit(tree, "again", policy="advantage") == {}


def test_a_tree_whose_hops_are_depths_ends_where_it_was_ended() -> None:
    with hs.StepMemory(":memory:", embedder="hashing") as memory:
        for number, hop, parent in ((1, 1, None), (2, 2, 1), (3, 3, 2), (4, 2, 1)):
            made = step("r", number, "act", "p", parent_id=parent and f"r-{parent}")
            memory.add(made.model_copy(update={"hop": hop}))
        assert set(hs.credit(memory, "r", 1.0, "path")) == {"r-1", "r-4"}


def test_what_cannot_be_credited(tree: hs.StepMemory) -> None:
    with pytest.raises(UnknownRunError):
        hs.credit(tree, "nobody", 1.0)
    with pytest.raises(InvalidSettingError, match="score"):
        hs.credit(tree, "r")
    with pytest.raises(InvalidSettingError, match="advantage"):
        hs.credit(tree, "r", 1.0, "some")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidStepError):
        hs.credit(tree, "r", float("nan"))
    assert shown(tree) == [None] * 5


def test_no_advantage_leaves_the_range_of_scores(tree: hs.StepMemory) -> None:
    found = hs.credit(tree, "r", 7.0, "advantage")
    assert set(found.values()) == {0.0, 1.0}
