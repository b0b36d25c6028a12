"""What a filter excludes is found by no search, of steps and messages, and costs one mask."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import hybridagi_steps as hs
from hybridagi_steps.errors import InvalidFilterError


@pytest.fixture
def memory() -> Iterator[hs.StepMemory]:
    """Runs of refunds, every third of which failed, and two sessions that speak of them."""
    with hs.StepMemory(":memory:", embedder="hashing") as opened:
        opened.add(
            [
                hs.AgentStep(
                    id=f"{n}",
                    run_id=f"run {n % 40}",
                    step_type=hs.AgentStepType.Action,
                    inputs={"purpose": f"refund ticket {n}", "tool": "refund"},
                    status="error" if n % 3 == 0 else "ok",
                )
                for n in range(200)
            ]
        )
        repo = opened.repository()
        for name in ("s", "t"):
            asked = [
                hs.Step(
                    session_id=name, role=hs.MessageRole.USER, content=f"refund my ticket, {name}"
                )
            ]
            asyncio.run(repo.append(name, asked))
        yield opened


def found(memory: hs.StepMemory, **where: object) -> set[str]:
    """The ids of the steps, and the sessions of the messages, that a search finds."""
    hits = memory.search("refund my ticket", k=300, where=where)
    return {hit.session_id or "" if hit.kind == "message" else str(hit.step.id) for hit in hits}


def test_a_search_leaves_out_what_find_leaves_out(memory: hs.StepMemory) -> None:
    everything = found(memory)
    assert {"s", "t"} < everything
    assert len(everything) == 202
    failed = {str(n) for n in range(0, 200, 3)}
    assert found(memory, exclude={"status": "error"}) == everything - failed
    assert found(memory, exclude={"session_id": "s"}) == everything - {"s"}
    runs = [{"run_id": f"run {n}"} for n in range(39)]
    left = {"39", "79", "119", "159", "199"}
    assert found(memory, exclude=runs) == left | {"s", "t"}
    assert found(memory, exclude=runs, exclude_run_id="run 39", kinds=["step"]) == set()
    listed = memory.find({"exclude": [{"status": "error"}, *runs]}, limit=300).steps
    assert {str(step.id) for step in listed} == left - failed


def test_a_filter_asked_again_is_answered_with_the_same_rows(memory: hs.StepMemory) -> None:
    """So an index knows where they stand."""
    filters = memory.searcher._index.filters  # pyright: ignore[reportPrivateUsage]
    for where in ({"exclude": {"status": "error"}}, {"exclude": [{"metadata": {"a": 1}}] * 2}, {}):
        asked = hs.StepFilter.of(where)
        found(memory, **where)
        assert filters.rows(asked) is filters.rows(asked)


def test_excluding_narrows_and_adds_up() -> None:
    one = hs.StepFilter(exclude={"run_id": "a"})
    both = one.and_(hs.StepFilter(exclude=[{"status": "error"}], tools="x"))
    assert both is not None
    assert both.exclude == [hs.StepFilter(run_id="a"), hs.StepFilter(status="error")]
    assert not one.passes_everything
    assert hs.StepFilter(exclude=[]).passes_everything
    with pytest.raises(InvalidFilterError, match="exclude"):
        hs.StepFilter(exclude={"colour": "red"})
    with pytest.raises(InvalidFilterError, match="exclude"):
        hs.StepFilter(exclude="run")
