"""A filter holds for every part of a score: what it does not show moves no hit.

Another user's rows are stored twice: apart (runs, sessions and tools of their own), and amid those
of the user who asks. Both memories hold the same words, so the frequencies of BM25 are the same,
and every answer has to be, to the last digit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from hybridagi_steps import AgentStep, AgentStepType, StepMemory
from hybridagi_steps.records.step_text import whole_text
from hybridagi_steps.search.formulas import AIMS, Aim, Mode

WORDS = ["order", "refund", "card", "parcel", "desk", "flight", "Oslo", "rules"]
QUERY = "refund the order of the flight to Oslo"
Answer = list[tuple[str, float, dict[str, float], str]]


def done(user: str, n: int, *, run: str, tool: str, **fields: Any) -> AgentStep:
    """Return one step; what it says depends on the user and the number alone."""
    words = " ".join(WORDS[(n * (2 + len(user)) + place) % len(WORDS)] for place in range(3))
    return AgentStep(
        id=f"{user}{n}",
        step_type=AgentStepType.Action,
        inputs={"purpose": f"{words} {user}{n}", "tool": tool, "arguments": {}},
        outputs={"result": f"{WORDS[n % len(WORDS)]} is ready"},
        user_id=user,
        run_id=run,
        session_id=run,
        **fields,
    )


def said(
    name: str, n: int, *, session: str, run: str = "", user: str = "", **fields: Any
) -> AgentStep:
    """Return one spoken turn, of the user of that name."""
    words = " ".join(WORDS[(n * (2 + len(name)) + place) % len(WORDS)] for place in range(4))
    return AgentStep(
        id=f"{name}{n}",
        step_type=AgentStepType.Action,
        inputs={"purpose": "", "arguments": {}},
        outputs={"result": f"{words}, {name} has said {n}."},
        metadata={"said_by": {"result": name}},
        user_id=user or name,
        run_id=run or session,
        session_id=session,
        **fields,
    )


def answer(memory: StepMemory, query: Any, where: dict[str, Any], aim: Aim | None) -> Answer:
    hits = memory.search(query, 30, where=where, aim=aim)
    assert hits
    return [(str(hit.step.id), hit.score, hit.parts, hit.why) for hit in hits]


def answers(stored: Iterable[AgentStep], query: Any, where: dict[str, Any], aim: Aim | None) -> Any:
    with StepMemory(":memory:", embedder="hashing") as memory:
        memory.add(list(stored))
        return answer(memory, query, where, aim)


def mixed(mine: Sequence[AgentStep], theirs: Sequence[AgentStep]) -> list[AgentStep]:
    """Return two lists turn by turn, others first."""
    return [step for pair in zip(theirs, mine, strict=True) for step in pair]


HERE = done("ann", 99, run="now", tool="get_order")
ASKED = {"user_id": {"user_id": "ann"}, "run_id": {"run_id": "r1", "user_id": "ann"}}


@pytest.mark.parametrize("linked", [True, False])
@pytest.mark.parametrize("where", ASKED.values(), ids=ASKED)
@pytest.mark.parametrize("aim", AIMS)
def test_steps_of_another_user_amid_ones_own_move_nothing(
    aim: Aim | None, where: dict[str, Any], linked: bool
) -> None:
    """Votes, the state before, the documents of tools and the neighbours.

    Where steps name no parent, it is the one that their user has before them in the run.
    """

    def of(user: str, n: int) -> AgentStep:
        parent = {"parent_id": f"{user}{n - 1}"} if linked and n % 6 else {}
        return done(user, n, run=f"r{n // 6}", tool=WORDS[n % 3], hop=n % 6, **parent)

    mine, theirs = ([of(user, n) for n in range(24)] for user in ("ann", "bob"))
    elsewhere = [
        step.model_copy(update={"run_id": f"b{step.run_id}", "session_id": f"b{step.run_id}"})
        for step in theirs
    ]
    query = HERE if aim == "next" else QUERY
    apart = answers(mixed(mine, elsewhere), query, where, aim)
    assert {name[:3] for name, *_ in apart} == {"ann"}
    assert answers(mixed(mine, theirs), query, where, aim) == apart


@pytest.mark.parametrize("replies", [1, 5])
def test_turns_of_another_user_in_ones_own_session_move_nothing(replies: int) -> None:
    """The turns around and the session, where others answer each turn, and before oneself does."""
    line = [
        said("ann", n, session="s", hop=n, parent_id=f"ann{n - 1}" if n else None) for n in range(8)
    ]
    among: list[AgentStep] = []
    lone: list[AgentStep] = []
    for n in range(8 * replies):
        among.append(said("bob", n, session="s", hop=n, parent_id=f"ann{n // replies}"))
        lone.append(said("bob", n, session=f"b{n}"))
    where = {"user_id": "ann"}
    apart = answers([*lone, *line], QUERY, where, None)
    assert max(parts["wide"] for _, _, parts, _ in apart) == 1
    assert answers([*among, *line], QUERY, where, None) == apart


def test_a_session_has_the_words_of_whom_it_is_asked_for_alone() -> None:
    """Else the other's words would tell in which session they were said."""
    mine = [said("ann", n, session=f"s{n % 3}") for n in range(9)]
    theirs = [said("bob", n, session=f"s{n % 3}", run=f"b{n}") for n in range(9)]
    turned = [said("bob", n, session=f"s{n // 3}", run=f"b{n}") for n in range(9)]
    where = {"user_id": "ann"}
    one, other = (answers([*mine, *bobs], QUERY, where, None) for bobs in (theirs, turned))
    assert len({parts["session"] for _, _, parts, _ in one}) == 3
    assert one == other


@pytest.mark.parametrize("mode", ["hybrid", "lexical"])
def test_a_step_before_that_is_not_shown_is_no_state(mode: Mode) -> None:
    """One of another run leads to the next one: asked for one run, the other says nothing."""
    before = done("ann", 1, run="p", tool="find")
    after = done("ann", 2, run="q", tool="fx", parent_id="ann1")
    with StepMemory(":memory:", embedder="hashing") as memory:
        memory.add([before, after])
        here = before.model_copy(update={"id": "here", "run_id": "now"})
        shown = {str(h.step.id): h for h in memory.search(here, aim="next", mode=mode)}
        assert shown["ann2"].parts["state_words"] == 1
        [hit] = memory.search(here, aim="next", mode=mode, where={"run_id": "p"})
        assert hit.step.id == "ann1"
        for hit in memory.search(here, aim="next", mode=mode, where={"run_id": "q"}):
            assert hit.parts["state_words"] == hit.parts.get("state_meaning", 0) == 0


def test_a_turn_around_that_is_not_shown_has_no_words() -> None:
    line = [said("ann", n, session="s", run=f"r{n}") for n in range(3)]
    for turn, before in zip(line[1:], line, strict=False):
        turn.parent_id = str(before.id)
    line[0].outputs = {"result": "the xylophone is out of tune"}
    with StepMemory(":memory:", embedder="hashing") as memory:
        memory.add(line)
        hits = {str(hit.step.id): hit for hit in memory.search("xylophone", 9)}
        assert hits["ann2"].parts["wide"] > 0
        hits = memory.search(f"xylophone {line[1].result}", 9, where={"run_id": "r2"})
        assert [(hit.step.id, hit.parts["wide"]) for hit in hits] == [("ann2", 1)]
        for hit in memory.search("xylophone", 9, where={"run_id": "r2"}):
            assert hit.parts["wide"] == 0


def test_revoked_forks_take_no_turn_from_the_window() -> None:
    """Of many answers to one turn few are looked at; those that are revoked are none of them."""
    line = [said("ann", 0, session="s"), said("ann", 1, session="s", parent_id="ann0")]
    line[1].outputs = {"result": "the xylophone is out of tune"}
    forks = [said("fork", n, session=f"f{n}", parent_id="ann0", user="ann") for n in range(6)]
    with StepMemory(":memory:", embedder="hashing") as memory:
        memory.add([line[0], *forks, line[1]])
        for fork in forks:
            memory.revoke({"run_id": str(fork.run_id)})
        hits = {str(hit.step.id): hit for hit in memory.search("xylophone", 9)}
        assert hits["ann0"].parts["wide"] > 0


@pytest.mark.parametrize("aim", [None, "episode", "tool"])
def test_an_equal_text_of_another_user_takes_nothing_from_ones_own(aim: Aim | None) -> None:
    """Who asks for a purpose finds the own step of that purpose, whoever else says just that."""
    theirs = done("bob", 0, run="b", tool="fx")
    query = whole_text(theirs)
    mine = [done("ann", n, run=f"r{n}", tool="fx") for n in range(4)]
    mine[2].inputs = {"purpose": query, "tool": "fx", "arguments": {}}
    for stored in (mine, [*mine, theirs]):
        hits = answers(stored, query, {"user_id": "ann"}, aim)
        assert hits[0][:2] == ("ann2", 1.0)
        assert hits[1][1] < 1
    [(first, score, *_), *_] = answers([*mine, theirs], query, {"user_id": "bob"}, aim)
    assert (first, score) == ("bob0", 1.0)


def test_a_step_shown_as_text_is_ones_own_whoever_did_the_same() -> None:
    mine = [done("ann", n, run=f"r{n}", tool="fx") for n in range(4)]
    twin = mine[2].model_copy(update={"id": "twin", "user_id": "bob", "run_id": "b"})
    for stored in (mine, [*mine, twin]):
        hits = answers(stored, str(mine[2]), {"user_id": "ann"}, None)
        assert hits[0][:2] == ("ann2", 1.0)


@pytest.mark.parametrize("aim", AIMS)
def test_trial_runs_move_nothing_of_ones_own(aim: Aim | None) -> None:
    """Nor do others' trials: not even the frequencies of words know of them."""
    mine = [done("ann", n, run=f"r{n // 6}", tool=WORDS[n % 3], hop=n % 6) for n in range(12)]
    mine += [said("ann", n, session="s", hop=n) for n in range(20, 26)]
    trials = [
        step.model_copy(update={"id": f"t{step.id}", "run_id": f"t{step.run_id}", "scope": "trial"})
        for step in mine
    ]
    query = HERE if aim == "next" else QUERY
    alone = answers(mine, query, {}, aim)
    assert answers([*mine, *trials], query, {}, aim) == alone
    tried = answers([*mine, *trials], query, {"scope": "trial"}, aim)
    assert {name for name, *_ in tried} <= {str(step.id) for step in trials}


def append(memory: StepMemory, run: str, *texts: str) -> None:
    """Append questions and answers of a run to the one session."""
    messages = [
        {"role": ("user", "assistant")[n % 2], "content": text, "run_id": run}
        for n, text in enumerate(texts)
    ]
    asyncio.run(memory.repository().append("chat", messages))


def test_messages_of_another_user_in_ones_own_session_show_no_word() -> None:
    """A hit by their words, or a rank by the turns around it, would tell of them."""
    found: list[Answer] = []
    for others in ("the parrot squawks", "nothing of note"):
        with StepMemory(":memory:", embedder="hashing") as memory:
            memory.add([done(user, 0, run=f"r{user}", tool="fx") for user in ("ann", "bob")])
            for n in range(6):
                append(memory, "rann", f"is the {WORDS[n]} here?", f"no, the {WORDS[n + 1]} is")
                append(memory, "rbob", f"{others} {n}?", f"yes, {others} by {n}")
            asked = {"user_id": "ann", "kinds": ["message"]}
            assert memory.search("parrot squawks", where=asked, mode="lexical") == []
            found.append(answer(memory, "is the parcel at the desk?", asked, None))
    shown = [[(name, parts) for name, _, parts, _ in hits] for hits in found]
    assert len(shown[0]) == len(shown[1]) == 6
    for one, other in zip(*shown, strict=True):
        wide = {"wide", "session", "speaker"}
        assert {k: v for k, v in one[1].items() if k in wide} == {
            k: v for k, v in other[1].items() if k in wide
        }


@pytest.mark.parametrize("gone", ["revoke", "delete"])
@pytest.mark.parametrize("aim", AIMS)
def test_what_is_revoked_or_deleted_moves_nothing(aim: Aim | None, gone: str) -> None:
    """Nothing votes, stands around, or speaks for a tool that recall does not show."""
    mine = [done("ann", n, run=f"r{n // 6}", tool=WORDS[n % 3], hop=n % 6) for n in range(12)]
    mine += [said("ann", n, session="s", hop=n) for n in range(20, 26)]
    rest = [
        *(done("bob", n, run=f"q{n // 6}", tool=WORDS[n % 3], hop=n % 6) for n in range(12)),
        *(said("bob", n, session="s", hop=n, run="q") for n in range(20, 26)),
    ]
    query = HERE if aim == "next" else QUERY
    with StepMemory(":memory:", embedder="hashing") as memory:
        memory.add([*mine, *rest])
        memory.search(query, aim=aim)
        if gone == "revoke":
            memory.revoke({"user_id": "bob"})
        else:
            memory.delete([str(step.id) for step in rest])
        left = answer(memory, query, {}, aim)
        assert {name[:3] for name, *_ in left} == {"ann"}
        if gone == "revoke":  # of words, only their frequencies still know of them
            assert left == answer(memory, query, {"user_id": "ann"}, aim)
        else:
            assert left == answers(mine, query, {}, aim)
