"""Long texts made short: in time that grows with their length, and word for word."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridagi_steps.records.excerpts import excerpt, identifiers, words

LONG_RUNS = ["x", "a.", "a/b-", "-", "中", "_", "é", "1", " ", "。", "#"]


@pytest.fixture
def no_collections() -> Iterator[None]:
    """Keep collections of all that other tests left behind out of what is timed."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize("piece", LONG_RUNS)
def test_a_long_run_takes_linear_time(piece: str) -> None:
    def seconds(length: int) -> float:
        text = piece * (length // len(piece))
        words.cache_clear()  # or the second time says nothing
        begin = time.process_time()
        identifiers(text)
        words(text)
        assert len(excerpt(text, 500, ["wanted"])) <= 500
        return time.process_time() - begin

    short, long = (min(seconds(length) for _ in range(3)) for length in (10_000, 100_000))
    assert long < 40 * short + 0.2  # were it quadratic: 100 times


def test_ids_and_numbers_are_found() -> None:
    text = "Seat 14C of RES-7731, see /var/log/a_1.txt or ana@x.org; not this-one, 2024-05-01."
    names = ["14C", "RES-7731", "/var/log/a_1.txt", "ana@x.org", "2024-05-01"]
    assert identifiers(text) == [name.removeprefix("/") for name in names]


@given(st.text("aB1_@#./:-, \n\x00"))
def test_a_text_in_ascii_names_what_it_names_beside_others(text: str) -> None:
    assert identifiers(text) == identifiers(f"{text} é")


@given(st.text("aB1_@#./:-, \n\x00…“\u0301\u200b🙂"))
def test_what_parts_words_changes_no_name_or_word(text: str) -> None:
    """Texts in which nothing else is not ASCII are read as such."""
    assert identifiers(f"{text} “") == identifiers(f"{text} é")
    found = words(f"{text} “")
    assert sorted((*found, "é")) == sorted(words(f"{text} é"))


@given(st.text("ab1 .\n,", min_size=200))
def test_what_is_kept_stands_in_the_text(text: str) -> None:
    for kept in excerpt(text, 120, ["a1"]).split("[…]"):
        assert kept.strip() in text


def test_a_gap_at_the_end_of_a_line_stands_on_a_line_of_its_own() -> None:
    lines = [f"Line {n} says nothing to anybody." for n in range(9)]
    lines[2] = lines[6] = "The zebra is number 7."
    text = excerpt("\n".join(lines), 100, ["zebra", "number"])
    assert text == f"{lines[0]}\n[…]\n{lines[2]}\n[…]\n{lines[6]}\n[…]"
    one_line = excerpt(" ".join(lines), 100, ["zebra", "number"])
    assert one_line == f"{lines[0]} […] {lines[2]} […] {lines[6]} […]"


def test_words_and_lines_stay_whole() -> None:
    words_of = [f"word{n}" for n in range(200)]
    text = "\n".join(" ".join(words_of[n : n + 50]) for n in range(0, 200, 50))
    assert excerpt(text, len(text)) == text
    assert set(excerpt(text, 600).replace("[…]", " ").split()) <= set(words_of)
