"""What a hit says and brings: where its words stand, and only steps that the search may show."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from hybridagi_steps import AgentStep, AgentStepType, MessageRole, Step, StepMemory
from hybridagi_steps.search.formulas import Mode


def action(name: str, purpose: str, result: str = "done", **fields: Any) -> AgentStep:
    return AgentStep(
        id=name,
        step_type=AgentStepType.Action,
        inputs={"purpose": purpose, "tool": f"tool_{name}"},
        outputs={"result": result},
        **fields,
    )


def line(*steps: AgentStep) -> list[AgentStep]:
    """Return steps linked one after the other."""
    for before, after in pairwise(steps):
        after.parent_id = before.id
    return list(steps)


def why(memory: StepMemory, query: Any, name: str, **asked: Any) -> str:
    [found] = [hit for hit in memory.search(query, **asked) if hit.step.id == name]
    return found.why


def context(memory: StepMemory, query: str, expand: Any, **where: Any) -> list[str]:
    [hit] = memory.search(query, k=1, expand=expand, where=where)
    return [str(step.id) for step in hit.context]


class TestParts:
    """`StepHit.parts`."""

    def test_a_hit_names_the_parts_of_its_score(self, memory: StepMemory) -> None:
        booking = action("a", "find the booking", "HAT042 of Ann")
        memory.add(line(booking, action("b", "give back the fare")))
        by_id = {hit.step.id: hit.parts for hit in memory.search("HAT042")}
        assert by_id["a"]["window"] == 1
        assert by_id["b"]["neighbour"] >= by_id["a"]["window"] * 0.6
        assert all(0 <= value <= 1 for parts in by_id.values() for value in parts.values())

    def test_one_half_has_its_part_alone(self, memory: StepMemory) -> None:
        memory.add(action("a", "find the booking", "HAT042 of Ann"))
        modes: tuple[Mode, ...] = ("lexical", "dense")
        [words], [meaning] = (memory.search("booking", mode=mode) for mode in modes)
        assert list(words.parts) == ["window"]
        assert list(meaning.parts) == ["meaning"]


class TestWhy:
    """`StepHit.why`."""

    def test_words_of_the_step_before_are_called_that(self, memory: StepMemory) -> None:
        booking = action("a", "find the booking", "HAT042 of Ann")
        memory.add(line(booking, action("b", "give back the fare")))
        asked = {"query": "fare of HAT042", "mode": "lexical"}
        assert why(memory, name="a", **asked) == "words: HAT042"
        assert why(memory, name="b", **asked) == "words: fare; words of the step before: HAT042"
        narrow = {"where": {"tools": "tool_b"}}
        assert why(memory, name="b", query="HAT042", mode="lexical", **narrow) == (
            "words of the step before: HAT042"
        )

    def test_a_word_far_behind_in_the_step_is_its_own(self, memory: StepMemory) -> None:
        far = action("b", "read the log", "x " * 2_000 + "E77123")
        memory.add(line(action("a", "open the log", "E77123"), far))
        assert why(memory, "E77123", "b", mode="lexical") == "words in result: E77123"

    def test_a_word_of_a_pair_is_shown_by_itself(self, memory: StepMemory) -> None:
        memory.add(action("a", "fly to Seattle"))
        for query in ("city=Seattle", "bySeattle", "not_to_Seattle"):
            assert why(memory, query, "a", mode="lexical") == "words: Seattle"

    def test_a_single_letter_is_better_than_no_reason(self, memory: StepMemory) -> None:
        memory.add([action("a", "plan b"), action("c", "feed cats")])
        assert why(memory, "vitamin B", "a", mode="lexical") == "words: B"
        assert why(memory, "B plans", "a", mode="lexical") == "words: plans"

    def test_a_step_as_query_always_says_why(self, memory: StepMemory) -> None:
        memory.add(line(action("a", "find Seattle"), action("b", "send"), action("c", "book")))
        memory.add(action("later", "send").model_copy(update={"inputs": {"purpose": "send"}}))
        asked = AgentStep(
            step_type=AgentStepType.Action,
            inputs={"purpose": "", "tool": "x", "arguments": {"city": "Seattle", "n": 5}},
        )
        for mode in ("lexical", "dense", "hybrid"):
            hits = memory.search(asked, k=9, mode=mode)
            assert all(hit.why for hit in hits), mode

    def test_a_reason_is_never_missing(
        self, memory: StepMemory, real_steps: list[AgentStep]
    ) -> None:
        memory.add(real_steps[:200])
        modes: list[Mode] = ["lexical", "dense", "hybrid"]
        for asked in real_steps[5:200:13]:
            for mode in modes:
                for query in (asked, asked.model_copy(update={"id": "new"}), asked.purpose or "x"):
                    assert all(hit.why for hit in memory.search(query, k=20, mode=mode))


class TestExpand:
    """`search(expand=…)`."""

    def test_the_steps_of_a_program_are_found_without_a_look_at_all_steps(
        self, memory: StepMemory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A store has no index of programs: each hit took a scan of the whole memory."""
        steps: list[AgentStep] = []
        for run in range(6):
            call = AgentStep(
                id=f"call{run}",
                step_type=AgentStepType.ProgramCall,
                inputs={"program": "desk"},
                run_id=f"run{run}",
            )
            within = {"run_id": f"run{run}", "program_id": f"call{run}"}
            steps.append(call)
            steps += [action(f"{run}-{n}", f"errand {n}", **within) for n in range(4)]
        steps.append(action("elsewhere", "errand of a colleague", program_id="call2"))
        steps.append(action("of Ann", "errand of Ann", program_id="call2", user_id="ann"))
        steps.append(action("trial", "errand tried", program_id="call2", scope="evaluate:x"))
        memory.add(steps)
        memory.search("errand", where={"program_id": "call5"})  # as that filter leaves it

        def refuse(*_: object, **__: object) -> None:
            raise AssertionError("asked the store for steps of a filter")

        store = memory.searcher._store  # pyright: ignore[reportPrivateUsage]
        for name in ("find", "rows"):
            monkeypatch.setattr(store, name, refuse)
        found = context(memory, "errand of a colleague", "program")
        assert found == ["call2", "2-0", "2-1", "2-2", "2-3", "elsewhere", "of Ann"]
        memory.delete("2-1")
        memory.add(action("later", "errand later", program_id="call2"))
        found = context(memory, "errand of a colleague", "program")
        assert found == ["call2", "2-0", "2-2", "2-3", "elsewhere", "of Ann", "later"]
        assert context(memory, "errand of Ann", "program", user_id="ann") == ["of Ann"]
        tried = context(memory, "errand tried", "program", scope="evaluate:x")
        assert tried == ["trial"]

    @pytest.fixture(params=[{"user_id": "bob"}, {"scope": "evaluate:x"}], ids=["user", "scope"])
    def other(self, request: pytest.FixtureRequest) -> dict[str, Any]:
        return request.param

    @pytest.fixture
    def mixed(self, memory: StepMemory, other: dict[str, Any]) -> StepMemory:
        """A run whose second and fourth step are another user's, or a trial's."""
        ana: dict[str, Any] = {"user_id": "ana"}
        call = AgentStep(
            id="call",
            step_type=AgentStepType.ProgramCall,
            inputs={"program": "desk"},
            run_id="r",
            **(ana | other),
        )
        owners = [ana, ana | other, ana, ana | other, ana]
        steps = [
            action(name, f"thing {name * 3}", run_id="r", hop=hop, program_id="call", **owner)
            for hop, (name, owner) in enumerate(zip("abcde", owners, strict=True), start=1)
        ]
        memory.add([call, *line(*steps)])
        return memory

    def test_only_steps_of_the_user_and_scope_come_along(self, mixed: StepMemory) -> None:
        asked = {"user_id": "ana"}
        assert context(mixed, "thing ccc", "parents", **asked) == ["a"]
        assert context(mixed, "thing ccc", "following", **asked) == ["e"]
        assert context(mixed, "thing ccc", "program", **asked) == ["a", "c", "e"]

    def test_a_run_without_programs_too(self, memory: StepMemory, other: dict[str, Any]) -> None:
        first = action("a", "thing aaa", run_id="r", user_id="ana")
        second = action("b", "thing bbb", run_id="r", hop=1, **({"user_id": "ana"} | other))
        memory.add([first, second])
        assert context(memory, "thing aaa", "program", user_id="ana") == ["a"]

    def test_whoever_asks_for_everything_gets_everything(self, mixed: StepMemory) -> None:
        assert context(mixed, "thing ccc", "parents", scope="*") == ["b", "a"]
        assert context(mixed, "thing ccc", "following", scope="*") == ["d", "e"]
        assert context(mixed, "thing ccc", "program", scope="*") == ["call", *"abcde"]

    def test_other_conditions_do_not_count(self, memory: StepMemory) -> None:
        memory.add(line(action("a", "thing aaa"), action("b", "thing bbb")))
        assert context(memory, "thing bbb", "parents", tools="tool_b") == ["a"]

    def test_a_trial_brings_its_own_steps(self, memory: StepMemory) -> None:
        trial: dict[str, Any] = {"scope": "evaluate:x"}
        steps = line(action("a", "thing aaa"), *(action(n, f"thing {n}", **trial) for n in "bc"))
        memory.add(steps)
        assert context(memory, "thing c", "parents", **trial) == ["b"]

    def test_steps_on_abandoned_branches_stay_behind(self, memory: StepMemory) -> None:
        repo = memory.repository()

        async def talk() -> None:
            for number, name in enumerate("abc", start=1):
                said = Step(session_id="s", role=MessageRole.USER, content="go", sequence=number)
                await repo.save_step(said)
                step = action(name, f"thing {name * 3}", session_id="s")
                step.parent_id = None if name == "a" else "a"
                memory.add(step)
            await repo.delete_steps("s", 3)

        asyncio.run(talk())
        assert context(memory, "thing aaa", "following") == []
        assert context(memory, "thing aaa", "following", scope="*") == ["b", "c"]
