"""Which option an answer means: whatever a model wraps it in, and never one that it did not say."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridagi_steps.graph.checks import label_key
from hybridagi_steps.graph.predictors import chosen, fallback_of, offered

_WORDS = st.text(string.ascii_uppercase, min_size=2, max_size=8)
_LABELS = st.lists(
    st.lists(_WORDS, min_size=1, max_size=3).map("_".join), min_size=2, max_size=6, unique=True
).filter(lambda labels: not {label_key(label) for label in labels} & {"answer", "choice"})


@given(st.data(), _LABELS)
def test_a_label_is_understood_however_it_is_written(
    data: st.DataObject, labels: list[str]
) -> None:
    label = data.draw(st.sampled_from(labels))
    words = label.split("_")
    form = data.draw(
        st.sampled_from(
            [
                label,
                label.lower(),
                " ".join(words),
                "-".join(words).title(),
                f'"{label}"',
                f"**{label}**.",
                f"`{label.lower()}`",
                f"Answer: {label}",
                f"  {label}\n",
            ]
        )
    )
    assert chosen(form, labels) == label


@given(st.text(max_size=80), _LABELS)
def test_an_answer_is_a_label_or_nothing(answer: str, labels: list[str]) -> None:
    found = chosen(answer, labels)
    assert found is None or found in labels


@given(_LABELS)
def test_an_answer_with_two_labels_means_nothing(labels: list[str]) -> None:
    first, second = labels[:2]
    if first not in second and second not in first:
        assert chosen(f"{first} or {second}", labels) is None


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("YES, there is no doubt", "YES"),
        ("No, YES is right", None),
        ("No idea", None),
        ("no.", "NO"),
        ("The answer is YES", "YES"),
        ("I first thought of it.\n\nYES - it is clear", "YES"),
        ("yesterday", None),
        ("not yes", None),
    ],
)
def test_yes_and_no_are_told_apart_from_prose(answer: str, expected: str | None) -> None:
    assert chosen(answer, ["YES", "NO"]) == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("1. Yes", "YES"),
        ("2) no", "NO"),
        ("(1) YES", "YES"),
        ("Option 1: YES", "YES"),
        ("Option 2: No, nothing is missing", "NO"),
        ("**Option 1:** Yes", "YES"),
        ("I would say YES", "YES"),
        ("I'd say no.", "NO"),
        ("I think the answer is yes.", "YES"),
        ("It is YES, since all is there", "YES"),
        ("Yes, but nothing is certain", "YES"),
        ("Yes, but I am not sure ... actually no", None),
        ("Yes, but … actually no", None),
        ("Yes. Actually, no.", None),
        ("No. On second thought, yes", None),
        ("Yes, no, wait", None),
        ("Yes\nno", None),
        ("yes - no", None),
        ("One might think yes, but the date is missing.\nNO", "NO"),
        ("I would not say YES", None),
        ("Option 1", None),
        ("1", None),
    ],
)
def test_what_stands_before_and_after_an_option_is_understood(
    answer: str, expected: str | None
) -> None:
    assert chosen(answer, ["YES", "NO"]) == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("I would say ASK_USER", "ASK_USER"),
        ("We should ask the user", "ASK_USER"),
        ("We should ask the user, because no date was given.", "ASK_USER"),
        ("Ask the user.", "ASK_USER"),
        ("I'd go with ask-user", "ASK_USER"),
        ("You should answer.", "ANSWER"),
        ("We should not ask the user", None),
        ("We should ask the user or answer", None),
        ("Ask the user. Or answer", None),
        ("Ask the user, but then answer", None),
        ("ASK_USER because answer quality matters", "ASK_USER"),
        ("The answer is to ask the user", None),
    ],
)
def test_an_option_is_understood_in_a_sentence(answer: str, expected: str | None) -> None:
    assert chosen(answer, ["ANSWER", "ASK_USER"]) == expected


def test_letters_numbers_and_signs_may_be_labels() -> None:
    assert chosen("B", ["A", "B"]) == "B"
    assert chosen("b)", ["A", "B"]) == "B"
    assert chosen("2", ["1", "2"]) == "2"
    assert chosen("**2.**", ["1", "2"]) == "2"
    assert chosen("+", ["+", "-"]) == "+"


def test_labels_of_other_scripts_are_understood() -> None:
    assert chosen("「是」", ["是", "否"]) == "是"
    assert chosen("Größer, weil es stimmt", ["GRÖSSER", "KLEINER"]) is None
    assert chosen("größer", ["GRÖẞER", "KLEINER"]) == "GRÖẞER"


def test_the_marks_of_other_scripts_are_pauses() -> None:
    for answer in ("はい、そうです", "はい。理由があります", "はい！", "はい：確認", "（はい）"):
        assert chosen(answer, ["はい", "いいえ"]) == "はい"
    assert chosen("是，因为很清楚", ["是", "否"]) == "是"
    assert chosen("はいではない", ["はい", "いいえ"]) is None
    assert chosen("はい、いいえ", ["はい", "いいえ"]) is None


def test_the_fallback_is_not_offered() -> None:
    assert offered(["A", "Otherwise", "B"]) == ["A", "B"]
    assert fallback_of(["A", "Otherwise"]) == "Otherwise"
    assert fallback_of(["A", "B"]) is None
