"""The id that a message's hit shows names it wherever a step's id is read, and for nobody else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import hybridagi_steps as hs
from hybridagi_steps.cli.finding import find, lineage
from hybridagi_steps.errors import UnknownStepError
from hybridagi_steps.records.message import Step
from hybridagi_steps.server.views import Named, hits_for, named


def append(
    memory: hs.StepMemory, session: str, *said: tuple[str, str], **fields: Any
) -> list[Step]:
    messages = [{"role": role, "content": text, **fields} for role, text in said]
    return asyncio.run(memory.repository().append(session, messages))


def talk(memory: hs.StepMemory) -> list[Step]:
    return append(
        memory,
        "trip",
        ("user", "Which hotel did Ann like?"),
        ("assistant", "The one at the harbour of Lisbon."),
        ("user", "How much was the hotel?"),
        ("assistant", "Ninety euros, breakfast included."),
    )


def test_every_hit_is_found_again_by_its_id(memory: hs.StepMemory) -> None:
    talk(memory)
    for hit in memory.search("hotel in Lisbon", 9):
        told = named(memory, str(hit.step.id))
        assert told.step == hit.step
        assert told.place == (hit.session_id, hit.sequence)
        alike = hits_for(memory, 5, like=str(hit.step.id))
        assert alike
        assert hit.step.id not in [other.step.id for other in alike]


def test_a_message_is_got_by_its_id_as_a_hit_shows_it(memory: hs.StepMemory) -> None:
    stored = talk(memory)
    step = hs.AgentStep(step_type=hs.AgentStepType.Action, inputs={"purpose": "look"})
    memory.add(step)
    hits = {str(hit.step.id): hit.step for hit in memory.search("Lisbon", 9)}
    ids = [stored[1].id, step.id, "nobody's", stored[0].id]
    got = memory.get(ids).steps
    assert [str(one.id) for one in got] == [stored[1].id, str(step.id), stored[0].id]
    assert got[0] == hits[stored[1].id]
    assert memory.get_steps(ids) == [got[1]]
    assert not memory.exist(stored[1].id)
    memory.purge({"session_id": "trip"})
    assert memory.get([stored[1].id]).steps == []


def test_a_beginning_of_an_id_is_enough_on_the_command_line(memory: hs.StepMemory) -> None:
    message = Step(id="rare-0001", session_id="s", role=hs.MessageRole.USER, content="Where is it?")
    asyncio.run(memory.repository().append("s", [message]))
    memory.add(hs.AgentStep(id="rarest-1", step_type=hs.AgentStepType.Action))
    told = find(memory, "rare-0")
    assert isinstance(told, Named)
    assert told.place == ("s", 1)
    assert isinstance(step := find(memory, "rarest"), Named)
    assert step.place is None


def test_kin_of_a_message_are_those_of_its_session(memory: hs.StepMemory) -> None:
    asked, answer, _, last = talk(memory)
    parents, children = lineage(memory, named(memory, last.id))
    assert [str(step.id) for step in parents] == [answer.id]
    assert children == []
    _, children = lineage(memory, named(memory, answer.id))
    assert [str(step.id) for step in children] == [last.id]
    assert named(memory, asked.id).step.purpose == "Which hotel did Ann like?"


def test_nobody_learns_of_another_users_message(memory: hs.StepMemory) -> None:
    ann = append(memory, "ann", ("user", "The code is 4711."), run_id="r")
    nobody = append(memory, "nobody", ("user", "The code is 0815."))
    mixed = append(memory, "mixed", ("user", "The code is 1234."))
    run: dict[str, Any] = {"step_type": "Action", "run_id": "r"}
    memory.add(hs.AgentStep.model_validate({**run, "id": "hers", "user_id": "ann"}))
    for user in ("ann", "bob"):
        owned = {"step_type": "Action", "session_id": "mixed", "user_id": user}
        memory.add(hs.AgentStep.model_validate(owned))
    assert named(memory, ann[0].id, {"user_id": "ann"}).step.purpose == "The code is 4711."
    refused: list[tuple[str, dict[str, Any]]] = [
        (ann[0].id, {"user_id": "bob"}),
        (ann[0].id, {"trust": "own"}),
        ("hers", {"user_id": "bob"}),
        (nobody[0].id, {"user_id": "bob"}),
        (mixed[0].id, {"user_id": "bob"}),
        (mixed[0].id, {"user_id": "(several users)"}),
        ("never stored", {}),
    ]
    for step_id, where in refused:
        with pytest.raises(UnknownStepError) as error:
            hits_for(memory, 5, like=step_id, where=where)
        assert str(error.value).strip("\"'") == str(UnknownStepError(step_id)).strip("\"'")
    assert named(memory, ann[0].id).step.user_id == "ann", "who names no user sees everybody's"


@pytest.mark.parametrize("said", ["", "[erased]"])
def test_a_message_that_tells_nothing_is_named_by_no_id(memory: hs.StepMemory, said: str) -> None:
    [message] = append(memory, "s", ("user", said))
    with pytest.raises(UnknownStepError):
        named(memory, message.id)
