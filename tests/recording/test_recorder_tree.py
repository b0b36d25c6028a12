"""Runs, paths and strands, without DSPy: who follows whom."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from uuid import UUID

import pytest

from hybridagi_steps.recording import in_context
from hybridagi_steps.recording.call_tree import (
    Call,
    CallTree,
    Labels,
    Path,
    Run,
    Strand,
    Tail,
    current_strand,
    parent_and_joins,
    settle,
)

HOME = Strand("home", None)


def tail(hop: int) -> Tail:
    """A stored step."""
    return Tail(hop, UUID(int=hop + 1))


def accept(hop: int, step_id: UUID) -> None:
    """Store nothing, successfully."""


def test_steps_on_one_strand_follow_each_other() -> None:
    path = Path(HOME)
    first = path.enter(HOME)
    path.leave(HOME, first, tail(0))
    assert first == ()
    assert path.enter(HOME) == (tail(0),)


def test_branches_share_the_step_before_them_and_the_next_step_joins_them() -> None:
    path = Path(HOME, (tail(0),))
    branches = [Strand(name, None) for name in ("a", "b", "c")]
    followed = [path.enter(strand) for strand in branches]
    assert followed == [(tail(0),)] * 3
    for hop, strand in enumerate(branches, start=1):
        path.leave(strand, (tail(0),), tail(hop))
    after = path.enter(HOME)
    assert parent_and_joins(after) == (
        tail(3).step_id,
        [str(tail(1).step_id), str(tail(2).step_id)],
    )


def test_a_branch_that_starts_after_another_ended_still_branches() -> None:
    path = Path(HOME, (tail(0),))
    worker = [Strand("thread", unit) for unit in (object(), object())]
    path.leave(worker[0], path.enter(worker[0]), tail(1))
    assert path.enter(worker[1]) == (tail(0),), "another unit of work of the same thread"
    assert path.enter(worker[0]) == (tail(1),), "the same unit of work goes on"


def test_concurrent_calls_on_one_strand_branch_too() -> None:
    path = Path(HOME, (tail(0),))
    one, two = path.enter(HOME), path.enter(HOME)
    path.leave(HOME, one, tail(1))
    path.leave(HOME, two, tail(2))
    assert one == two == (tail(0),)
    assert set(path.enter(HOME)) == {tail(1), tail(2)}


def test_nothing_in_a_detached_path_follows_anything() -> None:
    path = Path(HOME, detached=True)
    path.leave(HOME, path.enter(HOME), tail(0))
    assert path.enter(HOME) == ()
    assert path.tails() == ()


def test_many_branches_do_not_pile_up() -> None:
    path = Path(HOME, (tail(0),))
    for number in range(2_000):
        strand = Strand(object(), None)
        path.leave(strand, path.enter(strand), tail(number + 1))
    assert path.branches_known <= 256


def test_hops_have_no_gap_when_a_step_is_not_stored() -> None:
    run = Run(HOME, [])

    def refuse(hop: int, step_id: UUID) -> None:
        raise OSError("full")

    hops = [run.commit(accept).hop]
    with pytest.raises(OSError, match="full"):
        run.commit(refuse)
    run.commit(lambda hop, step_id: False)
    hops.append(run.commit(accept).hop)
    assert hops == [0, 1]


def test_hops_are_unique_under_threads() -> None:
    run = Run(HOME, [])
    with ThreadPoolExecutor(8) as pool:
        tails = list(pool.map(run.commit, [accept] * 400))
    assert sorted(t.hop for t in tails) == list(range(400))


def opened(tree: CallTree, run: Run, call_id: str, parent: Call | None = None) -> Call:
    """A call on the home strand."""
    return tree.open(
        call_id,
        None,
        {},
        parent=parent,
        run=run,
        strand=HOME,
        labels=Labels(),
        scope=None,
    )


def test_a_call_that_adds_no_level_stands_for_its_parent() -> None:
    tree, run = CallTree(), Run(HOME, [])
    outer = opened(tree, run, "outer")
    tree["adapter"] = outer
    assert tree["adapter"] is outer
    assert tree.close("adapter") is None
    assert tree["outer"] is outer


def test_ends_may_come_twice_late_or_unknown() -> None:
    tree, run = CallTree(), Run(HOME, [])
    call = opened(tree, run, "a")
    child = opened(tree, run, "b", call)
    assert tree.close("a") is call
    assert tree.close("a") is None
    assert tree.close("never seen") is None
    assert tree.close("b") is child
    assert len(tree) == 0


def test_labels_say_what_the_outer_ones_do_not() -> None:
    outer = Labels("s", "u", None, {"a": 1, "b": 1})
    assert Labels(None, "v", "trial", {"b": 2}).over(outer) == Labels(
        "s", "v", "trial", {"a": 1, "b": 2}
    )


def test_a_task_is_a_strand_of_its_own() -> None:
    async def strands() -> tuple[Strand, Strand, Strand]:
        async def mine() -> Strand:
            return current_strand()

        one, two = await asyncio.gather(mine(), mine())
        return current_strand(), one, two

    here, one, two = asyncio.run(strands())
    assert len({id(here.home), id(one.home), id(two.home)}) == 3


def test_a_thread_that_a_task_waits_for_continues_its_strand() -> None:
    async def both() -> tuple[Strand, Strand]:
        return current_strand(), await asyncio.to_thread(current_strand)

    here, there = asyncio.run(both())
    assert here.home is there.home


def test_a_bare_thread_is_a_strand_of_its_own() -> None:
    settle()
    seen: list[Strand] = []
    thread = threading.Thread(target=lambda: seen.append(current_strand()))
    thread.start()
    thread.join()
    assert seen[0].home is not current_strand().home


def test_in_context_carries_context_into_threads_each_call_a_branch() -> None:
    variable: ContextVar[str] = ContextVar("variable", default="lost")
    variable.set("kept")

    def look(_: int) -> tuple[str, Strand]:
        return variable.get(), current_strand()

    with ThreadPoolExecutor(2) as pool:
        seen = list(pool.map(in_context(look), range(6)))
    assert {text for text, _ in seen} == {"kept"}
    assert len({id(strand.home) for _, strand in seen}) == 6


def test_in_context_takes_coroutine_functions() -> None:
    variable: ContextVar[str] = ContextVar("other", default="lost")
    variable.set("kept")

    async def look() -> str:
        await asyncio.sleep(0)
        return variable.get()

    carried = in_context(look)
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(asyncio.run(carried())))
    thread.start()
    thread.join()
    assert found == ["kept"]
