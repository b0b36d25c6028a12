"""Times of messages in prompts: of what users said, counted, and only where they are asked for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from runner_cases import run

from hybridagi_steps import StepMemory, StepRunner, StepRunnerConfig
from hybridagi_steps.context import ContextBuilder
from hybridagi_steps.messages import from_messages
from hybridagi_steps.records.message import Step

BEGUN = datetime(2026, 3, 1, 23, 59, tzinfo=UTC)


def talk(turns: int = 2) -> list[Step]:
    """A conversation of a turn an hour."""
    said = [
        {"role": role, "content": f"{role} says {n}"}
        for n in range(turns)
        for role in ("user", "assistant")
    ]
    return [
        step.model_copy(update={"created_at": BEGUN + timedelta(hours=n // 2)})
        for n, step in enumerate(from_messages([*said, {"role": "user", "content": "And now?"}]))
    ]


def contents(messages: list[Any]) -> list[Any]:
    return [message["content"] for message in messages]


def test_users_messages_begin_with_their_minute() -> None:
    builder = ContextBuilder(message_times=True)
    assert contents(builder.build(steps=talk()).messages) == [
        "[2026-03-01 23:59 UTC] user says 0",
        "assistant says 0",
        "[2026-03-02 00:59 UTC] user says 1",
        "assistant says 1",
        "[2026-03-02 01:59 UTC] And now?",
    ]


def test_nothing_is_shown_unless_it_shall_be() -> None:
    assert contents(ContextBuilder().build(steps=talk()).messages)[0] == "user says 0"


def test_other_zones_are_told_in_utc_and_parts_get_a_part() -> None:
    there = BEGUN.astimezone(timezone(timedelta(hours=9)))
    parts = [
        {"type": "text", "text": "Look"},
        {"type": "image_url", "image_url": {"url": "https://example.org/seat.png"}},
    ]
    [asked] = from_messages([{"role": "user", "content": parts}])
    asked = asked.model_copy(update={"created_at": there})
    [shown] = contents(ContextBuilder(message_times=True).build(steps=[asked]).messages)
    assert shown == [{"type": "text", "text": "[2026-03-01 23:59 UTC]"}, *parts]
    assert asked.content == parts


@pytest.mark.parametrize("layout", ["recent", "cached"])
def test_they_count_in_the_budget(memory: StepMemory, layout: Any) -> None:
    memory.repository().store.commit("s", talk(40))
    plain = ContextBuilder(memory, 300, None, layout=layout)
    timed = ContextBuilder(memory, 300, None, layout=layout, message_times=True)
    for _again in range(2):  # what is kept of the one's counts is not taken for the other's
        lengths: list[int] = []
        for builder in (plain, timed):
            context = builder.build(session_id="s")
            counted = sum(builder._count.message(each) for each in context.messages)  # pyright: ignore[reportPrivateUsage]
            assert counted <= context.receipt.tokens <= 300
            lengths.append(len(context.steps))
        assert lengths[0] > lengths[1]


def test_neither_the_session_nor_what_is_expanded_is_changed(memory: StepMemory) -> None:
    memory.repository().store.commit("s", talk())
    ContextBuilder(memory, message_times=True).build(session_id="s")
    assert memory.repository().store.messages("s")[0].content == "user says 0"
    assert contents(ContextBuilder(memory).build(session_id="s").messages)[0] == "user says 0"


def test_what_is_no_message_has_no_time(memory: StepMemory) -> None:
    steps = talk(30)
    builder = ContextBuilder(memory, 400, 2, message_times=True)
    memory.repository().store.commit("s", steps)
    context = builder.build(session_id="s", query="user says 3")
    quoting = [step for step in context.steps if step.id == "recalled"]
    assert len(quoting) == 1
    assert not str(quoting[0].content).startswith("[2")


def test_a_runner_tells_the_times_of_earlier_messages(memory: StepMemory) -> None:
    memory.repository().store.commit("s", talk()[:2])
    given: list[list[Any]] = []

    def program(messages: list[Any]) -> str:
        given.append(contents(messages))
        return "Yes."

    for shown in (True, False):
        config = StepRunnerConfig(message_times=shown)
        run(StepRunner(program, memory, config=config), "s", "Hello?")
    assert given[0] == ["[2026-03-01 23:59 UTC] user says 0", "assistant says 0", "Hello?"]
    assert given[1] == ["user says 0", "assistant says 0", "Hello?", "Yes.", "Hello?"]
