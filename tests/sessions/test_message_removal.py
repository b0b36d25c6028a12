"""Hiding and erasing messages of sessions: whoever does it is told what became of them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import hybridagi_steps as hs
from hybridagi_steps.exchange import import_file
from hybridagi_steps.records.message import Step

TALK = [
    {"role": "user", "content": "Where did Ann spend her holiday?"},
    {"role": "assistant", "content": "She went to Lisbon in May."},
]


def append(memory: hs.StepMemory, session: str, *messages: dict[str, Any] | Step) -> list[Step]:
    return asyncio.run(memory.repository().append(session, list(messages)))


def imported(memory: hs.StepMemory, folder: Path, name: str = "talk") -> None:
    file = folder / f"{name}.json"
    file.write_text(json.dumps({"messages": TALK}))
    import_file(memory, file, session_id=name)


def found(memory: hs.StepMemory, query: str = "Lisbon holiday") -> set[tuple[str | None, str]]:
    return {(hit.session_id, hit.kind) for hit in memory.search(query, 20)}


def test_a_revocation_counts_the_messages_that_it_hides(
    memory: hs.StepMemory, tmp_path: Path
) -> None:
    imported(memory, tmp_path)
    own = append(memory, "own", {"role": "user", "content": "Is Lisbon worth a holiday?"})
    tried = memory.revoke({"sources": "talk.json"}, dry_run=True)
    assert (tried.id, tried.messages) == (None, 2)
    assert ("talk", "message") in found(memory), "a dry run hides nothing"
    done = memory.revoke({"sources": "talk.json"})
    assert (done.matched, done.descended) == (tried.matched, tried.descended)
    assert sorted(done.message_ids) == sorted(tried.message_ids)
    assert not {*done.message_ids} & {message.id for message in own}
    assert {session for session, _ in found(memory)} == {"own"}
    [listed] = memory.revocations()
    assert (listed.messages, listed.message_ids) == (2, [])
    back = memory.reinstate(str(done.id))
    assert sorted(back.message_ids) == sorted(done.message_ids)
    assert back.messages == 0, "an undone one hides none"
    assert ("talk", "message") in found(memory)


def test_messages_alone_may_be_revoked(memory: hs.StepMemory) -> None:
    said = append(memory, "chat", *TALK)
    tried = memory.revoke({"session_id": "chat"}, dry_run=True)
    assert (tried.matched, tried.messages) == (0, 2)
    done = memory.revoke({"session_id": "chat"})
    assert done.id is not None
    assert sorted(done.message_ids) == sorted(message.id for message in said)
    assert found(memory) == set()


def test_a_message_that_shows_a_revoked_step_is_counted_and_so_is_who_recalled_it(
    memory: hs.StepMemory,
) -> None:
    memory.add(
        hs.AgentStep(
            id="looked",
            step_type="Action",
            inputs={"purpose": "look", "tool": "atlas", "arguments": {}},
            outputs={"result": "Lisbon"},
        )
    )
    [asked, answer] = append(
        memory, "chat", TALK[0], {**TALK[1], "metadata": {"agent_step_ids": ["looked"]}}
    )
    echo = {"purpose": "plan the holiday in Lisbon"}
    memory.add(
        hs.AgentStep(step_type="Action", inputs=echo, metadata={"recalled": [answer.id]}, id="echo")
    )
    done = memory.revoke({"tools": "atlas"})
    assert (done.matched, done.descended, done.messages) == (1, 1, 1)
    assert done.step_ids == ["looked", "echo"]
    assert done.message_ids == [answer.id]
    assert {str(hit.step.id) for hit in memory.search("Lisbon holiday", 9)} == {asked.id}
    memory.delete("looked")
    assert {str(hit.step.id) for hit in memory.search("Lisbon holiday", 9)} == {asked.id}
