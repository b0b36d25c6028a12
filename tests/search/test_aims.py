"""What a search is for: what was done next, which run it was, which tool can do it."""

from __future__ import annotations

from typing import Any

import pytest

from hybridagi_steps import (
    AgentStep,
    AgentStepList,
    AgentStepType,
    QueryList,
    QueryWithSteps,
    StepMemory,
    StepRetriever,
)
from hybridagi_steps.errors import InvalidQueryError
from hybridagi_steps.search.formulas import AIMS, DIALOGUE, PARTS, Aim, Mode


def run(name: str, *done: tuple[str, str, str], **fields: Any) -> list[AgentStep]:
    """Return the steps of one run, each made of a purpose, a tool and a result."""
    return [
        AgentStep(
            id=f"{name}{hop}",
            step_type=AgentStepType.Action,
            inputs={"purpose": purpose, "tool": tool, "arguments": {}},
            outputs={"result": result},
            run_id=name,
            hop=hop,
            **fields,
        )
        for hop, (purpose, tool, result) in enumerate(done)
    ]


def found(memory: StepMemory, query: Any, k: int = 5, **asked: Any) -> list[str]:
    return [str(hit.step.id) for hit in memory.search(query, k, **asked)]


LOOKED_UP = ("look up the order of the customer", "get_order", "order 17 has arrived broken")
DONE_BEFORE = [
    *run("a", LOOKED_UP, ("money goes to the card", "refund", "42 dollars")),
    *run("b", LOOKED_UP, ("the card gets its sum", "refund", "17 dollars")),
    *run("c", ("count the parcels", "count", "nine"), ("write the parcel list", "print", "ok")),
    *run("d", ("look up a broken order", "log", "the customer waits"), ("wait", "sleep", "ok")),
]


class TestNext:
    """`aim="next"`: what was done in a state like this one."""

    def test_finds_what_followed_states_like_this_one(self, memory: StepMemory) -> None:
        memory.add(DONE_BEFORE)
        [here] = run("now", LOOKED_UP)
        assert found(memory, here, 1) == ["b0"], "without an aim it is steps like this one"
        hits = memory.search(here, 6, aim="next")
        followed = [hit for hit in hits if hit.step.hop == 1]
        assert {str(hit.step.id) for hit in followed[:2]} == {"a1", "b1"}
        assert followed[0].parts["state_meaning"] == pytest.approx(1)
        assert followed[0].parts["state_words"] == 1
        assert "after a step with the words of this state" in followed[0].why
        assert "after a step like this state" in followed[0].why

    def test_steps_of_the_tool_that_the_best_ones_used_gain(self, memory: StepMemory) -> None:
        memory.add(DONE_BEFORE)
        [here] = run("now", LOOKED_UP)
        votes = {
            hit.step.tool: hit.parts["tool_vote"] for hit in memory.search(here, 8, aim="next")
        }
        assert max(votes.values()) == votes["refund"] == 1
        assert votes["refund"] > votes["log"] > votes["count"]

    def test_a_text_takes_its_state_from_the_steps_that_come_with_it(
        self, memory: StepMemory
    ) -> None:
        memory.add(DONE_BEFORE)
        queries = QueryList.model_validate({"queries": ["what about the customer?"]})
        asked = QueryWithSteps(queries=queries, steps=run("now", LOOKED_UP))
        followed = [name for name in found(memory, asked, 6, aim="next") if name.endswith("1")]
        assert set(followed[:2]) == {"a1", "b1"}
        retrieve = StepRetriever(memory, k=6, aim="next")
        assert isinstance(retrieve(asked).steps, list)
        ids = [str(step.id) for step in retrieve(asked).steps]
        assert set(ids) == set(found(memory, asked, 6, aim="next"))

    def test_a_text_in_a_list_with_steps_takes_its_state_from_the_last(
        self, memory: StepMemory
    ) -> None:
        memory.add(DONE_BEFORE)
        here, text = run("now", LOOKED_UP)[-1], "what about the customer?"
        for listed in ([here, text], [text, here], [DONE_BEFORE[-1], text, here]):
            hits = memory.search(listed, 6, aim="next")
            ids = [str(hit.step.id) for hit in hits if str(hit.step.id).endswith("1")]
            assert {"a1", "b1"} <= set(ids)

    @pytest.mark.parametrize("query", ["what now?", QueryWithSteps(), AgentStepList(steps=[])])
    def test_without_a_step_it_is_refused_with_the_way_out(
        self, memory: StepMemory, query: Any
    ) -> None:
        memory.add(DONE_BEFORE)
        with pytest.raises(InvalidQueryError, match=r"QueryWithSteps|empty|a query is"):
            memory.search(query, aim="next")

    def test_naming_the_wanted_tools_leaves_the_states_before_them_in_sight(
        self, memory: StepMemory
    ) -> None:
        memory.add(DONE_BEFORE)
        [here] = run("now", LOOKED_UP)
        tools = ["refund", "print", "sleep"]
        hits = memory.search(here, 5, aim="next", where={"tools": tools})
        every = memory.search(here, 50, aim="next")
        assert [(h.step.id, h.score) for h in hits] == [
            (h.step.id, h.score) for h in every if h.step.tool in tools
        ]
        assert [hit.parts["state_words"] for hit in hits[:2]] == [1, 1]

    def test_a_fence_hides_the_states_before(self, memory: StepMemory) -> None:
        memory.add(run("a", LOOKED_UP, user_id="bob"))
        refund = run("a", LOOKED_UP, ("money goes to the card", "refund", "42"), user_id="ann")[1]
        memory.add([refund])
        [here] = run("now", LOOKED_UP)
        where = {"user_id": "ann", "tools": ["refund"]}
        [hit] = memory.search(here, aim="next", where=where)
        assert hit.parts["state_words"] == hit.parts["state_meaning"] == 0


class TestEpisode:
    """`aim="episode"`: the run that did this."""

    def test_other_steps_of_the_best_run_come_before_strangers(self, memory: StepMemory) -> None:
        case = run(
            "case",
            ("find the flight to Oslo of Ann", "find", "SK 4711"),
            ("read the rules", "rules", "no changes"),
            ("ask a colleague", "ask", "try the desk"),
            ("tell Ann about the flight to Oslo", "say", "told"),
        )
        others = [step for n in range(12) for step in run(f"x{n}", ("read the desk", "do", str(n)))]
        memory.add([*case, *others])
        assert set(found(memory, "flight to Oslo of Ann", 4, aim="episode")) == {
            "case0",
            "case1",
            "case2",
            "case3",
        }
        hits = memory.search("flight to Oslo of Ann", 4, aim="episode")
        assert {hit.parts["run_vote"] for hit in hits} == {1.0}
        assert "the run of the best matches" in hits[-1].why
        named = memory.search("flight to Oslo of Ann", 4, aim="episode", where={"tools": "rules"})
        assert [(str(hit.step.id), hit.parts["run_vote"]) for hit in named] == [("case1", 1.0)]


class TestTool:
    """`aim="tool"`: which tool can do this."""

    def test_words_of_other_steps_of_a_tool_speak_for_it(self, memory: StepMemory) -> None:
        memory.add(
            [
                *run("a", ("convert euros into dollars", "fx", "1.1")),
                *run("b", ("turn euros into yen by the rate of today", "fx", "160")),
                *run("c", ("what is worth more", "fx", "both")),
                *run("d", ("what is worth more", "guess", "neither")),
            ]
        )
        query = "rate of euros: what is worth more?"
        by_tool = {h.step.tool: h.parts["tool_words"] for h in memory.search(query, 4, aim="tool")}
        assert by_tool["fx"] == 1 > by_tool["guess"]
        ranks = found(memory, query, 4, aim="tool")
        assert ranks.index("c0") < ranks.index("d0")


class TestAnyAim:
    """What holds whatever is asked for."""

    def test_an_unknown_aim_is_refused(self, memory: StepMemory) -> None:
        memory.add(DONE_BEFORE)
        with pytest.raises(InvalidQueryError, match="next, episode, tool"):
            memory.search("order", aim="best")  # type: ignore[arg-type]
        with pytest.raises(InvalidQueryError, match="next, episode, tool"):
            StepRetriever(memory, aim="best")  # type: ignore[arg-type]

    @pytest.mark.parametrize("aim", AIMS)
    @pytest.mark.parametrize("mode", ["hybrid", "dense", "lexical"])
    def test_scores_are_shares_and_an_equal_step_is_first(
        self, memory: StepMemory, mode: Mode, aim: Aim | None
    ) -> None:
        memory.add(DONE_BEFORE)
        hits = memory.search(DONE_BEFORE[3], 8, mode=mode, aim=aim)
        assert hits[0].step.id == "b1"
        assert hits[0].score == 1
        assert all(0 < hit.score <= 1 for hit in hits)
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        for hit in hits:
            assert hit.parts.keys() <= PARTS.keys()
            assert all(0 <= value <= 1 for value in hit.parts.values())
        assert hits == memory.search(DONE_BEFORE[3], 8, mode=mode, aim=aim)

    def test_every_part_of_every_formula_is_explained(self) -> None:
        formulas = [*AIMS.values(), DIALOGUE]
        named = {name for formula in formulas for name in (*formula.weights, *formula.votes)}
        assert named | {"neighbour"} == PARTS.keys()

    @pytest.mark.parametrize("aim", AIMS)
    def test_nothing_of_another_user_counts(self, aim: Aim | None) -> None:
        """Votes, tools, states and neighbours are those of the user asked for."""
        mine = [step.model_copy(update={"user_id": "ann"}) for step in DONE_BEFORE]
        theirs = [
            step.model_copy(
                update={"id": f"x{step.id}", "run_id": f"x{step.run_id}", "user_id": "bob"}
            )
            for step in DONE_BEFORE
        ]
        [here] = run("now", LOOKED_UP)
        parts: list[dict[str, dict[str, float]]] = []
        for stored in (mine, [*mine, *theirs]):
            with StepMemory(":memory:", embedder="hashing") as memory:
                memory.add(stored)
                hits = memory.search(here, 8, aim=aim, where={"user_id": "ann"})
                parts.append({str(hit.step.id): hit.parts for hit in hits})
        alone, beside = parts
        assert alone.keys() == beside.keys()
        for name, values in alone.items():
            for part in {
                "tool_words",
                "phrases",
                "pieces",
                "meaning",
                "state_meaning",
            } & values.keys():
                assert values[part] == pytest.approx(beside[name][part], abs=1e-3), part
