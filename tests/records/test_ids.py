"""Ids that the library makes itself: unique, standard, and in the order they were made."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from hybridagi_steps.records.agent_step import AgentStep, AgentStepType, as_id
from hybridagi_steps.records.message import MessageRole, Step, new_id


def test_ids_say_when_they_were_made() -> None:
    before = time.time_ns() // 1_000_000
    made = new_id()
    after = time.time_ns() // 1_000_000
    assert (made.version, made.variant) == (7, "specified in RFC 4122")
    assert before <= made.int >> 80 <= after


def test_later_ids_sort_later() -> None:
    made: list[UUID] = []
    for _ in range(50):
        made.append(new_id())
        time.sleep(0.000_01)
    assert [str(each) for each in made] == sorted(str(each) for each in made)


def test_no_id_is_made_twice_by_threads() -> None:
    with ThreadPoolExecutor(8) as threads:
        parts = [threads.submit(_many) for _ in range(8)]
        made = [each for part in parts for each in part.result()]
    assert len(set(made)) == len(made) == 20_000


def _many() -> list[UUID]:
    return [new_id() for _ in range(2_500)]


def test_records_have_them() -> None:
    steps = [AgentStep(step_type=AgentStepType.Action) for _ in range(2)]
    said = Step(session_id="s", role=MessageRole.USER, content="hello")
    assert {step.id.version for step in steps if isinstance(step.id, UUID)} == {7}
    assert steps[0].id != steps[1].id
    assert UUID(said.id).version == 7


@given(st.uuids().map(str) | st.text("0123456789abcdefABF-{}_+urn:id", min_size=36, max_size=36))
def test_a_text_is_read_as_the_uuid_that_python_reads(text: str) -> None:
    try:
        expected = UUID(text)
    except ValueError:
        assert as_id(text) is text
        return
    found = as_id(text)
    assert isinstance(found, UUID)
    assert (found, hash(found), repr(found)) == (expected, hash(expected), repr(expected))
    assert found.is_safe is expected.is_safe
