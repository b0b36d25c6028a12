"""Messages of sessions are found like steps: whoever wrote them, once, and by nobody else."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dspy
import pytest
from runner_cases import answering
from runner_cases import run as run_turn

import hybridagi_steps as hs
from hybridagi_steps.errors import InvalidFilterError
from hybridagi_steps.exchange import import_file
from hybridagi_steps.records.agent_step import AgentStep
from hybridagi_steps.records.filters import StepHit
from hybridagi_steps.records.message import Step
from hybridagi_steps.testing import ScriptedLM

TALK = [
    ("Where did Ann spend her holiday?", "She went to Lisbon in May."),
    ("Which airline lost her suitcase?", "TAP lost it, and found it a week later."),
    ("How much was the hotel?", "Ninety euros a night, breakfast included."),
]
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "get_refund", "arguments": '{"n": 17}'},
}


def run(call: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(call)


def message(role: str, content: str | None, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **fields}


def talk(turns: Sequence[tuple[str, str]] = TALK) -> list[dict[str, Any]]:
    return [m for q, a in turns for m in (message("user", q), message("assistant", a))]


def append(memory: hs.StepMemory, session: str, *messages: dict[str, Any] | Step) -> list[Step]:
    return run(memory.repository().append(session, list(messages)))


def places(hits: Sequence[StepHit]) -> list[tuple[str, str | None, int | None]]:
    return [(hit.kind, hit.session_id, hit.sequence) for hit in hits]


def told(hits: Sequence[StepHit]) -> list[tuple[str, Any]]:
    return [(hit.step.purpose, hit.step.result) for hit in hits]


def written(memory: hs.StepMemory, folder: Path) -> None:
    append(memory, "talk", *talk())


def imported(memory: hs.StepMemory, folder: Path) -> None:
    file = folder / "talk.json"
    file.write_text(json.dumps({"messages": talk()}))
    import_file(memory, file, session_id="talk")


def recorded(memory: hs.StepMemory, folder: Path) -> None:
    runner = hs.StepRunner(dspy.Predict("question -> answer"), memory)
    for question, answer in TALK:
        run_turn(runner, "talk", question, answering(answer))


@pytest.mark.parametrize("came", [written, imported, recorded])
def test_a_chat_is_found_alike_however_it_came(
    memory: hs.StepMemory, came: Any, tmp_path: Path
) -> None:
    came(memory, tmp_path)
    for number, turn in enumerate(TALK, 1):
        for query in turn:
            hits = memory.search(query, 10)
            assert places(hits[:1]) == [("message", "talk", 2 * number)]
            assert told(hits[:1]) == [turn]
            said = [json.dumps([hit.step.inputs, hit.step.outputs]) for hit in hits]
            assert [len([s for s in said if answer in s]) for _, answer in TALK] == [1, 1, 1]
            assert len(hits) == 3


def test_both_kinds_are_found_unless_one_is_asked_for(memory: hs.StepMemory) -> None:
    append(memory, "chat", *talk(TALK[:1]))
    memory.add(
        hs.AgentStep(
            step_type=hs.AgentStepType.Action, inputs={"purpose": "book a flight to Lisbon"}
        )
    )
    assert {hit.kind for hit in memory.search("Lisbon")} == {"step", "message"}
    for kind in ("step", "message"):
        assert {hit.kind for hit in memory.search("Lisbon", where={"kinds": [kind]})} == {kind}
        assert {hit.kind for hit in memory.search("Lisbon", where={"kinds": kind})} == {kind}
    assert len(memory.search("Lisbon", where={"kinds": ["step", "message"]})) == 2
    with pytest.raises(InvalidFilterError, match="kinds"):
        memory.search("Lisbon", where={"kinds": ["photo"]})


def test_filters_that_only_steps_can_meet_find_no_message(memory: hs.StepMemory) -> None:
    append(memory, "chat", *talk(TALK[:1]))
    for where in ({"tools": ["x"]}, {"step_types": ["ProgramEnd"]}, {"program": "chat"}):
        assert memory.search("Lisbon", where=where) == []


def test_a_question_is_found_alone_and_then_with_its_answer(memory: hs.StepMemory) -> None:
    question, answer = TALK[0]
    append(memory, "chat", message("user", question))
    assert told(memory.search(question)) == [(question, None)]
    append(memory, "chat", message("assistant", answer))
    assert told(memory.search(question)) == [(question, answer)]
    run(memory.repository().delete_steps("chat", 2))
    assert told(memory.search(question)) == [(question, None)]
    append(memory, "chat", message("assistant", "In Porto."))
    assert told(memory.search("Ann holiday Lisbon Porto")) == [(question, "In Porto.")]


def test_a_tools_result_stands_with_its_call(memory: hs.StepMemory) -> None:
    append(
        memory,
        "chat",
        message("user", "Refund ticket 17, please."),
        message("assistant", None, tool_calls=[CALL]),
        message("tool", "42 euros are due", tool_call_id="c1", name="get_refund"),
        message("assistant", "You get 42 euros."),
    )
    [hit] = [hit for hit in memory.search("get_refund 17") if hit.step.tool]
    assert (hit.sequence, hit.step.tool, hit.step.arguments) == (3, "get_refund", {"n": 17})
    assert hit.step.result == "42 euros are due"
    assert sorted(hit.sequence or 0 for hit in memory.search("refund ticket 17", 9)) == [3, 4]


def test_a_speakers_name_and_the_day_are_found(memory: hs.StepMemory) -> None:
    made = datetime(2023, 5, 8, 14, tzinfo=UTC).isoformat()
    append(
        memory,
        "chat",
        message("user", "I adopted a dog.", name="melanie", created_at=made),
        message("assistant", "Lovely!", name="caroline", created_at=made),
        message("user", "What about lunch?"),
    )
    for query in ("Melanie", "caroline", "8 May 2023"):
        assert memory.search(query, 1)[0].sequence == 2


def test_a_long_answer_is_found_by_what_stands_in_its_middle(memory: hs.StepMemory) -> None:
    said = "It begins slowly. " * 20 + "Then comes the xylophone. " + "And it goes on. " * 20
    append(memory, "chat", message("user", "Tell me."), message("assistant", said))
    [hit] = memory.search("xylophone", mode="lexical")
    assert (hit.sequence, hit.step.result) == (2, said)


def test_forks_share_messages_and_a_hit_is_one(memory: hs.StepMemory) -> None:
    append(memory, "chat", *talk())
    fork = run(hs.fork_session("chat", 4, memory.repository()))
    append(memory, fork, message("user", "And the weather?"), message("assistant", "Windy."))
    assert places(memory.search("suitcase", 1)) == [("message", "chat", 4)]
    assert len(memory.search("suitcase airline", 10)) == 4
    hits = memory.search("suitcase weather", 10, where={"session_id": fork})
    assert {(hit.session_id, hit.sequence) for hit in hits} == {(fork, 2), (fork, 4), (fork, 6)}
    of_chat = memory.search("suitcase weather", 10, where={"session_id": "chat"})
    assert {hit.sequence for hit in of_chat} == {2, 4, 6}
    assert all(hit.session_id == "chat" for hit in of_chat)


def test_what_is_deleted_or_abandoned_is_gone_at_once(memory: hs.StepMemory) -> None:
    append(memory, "chat", *talk())
    assert memory.search("suitcase")[0].sequence == 4
    run(memory.repository().delete_steps("chat", 3))
    assert {hit.sequence for hit in memory.search("suitcase hotel", 9)} == {2}
    assert memory.search("suitcase", where={"scope": "abandoned"})[0].sequence == 4
    memory.purge({"session_id": "chat"})
    assert memory.search("suitcase holiday", where={"scope": "*"}) == []
    assert memory.verify() == []


def test_a_purged_users_words_go_from_windows_and_answers_too(memory: hs.StepMemory) -> None:
    runner = hs.StepRunner(dspy.Predict("question -> answer"), memory)
    ann, bob = hs.AgentSession("chat", "ann"), hs.AgentSession("chat", "bob", as_any_user=True)
    run_turn(runner, ann, "My password is swordfish.", answering("Noted, swordfish."))
    run_turn(runner, bob, "Is the weather fine?", answering("It is windy."))
    assert memory.search("swordfish", where={"user_id": "bob"}, mode="lexical") == []
    assert {h.sequence for h in memory.search("swordfish", where={"user_id": "ann"})} == {2}
    assert {h.sequence for h in memory.search("windy", where={"user_id": "bob"})} == {4}
    memory.purge({"user_id": "ann"})
    assert memory.search("swordfish", 9, mode="lexical", where={"scope": "*"}) == []
    assert memory.search("windy", where={"user_id": "bob"})[0].sequence == 4
    assert memory.verify() == []


def test_filters_by_run_time_and_metadata_hold_for_messages(memory: hs.StepMemory) -> None:
    early = datetime(2020, 1, 1, tzinfo=UTC)
    append(
        memory,
        "chat",
        Step(session_id="chat", role=hs.MessageRole.USER, content="Lisbon?", created_at=early),
        Step(
            session_id="chat",
            role=hs.MessageRole.ASSISTANT,
            content="Lisbon!",
            run_id="r1",
            metadata={"mood": "glad"},
        ),
    )
    assert memory.search("Lisbon", where={"run_id": "r1"})[0].sequence == 2
    assert memory.search("Lisbon", where={"run_id": "r2"}) == []
    assert [h.sequence for h in memory.search("Lisbon", where={"exclude_run_id": "r1"})] == [1]
    assert [h.sequence for h in memory.search("Lisbon", where={"until": "2021-01-01"})] == [1]
    assert [h.sequence for h in memory.search("Lisbon", where={"since": "2021-01-01"})] == [2]
    assert [h.sequence for h in memory.search("Lisbon", where={"metadata": {"mood": "glad"}})] == [
        2
    ]
    assert memory.search("Lisbon", where={"metadata": {"mood": "sad"}}) == []


def test_the_run_under_way_does_not_recall_its_own_question(memory: hs.StepMemory) -> None:
    append(memory, "old", message("user", "What is owl?"), message("assistant", "A bird."))
    found: list[list[str]] = []

    class Recalling(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.retrieve = hs.StepRetriever(memory, k=9, where={"user_id": None})
            self.answer = dspy.Predict("question -> answer")

        def forward(self, question: str) -> Any:
            found.append([str(step.result) for step in self.retrieve(question).steps])
            return self.answer(question=question)

    runner = hs.StepRunner(Recalling(), memory)
    run_turn(runner, "new", "What is owl?", answering("It flies."))
    assert found == [["A bird."]]
    hits = memory.search("owl", 9)
    assert not any((hit.step.program or "") == "StepRetriever" for hit in hits)
    assert sorted(str(hit.step.result) for hit in hits) == ["A bird.", "It flies."]


def test_what_is_revoked_is_not_found(memory: hs.StepMemory, tmp_path: Path) -> None:
    imported(memory, tmp_path)
    append(memory, "own", *talk([("Is Lisbon hot?", "In summer.")]))
    undo = memory.revoke({"sources": ["talk.json"]})
    assert {hit.session_id for hit in memory.search("Lisbon holiday hotel", 9)} == {"own"}
    assert memory.search("suitcase", where={"scope": "revoked"})[0].session_id == "talk"
    memory.reinstate(str(undo.id))
    assert memory.search("suitcase")[0].session_id == "talk"
    memory.revoke({"session_id": "own"})
    assert "own" not in {hit.session_id for hit in memory.search("Lisbon hot summer", 9)}


def test_an_answer_that_a_revoked_step_gave_is_not_found(memory: hs.StepMemory) -> None:
    recorded(memory, Path())
    run_id = memory.search("Lisbon", where={"kinds": ["step"]})[0].step.run_id
    memory.revoke({"run_id": run_id})
    assert "She went to Lisbon in May." not in {
        hit.step.result for hit in memory.search("Lisbon", 9)
    }


def test_redacted_words_are_in_no_index(address: str) -> None:
    def redact(text: str) -> str:
        return text.replace("swordfish", "[secret]")

    with hs.StepMemory(address, embedder="hashing", redact=redact) as memory:
        append(memory, "chat", message("user", "swordfish it is"), message("assistant", "Yes."))
        [hit] = memory.search("it is", 9)
        assert hit.step.purpose == "[secret] it is"


def test_summaries_and_empty_messages_say_nothing_of_their_own(memory: hs.StepMemory) -> None:
    append(
        memory,
        "chat",
        message("system", "Speak of Lisbon."),
        message("user", "Where is Lisbon?"),
        message("assistant", ""),
        message("user", "Lisbon was asked for.", metadata={"summary_of": ["x"]}),
    )
    assert [hit.sequence for hit in memory.search("Lisbon", 9)] == [2]


def test_hits_of_messages_are_shown_everywhere(memory: hs.StepMemory) -> None:
    append(memory, "chat", *talk(TALK[:1]))
    [hit] = memory.search("Lisbon")
    assert "Lisbon" in str(hit.shown()["step"])
    assert hit.model_dump(mode="json")["session_id"] == "chat"
    found = hs.StepRetriever(memory, k=1)("Lisbon")
    assert found.indices == [hit.step.id]
    assert any("Lisbon" in passage for passage in found.passages)
    for reranker in (hs.rerankers.Recency(), hs.rerankers.MaximalMarginalRelevance()):
        assert len(reranker.rerank("Lisbon", [hit])) == 1


@pytest.mark.parametrize("expand", ["parents", "following", "program"])
def test_what_stands_around_a_message_can_be_asked_for(memory: hs.StepMemory, expand: Any) -> None:
    append(memory, "chat", *talk())
    hit = memory.search("suitcase", 1, expand=expand)[0]
    answers = [step.result for step in hit.context]
    assert (
        answers
        == {
            "parents": [TALK[0][1]],
            "following": [TALK[2][1]],
            "program": [None, TALK[1][1]],  # the question, then its answer
        }[expand]
    )


def test_other_processes_find_what_is_written_and_lose_what_is_deleted(tmp_path: Path) -> None:
    with hs.StepMemory(tmp_path / "steps.db", embedder="hashing") as memory:
        append(memory, "chat", *talk())
        assert memory.search("suitcase")[0].sequence == 4
        code = (
            "import asyncio, sys, hybridagi_steps as hs\n"
            "m = hs.StepMemory(sys.argv[1]); r = m.repository()\n"
            "print([h.sequence for h in m.search('suitcase', 1)])\n"
            "asyncio.run(r.delete_steps('chat', 3))\n"
            "bought = {'role': 'user', 'content': 'Buy us some orange marmalade'}\n"
            "asyncio.run(r.append('chat', [bought]))\n"
        )
        args = [sys.executable, "-c", code, str(memory.address)]
        done = subprocess.run(args, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[4]"
        assert [hit.sequence for hit in memory.search("marmalade", 1)] == [3]
        assert 4 not in {hit.sequence for hit in memory.search("suitcase", 9)}


def test_a_new_message_reads_no_whole_session_again(
    memory: hs.StepMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(memory, "chat", *talk([(f"Question {n}?", f"Answer {n}.") for n in range(200)]))
    memory.search("Answer 7")
    from hybridagi_steps.stores.sql import message_units

    read: list[str] = []
    decode = message_units.decode_message

    def counting(written: Any, message_id: str, *place: Any) -> Step:
        read.append(message_id)
        return decode(written, message_id, *place)

    monkeypatch.setattr(message_units, "decode_message", counting)
    append(memory, "chat", message("user", "Please buy some orange marmalade for us"))
    assert memory.search("marmalade", 1)[0].sequence == 401
    assert len(read) < 60


def test_one_answer_given_six_times_is_one_hit(memory: hs.StepMemory) -> None:
    def search(query: str) -> str:
        """Search the library."""
        return "The fee is 42 euros."

    agent = hs.Recorded(dspy.ReAct("question -> answer", tools=[search], max_iters=3), memory)
    turn = [
        {"next_thought": "look", "next_tool_name": "search", "next_tool_args": {"query": "fee"}},
        {"next_thought": "done", "next_tool_name": "finish", "next_tool_args": {}},
        {"reasoning": "the library says so", "answer": "42 euros"},
    ]
    for _ in range(6):
        with dspy.context(lm=ScriptedLM(list(turn))):
            agent(question="What is the fee?")
    hits = memory.search("What is the fee?", 8)
    ends = [hit for hit in hits if "trajectory" in (hit.step.outputs or {})]
    assert len(ends) == 1
    assert ends[0].step.arguments == {"question": "What is the fee?"}
    answers = [hit for hit in hits if (hit.step.outputs or {}).get("answer")]
    assert len(answers) == 1
    assert not [hit for hit in hits if hit.step.step_type == "ProgramCall"]


def test_a_session_of_one_user_is_that_users_without_any_run(memory: hs.StepMemory) -> None:
    commit(memory, "A", "wombat 4711 noted", "ana")
    assert recalled(memory, "which wombat pin?") == []
    mine = {"kinds": "message", "user_id": "ana"}
    assert {hit.step.user_id for hit in memory.search("wombat", where=mine)} == {"ana"}
    for where in ({**mine, "user_id": "bob"}, {"kinds": "message", "trust": "own"}):
        assert memory.search("wombat", where=where) == []
    memory.purge({"user_id": "ana"})
    assert memory.search("wombat") == []


def test_a_session_of_several_users_is_nobodys_to_find(memory: hs.StepMemory) -> None:
    commit(memory, "A", "wombat 4711 noted", "ana")
    assert memory.search("wombat", where={"kinds": "message", "user_id": "ana"})
    memory.add(AgentStep(step_type=hs.AgentStepType.Action, user_id="bob", session_id="A"))
    assert recalled(memory, "which wombat pin?") == []
    for whose in ({"user_id": "ana"}, {"user_id": "bob"}, {"trust": "own"}):
        assert memory.search("wombat", where={"kinds": "message", **whose}) == []
    assert memory.search("wombat", where={"kinds": "message"})


def test_a_session_of_no_user_is_recalled_for_nobody(memory: hs.StepMemory) -> None:
    commit(memory, "A", "wombat 4711 noted", None)
    assert recalled(memory, "which wombat pin?") != []
    assert memory.search("wombat", where={"kinds": "message", "trust": "own"})


def test_what_a_fork_adds_is_of_the_user_whose_line_it_goes_on(memory: hs.StepMemory) -> None:
    commit(memory, "A", "wombat 4711 noted", "ana")
    run(memory.repository().fork("A", 2, "fork"))
    append(memory, "fork", *talk([("my quokka pin?", "quokka 4711 noted")]))
    assert recalled(memory, "which quokka pin?") == []
    assert memory.search("quokka", where={"kinds": "message", "user_id": "ana"})
    assert memory.search("quokka", where={"kinds": "message", "user_id": "bob"}) == []


def commit(memory: hs.StepMemory, session: str, answer: str, user: str | None) -> None:
    """Say something in a session whose only step, of no run, is of this user."""
    did = {"purpose": "note it", "tool": "note"}
    step = AgentStep(
        step_type=hs.AgentStepType.Action, inputs=did, user_id=user, session_id=session
    )
    said = talk([("remember my wombat pin", answer)])
    run(memory.repository().commit(session, said, [step]))


def recalled(memory: hs.StepMemory, question: str) -> list[str]:
    """Return the messages with a pin that somebody unknown is shown."""
    steps = hs.from_messages([message("user", question)])
    shown = hs.ContextBuilder(memory).build(steps=steps).messages
    return [text for text in map(str, shown) if "4711" in text]


@pytest.mark.parametrize("kinds", ["message", ["message"]])
def test_a_listing_of_steps_refuses_to_list_messages(memory: hs.StepMemory, kinds: Any) -> None:
    append(memory, "chat", *talk(TALK[:1]))
    for listed in (memory.find, memory.iter_steps):
        with pytest.raises(InvalidFilterError, match=r"memory\.search") as error:
            listed({"kinds": kinds})
        assert error.value.key == "kinds"
    assert memory.find({"kinds": ["message", "step"]}).steps == []
    assert memory.find({"kinds": []}).steps == []
