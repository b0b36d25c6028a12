"""Fields are read out of answers while these are written, whatever the pieces are."""

from __future__ import annotations

import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridagi_steps.running.model_events import AnswerListener, FieldReader, Voice

_TEXT = st.text(alphabet="ab [#]</>_\n", max_size=40)


def chat_reader() -> FieldReader:
    return reader(dspy.ChatAdapter())


def reader(adapter: object) -> FieldReader:
    """Return what reads the field `answer` while an adapter is in use."""
    listener = AnswerListener(Voice(object(), "answer"))
    with dspy.context(adapter=adapter):
        made = listener.reader()
    assert made is not None
    return made


def read(field: FieldReader, answer: str, length: int) -> list[str]:
    """Read an answer in pieces of one length."""
    pieces = [answer[start : start + length] for start in range(0, len(answer), length)]
    return [*map(field.grow, pieces), field.rest()]


@given(_TEXT.filter(lambda text: "[[ ##" not in text), st.integers(1, 9))
def test_a_field_of_a_chat_answer_is_what_stands_between_its_marks(text: str, length: int) -> None:
    answer = f"[[ ## reasoning ## ]]\nso\n\n[[ ## answer ## ]]\n{text}\n\n[[ ## completed ## ]]\n"
    assert "".join(read(chat_reader(), answer, length)) == text.strip()


@given(_TEXT.filter(lambda text: "</answer" not in text), st.integers(1, 9))
def test_a_field_of_an_xml_answer_is_what_stands_in_its_element(text: str, length: int) -> None:
    answer = f"<reasoning>so</reasoning>\n<answer>\n{text}\n</answer>\n"
    assert "".join(read(reader(dspy.XMLAdapter()), answer, length)) == text.strip()


@given(st.text(max_size=20), st.integers(1, 9))
def test_a_field_of_a_json_answer_is_the_text_it_means(text: str, length: int) -> None:
    import orjson

    answer = orjson.dumps({"reasoning": "so", "answer": text}).decode()
    assert "".join(read(reader(dspy.JSONAdapter()), answer, length)) == text


def test_an_answer_without_a_last_mark_is_read_to_its_end() -> None:
    shown = read(chat_reader(), "[[ ## answer ## ]]\nsee [[ the list ", 3)
    assert "".join(shown) == "see [[ the list"


def test_what_may_be_a_mark_waits_until_it_is_none() -> None:
    field = chat_reader()
    assert field.grow("[[ ## answer ## ]]\nsee [[ the") == "see"
    assert field.grow(" list ") == ""
    assert field.grow("]]!") == " [[ the list ]]!"


@pytest.mark.parametrize("blanks", [1, 10_000])
def test_blanks_wait_for_what_follows_them(blanks: int) -> None:
    field = chat_reader()
    assert field.grow("[[ ## answer ## ]]\none" + "\n" * blanks) == "one"
    assert field.grow("two") == "\n" * blanks + "two"
