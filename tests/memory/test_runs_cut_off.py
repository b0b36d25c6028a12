"""Runs that a kill cut off before their first step are listed: interrupted, and in their place."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hybridagi_steps import AgentStep, StepMemory
from hybridagi_steps.cli import main
from hybridagi_steps.records.agent_step import AgentStepType
from hybridagi_steps.records.message import MessageRole, Step

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


@pytest.fixture(params=["file", pytest.param("postgres", marks=pytest.mark.slow)])
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StepMemory]:
    """An empty memory."""
    place = str(tmp_path / "steps.db")
    if request.param == "postgres":
        place = request.getfixturevalue("postgres_address")
    with StepMemory(place, embedder="hashing") as opened:
        yield opened


def said(memory: StepMemory, run_id: str | None, hour: int, **fields: Any) -> None:
    """Store what a run was asked, in a session of its own."""
    role = fields.pop("role", MessageRole.USER)
    at = NOON + timedelta(hours=hour)
    message = Step(
        session_id=f"of {run_id} {hour}",
        role=role,
        content=f"question {run_id}",
        run_id=run_id,
        created_at=at,
        **fields,
    )
    memory.repository().store.commit(message.session_id or "", [message])


def stepped(memory: StepMemory, run_id: str, hour: int, **fields: Any) -> None:
    """Store a run of one step."""
    at = NOON + timedelta(hours=hour)
    step = AgentStep(step_type=AgentStepType.Action, run_id=run_id, created_at=at, **fields)
    memory.add(step)


def test_they_stand_among_the_others_by_their_time(memory: StepMemory) -> None:
    order = list(range(12))
    for hour in order:
        if hour % 3:
            stepped(memory, f"run {hour}", hour)
        else:
            said(memory, f"run {hour}", hour)
    expected = [f"run {hour}" for hour in reversed(order)]
    assert [run.run_id for run in memory.runs()] == expected
    for limit in range(1, 6):
        pages: list[str] = []
        offset: int | None = 0
        while offset is not None:
            page = memory.runs(limit=limit, offset=offset)
            pages += [run.run_id for run in page]
            offset = page.next_offset
        assert pages == expected, limit
    assert [*memory.runs(offset=12)] == []
    oldest = memory.runs()[-1]
    assert (oldest.status, oldest.steps, oldest.session_id) == ("interrupted", 0, "of run 0 0")
    assert oldest.title == "question run 0"
    assert oldest.started_at.startswith("2026-06-01T12:00")


def test_any_page_is_that_of_the_whole_list(memory: StepMemory) -> None:
    chance = random.Random(7)
    for hour in range(30):
        (said if chance.random() < 0.5 else stepped)(memory, f"run {hour}", hour)
    whole = [run.run_id for run in memory.runs(limit=100)]
    assert len(whole) == 30
    for _ in range(40):
        limit, offset = chance.randint(0, 12), chance.randint(0, 34)
        found = [run.run_id for run in memory.runs(limit=limit, offset=offset)]
        assert found == whole[offset : offset + limit], (limit, offset)


def test_what_ended_goes_on_or_is_not_asked_for_is_not_among_them(memory: StepMemory) -> None:
    said(memory, None, 0)
    said(memory, "ended", 1, role=MessageRole.ASSISTANT, metadata={"run": {"status": "completed"}})
    said(memory, "answered", 2, role=MessageRole.ASSISTANT)
    said(memory, "imported", 3, metadata={"source": {"kind": "import", "name": "f"}})
    said(memory, "stepped", 4)
    stepped(memory, "stepped", 5, session_id="of stepped 4")
    said(memory, "anns", 6, user_id="ann")
    said(memory, "bobs", 7, user_id="bob")

    def listed(**asked: Any) -> list[tuple[str, str]]:
        return [(run.run_id, run.status) for run in memory.runs(**asked)]

    assert listed() == [
        ("bobs", "interrupted"),
        ("anns", "interrupted"),
        ("stepped", "completed"),
    ]
    assert listed(user_id="ann") == [("anns", "interrupted")]
    assert listed(where={"session_id": "of bobs 7"}) == [("bobs", "interrupted")]
    assert listed(where={"run_id": "anns"}) == [("anns", "interrupted")]
    assert listed(where={"tools": ["search"]}) == []
    assert listed(scope="compile:1") == []
    memory.purge({"user_id": "ann"})
    assert ("anns", "interrupted") not in listed()


def test_the_command_line_and_the_server_list_them(
    memory: StepMemory, capsys: pytest.CaptureFixture[str]
) -> None:
    said(memory, "killed", 0)
    assert main(["runs", "--db", memory.whole_address]) == 0
    shown = capsys.readouterr().out
    assert "killed" in shown
    assert "interrupted" in shown
    pytest.importorskip("fastapi", reason="the extra server is not installed")
    from server_cases import serving

    with serving(memory) as served:
        [run] = served.client.get("/runs").json()["runs"]
        assert (run["run_id"], run["status"], run["steps"]) == ("killed", "interrupted", 0)
        assert served.client.get("/runs/killed").json()["run"]["status"] == "interrupted"
