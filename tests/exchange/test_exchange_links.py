"""Links to parents: whatever a file says, going up from a step comes to an end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from exchange_shelf import unsourced
from exchange_talks import written
from hypothesis import given
from hypothesis import strategies as st

import hybridagi_steps as hs
from hybridagi_steps.exchange import import_file
from hybridagi_steps.exchange import importer as transfer
from hybridagi_steps.exchange.records import ParentLinks


def step(own: str, parent: str | None) -> dict[str, Any]:
    return {"id": own, "parent_id": parent, "step_type": "Action", "inputs": {"purpose": own}}


@pytest.mark.parametrize("batch", [1, 2, 500])
def test_links_in_a_circle_are_cut_with_a_note(
    memory: hs.StepMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    monkeypatch.setattr(transfer, "BATCH", batch)
    lines = [step("a", "c"), step("b", "a"), step("c", "b"), step("self", "self"), step("d", "no")]
    for _ in range(2):
        report = import_file(memory, written(tmp_path, *lines))
        assert report.skipped == []
        kept = {str(found.id): found.parent_id for found in memory.iter_steps()}
        assert kept == {"a": "c", "b": "a", "c": None, "self": None, "d": "no"}
        assert [str(found.id) for found in memory.parents("b").steps] == ["a", "c"]
    [cut] = memory.get_steps(["c"])
    assert unsourced(cut).metadata == {"repairs": ["parent_id: b cut, it led in a circle"]}


def test_what_was_cut_is_said_once(memory: hs.StepMemory, tmp_path: Path) -> None:
    path = written(tmp_path, step("a", "b"), step("b", "a"))
    notes = ("links to a parent cut, since they led in a circle: 1",)
    assert import_file(memory, path).notes == notes
    assert import_file(memory, path).notes == ()
    memory.delete("b")
    assert import_file(memory, path).notes == notes


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.none() | st.sampled_from("abcdef"))))
def test_no_order_of_steps_makes_a_circle(rows: list[tuple[str, str | None]]) -> None:
    stored: dict[str, hs.AgentStep] = {}
    links = ParentLinks(lambda ids: [stored[one] for one in ids if one in stored])
    for own, parent in rows:
        given_step = hs.AgentStep.model_validate(step(own, parent))
        there = {own: stored[own]} if own in stored else {}
        [sound] = links.sound([given_step], there)
        stored.setdefault(own, sound)
    for start in stored:
        here, passed = stored.get(start), set[str]()
        while here is not None:
            assert str(here.id) not in passed
            passed.add(str(here.id))
            here = stored.get(str(here.parent_id))
