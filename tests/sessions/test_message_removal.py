"""Hiding and erasing messages of sessions: whoever does it is told what became of them."""

from __future__ import annotations

import asyncio
import json
import pickle
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
            step_type=hs.AgentStepType.Action,
            inputs={"purpose": "look", "tool": "atlas", "arguments": {}},
            outputs={"result": "Lisbon"},
        )
    )
    [asked, answer] = append(
        memory, "chat", TALK[0], {**TALK[1], "metadata": {"agent_step_ids": ["looked"]}}
    )
    echo = {"purpose": "plan the holiday in Lisbon"}
    memory.add(
        hs.AgentStep(
            step_type=hs.AgentStepType.Action,
            inputs=echo,
            metadata={"recalled": [answer.id]},
            id="echo",
        )
    )
    done = memory.revoke({"tools": "atlas"})
    assert (done.matched, done.descended, done.messages) == (1, 1, 1)
    assert done.step_ids == ["looked", "echo"]
    assert done.message_ids == [answer.id]
    assert {str(hit.step.id) for hit in memory.search("Lisbon holiday", 9)} == {asked.id}
    memory.delete("looked")
    assert {str(hit.step.id) for hit in memory.search("Lisbon holiday", 9)} == {asked.id}


def test_a_session_of_which_everything_matches_is_erased(
    memory: hs.StepMemory, tmp_path: Path
) -> None:
    imported(memory, tmp_path)
    append(memory, "own", {"role": "user", "content": "Is Lisbon worth a holiday?"})
    erased = memory.purge({"sources": "talk.json"})
    assert erased == memory.purge({"sources": "talk.json"}) + erased
    assert (erased.messages_left, erased.sessions_left) == (0, ())
    assert found(memory) == {("own", "message")}
    summaries = asyncio.run(memory.repository().sessions())
    assert [summary.session_id for summary in summaries] == ["own"]
    assert memory.verify() == []


def test_messages_that_match_and_stay_are_told(memory: hs.StepMemory, tmp_path: Path) -> None:
    imported(memory, tmp_path)
    append(memory, "talk", {"role": "user", "content": "Was it hot?"})
    erased = memory.purge({"sources": "talk.json"})
    assert (erased.messages_left, erased.sessions_left) == (2, ("talk",))
    assert pickle.loads(pickle.dumps(erased)).messages_left == 2
    assert ("talk", "message") in found(memory)
    hidden = memory.revoke({"sources": "talk.json"})
    assert hidden.messages == 2
    assert found(memory, "Lisbon") == {("talk", "message")}, "the own question alone"
    assert memory.purge({"session_id": "talk"}) == 3
    assert found(memory, "Lisbon hot") == set()


def test_a_fork_that_reads_on_keeps_and_is_named(memory: hs.StepMemory, tmp_path: Path) -> None:
    imported(memory, tmp_path)
    asyncio.run(memory.repository().fork("talk", 2, "fork"))
    append(memory, "fork", {"role": "user", "content": "And then?"})
    erased = memory.purge({"sources": "talk.json"})
    assert (erased.messages_left, erased.sessions_left) == (2, ("fork",))
    assert [m.role for m in memory.repository().store.messages("fork")] == [
        "user",
        "assistant",
        "user",
    ]


def test_an_attempt_that_does_not_match_keeps_the_session(
    memory: hs.StepMemory, tmp_path: Path
) -> None:
    imported(memory, tmp_path)
    repo = memory.repository()
    append(memory, "talk", {"role": "user", "content": "Was it hot?"})
    asyncio.run(repo.delete_steps("talk", 3))
    erased = memory.purge({"sources": "talk.json"})
    assert (erased.messages_left, erased.sessions_left) == (2, ("talk",))
    memory.vacuum()
    assert memory.purge({"sources": "talk.json"}) == 2


def test_steps_that_do_not_match_keep_their_session(memory: hs.StepMemory, tmp_path: Path) -> None:
    imported(memory, tmp_path)
    memory.add(hs.AgentStep(step_type=hs.AgentStepType.Action, session_id="talk", id="noted"))
    assert memory.purge({"sources": "talk.json"}).messages_left == 2
    assert memory.exist("noted")


def test_a_run_keeps_its_messages_and_says_so(memory: hs.StepMemory) -> None:
    memory.add(hs.AgentStep(step_type=hs.AgentStepType.Action, run_id="r"))
    append(memory, "chat", *({**message, "run_id": "r"} for message in TALK))
    erased = memory.purge({"run_id": "r"})
    assert (erased, erased.messages_left, erased.sessions_left) == (1, 2, ("chat",))
    assert memory.purge({"tools": "atlas"}).messages_left == 0


def test_messages_that_only_their_run_says_whose_they_are_go_with_the_user(
    memory: hs.StepMemory,
) -> None:
    memory.add(hs.AgentStep(step_type=hs.AgentStepType.Action, run_id="r", user_id="ann"))
    append(memory, "chat", *({**message, "run_id": "r"} for message in TALK))
    asyncio.run(memory.repository().fork("chat", 2, "fork"))
    append(memory, "fork", {"role": "user", "content": "And then?"})
    assert [hit.kind for hit in memory.search("Lisbon", where={"user_id": "ann"})] == ["message"]
    erased = memory.purge({"user_id": "ann"})
    assert (erased, erased.messages_left) == (3, 0)
    assert [m.content for m in memory.repository().store.messages("fork")] == [
        "[erased]",
        "[erased]",
        "And then?",
    ]
