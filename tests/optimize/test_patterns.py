"""Loops, patterns over runs, and sequences that runs share."""

from __future__ import annotations

import re
from typing import Any

import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybridagi_steps as hs
from hybridagi_steps.errors import InvalidMemoryError, InvalidQueryError, InvalidSettingError
from hybridagi_steps.exchange.shipped_runs import shipped_steps
from hybridagi_steps.optimize.pattern_text import read_pattern
from hybridagi_steps.testing import scripted_lm


def call(
    tool: str, result: object = "ok", *, run: str = "r", hop: int = 0, **more: Any
) -> hs.AgentStep:
    arguments = more.pop("arguments", {"query": tool})
    return hs.AgentStep(
        step_type=hs.AgentStepType.Action,
        inputs={"tool": tool, "arguments": arguments, "purpose": more.pop("purpose", "")},
        outputs=None if result is None else {"result": result},
        run_id=run,
        hop=hop,
        **more,
    )


def memory_of(*runs: str, scores: tuple[float | None, ...] = ()) -> hs.StepMemory:
    """A memory with runs whose tools are the letters of a text; "!" is a step that failed."""
    memory = hs.StepMemory(":memory:", embedder="hashing")
    for number, tools in enumerate(runs):
        for hop, tool in enumerate(tools):
            kind: dict[str, Any] = {"status": "error"} if tool == "!" else {}
            memory.add(call("x" if tool == "!" else tool, run=f"r{number}", hop=hop, **kind))
    for number, score in enumerate(scores):
        if score is not None:
            memory.score(f"r{number}", score)
    return memory


def test_the_same_call_with_the_same_result_is_a_loop_wherever_it_stands() -> None:
    steps = [
        call("find", "3 hits  at 10:15", arguments={"a": 1, "b": 2}, hop=1),
        call("read", "text", hop=2),
        call("find", "4 hits at 11:20", arguments={"b": 2, "a": 1}, hop=3),
    ]
    [loop] = hs.find_loops(steps)
    assert (loop.kind, loop.calls, loop.times) == ("same result", ("find",), 2)
    assert loop.steps == (steps[0], steps[2])
    assert str(loop) == "find(a=1, b=2) gave the same result 2 times (steps 1, 3)"


def test_the_tool_that_closes_an_agent_is_seen() -> None:
    memory = hs.StepMemory(":memory:", embedder="hashing")

    def look_up(city: str) -> str:
        """Look a city up."""
        return "rain"

    agent = dspy.ReAct("question -> answer", tools=[look_up])
    turn = {
        "next_thought": "I look",
        "next_tool_name": "look_up",
        "next_tool_args": {"city": "Oslo"},
    }
    done: dict[str, Any] = {
        "next_thought": "done",
        "next_tool_name": "finish",
        "next_tool_args": {},
    }
    script: list[Any] = [turn, done, {"reasoning": "r", "answer": "rain"}]
    with dspy.context(lm=scripted_lm(script * 2)):
        for _ in range(2):
            with hs.record(memory) as run:
                agent(question="Rain in Oslo?")
            memory.score(run.id, 1.0)
    [found, _] = hs.find_runs(memory, "look_up -> finish")
    assert [step.tool for step in found.steps] == ["look_up", "finish"]
    [common] = hs.common_sequences(memory)
    assert common.calls == ("look_up", "finish")
    assert not hs.find_runs(memory, "finish", where={"tools": ["look_up"]})


def test_a_name_that_no_step_has_is_told(caplog: pytest.LogCaptureFixture) -> None:
    memory = hs.StepMemory(":memory:", embedder="hashing")
    memory.add([call("look_up", hop=0), call("assign", hop=1)])
    assert not hs.find_runs(memory, "assign -> look_up")
    assert not caplog.messages
    assert not hs.find_runs(memory, "Action -> lok_up | error")
    assert caplog.messages == [
        "find_runs: no step here has the tool, program or predictor 'lok_up'; near it are look_up."
    ]


def test_other_results_or_arguments_are_no_loop() -> None:
    assert not hs.find_loops([call("find", "a"), call("find", "b")])
    assert not hs.find_loops([call("find", arguments={"q": 1}), call("find", arguments={"q": 2})])
    assert not hs.find_loops([call("find", run="one"), call("find", run="two")])
    assert not hs.find_loops([call("find", None), call("find", None)])


def test_the_third_same_call_is_a_loop_whatever_came_of_it() -> None:
    steps = [call("find", result) for result in "abc"]
    [loop] = hs.find_loops(steps)
    assert (loop.kind, loop.times) == ("same call", 3)


def test_a_call_without_arguments_is_another_for_another_purpose() -> None:
    said = [
        call("respond", word, arguments={}, purpose=word) for word in ("hello", "thanks", "bye")
    ]
    assert not hs.find_loops(said)


@pytest.mark.parametrize("unit", ["ab", "abc"])
def test_a_sequence_that_follows_on_itself_is_a_loop(unit: str) -> None:
    steps = [call(tool, f"new {'i' * n}") for n, tool in enumerate(unit * 2)]
    [loop] = hs.find_loops(steps)
    assert (loop.kind, loop.calls, loop.times) == ("sequence", tuple(unit), 2)
    assert loop.steps == tuple(steps)


def test_a_tool_that_waits_may_be_called_again() -> None:
    steps = [call("sleep") for _ in range(5)]
    assert hs.find_loops(steps)
    assert not hs.find_loops(steps, waiting={"sleep"})


def test_real_runs_loop_where_agents_were_stuck() -> None:
    loops = [loop for loop in hs.find_loops(shipped_steps()) if loop.kind == "same result"]
    runs = {str(loop.steps[0].run_id) for loop in loops}
    assert {run.partition("-")[0] for run in runs} == {"toolbench", "whowhen", "sweagent"}
    assert "toolbench-G1-69" in runs  # asks a service again that refuses it
    assert "toolbench-G1-10" not in runs


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("a -> b", {0, 1}),
        ("a -> b -> error", {0}),
        ("a -> ... -> error", {0, 2}),
        ("a -> (b | c)+ -> error", {0, 2}),
        ("b | c -> error", {0, 2}),
        ("a -> b? -> error", {0}),
        ("a -> c* -> x", {2}),
        ("error -> a", set[int]()),
        ("`error`", set[int]()),
        ('"x"', {0, 2}),
        ("Action+ -> error", {0, 2}),
        ("Decision", set[int]()),
    ],
)
def test_runs_are_found_by_what_followed_what(pattern: str, found: set[int]) -> None:
    with memory_of("ab!", "ab", "acc!") as memory:
        assert {match.run_id for match in hs.find_runs(memory, pattern)} == {f"r{n}" for n in found}


def test_a_match_tells_where_it_is_and_how_the_run_ended() -> None:
    with memory_of("zabbz", scores=(0.25,)) as memory:
        [match] = hs.find_runs(memory, "a -> b+")
        assert [step.tool for step in match.steps] == ["a", "b", "b"]
        assert match.score == 0.25
        assert not hs.find_runs(memory, "a -> b+", where={"tools": "b"})


@given(
    st.recursive(
        st.sampled_from("abc"),
        lambda inner: st.one_of(
            st.tuples(inner, inner).map(lambda pair: f"({pair[0]}|{pair[1]})"),
            st.tuples(inner, inner).map(lambda pair: f"({pair[0]}>{pair[1]})"),
            st.tuples(inner, st.sampled_from("+*?")).map(lambda pair: f"({pair[0]}){pair[1]}"),
        ),
        max_leaves=5,
    ),
    st.text("abc", max_size=7),
)
def test_a_pattern_matches_what_the_regular_expression_of_its_letters_does(
    pattern: str, tools: str
) -> None:
    steps = [call(tool) for tool in tools]
    places = range(len(tools))
    expression = re.compile(pattern.replace(">", ""))
    longest = {
        begin: max(
            (
                end
                for end in range(begin + 1, len(tools) + 1)
                if expression.fullmatch(tools, begin, end)
            ),
            default=None,
        )
        for begin in places
    }
    wanted = next(((begin, end) for begin, end in longest.items() if end is not None), None)
    assert read_pattern(pattern.replace(">", " -> ")).first_in(steps) == wanted


def test_a_pattern_that_would_blow_up_a_regular_expression_does_not() -> None:
    steps = [call("a") for _ in range(2_000)]
    seen = 0

    def counted(state: Any) -> Any:
        wanted = state.wanted

        def look(step: hs.AgentStep) -> bool:
            nonlocal seen
            seen += 1
            return wanted(step)

        return look

    pattern = read_pattern("((a+)+)+ -> b")
    for state in pattern.states:
        if state.wanted is not None:
            state.wanted = counted(state)
    assert pattern.first_in(steps) is None
    assert seen <= 2 * len(steps)


@pytest.mark.parametrize(
    ("pattern", "place"),
    [
        ("a ->", "at the end"),
        ("a -> [b]", "at column 6"),
        ("+a", "at column 1"),
        ("(a", "at the end"),
        ("", "at the end"),
    ],
)
def test_what_does_not_parse_is_refused_with_the_place(pattern: str, place: str) -> None:
    with memory_of("a") as memory, pytest.raises(InvalidQueryError, match=place):
        hs.find_runs(memory, pattern)


def test_a_pattern_without_end_is_refused() -> None:
    with pytest.raises(InvalidQueryError, match="1,000"):
        read_pattern("a" * 1_001)
    with pytest.raises(InvalidMemoryError):
        hs.find_runs("steps.db", "a")  # pyright: ignore[reportArgumentType]


def test_sequences_that_good_runs_share() -> None:
    with memory_of("abcz", "yabc", "ab", "xy", "xy", scores=(1, 1, 0, 0, 0)) as memory:
        good = hs.common_sequences(memory)
        found = [(each.calls, each.run_ids, each.share) for each in good]
        assert (("a", "b", "c"), ("r0", "r1"), 1.0) in found
        bad = hs.common_sequences(memory, good=False)
        assert [each.calls for each in bad] == [("x", "y")]
        assert bad[0].share == 0.0
        every = hs.common_sequences(memory, n=(2, 2), good=None)
        assert every[0].calls == ("a", "b")
        assert every[0].share == pytest.approx(2 / 3)
        assert str(every[0]) == "a -> b: 3 runs, 67% of all such runs ended well"


@pytest.mark.parametrize("wrong", [(0, 2), (3, 2), (1.5, 2), (1, 2, 3), 5, None, "25"])
def test_lengths_that_mean_nothing_are_refused(wrong: Any) -> None:
    with memory_of("ab") as memory, pytest.raises(InvalidSettingError):
        hs.common_sequences(memory, n=wrong)


def test_trial_runs_are_left_out() -> None:
    with hs.StepMemory(":memory:", embedder="hashing") as memory:
        memory.add([call("a", run="trial", scope="evaluate:1"), call("a", run="own")])
        assert [match.run_id for match in hs.find_runs(memory, "a")] == ["own"]
        assert [m.run_id for m in hs.find_runs(memory, "a", where={"scope": "evaluate:1"})] == [
            "trial"
        ]
