"""The texts under which a step is found, and the words in them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridagi_steps.records.agent_step import AgentStep, AgentStepType
from hybridagi_steps.records.step_text import (
    cut,
    glimpse_text,
    own_text,
    stems_held,
    text_hash,
    tokens,
    whole_text,
    written_words,
)


def step(
    kind: str, inputs: dict[str, Any] | None, outputs: dict[str, Any] | None = None
) -> AgentStep:
    return AgentStep(step_type=AgentStepType(kind), inputs=inputs, outputs=outputs)


SEARCH = step(
    "Action",
    {
        "purpose": "find the\n refund  rule",
        "tool": "web_search",
        "arguments": {"q": "refund", "n": 3},
    },
    {"result": "within 30 days"},
)


@pytest.mark.parametrize(
    ("which", "text"),
    [
        (SEARCH, "find the refund rule | web search (q=refund, n=3) -> within 30 days"),
        (
            step("Action", {"purpose": "answer", "arguments": {"question": "why?"}}, {"a": "so"}),
            "answer | question=why? -> so",
        ),
        (
            step("Action", {"purpose": "answer"}, {"answer": "yes", "sure": True}),
            "answer |  -> answer=yes, sure=true",
        ),
        (
            step("Decision", {"purpose": "done?", "options": ["YES", "NO"]}, {"choice": "YES"}),
            'done? | ["YES","NO"] -> YES',
        ),
        (
            step("ProgramCall", {"program": "main_loop", "arguments": {"query": "hi"}}, None),
            "main loop (query=hi)",
        ),
        (
            step("ProgramCall", {"program": "desk", "purpose": "refund", "arguments": {"n": 1}}),
            "desk (n=1)",
        ),
        (step("ProgramCall", {"program": "desk", "purpose": "refund"}), "refund | desk ()"),
        (step("ProgramEnd", {"program": "main"}, {"answer": "bye"}), "main -> bye"),
        (
            step("ProgramEnd", {"program": "main", "purpose": "greet"}, {"answer": "bye"}),
            "greet | main -> bye",
        ),
    ],
)
def test_own_text_of_each_type(which: AgentStep, text: str) -> None:
    assert own_text(which) == text


def test_own_text_is_cut_part_by_part() -> None:
    long = step(
        "Action",
        {
            "purpose": "p" * 400,
            "tool": "t",
            "arguments": {f"k{n}": "v" * 100 for n in range(12)},
        },
        {"result": "r" * 400},
    )
    pairs = ", ".join(f"k{n}={'v' * 60}" for n in range(8))
    assert own_text(long) == f"{'p' * 300} | t ({pairs}) -> {'r' * 150}"


def test_the_window_shows_a_glimpse_of_the_parent() -> None:
    parent = step(
        "Action",
        {"purpose": "q" * 200, "tool": "look_up", "arguments": {"hidden": "x"}},
        {"result": "s" * 200},
    )
    assert (glimpse_text(parent) + own_text(SEARCH)) == (
        f"{'q' * 100} | look up -> {'s' * 80} || {own_text(SEARCH)}"
    )
    assert glimpse_text(None) + own_text(SEARCH) == own_text(SEARCH)


def test_neither_metadata_nor_vector_is_found() -> None:
    marked = SEARCH.model_copy(update={"metadata": {"secret": "swordfish"}, "vector": [1.0]})
    assert own_text(marked) == own_text(SEARCH)


@given(
    st.sampled_from(list(AgentStepType)),
    st.dictionaries(
        st.sampled_from(["purpose", "tool", "program", "arguments", "options"]),
        st.none() | st.text(max_size=20) | st.integers() | st.lists(st.integers()),
    ),
    st.none() | st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=3),
)
def test_every_step_has_both_texts_on_one_line(
    kind: AgentStepType, inputs: dict[str, Any], outputs: dict[str, Any] | None
) -> None:
    some = AgentStep(step_type=kind, inputs=inputs, outputs=outputs)
    for text in (own_text(some), (glimpse_text(some) + own_text(some))):
        assert "\n" not in text


def test_cut_collapses_white_space_first() -> None:
    assert cut("a \n\t b   c", 3) == "a b"
    assert cut(None, 9) == ""
    assert cut({"a": [1]}, 99) == '{"a":[1]}'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("getUserName", ["get", "user", "name"]),
        ("get_user_name", ["get", "user", "name"]),
        ("HTTPServer", ["http", "server"]),
        ("refunds refunded refunding", ["refund", "refund", "refund"]),
        ("the and of it", []),
        ("v2.1-rc3", ["v2", "1", "rc3"]),
        ("東京 tower", ["東", "京", "tower"]),
        ("café", ["café"]),
        ("Ann's refund", ["ann", "refund"]),
        ("", []),
    ],
)
def test_words_are_split_stemmed_and_freed_of_stop_words(text: str, expected: list[str]) -> None:
    assert tokens(text) == expected


def test_a_word_without_end_is_cut() -> None:
    assert max(map(len, tokens("x" * 10_000))) <= 64


@given(st.text("abXY12_- .\t\x1c", max_size=40), st.sampled_from([tokens, written_words]))
def test_words_of_ascii_are_those_of_any_text(text: str, words: Callable[[str], Any]) -> None:
    """ASCII is read by another way, to which a letter of another kind is the end."""
    assert [*words(text), "日"] == [*words(f"{text} 日")]


@given(st.text(max_size=60))
def test_hashes_are_blind_to_white_space_alone(text: str) -> None:
    assert text_hash(text) == text_hash(f" {' '.join(text.split())}\t")


@given(st.text(max_size=60))
def test_words_are_lower_case_and_hold_no_blank(text: str) -> None:
    for word in tokens(text):
        assert word
        assert not any(letter.isspace() for letter in word)


@given(
    st.lists(
        st.sampled_from(
            [
                "happy",
                "Happiness",
                "getUserName",
                "refunds",
                "退款",
                "fund",
                "réfund",
                "ys",
                "a",
                "y",
            ]
        )
    ),
    st.sampled_from(["", "Ann's ", "_", "x_", "é", "款"]),
)
def test_stems_are_held_that_are_tokens(words: list[str], between: str) -> None:
    text = between.join(f"{word} " for word in words)
    stems = {"happi", "get", "user", "name", "refund", "fund", "退", "y", "a", "款", "xyz"}
    assert stems_held(text, stems) == stems & set(tokens(text))


def test_the_hash_is_blind_to_case_and_white_space() -> None:
    assert text_hash("Find  the\nRule") == text_hash("find the rule")
    assert text_hash("find the rule") != text_hash("find the rules")
    assert -(2**63) <= text_hash("x") < 2**63


def test_calls_that_differ_in_purpose_alone_are_not_the_same() -> None:
    arguments = {"city": "Oslo"}
    calls = [
        step("ProgramCall", {"program": "desk", "purpose": purpose, "arguments": arguments})
        for purpose in ("refund the flight", "book a hotel")
    ]
    assert [whole_text(call) for call in calls] == [
        "refund the flight | desk (city=Oslo)",
        "book a hotel | desk (city=Oslo)",
    ]


def test_threads_that_stem_at_once_do_not_mix_their_words() -> None:
    def said(thread: int) -> str:
        return " ".join(f"x{thread}y{n}izations relationally hopefulness" for n in range(400))

    def stems(thread: int) -> list[str]:
        return tokens(said(thread))

    pause = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(stems, range(8)))
    finally:
        sys.setswitchinterval(pause)
    for thread, words in enumerate(found):
        assert words == [
            stem for n in range(400) for stem in (f"x{thread}y{n}iz", "relation", "hope")
        ]


def test_decisions_on_different_questions_say_different_things() -> None:
    asked = [
        AgentStep(
            step_type=AgentStepType.Decision,
            inputs={"purpose": "route", "options": ["a", "b"], "arguments": {"question": question}},
            outputs={"choice": "a"},
        )
        for question in ("where is my bag", "who has my seat")
    ]
    assert own_text(asked[0]) == 'route | ["a","b"] (question=where is my bag) -> a'
    assert whole_text(asked[0]) != whole_text(asked[1])


def test_inputs_of_a_predictor_are_longer_than_arguments_of_a_tool() -> None:
    kind = AgentStepType.Action
    inputs = {"purpose": "answer", "arguments": {"question": "word " * 100}}
    lengths = [
        len(own_text(AgentStep(step_type=kind, inputs=inputs, predictor=predictor)))
        for predictor in (None, "Agent.answer")
    ]
    assert lengths[1] - lengths[0] == 240


def test_the_first_stem_imports_no_language_but_english() -> None:
    script = (
        "import sys; from hybridagi_steps.records.step_text import tokens; tokens('relations');"
        "print([name for name in sys.modules if name.endswith('_stemmer')])"
    )
    names = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout
    assert names.count("_stemmer'") == 1, names
    assert "porter_stemmer" in names
